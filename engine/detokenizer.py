"""Streaming text: from token ids to pieces of text that are never taken back.

`Detokenizer` never gives out half a character; `TextStream` never the beginning of a stop string.
"""

from typing import Protocol

REPLACEMENT = "\ufffd"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer (any Hugging Face tokenizer has it)."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str:
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
        self._ids = list(prompt_token_ids[-self.CONTEXT :])
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
        before = self._tokenizer.decode(
            self._ids[self._prefix : self._read], skip_special_tokens=True
        )
        after = self._tokenizer.decode(self._ids[self._prefix :], skip_special_tokens=True)
        if not after.startswith(before) and before.endswith(REPLACEMENT):
            before = before[
                :-1
            ]  # the prompt ended inside a character, and the new tokens have completed it
        return after[len(before) :]

    def _give(self, text: str) -> str:
        self._prefix, self._read = self._read, len(self._ids)
        return text


class TextStream:
    """The output text of one request, as it is streamed."""

    def __init__(self, detokenizer: Detokenizer, stop: list[str]) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self.text = ""
        self.stopped_by: str | None = None

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Take one token and return the text that is certain now. A stop string in it sets `stopped_by`."""
        self._held += self._detokenizer.push(token_id)
        return self._give(may_stop, keep=True)

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        if self.stopped_by is None:
            self._held += self._detokenizer.finish()
        return self._give(may_stop=True, keep=False)

    def _give(self, may_stop: bool, keep: bool) -> str:
        text, self._held = self._held, ""
        if may_stop and self.stopped_by is None:
            found = [(text.find(stop), stop) for stop in self._stop if stop in text]
            if found:
                end, self.stopped_by = min(found)
                text = text[:end]
            elif keep:
                end = len(text) - self._num_to_hold(text)
                text, self._held = text[:end], text[end:]
        self.text += text
        return text

    def _num_to_hold(self, text: str) -> int:
        """Length of the longest end of `text` that may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
