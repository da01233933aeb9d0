"""Whatever the sources contain, and whatever process dies, a conversion ends and reports each file."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.conversion import Conversion, ConversionPlan, FileType, convert
from opdump.conversion.formatted import FileResult, SourceFile
from opdump.conversion.run import _results
from opdump.dump_file import DumpBlob, DumpFile, DumpTensor
from opdump.formats import FORMATS
from opdump.interpreter.leftovers import temporary_name
from tests.conversion.dump_files import TIME, dump, overflow_record, tensor
from tests.dump_file.samples import DEVICE, NanoTensor, encoded, nano_file

NAME = f"Add.add.1.2.{TIME}"
_MOST_MEMORY = 16 << 20


def _samples() -> list[bytes]:
    blocks = DumpTensor.of("output", 0, np.ones((1, 2, 2, 2, 16), np.float16), format="NC1HWC0")
    weights = DumpTensor.of(
        "input", 0, np.ones((8, 1, 16, 16), np.int8), format="FRACTAL_Z", original_shape=(5, 20, 2, 2)
    )
    matrix = DumpTensor.of(
        "output", 1, np.ones((2, 1, 16, 16), np.float32), format="FRACTAL_NZ", original_shape=(9, 20)
    )
    packed = DumpTensor.of("output", 2, np.arange(6, dtype=np.int8), data_type="INT4")
    record = np.frombuffer(overflow_record(task=1, stream=2, status=8), np.uint8)
    file = DumpFile(
        inputs=(weights,),
        outputs=(replace(blocks, original_shape=(1, 20, 2, 2)), matrix, packed),
        buffers=(DumpBlob(matrix.data),),
        op_name="net/add",
    )
    return [
        encoded(file),
        encoded(replace(file, variant="1.0", version="1.0")),
        encoded(DumpFile(outputs=(DumpTensor.of("output", 0, record),))),
        nano_file([NanoTensor(1, (2,), b"abcd")], [NanoTensor(4, (1, 1), b"e", name="conv")]),
        *(path.read_bytes() for path in DEVICE if path.stat().st_size < 4096),
    ]


SAMPLES = _samples()
_CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), max_size=4)
_LENGTHS = st.none() | st.integers(0, 2**64 - 1) | st.integers(0, 300)
_NAMES = st.sampled_from(
    [NAME, "7", f"Opdebug.Node_OpDebug.9.{TIME}", f"OpDebug.Node_Opdebug.9.5.{TIME}", "plain", "x" * 250, f"é{NAME}"]
)
_MAPPINGS = (
    st.none()
    | st.binary(max_size=60)
    | st.sampled_from(
        [
            b"7,../../out\n",
            b"7,a/b\n",
            b"7,..\n",
            b"7,\n",
            b"7,Add\0\n",
            b"7," + NAME.encode() + b"\n",
            b"7," + b"n" * 400,
        ]
    )
)
_PLANS = st.builds(
    ConversionPlan,
    file_type=st.sampled_from(["npy", "bin", "txt"]).map(lambda name: cast(FileType, name)),
    format=st.sampled_from(["", *FORMATS]),
)


def _changed(data: bytes, changes: list[tuple[float, int, bytes]], length: int | None) -> bytes:
    for where, dropped, put in changes:
        position = int(where * len(data))
        data = data[:position] + put + data[position + dropped :]
    return data if length is None else struct.pack("<Q", length) + data[8:]


def _converted(root: Path, files: dict[str, bytes], mapping: bytes | None, plan: ConversionPlan) -> Conversion:
    """Convert these files and return the result, after checking what a conversion must never do."""
    source, out = root / "in", root / "out"
    source.mkdir()
    for name, data in files.items():
        (source / name).write_bytes(data)
    if mapping is not None:
        (source / "mapping.csv").write_bytes(mapping)
    before = _everything(root)
    tracemalloc.start()
    try:
        done = convert([str(source)], out, plan, jobs=1)
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY
    finally:
        tracemalloc.stop()
    after = _everything(root)
    assert before.items() <= after.items()
    new = {path for path in after.keys() - before.keys() if path != "out"}
    written = {f"out/{name}" for name in done.names}
    assert new - {"out/mapping.csv"} == written
    failed = {each.path for each in done.failures}
    told = failed | {result.path for result in done.results if result.outputs} | set(done.skipped)
    # A file without tensors is converted and produces no output.
    empty = {result.path for result in done.results if not result.outputs and not result.failures}
    assert {str(source / name) for name in files} <= told | empty
    assert done.converted == sum(not result.failures for result in done.results)
    for name in done.names:
        if name.endswith(".npy"):
            np.load(out / name)  # complete: the header agrees with the size
    return done


def _everything(root: Path) -> dict[str, bytes]:
    """Every file below a directory, by path; directories count as empty files."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = path.read_bytes() if path.is_file() else b""
    return found


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(_NAMES, st.sampled_from(SAMPLES), _CHANGES, _LENGTHS), min_size=1, max_size=3),
    _MAPPINGS,
    _PLANS,
)
def test_files_that_were_tampered_with_are_converted_or_reported(
    drawn: list[tuple[str, bytes, list[tuple[float, int, bytes]], int | None]],
    mapping: bytes | None,
    plan: ConversionPlan,
) -> None:
    files = {name: _changed(data, changes, length) for name, data, changes, length in drawn}
    with tempfile.TemporaryDirectory() as folder:
        _converted(Path(folder), files, mapping, plan)


