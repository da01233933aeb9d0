"""A dump as files: the comparable parts of both frameworks' directories, without the index that only opdump writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opdump.graph import Graph
from opdump.layouts.graph_files.mindspore import decode_execution_history, decode_execution_order, decode_ir, decode_pb
from opdump.layouts.mindspore_sync.files import FileName, parse_file_name, sanitise

NET = "LeNet"


def directories(dump: Path) -> set[str]:
    """Every directory below the dump except `constants`: MindSpore writes none on CPU, opdump one if it saw constants."""
    return {path.relative_to(dump).as_posix() for path in dump.rglob("*") if path.is_dir() and path.name != "constants"}


def steps(dump: Path) -> list[int]:
    return sorted(int(path.name) for path in (dump / "rank_0" / NET / "0").iterdir() if path.name.isdigit())


def tensor_files(dump: Path, step: int) -> Iterator[tuple[Path, FileName]]:
    """The step's tensor files with the parts of their names. Fails for a name outside of the grammar."""
    for path in sorted((dump / "rank_0" / NET / "0" / str(step)).glob("*.npy")):
        parts = parse_file_name(path.name)
        assert parts is not None, f"not in the grammar: {path.name}"
        yield path, parts


def names_in_files(op_name: str) -> tuple[str, str]:
    """The names for an operator in files: its whole name (2.10), or the last component (2.3)."""
    return sanitise(op_name), sanitise(op_name.rsplit("/", 1)[-1])


def load(dump: Path, step: int, op_name: str, io: str, slot: int) -> npt.NDArray[np.float32]:
    """The tensor of the operator with this full name, in the file naming of either generation."""
    found = [
        path
        for path, parts in tensor_files(dump, step)
        if parts.op_name in names_in_files(op_name) and (parts.io, parts.slot) == (io, slot)
    ]
    assert len(found) == 1, f"{op_name}:{io}:{slot} in step {step}: {[path.name for path in found]}"
    array: npt.NDArray[np.float32] = np.load(found[0], allow_pickle=False)
    return array


def graphs(dump: Path) -> tuple[Graph, Graph]:
    """The graphs from the `.pb` and the `.ir` file."""
    directory = dump / "rank_0" / "graphs"
    pb = directory / "ms_output_trace_code_graph_0.pb"
    return decode_pb(pb.read_bytes()), decode_ir(pb.with_suffix(".ir").read_bytes())


def execution_order(dump: Path) -> tuple[str, ...]:
    return decode_execution_order((dump / "rank_0/execution_order/ms_execution_order_graph_0.csv").read_bytes())


def history(dump: Path) -> tuple[int, ...]:
    return decode_execution_history(
        (dump / "rank_0/execution_order/ms_global_execution_order_graph_0.csv").read_bytes()
    )
