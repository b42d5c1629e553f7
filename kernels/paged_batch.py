"""Where the tokens of a flat batch lie in the paged KV cache: the arguments that all kernels share."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor


@dataclass
class PagedBatch:
    """One step's batch, on the device and, for kernels that loop on the host, as lists.

    slot_mapping: [num_tokens]; slot = block_id * block_size + offset, -1 writes nothing.
    cu_seqlens_q: [num_seqs + 1]; the rows of sequence i are cu_seqlens_q[i]:cu_seqlens_q[i + 1], the last
    positions of its context. context_lens: [num_seqs], keys that each sequence attends to, all in the cache.
    block_tables: [num_seqs, longest table], rows filled up with 0. The slots are int64, the others int32.
    has_padding: whether a slot is -1. padding, decodes: what a kernel keeps from one layer to the next.
    """

    slot_mapping: Tensor
    cu_seqlens_q: Tensor
    context_lens: Tensor
    block_tables: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    host_cu_seqlens_q: list[int]
    host_context_lens: list[int]
    has_padding: bool
    padding: tuple[Tensor, Tensor] | None = None
    decodes: tuple[Tensor, "PagedBatch"] | None = None

    @classmethod
    def from_lists(
        cls,
        slot_mapping: list[int],
        cu_seqlens_q: list[int],
        context_lens: list[int],
        block_tables: list[list[int]],
        device: str | torch.device,
    ) -> "PagedBatch":
        """Lay the lists out on the device with a single copy."""
        return cls.with_extras(slot_mapping, cu_seqlens_q, context_lens, block_tables, device)[0]

    @classmethod
    def with_extras(
        cls,
        slot_mapping: list[int],
        cu_seqlens_q: list[int],
        context_lens: list[int],
        block_tables: list[list[int]],
        device: str | torch.device,
        extras: Sequence[list[int]] = (),
    ) -> tuple["PagedBatch", list[Tensor]]:
        """The same, and `extras` as int64 tensors that travel in the same copy."""
        width = max(map(len, block_tables), default=0)
        tables = [
            block_id for table in block_tables for block_id in (*table, *[0] * (width - len(table)))
        ]
        lists = [cu_seqlens_q, context_lens, tables, slot_mapping, *extras]
        # From pinned memory the copy to a GPU is waited for by the GPU alone.
        flat = torch.tensor(
            list(chain.from_iterable(lists)), pin_memory=str(device).startswith("cuda")
        ).to(device, non_blocking=True)
        parts = flat.split([len(part) for part in lists])
        starts, lens, flat_tables = (part.int() for part in parts[:3])
        batch = cls(
            slot_mapping=parts[3],
            cu_seqlens_q=starts,
            context_lens=lens,
            block_tables=flat_tables.view(len(block_tables), width),
            max_seqlen_q=max(b - a for a, b in pairwise(cu_seqlens_q)),
            max_seqlen_k=max(context_lens),
            host_cu_seqlens_q=cu_seqlens_q,
            host_context_lens=context_lens,
            has_padding=-1 in slot_mapping,
        )
        return batch, list(parts[4:])
