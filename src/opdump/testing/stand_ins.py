"""Stand-ins for tests: an adapter without a framework, a writer that keeps records in memory, and records of a small step.

fake = FakeAdapter()
with fake.attach(recorder, Settings()) as clock:
    c = fake.run("MatMul", np.matmul, a, b)
    fake.run("AssignAdd", np.add, c, b, into=c)
    clock.manual_step()
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Settings
from opdump.graph import Graph
from opdump.kernels import DTYPE_CODES, Summary, summarise
from opdump.plan import DumpPlan
from opdump.recorder import Elements, Live, Recorder, TensorSnapshot
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

# An adapter whose tensors are numpy arrays and whose operators are functions of them. It shows how small an adapter can be, and allows
# tests of recorder, layouts, catalog and reports without a framework.

Array = npt.NDArray[Any]


class ArrayReader:
    """Reads numpy arrays."""

    def __init__(self, plan: DumpPlan) -> None:
        self._plan = plan
        self._element_statistics = ElementStatistics(plan.statistic_category)

    def take(self, tensor: Array) -> TensorSnapshot:
        taken = TensorSnapshot(tensor.dtype.name, tensor.shape, tensor.nbytes)
        if tensor.size == 0:
            taken.skip = "empty"
            return taken
        if tensor.dtype.name in DTYPE_CODES:
            taken.table = summarise(tensor)
            taken.others = self._element_statistics.of(np.ascontiguousarray(tensor))
        if self._plan.saves_tensors:
            number = self._plan.sample_taken
            sample = number if number is not None and number < tensor.size else 0
            taken.elements = Elements(tensor.flat[:number].copy() if sample else tensor.copy(), sample)
        return taken

    def skip(self, tensor: Array, reason: SkipReason) -> TensorSnapshot:
        return TensorSnapshot(tensor.dtype.name, tensor.shape, 0, reason)

    def summaries(self, entries: Sequence[TensorSnapshot]) -> list[Summary | None]:
        return [entry.table for entry in entries]

    def finish_step(self) -> None:
        """Do nothing: everything is on the host already."""

    def clear(self) -> None:
        """Do nothing: no state is kept between tensors."""

    @property
    def must_finish(self) -> bool:
        return False


class FakeAdapter:
    """Runs functions of numpy arrays as the operators of one graph; is also the clock of its capture."""

    framework = "fake"
    framework_version = "1"
    device_target = "CPU"

    def __init__(self) -> None:
        self.step = 0
        self._recorder: Recorder | None = None
        self._ids: Counter[tuple[int, str]] = Counter()
        self._order = 0
        self._last_timestamp = 0

    def reader(self, plan: DumpPlan) -> ArrayReader:
        return ArrayReader(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[FakeAdapter]:
        """Record the operators of `run` while the block is open."""
        self._recorder = recorder
        self._rank_id = settings.rank_id
        self.step = recorder.plan.initial_iteration
        try:
            yield self
        finally:
            self._end_step()
            self._recorder = None

    def manual_step(self) -> None:
        """End the current iteration."""
        self._end_step()
        self.step += 1

    def run(
        self,
        op_type: str,
        kernel: Callable[..., Any],
        *inputs: Array,
        into: Array | None = None,
        scope: str = "Default",
        skip: SkipReason = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Array:
        """Run `kernel(*inputs)` as one operator and return its output.

        `into` makes the operator write in place, like `np.add(a, b, out=a)`; `skip` marks one that runs no kernel.
        """
        options: dict[str, Any] = {} if into is None else {"out": into}
        recorder = self._recorder
        if recorder is None or not recorder.wants(self.step):
            return _as_array(kernel(*inputs, **options))
        op = self._record(op_type, scope, recorder.plan, skip, arguments or {})
        if op.skip:
            recorder.skip_op(op)
            return _as_array(kernel(*inputs, **options))
        live = [Live(slot, f"x{slot}", array) for slot, array in enumerate(inputs)]
        opened = recorder.before_op(op, live)
        try:
            output = _as_array(kernel(*inputs, **options))
        except Exception as error:
            recorder.failed_op(opened, error, live)
            raise
        recorder.after_op(opened, [Live(0, "y", output)])
        return output

    def _record(
        self, op_type: str, scope: str, plan: DumpPlan, skip: SkipReason, arguments: Mapping[str, Any]
    ) -> OpRecord:
        number = self._ids[self.step, op_type]
        self._ids[self.step, op_type] += 1
        self._order += 1
        # Unique and increasing, even on a machine that runs two operators within a microsecond.
        self._last_timestamp = max(time.time_ns() // 1000, self._last_timestamp + 1)
        op_name = f"{scope}/{op_type}-op{number}"
        if not skip and not plan.selects(op_name, op_type):
            skip = "not selected"
        return OpRecord(
            op_type=op_type,
            op_name=op_name,
            timestamp=self._last_timestamp,
            step=self.step,
            net_name=plan.net_name,
            rank_id=self._rank_id,
            order=self._order,
            kernel=f"fake::{op_type}",
            arguments=arguments,
            skip=skip,
        )

    def _end_step(self) -> None:
        if self._recorder is not None:
            self._recorder.end_step(self.step)


def _as_array(value: Any) -> Array:
    array: Array = np.asanyarray(value)
    return array


# A layout's writer that keeps records in memory, for tests of recorders and adapters.


class CollectingWriter:
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
_CALLER = Frame("/home/somebody/train.py", 42, "step", "loss = network(images).mean()")


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
