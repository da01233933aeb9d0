"""Which kernels run, how the environment decides it, and what happens without further threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import opdump
from opdump import kernels
from opdump.errors import KernelChoiceError

PACKAGE = Path(opdump.__file__).parent


def run(code: str, *, source: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter with these variables set, with the opdump in `source` if given."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OPDUMP_")}
    command = [sys.executable, "-c", code]
    if source is not None:
        # Without the site module, an editable installation cannot come first in the path.
        command.insert(1, "-S")
        # numpy may be in a place that a .pth file names, and -S reads no .pth files.
        places = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(np.__file__).parents[1]))
        plain["PYTHONPATH"] = os.pathsep.join([str(source), *dict.fromkeys(places)])
    return subprocess.run(
        command, env={**plain, "PYTHONDONTWRITEBYTECODE": "1", **environ}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def without_native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as installed on a machine without a compiler."""
    source = tmp_path_factory.mktemp("source")
    (source / "opdump").mkdir()
    for name in ("__init__.py", "errors.py", "interpreter", "kernels"):
        original = PACKAGE / name
        if original.is_dir():
            shutil.copytree(original, source / "opdump" / name, ignore=shutil.ignore_patterns("*.so", "*.pyd"))
        else:
            shutil.copy(original, source / "opdump" / name)
    return source


PRINT_ACTIVE = "from opdump import kernels; print(kernels.active())"


def test_without_the_compiled_module_the_twin_runs_and_says_why(without_native: Path) -> None:
    result = run(PRINT_ACTIVE, source=without_native)
    assert result.stdout == "numpy (no compiled kernels: opdump was installed without a C++ compiler)\n"
    assert result.stderr == ""


def test_the_twin_gives_the_same_summary(without_native: Path) -> None:
    code = "import numpy as np; from opdump import kernels; print(kernels.summarise(np.arange(5000, dtype='f4') / 7))"
    assert run(code, source=without_native).stdout == run(code).stdout != ""


def test_a_missing_compiled_module_can_be_made_an_error(without_native: Path) -> None:
    result = run(PRINT_ACTIVE, source=without_native, OPDUMP_REQUIRE_NATIVE="1")
    assert result.returncode != 0
    assert "NativeCoreMissingError: OPDUMP_REQUIRE_NATIVE is set" in result.stderr
    assert "Install a C++17 compiler" in result.stderr


def test_a_compiled_module_that_does_not_load_gives_its_reason(without_native: Path, tmp_path: Path) -> None:
    shutil.copytree(without_native / "opdump", tmp_path / "opdump")
    (tmp_path / "opdump" / "kernels" / "_native.py").write_text("raise ImportError('built for another machine')\n")
    result = run(PRINT_ACTIVE, source=tmp_path)
    assert result.stdout == "numpy (no compiled kernels: built for another machine)\n"


def test_the_environment_can_ask_for_the_twin() -> None:
    assert run(PRINT_ACTIVE, OPDUMP_ISA="numpy").stdout == "numpy (no compiled kernels: OPDUMP_ISA=numpy)\n"


def test_each_instruction_set_can_be_forced_from_the_environment() -> None:
    for name in kernels.instruction_sets():
        if name != "numpy":
            assert run(PRINT_ACTIVE, OPDUMP_ISA=name).stdout == f"native ({name})\n"


def test_active_names_the_instruction_set(instruction_set: str) -> None:
    assert kernels.active().startswith(f"native ({instruction_set})" if instruction_set != "numpy" else "numpy")


def test_an_unknown_instruction_set_is_refused_with_those_that_exist() -> None:
    with pytest.raises(KernelChoiceError, match=kernels.instruction_sets()[0]):
        kernels.use_instruction_set("avx9000")


def test_a_nonsensical_number_of_threads_is_refused() -> None:
    assert "KernelChoiceError: OPDUMP_THREADS is 'many'" in run(PRINT_ACTIVE, OPDUMP_THREADS="many").stderr


def test_the_environment_sets_the_threads() -> None:
    code = "from opdump import kernels; print(kernels.threads())"
    assert run(code, OPDUMP_THREADS="1").stdout == "1\n"


def test_a_forked_child_has_threads_of_its_own() -> None:
    code = """
import os, numpy as np
from opdump import kernels
kernels.set_threads(4)
array = np.arange(2_000_000, dtype=np.float32)
before = kernels.summarise(array)
child = os.fork()
if child == 0:
    os._exit(0 if all(kernels.summarise(array) == before for _ in range(20)) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kernels.summarise(array) == before)
"""
    assert run(code).stdout == "0 True\n"


def test_importing_the_kernels_imports_no_framework() -> None:
    code = "import sys, opdump.kernels; print('torch' in sys.modules, 'ctypes' in sys.modules)"
    assert run(code).stdout.startswith("False")


def test_the_version_says_which_kernels_run() -> None:
    def asked(isa: str) -> subprocess.CompletedProcess[str]:
        return run("from opdump.commands import main\nmain(['--version'])", OPDUMP_ISA=isa)

    assert asked("numpy").stdout.endswith("kernels: numpy (no compiled kernels: OPDUMP_ISA=numpy)\n")
    assert asked("").stdout.startswith("opdump ")
    wrong = asked("sse9")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("opdump: error: OPDUMP_ISA is 'sse9'")
    assert len(wrong.stderr.splitlines()) == 1


_PROGRAM = """
import threading
import numpy as np
from opdump import kernels
kernels.set_threads(4)
try:
    threading.Thread(target=int).start()
    print("threads")
except RuntimeError:
    print("no threads")
print(kernels.active(), kernels.summarise(np.arange(4_000_000, dtype=np.float32)))
"""


def test_a_summary_needs_no_other_thread() -> None:
    # Each thread, also in C++, reserves a stack of this size, which no address space has room for.
    limited = f"ulimit -S -s {1 << 37} && exec {sys.executable} -c '{_PROGRAM}'"
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's library aborts without its threads
    with_threads, without = (
        subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environ)
        for command in ([sys.executable, "-c", _PROGRAM], ["bash", "-c", limited])
    )
    assert without.returncode == with_threads.returncode == 0, without.stderr
    assert (with_threads.stdout.splitlines()[0], without.stdout.splitlines()[0]) == ("threads", "no threads")
    assert without.stdout.splitlines()[1:] == with_threads.stdout.splitlines()[1:]
    assert kernels.active() in without.stdout
