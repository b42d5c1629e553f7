"""Six patch kinds that turn one state into the next, and back.

A patch is a JSON list `[kind, path, value]`, where `path` is a list of keys from the root of the state:

    ["set",     path, value]    the key now has this value
    ["delete",  path]           the key is gone
    ["append",  path, [v, ..]]  the list grew at its end
    ["prepend", path, [v, ..]]  the list grew at its front, in this order
    ["take",    path, n]        the first n entries left the list
    ["remove",  path, value]    the first entry equal to value left the list

They are few so that another program (the web viewer, a script) can apply them in twenty lines.
"""

from typing import Any

from .errors import TraceError

Patch = list[Any]
State = dict[str, Any]

Token = tuple[Any, ...]
"""What takes one patch back."""

_MISSING = object()
_UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def _misfit(patch: Patch, error: Exception) -> TraceError:
    return TraceError(f"the patch {str(patch)[:120]!r} does not fit the state: {error}")


def apply(state: State, patch: Patch) -> Token:
    """Apply one patch to `state` in place and return what `undo` needs to take it back.

    The state takes ownership of the patch's value: decode the event again to apply it again.

    Raises TraceError when the patch does not fit the state (a damaged or foreign trace).
    """
    try:
        return _apply(state, patch)
    except _UNFIT as error:
        raise _misfit(patch, error) from error


def apply_all(state: State, patches: list[Patch]) -> list[Token]:
    """Apply an event's patches, all or none, as `apply` does. Returns what `undo_all` needs."""
    done: list[Token] = []
    try:
        for patch in patches:
            done.append(_apply(state, patch))
    except Exception as error:
        undo_all(state, done)
        if isinstance(error, _UNFIT):
            raise _misfit(patch, error) from error
        raise
    return done


def undo_all(state: State, tokens: list[Token]) -> None:
    """Take back the patches that returned `tokens`, the last one first."""
    for token in reversed(tokens):
        undo(state, token)


def undo(state: State, token: Token) -> None:
    """Take back the patch that returned `token`. Tokens are taken back in reverse order."""
    kind, node, key, data = token
    if kind == "set":
        if data is _MISSING:
            del node[key]
        else:
            node[key] = data
    elif kind == "append":
        del node[len(node) - data :]
    elif kind == "prepend":
        del node[:data]
    elif kind == "take":
        node[:0] = data
    elif kind == "remove":
        node.insert(*data)


def _apply(state: State, patch: Patch) -> Token:
    kind, path = patch[0], patch[1]
    node: Any = state
    for key in path[:-1]:
        node = node[key]
    key = path[-1]
    if kind == "set":
        if not isinstance(node, dict):
            raise TypeError(f"{path[:-1]} is not a table of keys")
        token = ("set", node, key, node.get(key, _MISSING))
        node[key] = patch[2]
        return token
    if kind == "delete":
        if not isinstance(node, dict):
            raise TypeError(f"{path[:-1]} is not a table of keys")
        return ("set", node, key, node.pop(key))
    target = node[key]
    if not isinstance(target, list):
        raise TypeError(f"{path} is not a list")
    return _apply_to_list(kind, target, patch[2])


def _apply_to_list(kind: str, target: list[Any], value: Any) -> Token:
    if kind in ("append", "prepend"):
        if not isinstance(value, list):
            raise TypeError(f"{kind} needs a list of values")
        if kind == "append":
            target.extend(value)
        else:
            target[:0] = value
        return (kind, target, None, len(value))
    if kind == "take":
        if not isinstance(value, int) or not 0 <= value <= len(target):
            raise ValueError(f"cannot take {value} of {len(target)} entries")
        taken = target[:value]
        del target[:value]
        return ("take", target, None, taken)
    if kind == "remove":
        index = target.index(value)
        return ("remove", target, None, (index, target.pop(index)))
    raise ValueError(f"unknown patch kind {kind!r}")