_SIZES = st.lists(st.integers(0, 40) | st.sampled_from([2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]), max_size=6).map(tuple)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(["float16", "int8", "bfloat16", "INT4", "UINT1", "FLOAT6_E2M3"]),
    _SIZES,
    _SIZES,
    st.integers(-(2**31), 2**31 - 1) | st.integers(0, 4),
    _PLANS,
)
def test_any_shapes_and_groups_are_converted_or_reported(
    format_name: str,
    dtype: str,
    shape: tuple[int, ...],
    original_shape: tuple[int, ...],
    groups: int,
    plan: ConversionPlan,
) -> None:
    tensor = DumpTensor.of("output", 0, np.zeros(1 << 12, np.float32), data_type=dtype, format=format_name)
    odd = replace(tensor, shape=shape, original_shape=original_shape, sub_format=groups)
    with tempfile.TemporaryDirectory() as folder:
        _converted(Path(folder), {NAME: encoded(DumpFile(outputs=(odd,)))}, None, plan)


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_a_file_cut_off_anywhere_is_converted_or_reported(sample: int, tmp_path: Path) -> None:
    data = SAMPLES[sample]
    for number, length in enumerate(range(0, len(data), max(1, len(data) // 40))):
        folder = tmp_path / str(number)
        folder.mkdir()
        _converted(folder, {NAME: data[:length]}, None, ConversionPlan(format="NCHW"))


def test_a_small_table_of_names_takes_little_memory(tmp_path: Path) -> None:
    """Regression test for a failure found above: a read of at most 100 MiB allocated all of it."""
    done = _converted(tmp_path, {"7": SAMPLES[0]}, b"7,Add.add.1.2.3\n", ConversionPlan())
    assert done.failures == []
    assert "Add.add.1.2.3.output.0.npy" in done.names
    long = _converted(_below(tmp_path), {"7": SAMPLES[0]}, b"7," + b"n" * 400 + b"\n", ConversionPlan())
    assert long.failures == []
    assert (tmp_path / "more" / "out" / "mapping.csv").is_file()


def _below(directory: Path) -> Path:
    (directory / "more").mkdir()
    return directory / "more"


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
def test_what_a_process_meets_is_reported_for_its_files(error: Exception) -> None:
    future: Future[list[FileResult]] = Future()
    future.set_exception(error)
    found = _results(future, [SourceFile("a", "", "a", 1), SourceFile("b", "", "b", 1)])
    assert [result.path for result in found] == ["a", "b"]
    assert all(type(error).__name__ in result.failures[0].reason for result in found)
