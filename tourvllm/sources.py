"""The engine's source text, and which line of it ran at each stop."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType

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
    """The file and line to show for a stop whose hook is being called in `frame`.

    A hook that comes first in a function reports the call: shown is the function, if it is the stop's own
    (`schedule` begins), else the line that called it (a helper that only reports).
    """
    code, line = frame.f_code, frame.f_lineno
    action = action_lines(code.co_filename).get(line, line)
    if action is None and code.co_name != stop and frame.f_back is not None:
        return short_name(frame.f_back.f_code.co_filename), frame.f_back.f_lineno
    return short_name(code.co_filename), code.co_firstlineno if action is None else action


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    names = ("body", "orelse", "finalbody")
    return [block for name in names if isinstance(block := getattr(node, name, None), list)]


def _is_hook(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "self.probe" in ast.unparse(statement.test)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
