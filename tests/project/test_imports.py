"""What importing opdump costs and does not do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import opdump

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "onnxruntime", "tensorflow", "jax", "mindspore", "transformers", "sklearn")


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


def test_the_linter_holds_the_rows_that_the_architecture_page_draws() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.split("## Who may import whom", 1)[1].split("```")[1].split()
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    held = re.search(r"^layers = \[\n(.*?)^\]", settings, re.MULTILINE | re.DOTALL)
    assert held is not None
    assert re.findall(r"[\w|]+", held.group(1)) == drawn
