"""A checkpoint's tokenizer, and what the engine asks of it beyond plain encoding."""

from pathlib import Path
from typing import Any

from .errors import ModelError, RequestError

Message = dict[str, str]


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises ModelError with transformers' own words when there is none."""
    from transformers import AutoTokenizer

    try:
        # No remote code: transformers would otherwise ask on the terminal whether to run it.
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds
        raise ModelError(f"{folder}: the tokenizer cannot be loaded: {error}") from error


def encode(tokenizer: Any, prompt: str) -> list[int]:
    """The token ids of a text, with exactly one beginning-of-sequence token where the model wants one.

    A chat template often writes that token itself; the tokenizer would then add a second one.
    """
    token_ids: list[int] = tokenizer.encode(prompt)
    bos = tokenizer.bos_token_id
    if bos is not None and token_ids[:2] == [bos, bos]:
        return token_ids[1:]
    return token_ids


def apply_chat_template(tokenizer: Any, messages: list[Message]) -> str:
    """The prompt of a conversation, by the tokenizer's own template. Raises RequestError if it has none."""
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "the model has no chat template: give the prompt as text instead of messages"
        )
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise RequestError(f"a message needs a role and a content: {message!r:.80}")
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # templates raise what they like
        raise RequestError(f"the model's chat template refuses these messages: {error}") from error
    return text
