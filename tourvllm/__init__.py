"""tourvllm: step through a real paged-attention engine, forwards and backwards, in the terminal."""

__version__ = "0.1.0"
