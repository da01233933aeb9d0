"""Build the native code with sanitizers, beside the installed one, and run its tests under each.

    python -m tests.sanitize [address] [thread]

`make sanitize`: AddressSanitizer with UndefinedBehaviorSanitizer runs the tests of the kernels, of packed elements, of
the fast path for repeated steps and of Ctrl-C; ThreadSanitizer runs calls from several threads at once (`threads.py`).
Exits with 1 if a test failed or a sanitizer reported anything; the reports are printed.

Code that is not built here (CPython, numpy, PyTorch) is not instrumented; nothing in it had to be suppressed. Leaks are
not checked: memory that CPython still holds at exit is not a leak of the modules.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = (
    *(
        f"tests/kernels/test_{name}.py"
        for name in (
            "summary",
            "digests",
            "pair",
            "reorder",
            "table",
            "batch_summarizer",
            "odd_arrays",
        )
    ),
    "tests/layouts/test_packed.py",
    "tests/torch/test_following.py",
    "tests/project/test_interrupts.py",
    "tests/torch/test_interrupted_runs.py",
)
_TIME: Final = 3000


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """`flag` is for the compiler, `library` is preloaded into Python, `options` are the sanitizer's own variables."""

    name: str
    flag: str
    library: str
    options: Mapping[str, str]
    command: Sequence[str]


_SANITIZERS: Final = (
    Sanitizer(
        "address",
        "address,undefined",
        "libasan.so",
        {
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # Python's own allocator would hide accesses beside an array
        },
        ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *_TESTS),
    ),
    Sanitizer(
        "thread",
        "thread",
        "libtsan.so",
        {"TSAN_OPTIONS": "exitcode=0:die_after_fork=0"},  # one of the checks is of a forked process
        ("-m", "tests.sanitize.threads"),
    ),
)
_REPORT: Final = re.compile(r"^(?:SUMMARY: .*Sanitizer.*|.*: runtime error: .*)$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SANITIZER", help="address, thread; default: both")
    names = parser.parse_args().names
    known = [each.name for each in _SANITIZERS]
    if wrong := [name for name in names if name not in known]:
        parser.error(f"there is no sanitizer {wrong[0]!r}; expected {' or '.join(known)}")
    failed = [not _run(each) for each in _SANITIZERS if not names or each.name in names]
    return 1 if any(failed) else 0


def _run(sanitizer: Sanitizer) -> bool:
    """Build, run and report; return whether no test failed and nothing was reported."""
    folder = _ROOT / "build" / "sanitize" / sanitizer.name
    _build(sanitizer, folder)
    logs = folder / "reports"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    environ = _environment(sanitizer, folder, logs)
    _require_modules_of(folder, environ)
    ended = subprocess.run(
        [sys.executable, *sanitizer.command],
        cwd=_ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIME,
        check=False,
    )
    texts = [path.read_text(errors="replace") for path in sorted(logs.iterdir())]
    reports = reports_in(texts)
    last = (ended.stdout.strip().splitlines() or ["nothing"])[-1].strip("= ")
    print(f"{sanitizer.flag}: {last}; {len(reports)} reports", flush=True)
    if ended.returncode != 0:
        print(ended.stdout[-6000:], f"ended with status {ended.returncode}", sep="\n", flush=True)
    for text in texts if reports or ended.returncode != 0 else ():
        print(text, flush=True)
    return ended.returncode == 0 and not reports


def reports_in(texts: Iterable[str]) -> list[str]:
    """One line for each report in the sanitizers' output."""
    return [line for text in texts for line in _REPORT.findall(text)]


def _require_modules_of(folder: Path, environ: Mapping[str, str]) -> None:
    """Exit unless the instrumented modules are loaded: the ordinary modules would pass every test."""
    program = (
        "import opdump.interpreter._native as a, opdump.kernels._native as b; print(a.__file__, b.__file__, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    places = done.stdout.splitlines()
    if len(places) != 2 or not all(Path(place).is_relative_to(folder) for place in places):
        sys.exit(f"the modules in {folder} cannot be used; found {places}\n{done.stderr[-2000:]}")


def _build(sanitizer: Sanitizer, folder: Path) -> None:
    """Build as RelWithDebInfo: in a Release build nanobind strips the names that reports need."""
    settings = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "OPDUMP_IN_PLACE": "OFF",
        "OPDUMP_SANITIZE": sanitizer.flag,
        "Python_EXECUTABLE": sys.executable,
    }
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    configure = ["cmake", "-S", str(_ROOT), "-B", str(folder), "-G", "Ninja"]
    for command in (
        [*configure, *(f"-D{name}={value}" for name, value in settings.items())],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(
            command,
            env={**os.environ, "PATH": tools},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}")


def _environment(sanitizer: Sanitizer, folder: Path, logs: Path) -> dict[str, str]:
    """The sanitizer's library comes first, then the C++ library whose exceptions it intercepts; `sitecustomize.py`
    finds the modules.
    """
    found = {
        name: f"{value}:log_path={logs / name}" if name.endswith("OPTIONS") else value
        for name, value in sanitizer.options.items()
    }
    return {
        **os.environ,
        **found,
        "LD_PRELOAD": f"{_library(sanitizer.library)} {_library('libstdc++.so.6')}",
        "OPDUMP_REQUIRE_NATIVE": "1",
        "OPDUMP_SANITIZED_MODULES": str(folder),
        "PYTHONPATH": str(Path(__file__).parent),
    }


def _library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True, check=True)
    path = found.stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"gcc has no {name}: install it, in Debian with gcc's own package")
    return path


if __name__ == "__main__":
    sys.exit(main())
