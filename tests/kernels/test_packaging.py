"""The result of `pip install` from source, with a compiler and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Only what the build reads; a whole checkout would include environments and caches.
SOURCES = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "native", "src")

SUMMARISE = """
import numpy as np
import opdump.kernels as kernels
print(kernels.__file__)
print(kernels.active())
print(kernels.summarise(np.arange(10, dtype="f4")))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh checkout with everything that the build needs."""
    root = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    return root


def call(*command: str, environ: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    # cmake and ninja may be installed only beside the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OPDUMP_")}
    result = subprocess.run(
        [sys.executable, *command],
        env={**plain, "PATH": path, **(environ or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_installed(target: Path) -> tuple[Path, str, str]:
    """The path of opdump.kernels, the active kernels, and a summary, from the installation in `target`."""
    installed = os.pathsep.join([str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    lines = call("-S", "-c", SUMMARISE, environ={"PYTHONPATH": installed}, cwd=target).splitlines()
    return Path(lines[0]), lines[1], lines[2]


def assert_start_hook_is_there(target: Path) -> None:
    """Check that the start-up file is installed and listed in RECORD, so that uninstalling the package removes it."""
    (line,) = filter(None, (target / "opdump_start.pth").read_text().split("\n"))
    assert "opdump_start.pth," in next(target.glob("opdump-*.dist-info/RECORD")).read_text()
    code = f"import sys; exec({line!r}); print([name for name in sys.modules if name.startswith('opdump')])"
    environ = {"PYTHONPATH": str(target)}
    assert call("-S", "-c", code, environ=environ) == "[]\n"
    asked = call("-S", "-c", code, environ={**environ, "OPDUMP_START": "1"})
    assert "'opdump.startup.plain_command'" in asked


def test_without_a_compiler_the_package_installs_and_works_on_the_twin(sources: Path, tmp_path: Path) -> None:
    options = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    no_compiler = {"CC": "/bin/false", "CXX": "/bin/false"}
    call(*options, "--target", str(tmp_path), str(sources), environ=no_compiler)
    assert not list(tmp_path.rglob("*.so"))
    origin, active, summary = run_installed(tmp_path)
    assert origin.is_relative_to(tmp_path)
    assert active == "numpy (no compiled kernels: opdump was installed without a C++ compiler)"
    assert summary.startswith("Summary(count=10.0")
    assert "Root-Is-Purelib: true" in next(tmp_path.glob("opdump-*.dist-info/WHEEL")).read_text()
    assert_start_hook_is_there(tmp_path)


@pytest.mark.long
@pytest.mark.compiler
def test_a_wheel_holds_the_package_and_the_compiled_kernels_and_no_sources(sources: Path, tmp_path: Path) -> None:
    options = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    quick = ("--config-settings", "cmake.build-type=Debug")  # optimising takes most of a minute
    call(*options, *quick, "--wheel-dir", str(tmp_path / "wheel"), str(sources))
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for room in ("kernels", "interpreter"):
        assert len([name for name in names if name.startswith(f"opdump/{room}/_native.") and name.endswith(".so")]) == 1
    assert {"opdump/py.typed", "opdump/kernels/reference.py", "opdump/kernels/_native.pyi"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "opdump_start.pth" in names, "beside the package, where Python searches for .pth files"
    assert not [name for name in names if name.endswith((".cpp", ".h")) or name.startswith(("tests/", "native/"))]
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    origin, active, _ = run_installed(tmp_path / "installed")
    assert origin.is_relative_to(tmp_path / "installed")
    assert active.startswith("native (")
    assert_start_hook_is_there(tmp_path / "installed")


def test_a_source_distribution_can_build_the_kernels(sources: Path, tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    call("-c", code, cwd=sources)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "native").iterdir()}
    assert {"CMakeLists.txt", "LICENSE", "README.md", "src/opdump/kernels/reference.py"} | native <= names
