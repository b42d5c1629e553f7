"""Streaming text: from token ids to pieces of text that are never taken back.

`Detokenizer` never gives out half a character; `TextStream` never the beginning of a stop string.
"""

from typing import Protocol

REPLACEMENT = "\ufffd"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer (any Hugging Face tokenizer has it)."""

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str:
        """The text of these tokens."""


class Detokenizer:
    """Turns one request's tokens into text, a piece at a time.

    A token may hold half a character, and how a token reads may depend on the one before it. So two windows are
    decoded, with and without the new tokens, and only their difference is given out, once it is whole (the
    method of Hugging Face's text-generation-inference).
    """

    CONTEXT = 6

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        # Of a few windows over the prompt's end, one that does not begin inside a character.
        windows = [prompt_token_ids[-n:] for n in range(self.CONTEXT, self.CONTEXT + 4)]
        self._ids = min(windows, key=lambda ids: self._decode(ids).count(REPLACEMENT))
        self._prefix = 0
        self._read = len(self._ids)

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is now certain (often one word, sometimes nothing)."""
        self._ids.append(token_id)
        new = self._new_text()
        return "" if not new or new.endswith(REPLACEMENT) else self._give(new)

    def finish(self) -> str:
        """The rest of the text: what was held back and will never be completed."""
        return self._give(self._new_text())

    def _new_text(self) -> str:
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        if after.startswith(before):
            return after[len(before) :]
        # Bytes that made no character were read anew, together with the new ones. How many were there is known.
        given, start = _num_bytes(before), 0
        while start < len(after) and _num_bytes(after[: start + 1]) <= given:
            start += 1
        return after[start:]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _give(self, text: str) -> str:
        self._prefix, self._read = self._read, len(self._ids)
        return text


def _num_bytes(text: str) -> int:
    """Bytes of a text, where each U+FFFD stands for one byte that made no character."""
    return len(text.replace(REPLACEMENT, "?").encode("utf-8", "surrogatepass"))


class TextStream:
    """The output text of one request, as it is streamed. What may begin a stop string is held."""

    def __init__(self, detokenizer: Detokenizer, stop: list[str]) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self._too_early = 0  # no stop string may end in so many characters of `_held`
        self.text = ""
        self.stopped_by: str | None = None

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Take one token and return the text that is certain now. A stop string in it sets `stopped_by`."""
        self._held += self._detokenizer.push(token_id)
        if may_stop:
            self._find_stop()
        else:
            self._too_early = len(self._held)
        return self._give(len(self._held) - self._num_to_hold())

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        if self.stopped_by is None:
            self._held += self._detokenizer.finish()
            self._find_stop()
        return self._give(len(self._held))

    def _find_stop(self) -> None:
        """Cut the text where the first stop string begins, if there is one."""
        found = []
        for stop in self._stop:
            at = self._held.find(stop, max(0, self._too_early - len(stop) + 1))
            if at >= 0:
                found.append((at, stop))
        if found:
            end, self.stopped_by = min(found)
            self._held = self._held[:end]

    def _num_to_hold(self) -> int:
        """Length of the longest end of the text that may be the beginning of a stop string."""
        if self.stopped_by is None:
            longest = max((len(stop) for stop in self._stop), default=1) - 1
            for length in range(min(longest, len(self._held)), 0, -1):
                end = self._held[-length:]
                if any(stop.startswith(end) and stop != end for stop in self._stop):
                    return length
        return 0

    def _give(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._too_early = max(0, self._too_early - count)
        self.text += text
        return text
