"""The state of a serving loop as a plain JSON tree, engine-neutral and small enough to read in a pager.

    step  phase  waiting[]  running[]  finished[]
    seqs{id: status, num_tokens, num_prompt_tokens, num_cached_tokens, num_scheduled_tokens, block_table,
             token_ids, pieces, text, max_tokens, arrived, preemptions, finish_reason, waits_for}
    blocks{size, total, free[], ref_count{}, hash{}, owners{}}
    batch{seqs, input_ids, positions, slot_mapping, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
          context_lens, block_tables}  or null: laid out in a step, and gone after its end

`pieces` holds the text of each token, `text` the pieces of output as they were streamed. Keys of `ref_count`,
`hash` and `owners` are block ids as text (JSON has no other keys) and are there only for blocks that have one.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from .errors import TraceError

SEQ_FIELDS = (
    "status",
    "num_tokens",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_scheduled_tokens",
    "block_table",
    "token_ids",
    "max_tokens",
    "preemptions",
)


def empty_state(block_size: int, free_block_ids: Iterable[int]) -> dict[str, Any]:
    """The state before the first request: every block free, no request, no batch."""
    free = list(free_block_ids)
    return {
        "step": 0,
        "phase": "idle",
        "waiting": [],
        "running": [],
        "finished": [],
        "seqs": {},
        "blocks": {
            "size": block_size,
            "total": len(free),
            "free": free,
            "ref_count": {},
            "hash": {},
            "owners": {},
        },
        "batch": None,
    }


class _Seq(msgspec.Struct):
    status: str
    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_scheduled_tokens: int
    block_table: list[int]
    token_ids: list[int]
    pieces: list[str]
    text: list[str]
    max_tokens: int
    arrived: int
    preemptions: int
    finish_reason: str | None
    waits_for: dict[str, Any] | None


class _Blocks(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=1)]
    total: Annotated[int, msgspec.Meta(ge=0)]
    free: list[int]
    ref_count: dict[str, int]
    hash: dict[str, str]
    owners: dict[str, list[str]]


class _Batch(msgspec.Struct):
    seqs: list[str]
    input_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    cu_seqlens_q: list[int]
    cu_seqlens_k: list[int]
    max_seqlen_q: int
    max_seqlen_k: int
    context_lens: list[int]
    block_tables: list[list[int]]


class _State(msgspec.Struct):
    step: int
    phase: str
    waiting: list[str]
    running: list[str]
    finished: list[str]
    seqs: dict[str, _Seq]
    blocks: _Blocks
    batch: _Batch | None


REQUEST_FIELDS = _Seq.__struct_fields__
"""What a request has."""

_WRONG = "a stored state is not what the trace format says"


def check_shape(state: Any) -> None:
    """Raise TraceError if a stored state lacks a field or has one of another type. More fields are fine."""
    try:
        msgspec.convert(state, _State)
    except msgspec.ValidationError as error:
        raise TraceError(f"{_WRONG}: {error}") from error


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A state with its requests undecoded."""

    step: Any
    phase: Any
    waiting: Any
    running: Any
    finished: Any
    seqs: dict[str, msgspec.Raw]
    blocks: Any
    batch: Any


class _Line(msgspec.Struct):
    """The line of a header or a keyframe."""

    state: _Parts


class _ForeignLine(msgspec.Struct):
    """One whose state has other fields, too."""

    state: dict[str, msgspec.Raw]


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_foreign_line = msgspec.json.Decoder(_ForeignLine).decode
_decode_table = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_NULL = msgspec.Raw(b"null")


def stored_state(
    line: bytes, finished: Callable[[str], msgspec.Raw | None] = lambda seq_id: None
) -> dict[str, Any]:
    """The state that a line stores. Its requests are decoded, and checked, when they are first looked at.

    `finished` knows the requests in whose places the line has null.
    """
    try:
        state = _parts(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{_WRONG}: {error}") from error
    check_shape(state | {"seqs": {}} if "seqs" in state else state)
    requests = state["seqs"]
    for seq_id in requests.absent():
        if raw := finished(seq_id):
            requests[seq_id] = raw
    return state


def same_state(state: dict[str, Any], line: bytes) -> bool:
    """Whether `state` is the one that a line stores, but for requests in whose places the line has null."""
    try:
        stored = stored_state(line)
        for seq_id in stored["seqs"].absent():
            stored["seqs"][seq_id] = state["seqs"][seq_id]
        return stored == state
    except (TraceError, LookupError, TypeError):
        return False


def _parts(line: bytes) -> dict[str, Any]:
    try:
        state = msgspec.structs.asdict(_decode_line(line).state)
        return state | {"seqs": Requests(state["seqs"])}
    except msgspec.ValidationError:
        return {
            key: Requests(_decode_table(raw)) if key == "seqs" else _decode_any(raw)
            for key, raw in _decode_foreign_line(line).state.items()
        }


class Requests(dict[str, Any]):
    """The requests of a stored state by id.

    Most of a long run's requests have finished long ago and their tokens are most of its state: each is decoded
    when it is first looked at. All that hands out values is overridden, so nobody sees an undecoded one.
    """

    def absent(self) -> list[str]:
        """The ids in whose places there is null."""
        return [key for key, value in super().items() if value == _NULL]

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if type(value) is msgspec.Raw:
            value = _decode_request(key, value)
            self[key] = value
        return value

    def __iter__(self) -> Iterator[str]:  # with an own one, dict(..) and the like ask __getitem__
        return super().__iter__()

    def copy(self) -> "Requests":
        """The same requests, as undecoded as they are."""
        return Requests(super().items())

    def get(self, key: str, default: Any = None) -> Any:
        """The request, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: str, *default: Any) -> Any:
        """Take a request out."""
        value = self.get(key, *default) if default else self[key]
        super().pop(key, None)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Take the last request out."""
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The request; with none, `default`, which is it from now on."""
        if key not in self:
            self[key] = default
        return self[key]

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """All requests."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """All requests with their ids."""
        return ItemsView(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and dict(self) == dict(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(dict(self))


class _ExactSeq(_Seq, forbid_unknown_fields=True):
    """A request without other fields: it is checked as it is decoded."""


_decode_exact = msgspec.json.Decoder(_ExactSeq).decode


def _decode_request(seq_id: str, raw: msgspec.Raw) -> Any:
    with suppress(msgspec.ValidationError):
        return msgspec.structs.asdict(_decode_exact(raw))
    try:
        request = _decode_any(raw)
        msgspec.convert(request, _Seq)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{_WRONG}: request {seq_id}: {error}") from error
    return request
