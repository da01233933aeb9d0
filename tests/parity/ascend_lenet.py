"""An asynchronous dump of two devices and two steps, like those of MindSpore on Ascend, and the tensors in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.dtypes import BY_NAME
from opdump.dump_file import FORMAT_NUMBERS, DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.elements import encode_elements
from opdump.graph import Graph, GraphInput, GraphNode, GraphOutput
from opdump.layouts.graph_files.mindspore import encode_pb
from opdump.records import IO, Frame

NET = "LeNet"
GRAPH = 1
STEPS = (3, 4)
DEVICES = (0, 1)
SCRIPT = "lenet_ascend.py"
TIME = "20241120120000"
STAMP = 1_732_082_705_016_774
_SCOPE = "Default/network-WithLossCell/_backbone-LeNet"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its values in the framework's format, and its formats on the device and after conversion."""

    io: IO
    slot: int
    array: Array
    dtype: str
    device_format: str
    format: str
    """The framework's format, which the name of the converted file contains."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One execution of an operator. `stored` is the name of its file if a device has shortened it."""

    op_type: str
    op_name: str
    task_id: int
    values: tuple[Value, ...]
    stored: str = ""
    stamp: int = STAMP

    @property
    def file_name(self) -> str:
        return f"{self.op_type}.{self.op_name.replace('/', '_')}.{self.task_id}.7.{self.stamp}"

    def converted_name(self, value: Value) -> str:
        """The file name of one tensor according to the MindSpore guide: with the last component of the operator's name."""
        last = self.op_name.rpartition("/")[2]
        return f"{self.op_type}.{last}.{self.task_id}.7.{self.stamp}.{value.io}.{value.slot}.{value.format}.npy"


def operators(device: int, step: int) -> tuple[Operator, ...]:
    """The operators that a device executed in a step; all steps and devices have different values."""
    random = np.random.default_rng((device, step))

    def made(shape: tuple[int, ...], dtype: str = "float16") -> Array:
        # Integers that each of the types represents exactly.
        return random.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)

    gradient = f"Gradients/{_SCOPE}/conv2-Conv2d/gradConv2D-expand"
    long_scope = "/".join([_SCOPE, *[f"layer{number}-SequentialCell" for number in range(12)]])
    return (
        Operator(
            "Conv2D",
            f"{_SCOPE}/conv2-Conv2d/Conv2D-op12",
            2,
            (
                Value("input", 0, made((2, 19, 5, 4)), "float16", "NC1HWC0", "NCHW"),
                Value("input", 1, made((21, 19, 3, 2)), "float16", "FRACTAL_Z", "NCHW"),
                Value("output", 0, made((2, 21, 3, 3)), "float16", "NC1HWC0", "NCHW"),
            ),
        ),
        Operator(
            "MatMul",
            f"{_SCOPE}/fc1-Dense/MatMul-op15",
            3,
            (
                Value("input", 0, made((20, 33)), "float16", "FRACTAL_NZ", "ND"),
                Value("input", 1, made((7,), "float32"), "float32", "ND", "ND"),
                Value("output", 0, made((20, 17), "float32"), "float32", "FRACTAL_NZ", "ND"),
            ),
        ),
        Operator(
            "Cast",
            f"{_SCOPE}/Cast-op1",
            4,
            (
                Value("input", 0, made((3, 2, 4, 5), "float32"), "bfloat16", "NCHW", "NCHW"),
                Value("output", 0, made((4, 3), "int32"), "int32", "ND", "ND"),
                Value("output", 1, made((6,), "bool"), "bool", "ND", "ND"),
                Value("output", 2, made((2, 3, 1, 5), "int8"), "int8", "NHWC", "NHWC"),
                Value("output", 3, np.array(7, "int64"), "int64", "ND", "ND"),
            ),
        ),
        Operator(
            "Conv2DBackpropFilter",
            f"{gradient}/Conv2DBackpropFilter-op20",
            5,
            (Value("output", 0, made((21, 19, 3, 2), "float32"), "float32", "FRACTAL_Z", "NCHW"),),
        ),
        Operator(
            "ReLU",
            f"{long_scope}/ReLU-op31",
            6,
            (Value("output", 0, made((2, 21, 3, 3)), "float16", "NC1HWC0", "NCHW"),),
            stored=f"61425091889724{device}{step}",
        ),
        Operator(
            "MaxPool",
            f"{_SCOPE}/max_pool-op7",
            7,
            (Value("output", 0, made((1, 3, 2, 2)), "float16", "NC1HWC0", "NCHW"),),
        ),
    )


