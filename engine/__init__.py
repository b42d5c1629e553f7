"""The engine: continuous batching over a paged KV cache, written to be read.

Read in this order: `sequence` (a request), `block_manager` (who owns which block), `scheduler` (who runs in this
step), `model_runner` (one forward pass over a flat batch), `llm_engine` (the loop). The names are those of
nano-vllm and vLLM. The engine knows nothing of tours: it calls the probe that it was given, or none.
"""
