"""Emits the runs of graphs: passes each operator with its inputs and outputs to the recorder, in execution order.

emitter = RunEmitter(recorder)
run = GraphRun(emitter, "lenet", graph_id=1, step=0, order=itertools.count())
run.skip(NamedOperator("Const", "scale", skip="constant"))  # listed once, counted in later runs
run.emit(relu, inputs, outputs)
run.emit_block(block, tensor, tensors)  # many at once
run.fail(divide, error, inputs, order=2)
recorder.end_step(0)
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from opdump.adapters.graph_runtime.block import Block, BlockSlot
from opdump.adapters.graph_runtime.named_operator import NamedOperator
from opdump.adapters.host import ChosenTensors, HostTensor, facts_of
from opdump.graph import GraphBuilder, GraphInput, GraphNode, GraphOutput
from opdump.recorder import LiveTensor, Recorder
from opdump.records import Frame, OpRecord, SkipReason


class RunEmitter:
    """Assigns timestamps to the operators of one recorder, and knows which skipped ones are already listed.

    Timestamps are microseconds and increase from operator to operator, over all graphs.
    """

    def __init__(self, recorder: Recorder, *, rank_id: int = 0, device_id: int = 0) -> None:
        self.recorder = recorder
        self.rank_id = rank_id
        self.device_id = device_id
        self._timestamp = 0
        self._listed: set[tuple[int, str]] = set()

    def timestamp(self) -> int:
        """The current time, but later than every earlier timestamp."""
        self._timestamp = max(self._timestamp + 1, time.time_ns() // 1000)
        return self._timestamp

    def timestamps(self, count: int) -> range:
        """Consecutive timestamps; the first is the current time."""
        first = self.timestamp()
        self._timestamp += count - 1
        return range(first, first + count)

    def lists(self, graph_id: int, op_name: str) -> bool:
        """Whether to list a skipped operator, which is done the first time. Modes whose dump may be empty list none."""
        key = (graph_id, op_name)
        if key in self._listed or not self.recorder.plan.mode.lists_skipped:
            return False
        self._listed.add(key)
        return True


class GraphRun:
    """One run of a graph, or a part of it.

    `order` numbers the operators of the step as they are emitted; None if the position of an operator in its graph (`task_id`) is its
    order. `executions` counts the executions of each operator in the step, by name; runs that are parts of one step share both.
    `called_at` is the stack of operators that have none. `device_id` defaults to that of the emitter. If `graph` is given, each operator
    is added to it when it first runs; otherwise the adapter describes the graph itself.
    """

    def __init__(
        self,
        emitter: RunEmitter,
        net_name: str,
        graph_id: int,
        step: int,
        *,
        order: Iterator[int] | None = None,
        executions: Counter[str] | None = None,
        called_at: Sequence[Frame] = (),
        device_id: int | None = None,
        graph: GraphBuilder | None = None,
    ) -> None:
        self.recorder = emitter.recorder
        self._graph = graph
        self.step = step
        self._emitter = emitter
        self._net_name = net_name
        self._graph_id = graph_id
        self._order = order
        self._executions: Counter[str] = Counter() if executions is None else executions
        self._called_at = called_at
        self._device_id = emitter.device_id if device_id is None else device_id

    def on_device(self, device_id: int) -> GraphRun:
        """The part of this run on another device."""
        part = copy.copy(self)
        part._device_id = device_id
        return part

    @property
    def is_over(self) -> bool:
        return self.recorder.is_over

    def emit(self, operator: NamedOperator, inputs: Iterable[LiveTensor], outputs: Iterable[LiveTensor]) -> None:
        occurrence = self._executions[operator.op_name]
        self._executions[operator.op_name] = occurrence + 1
        if self._graph is not None and operator.op_name not in self._graph:
            inputs, outputs = list(inputs), list(outputs)
            self._enter(operator, [(each[3], each[2]) for each in inputs], [each[2] for each in outputs])
        opened = self.recorder.before_op(self.record(operator, occurrence=occurrence), inputs)
        self.recorder.after_op(opened, outputs)

    def takes(self, block: Block) -> bool:
        """Whether the recorder accepts the block as a whole. Work that is common to its runs is then done only once."""
        return block.is_known and self.recorder.takes_blocks

    def emit_block(
        self,
        block: Block,
        tensors: Callable[[int], HostTensor | str],
        whole: Callable[[], Sequence[HostTensor | str] | ChosenTensors],
    ) -> None:
        """Emit the operators of a block. `tensors` returns the tensor at the position in a slot.

        `whole` returns all of them, for a block that is recorded as a whole. If that fails, the operators are emitted one by one.
        """
        if self._graph is not None and not block.is_entered:
            for each in block.operators:
                self._enter(
                    each.operator,
                    [(slot.source, tensors(slot.tensor)) for slot in each.inputs],
                    [tensors(slot.tensor) for slot in each.outputs],
                )
            block.is_entered = True
        if self.takes(block) and self._take_block(block, whole):
            return
        for each in block.operators:
            if self.is_over:
                return
            if each.operator.skip:
                self.skip(each.operator)
                continue
            with self.recorder.losing(each.operator):
                self.emit(each.operator, _lives(each.inputs, tensors), _lives(each.outputs, tensors))
        block.is_known = True

    def _enter(self, operator: NamedOperator, inputs: Iterable[tuple[str, Any]], outputs: Iterable[Any]) -> None:
        """Add an operator and the sources of its inputs to the graph."""
        assert self._graph is not None
        self._graph.add_with_values(
            GraphNode(
                op_name=operator.op_name,
                op_type=operator.op_type,
                phase=operator.phase,
                inputs=tuple(GraphInput(source, *facts_of(tensor)[:2]) for source, tensor in inputs),
                outputs=tuple(GraphOutput(*facts_of(tensor)[:2]) for tensor in outputs),
                attributes=operator.arguments,
                stack=operator.stack or self._called_at,
                runs_kernel=not operator.skip,
            )
        )

    def _take_block(self, block: Block, whole: Callable[[], Sequence[HostTensor | str] | ChosenTensors]) -> bool:
        """Whether the recorder accepted the block as a whole."""
        try:
            found = whole()
        except Exception:  # noqa: BLE001  raised again when the tensor is read, and reported there
            return False
        order, before = self._order, dict(self._executions)
        sequence = block.sequence(
            None if order is None else list(islice(order, len(block.operators))),
            self._executions,
            self._called_at,
            net_name=self._net_name,
            graph_id=self._graph_id,
            rank_id=self._emitter.rank_id,
            device_id=self._device_id,
        )
        if not self.recorder.take_block(sequence, self.step, self._emitter.timestamps(len(block.ran)), found):
            self._executions.clear()
            self._executions.update(before)
            return False
        self.count_skipped(block.skipped)
        return True

    def skip(self, operator: NamedOperator, reason: SkipReason = "") -> None:
        """List a skipped operator the first time, then count it. The reason defaults to the operator's own."""
        reason = reason or operator.skip
        if self._graph is not None and operator.op_name not in self._graph:
            self._enter(replace(operator, skip=reason), (), ())
        if self._emitter.lists(self._graph_id, operator.op_name):
            self.recorder.skip_op(self.record(operator, skip=reason))
        else:
            self._next_order(operator)
            self.recorder.count_op(reason)

    def count_skipped(self, reasons: Mapping[SkipReason, int]) -> None:
        """Count skipped operators that are already listed."""
        for reason, count in reasons.items():
            self.recorder.count_op(reason, count)

    def fail(
        self, operator: NamedOperator, error: BaseException, inputs: Iterable[LiveTensor], *, order: int | None = None
    ) -> None:
        self.recorder.failed_op(self.record(operator, order=order), error, inputs)

    def record(
        self, operator: NamedOperator, *, order: int | None = None, occurrence: int = 0, skip: SkipReason = ""
    ) -> OpRecord:
        """An execution of an operator that runs now. `order` defaults to the next number."""
        return OpRecord(
            op_type=operator.op_type,
            op_name=operator.op_name,
            timestamp=self._emitter.timestamp(),
            step=self.step,
            net_name=self._net_name,
            graph_id=self._graph_id,
            rank_id=self._emitter.rank_id,
            device_id=self._device_id,
            order=self._next_order(operator) if order is None else order,
            task_id=operator.task_id,
            occurrence=occurrence,
            phase=operator.phase,
            kernel=operator.own_kernel,
            stack=operator.stack or self._called_at,
            arguments=operator.arguments,
            skip=skip,
        )

    def _next_order(self, operator: NamedOperator) -> int:
        return operator.task_id if self._order is None else next(self._order)


def live_tensor(
    slot: int, argument: str, tensor: HostTensor | str, source: str = "", skip: SkipReason = ""
) -> LiveTensor:
    """A tensor in a slot, for the recorder. A text is the type of a value that is not an array, which is recorded as opaque."""
    return (slot, argument, tensor, source, skip or ("opaque" if isinstance(tensor, str) else ""))


def _lives(slots: Iterable[BlockSlot], tensors: Callable[[int], HostTensor | str]) -> list[LiveTensor]:
    return [live_tensor(slot, argument, tensors(place), source) for slot, argument, source, place in slots]
