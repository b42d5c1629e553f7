"""Scenario files: what to run, and what to say while it runs. YAML in, checked values out.

Errors name the line and the field. A scenario from a stranger is untrusted input: only plain data is built, and
sizes are bounded.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from .errors import ExpressionError, ScenarioError
from .expressions import check_names, check_syntax
from .triggers import Breakpoint, check_breakpoint, check_place

MAX_BYTES = 2**20
MAX_DEPTH = 50
MAX_REQUESTS = 10_000
MAX_ARRIVAL = 10_000

CHOICE_LETTERS = "abcdefghi"
"""How the choices of a question are named, in their order."""

ODD_YAML = (ValueError, LookupError, AttributeError, TypeError, OverflowError)
"""What PyYAML's constructor lets through, beside its own errors, for tags such as `!!bool maybe`."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a conversation; the model's chat template makes a prompt of them."""

    role: str
    content: str


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One request, or `count` equal ones. `arrival` is the step before which it is added (from 1)."""

    id: Name | None = None
    prompt: str | None = None
    token_ids: list[int] | None = None
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_REQUESTS)] = 1
    arrival: Annotated[int, msgspec.Meta(ge=1, le=MAX_ARRIVAL)] = 1
    priority: int = 0
    sampling: dict[str, Any] = {}


Spoken = Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
Choice = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A prediction: it is asked before its moment is shown. `answer` is an expression over the state there."""

    question: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)]
    answer: str
    choices: Annotated[list[Choice], msgspec.Meta(max_length=9)] = []


class Narration(msgspec.Struct, forbid_unknown_fields=True, rename={"condition": "if"}):
    """What to say the first time that `at` is reached: a stop, a request or a condition; `if` narrows it.

    With `ask` it is a question, and `say` is told after its answer.
    """

    at: str
    say: Spoken
    condition: str | None = None
    ask: Question | None = None


class BreakpointTable(msgspec.Struct, forbid_unknown_fields=True, rename={"condition": "if"}):
    """A breakpoint in parts, instead of its line."""

    at: str
    condition: str | None = None
    hits: Annotated[int, msgspec.Meta(ge=1, le=999_999_999)] = 1


class Scenario(msgspec.Struct, forbid_unknown_fields=True):
    """A scenario file. `engine` and `sampling` hold settings that the engine checks."""

    title: str
    requests: Annotated[list[Request], msgspec.Meta(min_length=1, max_length=MAX_REQUESTS)]
    about: str = ""
    model: str = "tiny"
    engine: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    tour: list[Narration] = []
    breakpoints: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    watch: Annotated[list[str], msgspec.Meta(max_length=100)] = []


@dataclass
class Source:
    """The text of a scenario as YAML nodes, to find the line of a field."""

    name: str
    root: yaml.Node
    settings: tuple[str, ...] = ()

    def line_of(self, path: str) -> int:
        """The line (from 1) of a dotted path such as `requests[2].prompt`, or of its nearest parent."""
        node = self.root
        line = node.start_mark.line
        for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            if isinstance(node, yaml.MappingNode) and key:
                pairs = {name.value: (name, value) for name, value in node.value}
                if key not in pairs:
                    break
                line, node = pairs[key][0].start_mark.line, pairs[key][1]
            elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
                node = node.value[int(index)]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1

    def error(self, path: str, message: str) -> ScenarioError:
        """A ScenarioError that names the file, the line and the field; or the setting of the command line."""
        for setting in self.settings:
            if path == setting or path.startswith((setting + ".", setting + "[")):
                return ScenarioError(f"--set {path}: {message}")
        where = f"{self.name}, line {self.line_of(path)}"
        return ScenarioError(f"{where}: {path}: {message}" if path else f"{where}: {message}")


def parse_scenario(
    text: str, name: str, settings: dict[str, Any] | None = None
) -> tuple[Scenario, Source]:
    """Read a scenario. `settings` maps dotted paths to values that replace those in the file (`--set`).

    Raises ScenarioError with the line and the field.
    """
    source = Source(name, _compose(text, name), tuple(settings or ()))
    try:
        data = yaml.constructor.SafeConstructor().construct_document(source.root)
    except (yaml.YAMLError, RecursionError, *ODD_YAML) as error:
        raise ScenarioError(f"{name}: the YAML cannot be read: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ScenarioError(f"{name}: a scenario is a table of keys such as title and requests")
    for path, value in (settings or {}).items():
        _set(data, path, value)
    _check_texts(data, name)
    tables = _take_breakpoint_tables(data, source)
    scenario = _convert(data, Scenario, source)
    _check(scenario, source)
    _check_expressions(scenario, source, tables)
    return scenario, source


def request_ids(scenario: Scenario) -> list[str]:
    """The id of each request in order, those that come from `count` one by one: its own, or the next letters."""
    wanted = [request.id for request in scenario.requests for _ in range(request.count)]
    free = iter(letters(wanted.count(None), {name for name in wanted if name}))
    return [name or next(free) for name in wanted]


_OPENS = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSES = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def _compose(text: str, name: str) -> yaml.Node:
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ScenarioError(f"{name}: a scenario may have {MAX_BYTES:,} bytes at most")
    try:
        depth = 0
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            depth += isinstance(token, _OPENS) - isinstance(token, _CLOSES)
            if depth > MAX_DEPTH:
                raise ScenarioError(
                    f"{name}: the YAML cannot be read: it is nested over {MAX_DEPTH} deep"
                )
            if isinstance(token, yaml.AliasToken):
                line = token.start_mark.line + 1
                raise ScenarioError(
                    f"{name}, line {line}: YAML aliases (*name) are not supported: write it out"
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(
            f"{name}, line {line}: the YAML cannot be read: {error.problem}"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{name}: the YAML cannot be read: {_one_line(error)}") from error
    if root is None:
        raise ScenarioError(f"{name}: the file is empty")
    _check_keys(root, name)
    return root


def _check_keys(node: yaml.Node, name: str) -> None:
    """Refuse a key that stands twice in one table: YAML would silently keep the last."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.SequenceNode):
            todo += node.value
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if key.value in seen if isinstance(key, yaml.ScalarNode) else True:
                    what = (
                        f"{key.value} stands twice"
                        if isinstance(key, yaml.ScalarNode)
                        else "a key is no word"
                    )
                    raise ScenarioError(
                        f"{name}, line {key.start_mark.line + 1}: {what} in this table"
                    )
                seen.add(key.value)
                todo.append(value)


