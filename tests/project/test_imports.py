"""What importing opdump costs, and what it must not do."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opdump
from tests.cli.test_show import write_dump

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "onnxruntime", "tensorflow", "jax", "mindspore", "transformers", "sklearn")


WITH_LATE_NAMES = ("checks", "dump_file", "kernels", "plan", "sink")
NOT_SHOWN = (
    *(
        "google.protobuf",
        "difflib",
        "hashlib",
        "html",
        "importlib.metadata",
        "logging",
        "numpy.ma",
        "shutil",
        "tempfile",
    ),
    *("opdump.plan.dump_plan", "opdump.sink.directory", "opdump.dump_file.dump_file", "opdump.kernels.pair_metrics"),
    *("opdump.checks.registry", "opdump.recorder", "opdump.capturing", "opdump.comparison", "opdump.conversion"),
    *("opdump.layouts.ascend.reader", "opdump.layouts.graph_files", "opdump.reports.computational_graph"),
)
"""Parts of Python, of other packages and of opdump that showing a dump of statistics must not import."""


def _modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_importing_opdump_imports_no_framework() -> None:
    assert _modules_after("import opdump").isdisjoint({*FRAMEWORKS, "numpy", "click", "rich"})


def test_every_public_name_is_there_and_lazy() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import opdump; print(*opdump.__all__)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"capture", "open", "set_dump", "start", "stop", "DumpPlan"} <= set(listed)
    loaded = _modules_after("import opdump\nfor name in opdump.__all__: assert getattr(opdump, name) is not None, name")
    assert loaded.isdisjoint(FRAMEWORKS)


def test_no_module_takes_the_place_of_a_public_name() -> None:
    # Importing `opdump.x` sets the attribute `x` of the package.
    modules = {path.stem for path in (ROOT / "src" / "opdump").iterdir()}
    assert {name for name in opdump.__all__ if name in modules} == {"acl", "onnx", "tensorflow"}


@pytest.mark.parametrize("verb", ["", "run", "show", "config"])
def test_help_imports_neither_a_framework_nor_numpy(verb: str) -> None:
    code = f"""
from opdump.commands import main
try:
    main({[verb] if verb else []} + ["--help"])
except SystemExit as end:
    assert end.code == 0
"""
    assert _modules_after(code).isdisjoint({*FRAMEWORKS, "numpy", "rich"} if verb != "config" else FRAMEWORKS)


@pytest.mark.parametrize("wanted", [(), ("--step", "0"), ("--op", "MatMul")])
def test_show_imports_nothing_that_it_does_not_need(
    wanted: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    dump = write_dump(tmp_path / "dump", saved_data="statistic")
    code = f"""
from opdump.commands import main
main(["show", {str(dump)!r}, *{wanted!r}], standalone_mode=False)
"""
    loaded = _modules_after(code)
    assert "opdump.index.reader" in loaded
    assert loaded.isdisjoint({*FRAMEWORKS, *NOT_SHOWN, "rich", "rich.console"})


@pytest.mark.parametrize("package", WITH_LATE_NAMES)
def test_every_name_that_a_package_offers_is_there(package: str) -> None:
    module = importlib.import_module(f"opdump.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None or name == "NATIVE_FOLLOWER"
    code = f"""
import importlib, pkgutil, types
import opdump.{package} as package
for each in pkgutil.iter_modules(package.__path__):
    if each.name != "_native":
        importlib.import_module(f"opdump.{package}.{{each.name}}")
for name in package.__all__:
    assert not isinstance(getattr(package, name), types.ModuleType), name
"""
    assert f"opdump.{package}" in _modules_after(code)  # no module replaced a name
    with pytest.raises(AttributeError, match=f"module 'opdump.{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_the_linter_holds_the_rows_that_the_architecture_page_draws() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.split("## Layers", 1)[1].split("```")[1].split()
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    held = re.search(r"^layers = \[\n(.*?)^\]", settings, re.MULTILINE | re.DOTALL)
    assert held is not None
    assert re.findall(r"[\w|]+", held.group(1)) == drawn
