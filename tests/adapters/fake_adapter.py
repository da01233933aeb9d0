"""An adapter without a framework: its tensors are numpy arrays, and its operators are functions of them.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Settings
from opdump.kernels import DTYPE_CODES, Summary, summarise
from opdump.plan import DumpPlan
from opdump.recorder import Elements, Live, Recorder, TensorSnapshot
from opdump.records import OpRecord, SkipReason
from opdump.statistics import ElementStatistics

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