def write_dump(root: Path) -> None:
    """Write `{time}/{device_id}/{model_name}/{model_id}/{iteration}/` with dump files, and `rank_N/graphs`."""
    for device, step, executed in _executions():
        place = root / TIME / str(device) / NET / str(GRAPH) / str(step)
        write_operators(place, executed)
    write_graphs(root)


def write_operators(place: Path, executed: tuple[Operator, ...]) -> None:
    """Write the dump files of a directory, and its mapping.csv."""
    place.mkdir(parents=True)
    rows = []
    for operator in executed:
        tensors = [_on_device(value) for value in operator.values]
        file = DumpFile(
            inputs=tuple(tensor for tensor in tensors if tensor.io == "input"),
            outputs=tuple(tensor for tensor in tensors if tensor.io == "output"),
            op_name=operator.op_name,
            dump_time=operator.stamp,
        )
        write_dump_file(place / (operator.stored or operator.file_name), file)
        if operator.stored:
            rows.append(f"{operator.stored},{operator.file_name}\n")
    (place / "mapping.csv").write_text("".join(rows))


def write_graphs(root: Path) -> None:
    """Write the graph of each rank, with a line of the script for every operator."""
    for device in DEVICES:
        nodes = tuple(
            GraphNode(
                op_name=operator.op_name,
                op_type=operator.op_type,
                inputs=tuple(
                    GraphInput("", value.dtype, value.array.shape) for value in operator.values if value.io == "input"
                ),
                outputs=tuple(
                    GraphOutput(value.dtype, value.array.shape) for value in operator.values if value.io == "output"
                ),
                stack=(Frame(f"/home/user/{SCRIPT}", 10 + number, "construct", f"self.call({number})"),),
            )
            for number, operator in enumerate(operators(device, STEPS[0]))
        )
        directory = root / f"rank_{device}" / "graphs"
        directory.mkdir(parents=True)
        graph = Graph(graph_id=GRAPH, nodes=nodes)
        (directory / f"ms_output_trace_code_graph_{GRAPH}.pb").write_bytes(encode_pb(graph))


def _executions() -> Iterator[tuple[int, int, tuple[Operator, ...]]]:
    for device in DEVICES:
        for step in STEPS:
            yield device, step, operators(device, step)


def _on_device(value: Value) -> DumpTensor:
    lay_out = _LAYOUTS.get(value.device_format)
    stored = value.array if lay_out is None else lay_out(value.array)
    number = BY_NAME[value.dtype].number
    return DumpTensor(
        io=value.io,
        slot=value.slot,
        data_type=number,
        format=FORMAT_NUMBERS[value.device_format],
        shape=stored.shape,
        data=HeldBytes(encode_elements(np.ascontiguousarray(stored), number)),
        # A tensor without a device format has no original shape: msaccucmp truncates a transposed tensor to it (docs/msaccucmp.md).
        original_shape=() if lay_out is None else value.array.shape,
    )


def _padded(array: Array, *multiples: int) -> Array:
    return np.pad(array, [(0, -size % multiple) for size, multiple in zip(array.shape, multiples, strict=True)])


def _nc1hwc0(array: Array) -> Array:
    n, c, h, w = (padded := _padded(array, 1, 16, 1, 1)).shape
    result: Array = padded.reshape(n, c // 16, 16, h, w).transpose(0, 1, 3, 4, 2)
    return result


def _fractal_z(array: Array) -> Array:
    n, c, h, w = (padded := _padded(array, 16, 16, 1, 1)).shape
    blocks = padded.reshape(n // 16, 16, c // 16, 16, h, w).transpose(2, 4, 5, 0, 1, 3)
    result: Array = blocks.reshape(c // 16 * h * w, n // 16, 16, 16)
    return result


def _fractal_nz(array: Array) -> Array:
    m, n = (padded := _padded(array, 16, 16)).shape
    result: Array = padded.reshape(m // 16, 16, n // 16, 16).transpose(2, 0, 1, 3)
    return result


_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "NC1HWC0": _nc1hwc0,
    "FRACTAL_Z": _fractal_z,
    "FRACTAL_NZ": _fractal_nz,
}
