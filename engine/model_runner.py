"""One step of the model: from the chosen requests to their next tokens, in one forward pass."""

from pathlib import Path

import torch

from ..kernels import Backend, get_backend
from .config import DTYPES, EngineConfig
from .cuda_graphs import DecodeGraphs, batch_sizes, table_width, why_not
from .errors import ConfigError
from .loader import Progress, load_decoder
from .model import Batch, ModelConfig
from .probe import Probe
from .sampler import sample, top_logprobs
from .sequence import Sequence


class ModelRunner:
    """Holds the model and the paged KV cache; lays a step's requests out as one flat batch."""

    def __init__(
        self,
        folder: Path,
        model_config: ModelConfig,
        config: EngineConfig,
        progress: Progress | None = None,
    ) -> None:
        self.block_size = config.block_size
        self.device = _choose_device(config.device)
        self.model_config = model_config
        dtype = _choose_dtype(config.dtype, self.device, self.model_config)
        backend = _choose_backend(config, self.device, dtype, model_config.head_dim)
        self.model = load_decoder(folder, model_config, dtype, self.device, backend, progress)
        self.kv_cache = self._allocate_kv_cache(config.num_blocks)
        self.no_graphs_because = why_not(config.cuda_graphs, self.device, backend)
        self.graphs = None if self.no_graphs_because else self._capture_graphs(config)
        self.probe: Probe | None = None

    def _allocate_kv_cache(self, num_blocks: int) -> torch.Tensor:
        """The pool, [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]; 2 is key and value."""
        c = self.model_config
        shape = (
            c.num_hidden_layers,
            2,
            num_blocks,
            self.block_size,
            c.num_key_value_heads,
            c.head_dim,
        )
        try:
            # Not zeroed: only slots that were written are read, and a pool may be larger than what is used of it.
            return torch.empty(shape, dtype=self.model.dtype, device=self.device)
        except (RuntimeError, MemoryError) as error:
            size = torch.Size(shape).numel() * self.model.dtype.itemsize
            raise ConfigError(
                "num_blocks",
                f"a KV cache of {size / 2**30:,.1f} GiB cannot be had on {self.device}: {error}",
            ) from error

    @torch.inference_mode()
    def _capture_graphs(self, config: EngineConfig) -> DecodeGraphs:
        """Capture the decode of a few batch sizes. Raises ConfigError where that cannot be done."""
        longest = self.model_config.max_position_embeddings
        longest = min(config.max_model_len or longest, longest)
        # A request that decodes owns a block, and a token of the budget.
        most = min(config.max_num_seqs, config.num_blocks, config.max_num_batched_tokens)
        width = table_width(longest, self.block_size, config.num_blocks)
        try:
            return DecodeGraphs(self.model, self.kv_cache, batch_sizes(most), width)
        except RuntimeError as error:
            raise ConfigError(
                "cuda_graphs", f"decodes cannot be captured (set it to false): {error}"
            ) from error

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], is_prefill: bool) -> list[int | None]:
        """Compute the scheduled tokens of `seqs`; the next token of each, None where the prompt is not done."""
        batch = self.prepare_prefill(seqs) if is_prefill else self.prepare_decode(seqs)
        logits = self._compute(batch)
        done = [seq for seq in seqs if seq.num_cached_tokens + seq.num_scheduled_tokens == len(seq)]
        sampled = sample(logits, done)
        if self.probe:
            self.probe("sample", seqs=done, token_ids=sampled)
        for seq, logprobs in zip(done, top_logprobs(logits, done, sampled), strict=True):
            if logprobs is not None:
                seq.logprobs.append(logprobs)
        token_of = dict(zip((seq.seq_id for seq in done), sampled, strict=True))
        return [token_of.get(seq.seq_id) for seq in seqs]

    def _compute(self, batch: Batch) -> torch.Tensor:
        """Logits of the wanted rows: a graph replayed where one fits, else the pass operation by operation."""
        if self.graphs and self.graphs.takes(batch):
            logits = self.graphs.replay(batch)
            self.model.tell_layers(batch)
            return logits
        return self.model.forward(batch, self.kv_cache)

    def prepare_prefill(self, seqs: list[Sequence]) -> Batch:
        """Flatten the scheduled piece of each prompt into one row, with positions and KV slots."""
        batch = self._flatten(seqs)
        if self.probe:
            self.probe("prepare_prefill", seqs=seqs, batch=batch)
        return batch

    def prepare_decode(self, seqs: list[Sequence]) -> Batch:
        """The last token of each sequence in one row, with positions and KV slots."""
        batch = self._flatten(seqs)
        if self.probe:
            self.probe("prepare_decode", seqs=seqs, batch=batch)
        return batch

    def _flatten(self, seqs: list[Sequence]) -> Batch:
        batch = Batch([], [], [], [0], [0], [], [], [])
        for seq in seqs:
            start = seq.num_cached_tokens
            end = start + seq.num_scheduled_tokens
            batch.input_ids += seq.token_ids[start:end]
            batch.positions += range(start, end)
            batch.slot_mapping += [
                seq.block_table[position // self.block_size] * self.block_size
                + position % self.block_size
                for position in range(start, end)
            ]
            batch.cu_seqlens_q.append(batch.cu_seqlens_q[-1] + end - start)
            batch.cu_seqlens_k.append(batch.cu_seqlens_k[-1] + end)
            batch.context_lens.append(end)
            batch.block_tables.append(list(seq.block_table))
            if end == len(seq):
                batch.logits_rows.append(batch.cu_seqlens_q[-1] - 1)
        return batch


def _choose_backend(config: EngineConfig, device: str, dtype: str, head_dim: int) -> Backend:
    try:
        return get_backend(config.attention, device, config.block_size, dtype, head_dim)
    except ValueError as error:
        raise ConfigError("attention", str(error)) from error


def _choose_dtype(name: str, device: str, model: ModelConfig) -> str:
    if name != "auto":
        return name
    return "float32" if device == "cpu" or model.dtype not in DTYPES else model.dtype


def _choose_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "device", f"{name} was asked for, and this machine has no usable CUDA device"
        )
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", f"{name} cannot be used: {error}") from error
    if name.startswith("cuda:"):
        torch.cuda.set_device(name)  # Triton and graph capture work on the current device.
    return name
