"""Which part may import which, and what starting up may load."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FORBIDDEN = {
    "tour": {
        "textual",
        "torch",
        "transformers",
        "tourvllm.engine",
        "tourvllm.kernels",
        "tourvllm.tui",
        "tourvllm",
    },
    "engine": {"textual", "rich", "tourvllm.tour", "tourvllm.tui", "tourvllm"},
    "kernels": {
        "textual",
        "rich",
        "transformers",
        "tourvllm.engine",
        "tourvllm.tour",
        "tourvllm.tui",
        "tourvllm",
    },
    "tui": {"torch", "transformers", "tourvllm.kernels"},
}
HEAVY = ("torch", "transformers", "textual", "tourvllm.engine.model", "numpy")


def folder(package: str) -> Path:
    return Path(find_spec(f"tourvllm.{package}").origin).parent


def imports(path: Path, package: str) -> set[str]:
    """Every module that a file imports, at its top or anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            )
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} if node.module else {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name}


def broken(package: str) -> list[str]:
    faults = []
    for path in sorted(folder(package).glob("*.py")):
        for name in imports(path, f"tourvllm.{package}"):
            for banned in FORBIDDEN[package]:
                inside = name.startswith(f"{banned}.") and banned != "tourvllm"
                if name == banned or inside:
                    faults.append(f"{path.name} imports {name}")
    return faults


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package):
    assert len(list(folder(package).glob("*.py"))) > 1
    assert broken(package) == []


def test_the_check_itself_sees_what_it_should(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "import torch.nn\nfrom ..engine import model\nfrom . import b\n"
        "def f():\n    from ..tour.text import line\n"
    )
    assert imports(file, "tourvllm.x") == {
        "torch.nn",
        "tourvllm.engine",
        "tourvllm.x.b",
        "tourvllm.tour.text",
    }


def loaded_after(code: str, tmp_path: Path) -> list[str]:
    """Which heavy modules a fresh Python has loaded after running `code`."""
    script = f"import sys, json\ntry:\n    {code}\nexcept SystemExit: pass\n"
    script += "print('\\n' + json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    return [name for name in json.loads(result.stdout.splitlines()[-1]) if name in HEAVY]


@pytest.mark.parametrize(
    "code",
    [
        "import tourvllm.cli",
        "from tourvllm.cli import main; main(['--help'])",
        "from tourvllm.cli import main; main(['run', '--help'])",
        "from tourvllm.cli import main; main(['list'])",
        "from tourvllm.tour import cursor, reader, recorder, scenario, triggers, why",
        "import tourvllm.plan, tourvllm.plain, tourvllm.info",
        "from tourvllm.cli import main; main(['run', 'no such scenario'])",
    ],
)
def test_starting_up_loads_nothing_heavy(code, tmp_path):
    assert loaded_after(code, tmp_path) == []


def test_a_replay_needs_no_engine(tmp_path):
    trace = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"
    assert (
        loaded_after(
            f"from tourvllm.cli import main; main(['replay', '--plain', {str(trace)!r}])", tmp_path
        )
        == []
    )


def test_the_check_itself_sees_heavy_modules(tmp_path):
    assert "torch" in loaded_after("import tourvllm.runs", tmp_path)


def test_the_folders_are_importable_under_tourvllm_only(tmp_path):
    """A bare `kernels` would shadow Hugging Face's, and pytest must not make one either."""
    code = "from importlib.util import find_spec; print(find_spec('engine'), find_spec('tour'))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert result.stdout.split() == ["None", "None"]
    assert str(folder("tour").parent) not in {os.path.realpath(entry or ".") for entry in sys.path}


def hooks(path: Path) -> list[tuple[ast.Call, bool]]:
    """Every call of `self.probe` in a file, and whether `if self.probe` stands right above it."""
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("self.probe")
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    return [
        (node, id(node) in guarded)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.probe"
    ]


def test_every_hook_is_guarded_and_names_a_known_stop():
    from tourvllm.tour.stops import STOPS

    found = [
        (path.name, call, ok) for path in folder("engine").glob("*.py") for call, ok in hooks(path)
    ]
    assert [f"{name}:{call.lineno}" for name, call, ok in found if not ok] == []
    assert {call.args[0].value for _, call, _ in found} == set(STOPS)


def test_without_a_listener_nothing_is_called_and_tokens_are_the_same(mini):
    from support import P, Watched, generate, greedy, make_engine, tokens

    class Silent:
        calls = 0

        def __bool__(self) -> bool:
            Silent.calls += 1
            return False

        def __call__(self, stop: str, /, **facts: object) -> None:
            raise AssertionError(stop)

    prompts, settings = (
        [P(0, 9), P(3, 12), P(0, 10)],
        {"block_size": 2, "num_blocks": 14, "max_num_batched_tokens": 7},
    )
    plain, silent = make_engine(mini, **settings), make_engine(mini, **settings)
    watched = Watched(make_engine(mini, **settings))
    silent.attach(Silent())
    results = [
        tokens(generate(engine, prompts, greedy(12))) for engine in (plain, silent, watched.engine)
    ]
    assert results[0] == results[1] == results[2]
    assert watched.facts("preempt")
    assert Silent.calls > 100
