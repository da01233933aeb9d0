"""The common parts of adapters for graph runtimes. Such a runtime executes a graph of named operators, whose values are available while
it runs or afterwards.

RunEmitter         passes the operators of runs to a recorder, one by one
Block              consecutive operators, prepared once
ArrayBlock         a block whose tensors are arrays, which are passed by address
GraphRun           one run: numbers its operators, lists skipped ones once, and records a failed one with its inputs
NamedOperator      an operator of a graph: the common part of the records of all its executions
UniqueNames        operator names whose last components are unique in a graph, for layouts that use these in file names
OperatorSelection  the operators of a graph that a plan selects, and their slots
StepCount          numbers the runs of a graph as steps

No framework is imported here. Values in host memory are `opdump.adapters.host`; each adapter obtains the values of a run itself.
"""

from __future__ import annotations

import copy
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.adapters.host import Choice, ChosenTensors, HostColumns, HostTensor, facts_of
from opdump.graph import GraphBuilder, GraphInput, GraphNode, GraphOutput
from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.plan.unmatched_names import ListMatches
from opdump.recorder import LiveTensor, Recorder
from opdump.records import IO, Frame, OpRecord, Phase, SkipReason
from opdump.step_table import StepTemplate

# Operators of a graph, their names in MindSpore's layouts, which of them are recorded, and the runs of the graph.

