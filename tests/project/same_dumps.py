"""Whether the dumps of the example programs are, byte for byte, those of another revision.

    python -m tests.project.same_dumps REVISION     with TensorFlow's example where .venv-tensorflow is there (`make parity` makes it)

Each program runs once with the package of that revision and once with the package as it is here, both without compiled kernels. The trees
must hold the same files with the same bytes, but for times and process ids, which are replaced by their names before the comparison, and
the order of lines in graph files of TensorFlow, which gives the control inputs of an operator in the order of their addresses. Exit
status 1 where anything differs, and the first differences of each file are printed.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = ROOT / ".venv-tensorflow" / "bin" / "python"
TIME = re.compile(rb"(?<!\d)\d{13,20}(?!\d)|(?<!\d)20\d{12}(?!\d)|20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?")
"""Microseconds or nanoseconds since 1970, and dates."""
DUMP_TIME = re.compile(rb"\n\x032\.0\x10[\x80-\xff]+[\x00-\x7f]")
"""The first two fields of a dump file of protobuf: the version and the time."""
FROM_THERE = """\
import runpy, sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("opdump", run_name="__main__", alter_sys=True)
"""
RUN_COLUMNS = "UPDATE runs SET started = 0, ended = 0, process = 0"
SHOWN = 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    revision: str = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = folder / "before"
        before.mkdir()
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", before], input=archive, check=True)
        shutil.copytree(ROOT / "examples", folder / "examples")
        return max(compared(each, folder, before / "src") for each in programs(folder / "examples"))


def programs(examples: Path) -> dict[str, list[str | Path]]:
    """The command of each program behind the interpreter; `DUMP` is where it writes."""
    run: list[str | Path] = ["run"]
    digits, alexnet, tensorflow = (examples / name for name in ("digits_resnet", "alexnet", "tensorflow"))
    return {
        "digits_resnet": [*run, "-c", digits / "data_dump.json", "--path", "DUMP", digits / "train.py", "--steps", "3"],
        "alexnet": [
            *run,
            "-c",
            alexnet / "data_dump.json",
            "--path",
            "DUMP",
            alexnet / "train_alexnet.py",
            "--steps",
            "1",
        ],
        "train_session": [*run, tensorflow / "train_session.py", "DUMP"],
        "train_estimator": [*run, tensorflow / "train_estimator.py", "DUMP"],
    }


def compared(program: str, folder: Path, before: Path) -> int:
    """Run the program with both packages, print what differs, and return the exit status."""
    command = programs(folder / "examples")[program]
    python = TENSORFLOW if program.startswith("train_") else Path(sys.executable)
    if not python.exists():
        print(f"{program}: not run: there is no {python.relative_to(ROOT)}")
        return 0
    trees = []
    for package in (before, ROOT / "src"):
        place = folder / "run"  # the same one for both: the index has it
        dump = place / "dump"
        dump.mkdir(parents=True)
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        filled = [python, "-c", FROM_THERE, package, *(dump if part == "DUMP" else part for part in command)]
        done = subprocess.run(filled, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{program} with {package}: exit status {done.returncode}\n{done.stderr}")
        trees.append(contents(place, package))
        shutil.rmtree(place)
    old, new = trees
    different = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    print(
        f"{program}: {sum(map(len, old.values()))} files before, {sum(map(len, new.values()))} now, {len(different)} differ"
    )
    for path in different[:SHOWN]:
        was, is_now = [b"\n".join(tree.get(path, [])).decode(errors="replace").splitlines() for tree in trees]
        print(f"  {path}", *list(difflib.unified_diff(was, is_now, "before", "now", "", "", 0, ""))[:12], sep="\n    ")
    return int(bool(different))


def contents(tree: Path, package: Path) -> dict[str, list[bytes]]:
    """What each name holds, times aside. Files whose names differ in nothing else share a name."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            name = TIME.sub(b"TIME", str(path.relative_to(tree)).encode()).decode()
            found.setdefault(name, []).append(content(path).replace(bytes(package), b"PACKAGE"))
    return {name: sorted(each) for name, each in found.items()}


def content(path: Path) -> bytes:
    """The bytes of a file, of elements their digest, with times replaced by `TIME`."""
    if path.suffix == ".npy":
        return hashlib.sha256(path.read_bytes()).digest()
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as index:
            index.execute(RUN_COLUMNS)
            statements = "\n".join(index.iterdump())
            index.rollback()
        return TIME.sub(b"TIME", statements.encode())
    text = TIME.sub(b"TIME", DUMP_TIME.sub(b"TIME", path.read_bytes()))
    if path.name.startswith("ge_proto_"):
        return b"\n".join(sorted(piece.strip() for piece in re.split(rb"[\n,\[\]{}]+", text)))
    return text


if __name__ == "__main__":
    sys.exit(main())
