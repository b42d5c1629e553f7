"""What the engines are asked to do: prompts of random tokens, and how many tokens each is to get."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Requests: a prompt and a number of new tokens for each, end-of-sequence tokens ignored."""

    prompts: list[list[int]]
    lengths: list[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def num_new_tokens(self) -> int:
        """Tokens asked for."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """Most tokens of one request, prompt and answer."""
        return max(len(p) + n for p, n in zip(self.prompts, self.lengths, strict=True))

    def batches(self, size: int) -> list["Workload"]:
        """Cut into static batches, in order."""
        return [
            Workload(self.prompts[i : i + size], self.lengths[i : i + size])
            for i in range(0, len(self.prompts), size)
        ]


def equal(count: int, num_in: int, num_out: int, vocab_size: int) -> Workload:
    """Requests of one length."""
    return _random([num_in] * count, [num_out] * count, vocab_size)


def mixed(count: int, vocab_size: int) -> Workload:
    """Requests of 16 to 256 tokens in and 8 to 128 out; the same ones each time."""
    numbers = random.Random(1)
    sizes = [numbers.randint(16, 256) for _ in range(count)]
    return _random(sizes, [numbers.randint(8, 128) for _ in range(count)], vocab_size)


def _random(sizes: list[int], lengths: list[int], vocab_size: int) -> Workload:
    """Prompts of these sizes, without prefixes in common."""
    numbers = random.Random(0)
    return Workload([[numbers.randrange(3, vocab_size) for _ in range(n)] for n in sizes], lengths)
