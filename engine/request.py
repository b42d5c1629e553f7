"""A request as it is handed to the engine. No torch here: plans are made before torch is loaded."""

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from .sampling_params import SamplingParams

Prompt = str | List[int] | List[dict[str, str]]
"""Text, token ids, or the messages of a conversation."""


@dataclass
class Request:
    """What to generate from.

    arrival: the step (from 1) before which it is added. priority: the smaller, the sooner.
    """

    prompt: Prompt
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    arrival: int = 1
    priority: int = 0