def _check_texts(data: dict[str, Any], name: str) -> None:
    r"""Refuse texts that no file and no terminal can hold: "\ud800" is half a character."""
    try:
        msgspec.json.encode(data, enc_hook=str)
    except UnicodeEncodeError as error:
        raise ScenarioError(
            f"{name}: a text holds half of a surrogate pair: {error.object!r:.80}"
        ) from error
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # a value of a wrong type, which its field's check names


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    keys = path.split(".")
    node = data
    for key in keys[:-1]:
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise ScenarioError(f"--set {path}: {key} is not a table of settings")
    node[keys[-1]] = value


def _take_breakpoint_tables(data: dict[str, Any], source: Source) -> dict[int, BreakpointTable]:
    """Replace each breakpoint that is a table by its line, and return the tables by their index."""
    items = data.get("breakpoints")
    tables: dict[int, BreakpointTable] = {}
    if isinstance(items, list):
        for i, item in enumerate(items):
            if isinstance(item, dict):
                tables[i] = _convert(item, BreakpointTable, source, f"breakpoints[{i}]")
                items[i] = Breakpoint(tables[i].at, tables[i].condition, tables[i].hits).line
    return tables


Table = TypeVar("Table", bound=msgspec.Struct)


def _convert(data: Any, kind: type[Table], source: Source, where: str = "") -> Table:
    """The table `data`, which is at the path `where`, with every field of its type."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        path = (where + path.rstrip("`").removeprefix("$")).removeprefix(".")
        unknown = re.match(r"Object contains unknown field `(.*)`", message)
        if unknown:
            path = f"{path}.{unknown[1]}".removeprefix(".")
            known = ", ".join(
                field.encode_name for field in msgspec.structs.fields(_table_of(path))
            )
            message = f"there is no such field; there are {known}"
        raise source.error(path, message) from error


_TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    (r"requests\[\d+\]\.messages\[", Message),
    (r"requests\[", Request),
    (r"tour\[\d+\]\.ask\.", Question),
    (r"tour\[", Narration),
    (r"breakpoints\[", BreakpointTable),
    ("", Scenario),
)


def _table_of(path: str) -> type[msgspec.Struct]:
    """The kind of table that the field at `path` is in."""
    return next(kind for pattern, kind in _TABLES if re.match(pattern, path))


def _check(scenario: Scenario, source: Source) -> None:
    seen: set[str] = set()
    for i, request in enumerate(scenario.requests):
        path = f"requests[{i}]"
        if [request.prompt, request.token_ids, request.messages].count(None) != 2:
            raise source.error(path, "give one of prompt, token_ids and messages")
        if request.id and request.count > 1:
            raise source.error(
                f"{path}.count", "requests that have a count get their ids by themselves"
            )
        if request.id and request.id in seen:
            raise source.error(f"{path}.id", f"{request.id} is the id of an earlier request")
        if request.id:
            seen.add(request.id)
    if sum(request.count for request in scenario.requests) > MAX_REQUESTS:
        raise source.error("requests", f"there may be {MAX_REQUESTS:,} requests at most")


def _check_expressions(
    scenario: Scenario, source: Source, tables: dict[int, BreakpointTable]
) -> None:
    ids = set(request_ids(scenario))
    for i, narration in enumerate(scenario.tour):
        _check_entry(narration, source, f"tour[{i}]", ids)
    for i, table in tables.items():
        _check_moment(table, source, f"breakpoints[{i}]", ids)
    for i, line in enumerate(scenario.breakpoints):
        with _at(source, f"breakpoints[{i}]"):
            check_breakpoint(line, ids)
    for i, text in enumerate(scenario.watch):
        with _at(source, f"watch[{i}]"):  # one without a value tells so on the screen
            check_syntax(text)


def _check_entry(narration: Narration, source: Source, path: str, ids: set[str]) -> None:
    _check_moment(narration, source, path, ids)
    if not narration.ask:
        return
    with _at(source, f"{path}.ask.answer"):
        check_names(narration.ask.answer, ids)
    choices = narration.ask.choices
    for i, choice in enumerate(choices):
        if choice.lower() in CHOICE_LETTERS[: len(choices)].replace(CHOICE_LETTERS[i], ""):
            message = (
                f"{choice} reads as the letter of another choice: put it there, or use more words"
            )
            raise source.error(f"{path}.ask.choices[{i}]", message)


def _check_moment(
    moment: Narration | BreakpointTable, source: Source, path: str, ids: set[str]
) -> None:
    with _at(source, f"{path}.at"):
        check_place(moment.at, ids)
    if moment.condition is not None:
        with _at(source, f"{path}.if"):
            check_names(moment.condition, ids)


@contextmanager
def _at(source: Source, path: str) -> Iterator[None]:
    """An expression that is wrong is the error of the field at `path`."""
    try:
        yield
    except ExpressionError as error:
        raise source.error(path, str(error)) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def letters(count: int, taken: set[str]) -> list[str]:
    """`count` ids A, B, .., Z, AA, AB, .. that are not in `taken`."""
    ids: list[str] = []
    number = 0
    while len(ids) < count:
        name, rest = "", number
        while True:
            name = chr(ord("A") + rest % 26) + name
            rest = rest // 26 - 1
            if rest < 0:
                break
        if name not in taken:
            ids.append(name)
        number += 1
    return ids
