"""Processes and threads that cannot start, or that die: every file is converted or reported, and nothing waits forever."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from opdump.conversion.plan import FileResult, SourceFile
from opdump.conversion.run import _results
from opdump.interpreter.leftovers import temporary_name
from tests.conversion.dump_files import TIME, dump, tensor

_PROGRAM = """
import multiprocessing, resource, sys, threading
from pathlib import Path
from opdump.conversion import ConversionPlan
from opdump.conversion.run import convert

if __name__ == "__main__":
    if sys.argv[3] == "threads":
        threading.stack_size(1 << 47)  # larger than any address space: no thread can be started
    elif sys.argv[3] == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))  # too few for the pipes of a process
    else:
        import concurrent.futures.process as process
        def dying(self):  # what a thread meets that cannot start another for its queue
            raise SystemExit
        process._ExecutorManagerThread.run = dying
    if sys.argv[4] == "msaccucmp":
        import os
        from opdump.msaccucmp import conversion as original, main
        original._WORTH_A_WORKER = 1
        original._FILES_AT_ONCE = 4
        os.cpu_count = lambda: 4
        sys.argv = ["msaccucmp", "convert", "-d", sys.argv[1], "-out", sys.argv[2]]
        try:
            main()
        except SystemExit as ended:
            print(ended.code or 0, multiprocessing.active_children())
        sys.exit(0)
    done = convert([sys.argv[1]], Path(sys.argv[2]), ConversionPlan(), jobs=2)
    print(done.converted, done.tensors, len(done.failures), multiprocessing.active_children())
"""


@pytest.mark.parametrize("what", ["threads", "files", "attendant"])
@pytest.mark.parametrize("command", ["opdump", "msaccucmp"])
def test_where_no_other_process_is_to_be_had_this_one_converts(tmp_path: Path, what: str, command: str) -> None:
    for number in range(20):
        dump(tmp_path / "in", f"Add.add{number}.1.2.{TIME}", tensor(np.full(3, number, np.int32)))
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "in"), str(tmp_path / "out"), what, command],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.stdout == ("20 20 0 []\n" if command == "opdump" else "0 []\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "out").glob("Add.*.npy"))) == 20


@pytest.mark.parametrize("command", ["opdump", "msaccucmp"])
def test_a_conversion_clears_what_a_killed_one_left_half_written(tmp_path: Path, command: str) -> None:
    dump(tmp_path / "in", f"Add.add.1.2.{TIME}", tensor(np.full(3, 1, np.int32)))
    dead = subprocess.run(
        [sys.executable, "-c", "from opdump.interpreter.leftovers import temporary_name; print(temporary_name())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    out = tmp_path / "out"
    out.mkdir()
    live = [out / temporary_name(), out / ".something.part", out / f".{'0' * 12}-1-1-0a.part"]
    for file in (out / dead, *live):
        file.write_bytes(b"half")
    words = ["-m", "opdump", "convert", str(tmp_path / "in"), "-o", str(out)]
    if command == "msaccucmp":
        words = [
            "-c",
            "from opdump.msaccucmp import main; main()",
            "convert",
            "-d",
            str(tmp_path / "in"),
            "-out",
            str(out),
        ]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    assert sorted(out.glob(".*")) == sorted(live)
    assert len(list(out.glob("Add.*.npy"))) == 1


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("too deep"), ValueError("bad")])
def test_what_a_process_meets_is_told_of_its_files(error: Exception) -> None:
    future: Future[list[FileResult]] = Future()
    future.set_exception(error)
    found = _results(future, [SourceFile("a", "", "a", 1), SourceFile("b", "", "b", 1)])
    assert [result.path for result in found] == ["a", "b"]
    assert all(type(error).__name__ in result.failures[0].reason for result in found)
