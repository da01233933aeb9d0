"""Write sample records as a recorder does, into files, memory, or the form of Ascend devices, and change what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.dtypes import BY_NAME
from opdump.dump_file import FORMAT_NUMBERS, DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.elements import encode_elements
from opdump.index.writer import RunFacts, own_version
from opdump.layouts.base import open_writer
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import IO, FiledTensor, OpRecord
from opdump.sink.npy import encode_npy
from opdump.testing import SampleStep, layout_tests


def new_writer(plan: DumpPlan, *, rank_id: int = 0) -> SyncWriter:
    facts = ("CPU", "fake", "1.2", own_version(), ("train.py", "--x"), plan.to_json())
    return SyncWriter(plan, RunFacts(rank_id, *facts))


def file_step(writer: SyncWriter, step: SampleStep) -> None:
    saves = writer.plan.saves_tensors
    files = [writer.write_payload(record) if saves and record.payload else None for record in step.tensors]
    writer.write_step(step.step, step.ops, step.tensors, files)


def file_steps(plan: DumpPlan, steps: Sequence[SampleStep], *, rank_id: int = 0) -> None:
    writer = new_writer(plan, rank_id=rank_id)
    for step in steps:
        file_step(writer, step)
    writer.close({"executed": sum(len(step.ops) for step in steps)})


def file_in_layout(plan: DumpPlan, steps: Sequence[SampleStep]) -> None:
    """Write them in the layout of the plan."""
    writer = open_writer(plan, RunFacts(0, "CPU", "fake", "1.2", "0", ("train.py", "--x"), "{}"))
    layout_tests.file_steps(writer, steps, elements=plan.saves_tensors)


def index_file(root: Path) -> Path:
    return root / "rank_0/.dump_metadata/index.sqlite"


def run_sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        database = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            database.execute(statement)
        database.close()

    return change


def rows_of(encoder: StatisticEncoder, op: OpRecord, op_name: str, tensors: Iterable[FiledTensor]) -> list[str]:
    """The rows of the tensors of one operator, which the file calls `op_name`; tensors without statistics have none."""
    start = encoder.start(op, op_name)
    texts = (encoder.text([start], [tensor]) for tensor in tensors if not tensor.skip)
    return [text.decode() for text in texts if text]


class MemorySink:
    """Files in a dictionary, `files[relative] == bytes`."""

    def __init__(self) -> None:
        self.root = Path()
        self.files: dict[str, bytes] = {}
        self.files_written = 0
        self.bytes_written = 0

    def write_array(self, relative: str, array: npt.NDArray[Any]) -> None:
        header, elements = encode_npy(array)
        self.write_bytes(relative, header + elements.tobytes())

    def write_bytes(self, relative: str, data: bytes) -> None:
        self.files[relative] = data
        self.files_written += 1
        self.bytes_written += len(data)

    def read(self, relative: str) -> bytes:
        """The content of a file; empty if there is none."""
        return self.files.get(relative, b"")

    def flush(self) -> None: ...

    def close(self) -> None: ...


TIME = "20241120120000"
LATER = "20241120130000"
STAMP = 1_732_082_705_016_774


def tensor(
    io: IO, slot: int, array: npt.NDArray[Any], *, dtype: str = "", layout: str = "ND", short: int = 0
) -> DumpTensor:
    """A tensor of a dump file, with the last `short` bytes missing."""
    number = BY_NAME[dtype or array.dtype.name].number
    data = encode_elements(array, number)
    return DumpTensor(
        io=io,
        slot=slot,
        data_type=number,
        format=FORMAT_NUMBERS[layout],
        shape=array.shape,
        data=HeldBytes(data[: len(data) - short]),
    )


def add_dump_file(
    directory: Path,
    name: str = "",
    op_name: str = "net/conv1",
    *,
    inputs: tuple[DumpTensor, ...] = (),
    outputs: tuple[DumpTensor, ...] | None = None,
) -> Path:
    """Write a dump file into `directory`, which is created; the default is one output [0, 1, 2] of float32."""
    directory.mkdir(parents=True, exist_ok=True)
    name = name or f"Conv2D.{op_name.replace('/', '_')}.1.5.{STAMP}"
    if outputs is None:
        outputs = (tensor("output", 0, np.arange(3, dtype="float32")),)
    path = directory / name
    write_dump_file(path, DumpFile(inputs=inputs, outputs=outputs, op_name=op_name, dump_time=STAMP))
    return path


def add_npy(directory: Path, name: str, array: npt.NDArray[Any]) -> Path:
    """Write a npy file into `directory`, which is created."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    np.save(path, array)
    return path
