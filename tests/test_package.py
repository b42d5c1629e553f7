"""What is installed: the wheel's contents, a run from it, the README's commands, and peace with transformers."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tourvllm import __version__
from tourvllm.scenarios_folder import bundled_names

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("tourvllm", "tour", "engine", "kernels", "scenarios", "models")
FILES = ("pyproject.toml", "README.md", "LICENSE")
PARTS = ("tour", "engine", "kernels", "scenarios", "models")


def python(*arguments: object, cwd: Path, **environ: object) -> str:
    """Run this interpreter in a folder and return its output."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **{key: str(value) for key, value in environ.items()},
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: object, cwd: Path) -> str:
    """Run pip without a look at the network."""
    return python("-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd, PIP_NO_INDEX=1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("build")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in SOURCES + FILES:
        source, copy = ROOT / name, folder / "source" / name
        copy.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=ignore)
        else:
            shutil.copy(source, copy)
    pip(
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        folder / "source",
        cwd=folder,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder that the wheel is installed into."""
    target = wheel.parent / "installed"
    pip("install", "--no-deps", "--target", target, wheel, cwd=wheel.parent)
    return target


def test_the_wheel_holds_everything_and_nothing_else(wheel: Path):
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "tourvllm",
        f"tourvllm-{__version__}.dist-info",
    }
    for name in bundled_names():
        assert f"tourvllm/scenarios/{name}.yaml" in names
    tiny = {f"tourvllm/models/tiny/{path.name}" for path in (ROOT / "models" / "tiny").iterdir()}
    assert tiny <= set(names)
    assert [name for name in names if name.startswith("tourvllm/tui/") and name.endswith(".tcss")]
    # Every module of every part, and not the scripts that train the model.
    for part in PARTS:
        modules = {f"tourvllm/{part}/{path.name}" for path in (ROOT / part).glob("*.py")}
        assert modules <= set(names)
    assert not [name for name in names if "train" in name]
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_wheel_runs_from_an_empty_folder(installed: Path, tmp_path: Path):
    environ = {"PYTHONPATH": installed, "XDG_CACHE_HOME": tmp_path / "cache"}
    empty = tmp_path / "empty"
    empty.mkdir()
    where = "import tourvllm.cli, tourvllm.tour, tourvllm.engine, tourvllm.kernels, sys; "
    where += "[print(module.__file__) for name, module in sys.modules.items() if name.startswith('tourvllm')]"
    for file in python("-c", where, cwd=empty, **environ).split():
        assert Path(file).is_relative_to(installed)
    told = python("-m", "tourvllm", "list", cwd=empty, **environ)
    assert [line.split()[0] for line in told.splitlines()] == bundled_names()
    command = ("run", "scenarios/kv_pressure.yaml", "--plain", "--steps", 3)
    told = python("-m", "tourvllm", *command, cwd=empty, **environ)
    assert re.findall(r"^── step (\d+)", told, re.M) == ["1", "2", "3"]
    assert not list(empty.iterdir())


@pytest.fixture(params=["installed", "not installed"])
def hugging_face_kernels(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[dict[str, Path], Path | None]:
    """The environment with a stand-in for Hugging Face's `kernels`, and its file; or without one."""
    site = tmp_path / "site"
    site.mkdir()
    # Says at the end of any Python process which `kernels` an import would find there.
    (site / "sitecustomize.py").write_text(
        "import atexit, importlib.util, os\n"
        "def tell():\n"
        "    spec = importlib.util.find_spec('kernels')\n"
        "    open(os.environ['FOUND'], 'w').write(str(spec and spec.origin))\n"
        "atexit.register(tell)\n"
    )
    environ = {
        "PYTHONPATH": site,
        "FOUND": tmp_path / "found",
        "XDG_CACHE_HOME": tmp_path / "cache",
    }
    if request.param == "not installed":
        spec = importlib.util.find_spec("kernels")
        return environ, Path(spec.origin) if spec and spec.origin else None
    module = site / "kernels" / "__init__.py"
    module.parent.mkdir()
    module.write_text('__version__ = "0.0.1"\n')
    info = site / "kernels-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.0.1\n")
    return environ, module


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import tourvllm, transformers; from transformers import AutoModelForCausalLM"),
        ("-m", "tourvllm", "list"),
        ("-m", "tourvllm", "run", "scenarios/kv_pressure.yaml", "--plain", "--steps", "1"),
    ],
    ids=["import", "list", "run"],
)
def test_the_checkout_does_not_hide_hugging_face_kernels(
    hugging_face_kernels, arguments: tuple[str, ...]
):
    environ, expected = hugging_face_kernels
    python(*arguments, cwd=ROOT, **environ)
    assert environ["FOUND"].read_text() == str(expected)


def test_pytest_does_not_hide_hugging_face_kernels():
    spec = importlib.util.find_spec("kernels")
    assert spec is None or not Path(spec.origin or "").is_relative_to(ROOT / "kernels")


def test_readme_opens_with_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text("utf-8")
    opening = readme.partition("\n## ")[0]
    run, test = re.findall(r"^(?:    )?(python3 .+)$", opening, re.M)
    setup = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e "
    assert run == setup + "'.[engine]' && .venv/bin/tourvllm run scenarios/kv_pressure.yaml"
    assert test == setup + "'.[dev]' && .venv/bin/python -m pytest -n auto"
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert script.splitlines()[-1].replace('"$fresh"/.venv', ".venv") == test
