"""The engine's source text, and which line of it ran at each stop."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TypeGuard

PACKAGES = ("engine", "kernels")


@cache
def folders() -> dict[Path, str]:
    """The folders of the engine's packages -> their names as the app shows them."""
    found = {}
    for package in PACKAGES:
        module = import_module(f"tourvllm.{package}")
        found[Path(module.__file__ or "").resolve().parent] = package
    return found


@cache
def short_name(filename: str) -> str:
    """`engine/scheduler.py` for the file of that module; the bare file name for any other."""
    path = Path(filename).resolve()
    package = folders().get(path.parent)
    return f"{package}/{path.name}" if package else path.name


def is_engine(filename: str) -> bool:
    """Whether a file belongs to the engine's packages."""
    return "/" in short_name(filename)


def source_texts() -> dict[str, str]:
    """Name -> text of every file of the engine: the code that really runs, for the trace's header."""
    return {
        f"{package}/{path.name}": path.read_text("utf-8")
        for folder, package in folders().items()
        for path in sorted(folder.glob("*.py"))
    }


@cache
def action_lines(filename: str) -> dict[int, int | None]:
    """For each line of a hook (`if self.probe: ..`): the line of the statement that ran just before it.

    The hook reports an action; the action is what a reader wants to see. Where a hook comes first in a branch,
    the line that opens the branch stands for it; where it comes first in a function, None does.
    """
    found: dict[int, int | None] = {}
    for parent in ast.walk(ast.parse(Path(filename).read_text("utf-8"))):
        for block in _blocks(parent):
            for before, statement in zip([None, *block], block, strict=False):
                if _is_hook(statement):
                    line = before.lineno if before and not _is_docstring(before) else None
                    if line is None and not isinstance(parent, ast.FunctionDef):
                        line = getattr(parent, "lineno", None)
                    found |= dict.fromkeys(
                        range(statement.lineno, (statement.end_lineno or 0) + 1), line
                    )
    return found


def line_that_ran(stop: str, frame: FrameType) -> tuple[str, int]:
    """The file and line to show for a stop whose hook is being called in `frame`."""
    shown = frame_to_show(stop, frame)
    name, line = short_name(shown.f_code.co_filename), shown.f_lineno
    if shown is not frame:
        return name, line
    action = action_lines(frame.f_code.co_filename).get(line, line)
    return name, frame.f_code.co_firstlineno if action is None else action


def frame_to_show(stop: str, frame: FrameType) -> FrameType:
    """The function to show for a stop whose hook is being called in `frame`.

    A hook that comes first in a function reports the call: shown is the function, if it is the stop's own
    (`schedule` begins), else the one that called it (a helper that only reports).
    """
    line = frame.f_lineno
    first = action_lines(frame.f_code.co_filename).get(line, line) is None
    only_reports = first and frame.f_code.co_name != stop and frame.f_back is not None
    return frame.f_back or frame if only_reports else frame


def hook_lines(stop: str) -> list[tuple[str, int]]:
    """Where a stop is told: the file, as the app names it, and the line of each of its hooks."""
    return _all_hooks().get(stop, [])


@cache
def _all_hooks() -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for name, text in source_texts().items():
        hooks = (node for node in ast.walk(ast.parse(text)) if _is_call_of_probe(node))
        for hook in sorted(hooks, key=lambda node: node.lineno):
            for stop in _texts(hook.args[0]):
                found.setdefault(stop, []).append((name, hook.lineno))
    return found


def _is_call_of_probe(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "self.probe" and bool(node.args)


def _texts(node: ast.AST) -> list[str]:
    """The texts in an expression: the stop that a hook names, or both of `a if .. else b`."""
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    names = ("body", "orelse", "finalbody")
    return [block for name in names if isinstance(block := getattr(node, name, None), list)]


def _is_hook(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "self.probe" in ast.unparse(statement.test)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
