"""Set up every test: one thread, no dump settings from the environment, and only the installed packages."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.sampling import Sampling

# PyTorch and numpy read this when they are first imported, which is after this file.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without compiled kernels, a run prints an extra line unless OPDUMP_ISA=numpy asked for the slow ones; tests count
# lines.
if importlib.util.find_spec("opdump.kernels._native") is None:
    os.environ.setdefault("OPDUMP_ISA", "numpy")

# A shell without job control starts background jobs with SIGINT ignored, and children inherit that; some tests send
# SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The contracts in opdump.testing contain asserts, and a failing assert should show what it compared.
pytest.register_assert_rewrite("opdump.testing")

# The same examples in every run, and no deadline for an example on a shared machine.
settings.register_profile("opdump", deadline=None, derandomize=True)
settings.load_profile("opdump")

ROOT = Path(__file__).parents[1]
_OPTIONAL = ("torch", "transformers", "sklearn", "onnx", "onnxruntime", "pandas", "polars", "nbclient")
_MISSING = tuple(name for name in _OPTIONAL if importlib.util.find_spec(name) is None)
_NEEDS_MISSING = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(_MISSING)})\b", re.MULTILINE) if _MISSING else None
_OF_TESTS = re.compile(r"^from (tests(?:\.\w+)+) import", re.MULTILINE)
_OF_ADAPTERS = re.compile(r"^from opdump\.adapters\.(torch|onnxruntime)\b", re.MULTILINE)


@cache
def _needs_missing(file: Path) -> bool:
    """Whether a test file needs a package that is not installed: directly, through shared test code, or through an
    adapter.
    """
    assert _NEEDS_MISSING is not None
    text = file.read_text(encoding="utf-8")
    if _NEEDS_MISSING.search(text) or any(name in _MISSING for name in _OF_ADAPTERS.findall(text)):
        return True
    shared = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in _OF_TESTS.findall(text)]
    # A test file may contain a program that imports from the same file.
    return any(each != file and each.is_file() and _needs_missing(each) for each in shared)


def _has_compiler() -> bool:
    command = [*shlex.split(os.environ.get("CXX", "c++")), "--version"]
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


_WITHOUT = {
    "torch": "torch" in _MISSING,
    "compiler": not _has_compiler(),
}
_DUMP_VARIABLES = (
    "MINDSPORE_DUMP_CONFIG",
    "MS_DIAGNOSTIC_DATA_PATH",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sampled", action="store_true", help="run a sample of the long suites (tests/sampling.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sampled"):
        config.pluginmanager.register(Sampling())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the files that import a package that is not installed (`make test-core`)."""
    if collection_path.name == "onnx" and collection_path.is_dir():
        return True if "onnxruntime" in _MISSING else None  # all of its files need it through shared code
    if _NEEDS_MISSING is None or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if _needs_missing(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are marked as needing something this machine lacks."""
    lacking = [name for name, lacks in _WITHOUT.items() if lacks]
    without = [item for item in items if any(item.get_closest_marker(name) for name in lacking)]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


def pytest_report_header() -> str | None:
    lacking = [*_MISSING, *(["a C++ compiler"] if _WITHOUT["compiler"] else [])]
    return f"missing, so the tests that need them are skipped: {', '.join(lacking)}" if lacking else None


@pytest.fixture(autouse=True, scope="session")
def _compiled_code_of_this_run_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # PyTorch caches compiled code in one folder per machine and reuses headers that were made for another instruction
    # set.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torchinductor")))
        yield


@pytest.fixture(autouse=True)
def _hook_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process group installs a hook that prefixes each line of a traceback with "[rank0]: ", which would affect later
    # tests.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


@pytest.fixture(autouse=True)
def _no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine a command may run long enough to print progress among the lines that the test compares.
    if importlib.util.find_spec("click") is not None:  # some environments of peers have no command line
        monkeypatch.setattr("opdump.commands.progress._say", lambda _line: None)


@pytest.fixture(autouse=True)
def _no_dump_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _DUMP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