_VALUE: Final = "Parameter"
_NUMBER: Final = re.compile(r"-op[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator of a graph: the common part of the records of all its executions.

    `task_id` is its position in the graph, if the runtime counts it; `kernel` the runtime's name for it, if that differs from the type;
    `stack` the program lines that created it, empty if unknown; `skip` the reason why it is skipped.
    """

    op_type: str
    op_name: str
    task_id: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stack: Sequence[Frame] = ()
    kernel: str = ""
    skip: SkipReason = ""
    phase: Phase = "forward"

    @property
    def own_kernel(self) -> str:
        """The runtime's name for it; empty for a value that no operator made."""
        return self.kernel or ("" if self.op_type == _VALUE else self.op_type)


class UniqueNames:
    """Full names whose last components are unique in a graph, as in MindSpore, whose files contain only this component.

    If another name already has the same last component, a number is appended.

    >>> names = UniqueNames()
    >>> [names.of(name) for name in ("conv1/Conv", "conv2/Conv", "conv2/Relu-op0", "conv3/Relu-op0", "conv2/Conv")]
    ['conv1/Conv', 'conv2/Conv-op1', 'conv2/Relu-op0', 'conv3/Relu-op1', 'conv2/Conv-op1']
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The next number to try, by the last component without its number."""

    def of(self, name: str) -> str:
        """The unique name of an operator. The same name always has the same result."""
        known = self._names.get(name)
        if known is None:
            scope, slash, last = name.rpartition("/")
            stem = _NUMBER.sub("", last)
            number = self._numbers.get(stem, 1)
            while last in self._taken:
                last = f"{stem}-op{number}"
                number += 1
            self._numbers[stem] = number
            self._taken.add(last)
            known = self._names[name] = f"{scope}{slash}{last}"
        return known


class OperatorSelection:
    """The selection of a plan, and of the entries of its `dump_list` for one graph.

    `held` are the operators in the ranges of the entries (`ModelFilter.in_ranges`). `matched_kernels` collects the entries of the plan's
    `kernels` that matched an operator, and `matches` the names in the `dump_list` that operators have.
    """

    def __init__(
        self,
        plan: DumpPlan,
        model_filter: ModelFilter,
        held: frozenset[str] | None = None,
        matches: ListMatches | None = None,
    ) -> None:
        self._plan = plan
        self._filter = model_filter
        self._held = held
        self._matches = matches
        self.matched_kernels: set[str] = set()
        is_whole = plan.mode.detects_overflow  # overflow can only be judged from inputs and outputs together
        self.wants_inputs = plan.inputs or is_whole
        self.wants_outputs = plan.outputs or is_whole

    @property
    def is_empty(self) -> bool:
        return self._filter.is_empty

    def wants(self, io: IO) -> bool:
        """Whether inputs, or outputs, are recorded at all."""
        return self.wants_inputs if io == "input" else self.wants_outputs

    def names(self, op_name: str) -> bool:
        """Whether the entries of the `dump_list` name this operator, or select all."""
        return self._filter.selects(op_name)

    def selects(self, op_name: str, op_type: str, original_names: Iterable[str] = ()) -> bool:
        """Whether an operator is recorded. `original_names` are other names that select it: those of the operators that it replaces."""
        original_names = tuple(original_names)
        names = (op_name, *original_names)
        if self._matches is not None:
            self._matches.operator(self._filter.entries, op_name, names, op_type)
        if not self._filter.selects(op_name, original_names, self._held) or not any(
            self._plan.selects(name, op_type) for name in names
        ):
            return False
        self.matched_kernels.update(entry for name in names for entry in self._plan.matching_kernels(name, op_type))
        return True

    def excluded(self, op_name: str, op_type: str, io: IO) -> frozenset[int]:
        """The slots that the blacklists exclude."""
        return self._filter.excluded(op_name, op_type, io)


class StepCount:
    """Numbers runs, starting with `first`. Numbers are unique and have no gaps."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._next = first
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._lock = threading.Lock()

    @property
    def ended(self) -> int:
        """The number of finished runs before the first one that is still running."""
        return self._next - self._first

    def take(self) -> int:
        """The number of a run that counts as a step even if it fails."""
        with self.counted() as step:
            return step

    @contextmanager
    def counted(self) -> Iterator[int]:
        """The number of the run in the block. If the block raises, the next run gets the same number, because a failed run is not a step."""
        with self._lock:
            step = self._next
            while step in self._running or step in self._done:
                step += 1
            self._running.add(step)
        try:
            yield step
        except BaseException:
            with self._lock:
                self._running.discard(step)
            raise
        with self._lock:
            self._running.discard(step)
            self._done.add(step)
            while self._next in self._done:
                self._done.discard(self._next)
                self._next += 1


# Consecutive operators of a graph, prepared once. Between runs, little more than their tensors changes: the numbers in the slots of a block
# are places among the tensors of a run.

MOST_RECORDS: Final = 50_000
"""Maximum number of records that are kept for the operators of one block, at the different positions in a step at which it runs: a
loop runs it many times.
"""


class BlockSlot(NamedTuple):
    """A slot of an operator; `tensor` is the position of its tensor among those of a run, `source` the producer of the tensor."""

    slot: int
    argument: str
    source: str
    tensor: int


class BlockOperator(NamedTuple):
    """An operator of a block. If it is skipped, it has no slots."""

    operator: NamedOperator
    inputs: Sequence[BlockSlot] = ()
    outputs: Sequence[BlockSlot] = ()


class Block:
    """Operators in execution order."""

    def __init__(self, operators: Sequence[BlockOperator]) -> None:
        self.operators = operators
        self.places = [place for place, each in enumerate(operators) if not each.operator.skip]
        """The positions of operators that are not skipped."""
        self.ran = [operators[place].operator for place in self.places]
        self.slots = [*self._slots()]
        """All slots, in the form for a recorder (`SupportsBlocks`)."""
        self.skipped: Counter[SkipReason] = Counter(each.operator.skip for each in operators if each.operator.skip)
        self.is_known = not self.skipped
        """Whether the skipped operators are already listed."""
        self.is_entered = False
        """Whether the operators are in the graph of the model."""
        self._names = [each.op_name for each in self.ran]
        seen: Counter[str] = Counter()
        self._before: list[int] = []
        """For each operator, the number of its earlier executions in the block."""
        for name in self._names:
            self._before.append(seen[name])
            seen[name] += 1
        self._templates: dict[tuple[object, ...], _Known] = {}

    def template(
        self,
        numbers: Sequence[int] | None,
        executions: dict[str, int],
        called_at: Sequence[Frame],
        *,
        net_name: str,
        graph_id: int,
        rank_id: int,
        device_id: int,
    ) -> StepTemplate:
        """The operators that are not skipped, for the current run. If nothing differs from another step, the same object is returned.

        `numbers` are the orders of all operators; None if these are their positions in the graph. `executions` counts the executions of each
        operator in the step, by name, and is updated.
        """
        occurrences = [*map(executions.get, self._names, repeat(0))]
        if len(self._names) > 1:
            occurrences = [*map(add, occurrences, self._before)]
        key = (
            net_name,
            graph_id,
            rank_id,
            device_id,
            numbers[0] if numbers else -1,
            occurrences[0] if occurrences else 0,
        )
        known = self._templates.get(key)
        if (
            known is None
            or known.numbers != numbers
            or known.occurrences != occurrences
            or known.called_at is not called_at
        ):
            while len(self._templates) * len(self.ran) > MOST_RECORDS:
                del self._templates[next(iter(self._templates))]
            orders = [each.task_id for each in self.ran] if numbers is None else [numbers[at] for at in self.places]
            ops = [
                OpRecord(
                    each.op_type,
                    each.op_name,
                    0,
                    0,
                    net_name,
                    graph_id,
                    rank_id,
                    device_id,
                    task_id=each.task_id,
                    order=order,
                    occurrence=occurrence,
                    phase=each.phase,
                    kernel=each.own_kernel,
                    stack=each.stack or called_at,
                    arguments=each.arguments,
                )
                for each, order, occurrence in zip(self.ran, orders, occurrences, strict=True)
            ]
            executed = {name: occurrence + 1 for name, occurrence in zip(self._names, occurrences, strict=True)}
            known = _Known(StepTemplate(ops, self.slots), numbers, occurrences, called_at, executed)
            self._templates[key] = known
        dict.update(executions, known.executed)
        return known.template

    def _slots(self) -> Iterator[tuple[int, IO, int, str, str, int]]:
        for number, place in enumerate(self.places):
            each = self.operators[place]
            sides: tuple[tuple[IO, Sequence[BlockSlot]], ...] = (("input", each.inputs), ("output", each.outputs))
            for io, slots in sides:
                for slot, argument, source, tensor in slots:
                    yield number, io, slot, argument, source, tensor


class _Known(NamedTuple):
    template: StepTemplate
    numbers: Sequence[int] | None
    occurrences: Sequence[int]
    called_at: Sequence[Frame]
    executed: Mapping[str, int]
    """The number of executions of each operator afterwards."""


# Emits the runs of graphs: passes each operator with its inputs and outputs to the recorder, in execution order. A `GraphRun` emits one
# operator (`emit`), a block of them (`emit_block`), lists a skipped one (`skip`) once and counts it in later runs, or records a failure
# (`fail`).


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
        template = block.template(
            None if order is None else list(islice(order, len(block.operators))),
            self._executions,
            self._called_at,
            net_name=self._net_name,
            graph_id=self._graph_id,
            rank_id=self._emitter.rank_id,
            device_id=self._device_id,
        )
        if not self.recorder.take_block(template, self.step, self._emitter.timestamps(len(block.ran)), found):
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


# Operators whose tensors are arrays that are new in each run, usually with the types and shapes of the previous run.


class ArrayBlock:
    """Emits operators by the addresses of their arrays if the recorder accepts whole blocks. A slot refers to its tensor by position.

    `texts` are the types of values that are not arrays; their positions follow those of the arrays.
    """

    def __init__(self, operators: Sequence[BlockOperator], texts: Sequence[str] = ()) -> None:
        self._block = Block(operators)
        self._texts = texts
        self._kinds: list[tuple[Any, ...]] = []
        self._choice: Choice | None = None
        """The choice for arrays of these types and shapes."""

    def emit(self, run: GraphRun, arrays: Sequence[npt.NDArray[Any]], host: Callable[[int], HostTensor | str]) -> None:
        """Pass the operators of a run on. `host` wraps the array with a given number. The arrays must not change meanwhile."""

        def tensor(number: int) -> HostTensor | str:
            return host(number) if number < len(arrays) else self._texts[number - len(arrays)]

        def whole() -> ChosenTensors | list[HostTensor | str]:
            if all(array.flags.c_contiguous for array in arrays):
                return self._chosen(arrays, host)
            return [*map(tensor, range(len(arrays) + len(self._texts)))]

        run.emit_block(self._block, tensor, whole)

    def _chosen(self, arrays: Sequence[npt.NDArray[Any]], host: Callable[[int], HostTensor | str]) -> ChosenTensors:
        kinds = [(array.shape, array.dtype) for array in arrays]
        if self._choice is None or kinds != self._kinds:
            tensors: list[HostTensor | str] = [*map(host, range(len(arrays))), *self._texts]
            places = [*((0, number) for number in range(len(arrays))), *(None for _ in self._texts)]
            self._kinds, self._choice = kinds, Choice(tensors, places)
        columns = HostColumns()
        columns.extend(np.array([array.__array_interface__["data"][0] for array in arrays], np.int64))
        objects = [
            host(number) if number < len(arrays) else self._texts[number - len(arrays)]
            for number in self._choice.objects
        ]
        return self._choice.of(columns, objects=objects)
