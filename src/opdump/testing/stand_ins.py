"""Stand-ins for tests: a writer that keeps records in memory, and records of a small step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.graph import Graph
from opdump.kernels import DTYPE_CODES, summarise
from opdump.layouts.base import RankWriter
from opdump.records import (
    IO,
    FiledTensor,
    Frame,
    HostPayload,
    Memory,
    OpRecord,
    SkipReason,
    StatisticValue,
    TensorRecord,
    record_of,
)
from opdump.statistics import ElementStatistics, SummaryStatistics

# A layout's writer that keeps records in memory, for tests of recorders and adapters.


class CollectingWriter(RankWriter):
    """Keeps everything that a recorder passes to a layout.

    `tensors` contains the records of every finished step with their payloads; `ops` the operators, including skipped ones;
    `counted` the numbers of those listed in an earlier step; `constants` the constants by number; `graphs` the latest graph of
    each number.
    """

    def __init__(self) -> None:
        self.ops: list[OpRecord] = []
        self.counted: Counter[SkipReason] = Counter()
        self.tensors: list[TensorRecord] = []
        self.constants: dict[int, TensorRecord] = {}
        self.kernel_args: list[OpRecord] = []
        self.graphs: dict[int, Graph] = {}
        self.steps: list[int] = []
        self._payloads: dict[str, TensorRecord] = {}

    def write_payload(self, record: TensorRecord) -> str:
        name = f"{len(self._payloads)}.{record.name}"
        self._payloads[name] = record
        return name

    def write_constant(self, data_id: int, record: TensorRecord) -> str:
        self.constants[data_id] = record
        return f"constants/{data_id}"

    def write_kernel_args(self, op: OpRecord) -> None:
        self.kernel_args.append(op)

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        self.steps.append(step)
        self.counted.update(counted)
        self.ops += ops
        for tensor, file in zip(tensors, files, strict=True):
            payload = None if file is None else self._payloads[file].payload
            self.tensors.append(record_of(tensor, payload))

    def write_graph(self, graph: Graph) -> None:
        self.graphs[graph.graph_id] = graph


# Records of a small artificial training step: one tensor of every element type, and difficult cases.

DTYPES = (*DTYPE_CODES, "complex64", "complex128", "float8_e4m3fn")
"""Element types that a layout must keep; in numpy, bfloat16 and the 8-bit floats are widened to float32."""

_FIRST_STAMP = 1_795_247_154_000_000
_CALLER = Frame("/home/user/train.py", 42, "step", "loss = network(images).mean()")


@dataclass(frozen=True, slots=True)
class SampleStep:
    """The records that an adapter passes for a step; the payloads of the tensors are in memory."""

    step: int
    ops: tuple[OpRecord, ...]
    tensors: tuple[TensorRecord, ...]


def sample_step(step: int = 0, *, rank_id: int = 0, graph_id: int = 0, net_name: str = "Net") -> SampleStep:
    """A step with every element type, a loop, views, scalars, samples, NaN and Inf, backward operators and parameters, unusual
    and long names.
    """
    sample = _Sample(step, rank_id, graph_id, net_name)
    random = np.random.default_rng(step)
    for number, dtype in enumerate(DTYPES):
        op = sample.op(
            "Cast", f"Default/network-Net/Cast-op{number}", kernel="aten::_to_copy", arguments={"dtype": dtype}
        )
        sample.tensor(op, "input", 0, random.normal(size=(2, 3)).astype("float32"))
        sample.tensor(op, "output", 0, _array(dtype, (2, 3), random), dtype=dtype)
    for _ in range(3):
        op = sample.op("MatMul", "Default/network-Net/loop-Body/MatMul-op90", stack=(Frame("model.py", 7), _CALLER))
        sample.tensor(op, "input", 0, random.normal(size=(4, 5)), source="Parameter.fc.weight", argument="mat1")
        sample.tensor(op, "input", 2, np.array(True), argument="transpose")
        sample.tensor(op, "output", 0, random.normal(size=(4, 4)))
    odd = sample.op(
        "aten add. x", "Default/block.0 of\\net/add-op91", arguments={"alpha": 1.5, "names": ["a", None, True]}
    )
    sample.tensor(odd, "output", 0, np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40], dtype="float32"))
    long = sample.op(
        "ReLU", "Default/" + "/".join(f"a_really_long_name_{n}-Deep" for n in range(12)) + "-op92" + "x" * 250
    )
    sample.tensor(long, "input", 0, random.normal(size=()).astype("float16"))
    sample.tensor(long, "output", 0, random.normal(size=(1, 1, 1, 2)).astype("float32"))
    view = sample.op("view", "Default/network-Net/view-op93", skip="view")
    sample.tensor(view, "input", 0, None, skip="view")
    large = sample.op("Mul", "Default/network-Net/Mul-op96")
    sample.tensor(large, "input", 0, random.normal(size=(4, 5)).astype("float32"), sample_num=6)
    sample.tensor(large, "output", 0, _array("bfloat16", (4, 5), random), dtype="bfloat16", sample_num=6)
    empty = sample.op("cat", "Default/network-Net/cat-op94")
    sample.tensor(empty, "input", 0, None, shape=(0, 3), skip="empty")
    sample.tensor(empty, "output", 0, np.arange(3, dtype="int64"))
    backward = sample.op(
        "MatMul", "Gradients/Default/network-Net/MatMul-op95", phase="backward", forward_op=sample.ops[-1].op_name
    )
    sample.tensor(backward, "output", 1, random.normal(size=(5, 4)), argument="grad_weight")
    parameter = sample.op("Parameter", "fc.weight", phase="optimizer")
    sample.tensor(parameter, "output", 0, random.normal(size=(5, 4)).astype("float32"))
    return SampleStep(step, tuple(sample.ops), tuple(sample.tensors))


class _Sample:
    def __init__(self, step: int, rank_id: int, graph_id: int, net_name: str) -> None:
        self.step = step
        self.rank_id = rank_id
        self.graph_id = graph_id
        self.net_name = net_name
        self.ops: list[OpRecord] = []
        self.tensors: list[TensorRecord] = []

    def op(self, op_type: str, op_name: str, *, stack: tuple[Frame, ...] = (_CALLER,), **facts: Any) -> OpRecord:
        order = len(self.ops)
        op = OpRecord(
            op_type=op_type,
            op_name=op_name,
            timestamp=_FIRST_STAMP + 1_000_000 * self.step + 10_000 * self.graph_id + order,
            step=self.step,
            net_name=self.net_name,
            graph_id=self.graph_id,
            rank_id=self.rank_id,
            order=order,
            occurrence=sum(1 for earlier in self.ops if earlier.op_name == op_name),
            stack=stack,
            **facts,
        )
        self.ops.append(op)
        return op

    def tensor(
        self,
        op: OpRecord,
        io: IO,
        slot: int,
        array: npt.NDArray[Any] | None,
        *,
        dtype: str = "",
        shape: tuple[int, ...] = (2, 3),
        sample_num: int = 0,
        **facts: Any,
    ) -> None:
        name = dtype or ("float32" if array is None else array.dtype.name)
        statistics: Mapping[str, StatisticValue] = {}
        if array is not None and array.dtype.kind != "c":
            statistics = SummaryStatistics(summarise(array), ElementStatistics(("md5",)).of(array))
        self.tensors.append(
            TensorRecord(
                op=op,
                io=io,
                slot=slot,
                dtype=name,
                shape=shape if array is None else array.shape,
                payload=None if array is None else HostPayload(array.reshape(-1)[:sample_num] if sample_num else array),
                statistics=statistics,
                data_size=0 if array is None else array.size * _bytes(name),
                sample=sample_num,
                memory=None if array is None else _memory_of(array, len(self.tensors)),
                **facts,
            )
        )


def _memory_of(array: npt.NDArray[Any], storage: int) -> Memory | None:
    """The memory of a tensor; for a third of the tensors it is unknown."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Memory(storage, 3 * storage, strides, 1 - storage % 3) if storage % 3 else None


def _array(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[Any]:
    values = random.integers(0, 2 if dtype == "bool" else 100, size=shape)
    if dtype.startswith("float8"):
        values %= 16  # the type can represent every number up to here
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return values.astype("float32")
    return (values + 1j * values[::-1]).astype(dtype) if dtype.startswith("complex") else values.astype(dtype)


def _bytes(dtype: str) -> int:
    if dtype == "bfloat16":
        return 2
    return 1 if dtype.startswith("float8") else np.dtype(dtype).itemsize
