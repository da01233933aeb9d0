"""Emits the runs of graphs: each operator goes to the recorder with what it read and wrote, in the order in which they ran.

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
    """Stamps the operators of one recorder with the time, and knows which of those without data it has listed.

    Time stamps are microseconds and rise from operator to operator, over all graphs.
    """

    def __init__(self, recorder: Recorder, *, rank_id: int = 0, device_id: int = 0) -> None:
        self.recorder = recorder
        self.rank_id = rank_id
        self.device_id = device_id
        self._timestamp = 0
        self._listed: set[tuple[int, str]] = set()

    def timestamp(self) -> int:
        """The time now, later than any that it gave before."""
        self._timestamp = max(self._timestamp + 1, time.time_ns() // 1000)
        return self._timestamp

    def timestamps(self, count: int) -> range:
        """So many, of which the first is the time now."""
        first = self.timestamp()
        self._timestamp += count - 1
        return range(first, first + count)

    def lists(self, graph_id: int, op_name: str) -> bool:
        """Whether an operator that leaves no data is to be listed: the first time. A mode that may leave nothing lists nothing."""
        key = (graph_id, op_name)
        if key in self._listed or not self.recorder.plan.mode.lists_skipped:
            return False
        self._listed.add(key)
        return True


class GraphRun:
    """One run of a graph, or a part of it.

    `order` numbers the operators of the step as they are emitted; None where an operator's place in its graph (`task_id`) is its order.
    `executions` counts the executions of each operator in the step, by name; runs that are parts of one step share both.
    `called_at` stands for the stack of operators that have none; `device_id` is that of the emitter unless it is given. `graph` gets each operator as
    it runs first, where the adapter does not describe the graph itself.
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
        """The part of this run that another device makes."""
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
        """Whether the recorder takes the block as a whole: then what its runs have in common is done once for all of them."""
        return block.is_known and self.recorder.takes_blocks

    def emit_block(
        self,
        block: Block,
        tensors: Callable[[int], HostTensor | str],
        whole: Callable[[], Sequence[HostTensor | str] | ChosenTensors],
    ) -> None:
        """Emits the operators of a block; `tensors` gives a tensor by the place under which a slot names it.

        `whole` gives all of them for a block that is taken as a whole. Where that fails the operators are emitted one by one.
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
        """Adds an operator to the graph, with what its inputs come from."""
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
        """Whether the recorder has taken a block as a whole."""
        try:
            found = whole()
        except Exception:  # noqa: BLE001  met once more where the tensor is read, and told there
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
        """Lists an operator that leaves no data, the first time; then counts it. The reason is its own where none is given."""
        reason = reason or operator.skip
        if self._graph is not None and operator.op_name not in self._graph:
            self._enter(replace(operator, skip=reason), (), ())
        if self._emitter.lists(self._graph_id, operator.op_name):
            self.recorder.skip_op(self.record(operator, skip=reason))
        else:
            self._next_order(operator)
            self.recorder.count_op(reason)

    def count_skipped(self, reasons: Mapping[SkipReason, int]) -> None:
        """Counts operators that leave no data and were listed before."""
        for reason, count in reasons.items():
            self.recorder.count_op(reason, count)

    def fail(
        self, operator: NamedOperator, error: BaseException, inputs: Iterable[LiveTensor], *, order: int | None = None
    ) -> None:
        self.recorder.failed_op(self.record(operator, order=order), error, inputs)

    def record(
        self, operator: NamedOperator, *, order: int | None = None, occurrence: int = 0, skip: SkipReason = ""
    ) -> OpRecord:
        """An execution of an operator that runs now, the next one in order unless `order` says which."""
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
    """A tensor in a slot, for the recorder. A text is the type of a value that no array stands for: it is opaque."""
    return (slot, argument, tensor, source, skip or ("opaque" if isinstance(tensor, str) else ""))


def _lives(slots: Iterable[BlockSlot], tensors: Callable[[int], HostTensor | str]) -> list[LiveTensor]:
    return [live_tensor(slot, argument, tensors(place), source) for slot, argument, source, place in slots]
