"""Decodes as CUDA graphs: a step is launched as one piece, not as the hundreds of kernels that it is made of.

A graph repeats the same kernels over the same memory, so there is one for each of a few batch sizes, over inputs
that stay where they are. A smaller batch is filled up with padding rows: slot -1 writes nothing, a context of 0
reads nothing. Block tables are as wide as the longest request's; what a longer one has left behind is cleared.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kernels import Backend
from ..kernels.paged_batch import PagedBatch
from .model import Batch, Decoder, Inputs

LARGEST = 512
"""Rows of the largest batch that is captured; larger ones keep a GPU busy without a graph."""

Captured = tuple[Callable[[], Any], Tensor]
"""What replays a pass, and the logits that it leaves, in the same place each time."""


def why_not(wanted: bool, device: str, backend: Backend) -> str | None:
    """Why decodes are not captured, or None if they can be."""
    if not device.startswith("cuda"):
        return f"the device is {device}, and they are CUDA's"
    if not wanted:
        return "cuda_graphs is false"
    if not backend.capturable:
        return f"the kernels {backend.name} wait for the device: triton's do not"
    return None


def batch_sizes(most: int) -> list[int]:
    """The sizes to capture for batches of up to `most` rows: powers of two, and the largest batch itself."""
    largest = min(most, LARGEST)
    return [1 << i for i in range((largest - 1).bit_length())] + [largest]


def table_width(max_model_len: int, block_size: int, num_blocks: int) -> int:
    """Blocks of the longest table that a request can have, prompt and output."""
    return min(-(-max_model_len // block_size), num_blocks)


def padding(size: int, width: int, block_size: int, device: torch.device) -> Inputs:
    """A decode of `size` padding rows with tables of `width` blocks.

    Its longest context is the longest that fits the table: kernels choose their launches by it, and a graph keeps
    the ones that it was captured with.
    """
    rows = torch.arange(size + 1, device=device)
    zeros = torch.zeros(size, dtype=torch.int64, device=device)
    paged = PagedBatch(
        slot_mapping=zeros - 1,
        cu_seqlens_q=rows.int(),
        context_lens=zeros.int(),
        block_tables=torch.zeros(size, width, dtype=torch.int32, device=device),
        max_seqlen_q=1,
        max_seqlen_k=width * block_size,
        host_cu_seqlens_q=list(range(size + 1)),
        host_context_lens=[0] * size,
        has_padding=True,
    )
    return Inputs(zeros.clone(), zeros.clone(), rows[:size].clone(), paged)


def fill(static: Inputs, inputs: Inputs) -> None:
    """Write a decode into the first rows of `static`, in place; all other rows become padding."""
    old, new = static.paged, inputs.paged
    count, width = new.block_tables.shape
    static.input_ids[:count].copy_(inputs.input_ids)
    static.positions[:count].copy_(inputs.positions)
    old.slot_mapping.fill_(-1)[:count].copy_(new.slot_mapping)
    old.context_lens.zero_()[:count].copy_(new.context_lens)
    old.block_tables.zero_()[:count, :width].copy_(new.block_tables)
    unused = [0] * (len(old.host_context_lens) - count)
    old.host_context_lens = new.host_context_lens + unused


class DecodeGraphs:
    """The decode of a model, captured for a few batch sizes.

    capture: turns a pass into what replays it; CUDA graphs with one pool of memory unless told otherwise.
    """

    def __init__(
        self,
        model: Decoder,
        kv_cache: Tensor,
        sizes: list[int],
        width: int,
        capture: Callable[[Callable[[], Tensor]], Captured] | None = None,
    ) -> None:
        self.sizes = sizes
        self.width = width
        self.device = kv_cache.device
        self._inputs = {
            size: padding(size, width, kv_cache.shape[3], self.device) for size in sizes
        }
        self._captured: dict[int, Captured] = {}
        capture = capture or Capture()
        # The largest first: the smaller ones then find room in its memory.
        for size in reversed(sizes):
            self._captured[size] = capture(partial(model.compute, self._inputs[size], kv_cache))

    def takes(self, batch: Batch) -> bool:
        """Whether `batch` is a decode that a captured one can stand for."""
        num_rows = len(batch.input_ids)
        return (
            len(batch.context_lens) == len(batch.logits_rows) == num_rows <= self.sizes[-1]
            and max(map(len, batch.block_tables)) <= self.width
        )

    def replay(self, batch: Batch) -> Tensor:
        """Logits of a decode, [num_seqs, vocab_size]; the next replay overwrites them."""
        num_rows = len(batch.input_ids)
        size = next(size for size in self.sizes if size >= num_rows)
        fill(self._inputs[size], batch.to(self.device))
        replay, logits = self._captured[size]
        replay()
        return logits[:num_rows]


class Capture:
    """Captures passes as CUDA graphs that share their memory: one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, compute: Callable[[], Tensor]) -> Captured:
        """Run the pass once, so that its kernels are compiled and loaded, and once more to record it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = compute()
        self._pool = self._pool or graph.pool()
        return graph.replay, logits
