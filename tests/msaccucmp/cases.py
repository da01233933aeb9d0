"""Dump files for the tests of the command, and the output of the real tool for some."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opdump.dump_file import DumpBlob, DumpFile, DumpTensor, HeldBytes
from opdump.dump_file.dump_file import encode_dump_file
from opdump.msaccucmp.command_line import run
from opdump.records import IO

DATA = Path(__file__).parent.parent / "data"
ARCHIVES = (DATA / "msaccucmp.tar.gz", DATA / "msaccucmp_more.tar.xz", DATA / "msaccucmp_compare.tar.xz")
NAME = "X.op1.1.2.1700000000000000"
ORDERS = DATA / "msaccucmp_orders.json"
OPDEBUG = "Opdebug.Node_OpDebug.59.563.1700000000000005"


@dataclass(frozen=True)
class Ended:
    """The result of a run: its exit code, its log, and the files in the output directory."""

    code: int
    log: str
    files: dict[str, bytes]


def unpacked(folder: Path) -> Path:
    """The cases that the real tool was run on."""
    for path in ARCHIVES:
        with tarfile.open(path) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
    return folder


def run_in(output: Path, arguments: Iterable[str]) -> Ended:
    """Run the command with `output` as the current directory."""
    output.mkdir(exist_ok=True)
    log = io.StringIO()
    before = Path.cwd()
    os.chdir(output)
    try:
        with contextlib.redirect_stderr(log), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = run(list(arguments))
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 0
    finally:
        os.chdir(before)
    files = {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()}
    return Ended(code, log.getvalue(), files)


def converted(folder: Path, files: dict[str, bytes], *options: str, source: str | None = NAME) -> Ended:
    """Run `convert` on one file, or on the directory if `source` is None."""
    place = folder / "in"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    path = str(place) if source is None else str(place / source)
    return run_in(folder / "out", ["convert", "-d", path, "-out", str(folder / "out"), *options])


def tensor(
    io: IO, number: int, shape: tuple[int, ...], data: bytes, *, layout: int = 2, **others: object
) -> DumpTensor:
    return DumpTensor(io, 0, number, layout, shape, HeldBytes(data), **others)  # type: ignore[arg-type]


def dump(*tensors: DumpTensor, **others: object) -> bytes:
    inputs = tuple(each for each in tensors if each.io == "input")
    outputs = tuple(each for each in tensors if each.io == "output")
    file = DumpFile(inputs=inputs, outputs=outputs, **others)  # type: ignore[arg-type]
    return b"".join(bytes(part) for part in encode_dump_file(file))


def floats(shape: tuple[int, ...], *, layout: int = 2, **others: object) -> bytes:
    """A dump of one output: 1, 2, 3, ... as float32."""
    data = np.arange(1, int(np.prod(shape)) + 1, dtype="<f4").tobytes()
    return dump(tensor("output", 1, shape, data, layout=layout, **others), op_name="net/op1")


def blob(data: bytes, kind: int = 0) -> DumpBlob:
    return DumpBlob(HeldBytes(data), kind)


def nano(shape: tuple[int, ...], number: int, payload: bytes, *, size: int | None = None) -> bytes:
    """A nano dump of one output."""
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    shapes = struct.pack("<II", 0, len(dims)) + dims
    numbers = struct.pack("<6i3QI", number, 2, 0, 0, 0, 0, 0, 0, len(payload) if size is None else size, len(shapes))
    outputs = struct.pack("<I", 1) + numbers + shapes
    inputs = struct.pack("<I", 0)
    header = struct.pack("<II", 0x5A5A5A5A, 1)
    header += struct.pack("<II", 4, len(inputs)) + inputs + struct.pack("<II", 5, len(outputs)) + outputs
    return struct.pack("<Q", len(header)) + header + payload


def read_npy(content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = np.load(io.BytesIO(content), allow_pickle=False)
    return array
