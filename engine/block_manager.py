"""The KV cache's book-keeping: which blocks are free, who holds which, and which hold a known prefix.

A block is a run of `block_size` KV slots. Slot `block_id * block_size + offset` keeps one token's keys and values.
Paged attention: Kwon et al. 2023. Prefix caching by chained block hash: vLLM.
"""

from collections import OrderedDict
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from .errors import EngineError
from .probe import Probe
from .sequence import Sequence


class Block:
    """One physical block. `hash` is set once it is full and known to the prefix cache."""

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash: str | None = None
        self.token_ids: list[int] = []


class Fit(NamedTuple):
    """What a request needs to enter: cached blocks it can share, new ones, and whether enough are free."""

    hits: list[int]
    num_new: int
    needs: int
    ok: bool


class BlockManager:
    """Hands out blocks and takes them back. Every operation costs what it touches, not what the pool holds."""

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        # A queue with removal from the middle in constant time: the next block to reuse comes first.
        self.free_block_ids: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        # Two requests may compute the same prefix in one step, so a hash can have more than one block.
        self.hash_to_block_ids: dict[str, OrderedDict[int, None]] = {}
        self.probe: Probe | None = None

    def can_allocate(self, seq: Sequence, budget: int | None = None) -> Fit:
        """Look up which cached blocks `seq` can start with and whether enough blocks are free for the rest.

        With a `budget`, only so many tokens are computed now and need blocks; without, all of them.
        """
        hits = self._cached_prefix(seq)
        num_cached = len(hits) * self.block_size
        num_tokens = len(seq) if budget is None else min(len(seq), num_cached + budget)
        num_new = -(-num_tokens // self.block_size) - len(hits)
        # A hit that lies on the free list stays free for others until it is taken: it is charged too.
        charged = sum(self.blocks[block_id].ref_count == 0 for block_id in hits)
        fit = Fit(hits, num_new, num_new + charged, num_new + charged <= len(self.free_block_ids))
        if self.probe:
            self.probe("can_allocate", seq=seq, fit=fit)
        return fit

    def allocate(self, seq: Sequence, fit: Fit) -> None:
        """Give `seq` its block table: the cached blocks, then new ones from the front of the free list."""
        new = self._next_free_blocks(fit.num_new, besides=fit.hits)
        for block_id in new:
            self._evict(block_id)
        for block_id in fit.hits + new:
            self._take(block_id)
        seq.num_cached_tokens = len(fit.hits) * self.block_size
        if seq.num_prefix_hits is None:
            seq.num_prefix_hits = seq.num_cached_tokens
        seq.block_table = fit.hits + new
        if self.probe:
            self.probe("allocate", seq=seq, hits=fit.hits, block_ids=new)

    def can_append(self, seq: Sequence, num_tokens: int = 1) -> bool:
        """Whether the next `num_tokens` tokens of `seq` have slots, or free blocks to put them in."""
        needs = self._num_blocks_to_append(seq, num_tokens)
        ok = needs <= len(self.free_block_ids)
        if self.probe:
            self.probe("can_append", seq=seq, needs=needs, ok=ok)
        return ok

    def may_append(self, seq: Sequence, num_tokens: int = 1) -> None:
        """Let the table of `seq` grow if its next tokens start a block (one token: len(seq) % block_size == 1)."""
        new = self._next_free_blocks(self._num_blocks_to_append(seq, num_tokens))
        for block_id in new:
            self._evict(block_id)
        for block_id in new:
            self._take(block_id)
        seq.block_table.extend(new)
        if self.probe:
            self.probe("may_append", seq=seq, block_ids=new)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises EngineError while a request holds a block."""
        num_held = len(self.blocks) - len(self.free_block_ids)
        if num_held:
            raise EngineError(
                f"requests hold {num_held} blocks: reset the prefix cache when they have finished"
            )
        for block in self.blocks:
            self._evict(block.block_id)

    def _num_blocks_to_append(self, seq: Sequence, num_tokens: int) -> int:
        return -(-(seq.num_cached_tokens + num_tokens) // self.block_size) - len(seq.block_table)

    def hash_blocks(self, seq: Sequence) -> None:
        """Enter the blocks that this step has filled into the prefix cache, each under its chained hash."""
        if not self.prefix_caching:
            return
        first_full = seq.num_cached_tokens // self.block_size
        num_full = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        for i in range(first_full, num_full):
            block = self.blocks[seq.block_table[i]]
            block.hash = self._hash_of(seq, i)
            block.token_ids = seq.block(i)
            self.hash_to_block_ids.setdefault(block.hash, OrderedDict())[block.block_id] = None
        if self.probe and first_full < num_full:
            self.probe("hash_blocks", seq=seq, block_ids=seq.block_table[first_full:num_full])

    def deallocate(self, seq: Sequence) -> None:
        """Take back the blocks of `seq`; those that nobody else holds become free, the deepest first.

        Blocks without a hash go to the front of the free list and cached ones to its end, so that what can
        still be of use is reused last, and the end of a prefix before its beginning.
        """
        freed = []
        for block_id in reversed(seq.block_table):
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                freed.append(block_id)
                self.free_block_ids[block_id] = None
                if block.hash is None:
                    self.free_block_ids.move_to_end(block_id, last=False)
        seq.num_cached_tokens = 0
        released, seq.block_table = seq.block_table, []
        if self.probe:
            self.probe("deallocate", seq=seq, block_ids=released, freed=freed)

    def _next_free_blocks(self, count: int, besides: list[int] | tuple[int, ...] = ()) -> list[int]:
        """The first `count` free blocks, leaving out those in `besides`. They stay where they are."""
        if count <= 0:
            return []
        skipped = set(besides)
        return list(islice((b for b in self.free_block_ids if b not in skipped), count))

    def _take(self, block_id: int) -> None:
        self.blocks[block_id].ref_count += 1
        self.free_block_ids.pop(block_id, None)

    def _evict(self, block_id: int) -> None:
        """Forget what a free block holds, if it is cached, so that it can be reused."""
        block = self.blocks[block_id]
        if block.hash is None:
            return
        same_hash = self.hash_to_block_ids[block.hash]
        del same_hash[block_id]
        if not same_hash:
            del self.hash_to_block_ids[block.hash]
        evicted, block.hash, block.token_ids = block.hash, None, []
        if self.probe:
            self.probe("evict", block_id=block_id, hash=evicted)

    def _cached_prefix(self, seq: Sequence) -> list[int]:
        """The cached blocks that hold the beginning of `seq`, as many as there are in a row."""
        hits: list[int] = []
        if not self.prefix_caching:
            return hits
        # The last token is always computed: its logits give the next token.
        for i in range((len(seq) - 1) // self.block_size):
            block_id = self._cached_block(self._hash_of(seq, i), seq.block(i))
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def _cached_block(self, block_hash: str, token_ids: list[int]) -> int | None:
        """A block that holds these tokens after the same prefix; one in use is preferred to a free one."""
        candidates = self.hash_to_block_ids.get(block_hash, ())
        matching = [b for b in candidates if self.blocks[b].token_ids == token_ids]
        return max(matching, key=lambda b: self.blocks[b].ref_count, default=None)

    def _hash_of(self, seq: Sequence, i: int) -> str:
        """The hash of full block i of `seq`, chained: it stands for all tokens up to the block's end."""
        while len(seq.block_hashes) <= i:
            parent = seq.block_hashes[-1] if seq.block_hashes else ""
            tokens = ",".join(map(str, seq.block(len(seq.block_hashes))))
            seq.block_hashes.append(
                blake2b(f"{parent}:{tokens}".encode(), digest_size=8).hexdigest()
            )
        return seq.block_hashes[i]
