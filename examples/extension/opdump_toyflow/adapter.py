"""Connects toyflow to opdump: while a capture runs, it replaces `run_operator`, through which every operator goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import toyflow

from opdump.adapters.base import Settings
from opdump.adapters.host import NumpyReader
from opdump.plan import DumpPlan
from opdump.recorder import Live, Recorder
from opdump.records import OpRecord

VIEWS = frozenset({"Flatten"})


class ToyflowAdapter:
    """Records every operator of toyflow from `attach` on until the block ends."""

    framework = "toyflow"
    framework_version = toyflow.__version__
    device_target = "CPU"

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader for numpy arrays, which the tensors of toyflow are."""
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[Running]:
        """Record what toyflow runs while the block is open."""
        running = Running(recorder, settings)
        before = toyflow.run_operator, toyflow.ended_step
        toyflow.run_operator, toyflow.ended_step = running.run_operator, running.ended_step
        try:
            yield running
        finally:
            toyflow.run_operator, toyflow.ended_step = before
            recorder.end_step(running.step)


class Running:
    """One capture: the current step, and how often each operator ran in it."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self.step = recorder.plan.initial_iteration
        self._recorder = recorder
        self._settings = settings
        self._by_hand = settings.steps == "manual"
        self._order = 0
        self._time = 0
        self._seen: Counter[str] = Counter()

    def ended_step(self) -> None:
        """A step of the program ended."""
        if not self._by_hand:
            self._end()

    def manual_step(self) -> None:
        """End a step explicitly; from now on, nothing else ends one."""
        self._by_hand = True
        self._end()

    def _end(self) -> None:
        self._recorder.end_step(self.step)
        self._seen.clear()
        self.step += 1

    def run_operator(self, name: str, function: Callable[..., Any], *arrays: Any) -> Any:
        """Run one operator between the two calls of the recorder."""
        recorder = self._recorder
        if self.step not in recorder.plan.steps:
            return function(*arrays)
        op = self._record(name)
        if op.skip:
            recorder.skip_op(op)
            return function(*arrays)
        inputs = [Live(slot, f"x{slot}", array) for slot, array in enumerate(arrays)]
        opened = recorder.before_op(op, inputs)
        try:
            result = function(*arrays)
        except Exception as error:
            recorder.failed_op(opened, error, inputs)
            raise
        recorder.after_op(opened, [Live(0, "y", result)])
        return result

    def _record(self, name: str) -> OpRecord:
        op_name = f"Default/{name}-op{self._seen[name]}"
        self._seen[name] += 1
        self._order += 1
        self._time = max(time.time_ns() // 1000, self._time + 1)  # unique and increasing
        plan = self._recorder.plan
        return OpRecord(
            op_type=name,
            op_name=op_name,
            timestamp=self._time,
            step=self.step,
            net_name=plan.net_name,
            rank_id=self._settings.rank_id,
            order=self._order,
            kernel=f"toyflow::{name}",
            skip="view" if name in VIEWS else "" if plan.selects(op_name, name) else "not selected",
        )


ADAPTER = ToyflowAdapter()
