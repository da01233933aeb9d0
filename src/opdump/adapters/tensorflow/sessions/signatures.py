"""Determines the recorded parts of a signature's operators, and emits its runs.

Everything that a run needs is prepared once. A dumped run is then one call with additional fetches, and its operators are emitted in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from opdump.adapters.graph_runtime import ArrayBlock, BlockOperator, BlockSlot, GraphRun, NamedOperator, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import Slot
from opdump.adapters.tensorflow.operator_kinds import ENTERS
from opdump.adapters.tensorflow.sessions.watches import ObservedValue
from opdump.recorder import LiveTensor
from opdump.records import SkipReason

AT_REST: Final = ENTERS | {"Const"}
"""The makers in loops and branches whose results do not come with each execution of a reader."""

Values = Mapping[Key, Sequence[ObservedValue]]
"""Tensor -> its values, one for each time that it was made."""


@dataclass(frozen=True, slots=True)
class ChosenOperator:
    """An operator and its recorded slots; none if `operator.skip` has a reason. `slots` are its inputs, then its outputs, by tensor."""

    operator: NamedOperator
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    may_not_run: bool = False
    """Whether it is in a branch, a loop or a function."""
    lost: frozenset[Key] = frozenset()
    """Its tensors that cannot be observed."""

    @property
    def keys(self) -> set[Key]:
        return {slot.key for slot in (*self.inputs, *self.outputs)}

    def without(self, lost: Collection[Key]) -> ChosenOperator:
        """The same if these tensors cannot be observed either."""
        return replace(self, lost=self.lost.union(lost)) if lost else self

    @property
    def unseen(self) -> SkipReason:
        """The skip reason if no value was seen."""
        lost = any(slot.key in self.lost for slot in self.outputs or self.inputs)
        return "not executed" if self.may_not_run and not lost else "not observed"

    def unseen_tensor(self, slot: Slot) -> SkipReason:
        """The skip reason for one of its tensors."""
        return "not observed" if slot.key in self.lost else self.unseen


class SignatureEmitter:
    """Emits the runs of a signature. `resolved` maps a tensor to its equal one."""

    def __init__(
        self,
        capture: Capture,
        model: Model,
        operators: Sequence[ChosenOperator],
        resolved: Callable[[Key], Key],
        at_rest: Collection[Key],
    ) -> None:
        """`at_rest`: the tensors in loops and branches that do not come with each execution of a reader."""
        self._at_rest = at_rest
        self._capture = capture
        self._model = model
        operators = [self._shown(each) for each in operators]
        self._operators = operators
        self._keys = {
            slot.key: resolved(slot.key) for chosen in operators for slot in (*chosen.inputs, *chosen.outputs)
        }
        self._parts = list(self._divided())

    def _shown(self, chosen: ChosenOperator) -> ChosenOperator:
        """The operator with its name in records, and the makers of its inputs."""
        capture, model = self._capture, self._model
        operator = chosen.operator
        arguments = {
            key: capture.shown(model, value) if key == "inside" else value for key, value in operator.arguments.items()
        }
        operator = replace(operator, op_name=capture.shown(model, operator.op_name), arguments=arguments)
        inputs = tuple(replace(slot, source=capture.shown_source(model, slot.source)) for slot in chosen.inputs)
        return replace(chosen, operator=operator, inputs=inputs)

    def emit(self, values: Values, step: int, run_at: Stack) -> None:
        """Pass the operators of a run to the recorder. `values` has every available tensor.

        `run_at` are the program lines that ran it, for operators that were imported.
        """
        run = self._capture.run(self._model, step, called_at=run_at)
        hosts: dict[int, HostTensor] = {}
        for part in self._parts:
            if run.is_over:
                return
            if isinstance(part, _Prepared):
                seen = [values.get(key) for key in part.keys]
                if all(seen):
                    part.emit([each[0] for each in seen if each], run, hosts)
                    continue
            for chosen in part.operators if isinstance(part, _Prepared) else (part,):
                with run.recorder.losing(chosen.operator):
                    self._emit_one(chosen, values, run, hosts)

    def _emit_one(self, chosen: ChosenOperator, values: Values, run: GraphRun, hosts: dict[int, HostTensor]) -> None:
        executions = () if chosen.operator.skip else self._executions(chosen, values)
        for inputs, outputs in executions:
            run.emit(
                chosen.operator,
                [_live(slot, value, hosts, chosen) for slot, value in zip(chosen.inputs, inputs, strict=True)],
                [_live(slot, value, hosts, chosen) for slot, value in zip(chosen.outputs, outputs, strict=True)],
            )
        if not executions:
            run.skip(chosen.operator, chosen.operator.skip or chosen.unseen)

    def _divided(self) -> Iterator[_Prepared | ChosenOperator]:
        """Operators that run once in each run are passed on together."""
        for is_sure, group in groupby(self._operators, lambda each: bool(each.operator.skip) or not each.may_not_run):
            if is_sure:
                yield self._prepared([*group])
            else:
                yield from group

    def _prepared(self, operators: Sequence[ChosenOperator]) -> _Prepared:
        places: dict[Key, int] = {}

        def slots(found: Sequence[Slot]) -> tuple[BlockSlot, ...]:
            return tuple(
                BlockSlot(each.slot, each.argument, each.source, places.setdefault(self._keys[each.key], len(places)))
                for each in found
            )

        found = [BlockOperator(each.operator, slots(each.inputs), slots(each.outputs)) for each in operators]
        return _Prepared(ArrayBlock(found), tuple(places), tuple(operators))

    def _executions(
        self, chosen: ChosenOperator, values: Values
    ) -> Sequence[tuple[Sequence[ObservedValue | None], Sequence[ObservedValue | None]]]:
        """The executions of an operator: one, except in loops, and in branches that were not taken."""
        outputs = [values.get(self._keys[slot.key], ()) for slot in chosen.outputs]
        inputs = [values.get(self._keys[slot.key], ()) for slot in chosen.inputs]
        if not (inputs or outputs):
            return [((), ())]  # nothing of it is selected
        count = max(map(len, outputs), default=0)
        if count == 0 and not chosen.may_not_run:
            count = min(1, max(map(len, inputs), default=0))
        elif inputs and all(slot.key in chosen.lost for slot in chosen.outputs):
            # An input of an operator in a branch or loop exists where the operator runs. The initial value of a loop exists once, or once more than its body runs.
            pairs = list(zip(chosen.inputs, inputs, strict=True))
            moving = [len(seen) for slot, seen in pairs if slot.key not in self._at_rest]
            count = max(moving) if moving else max(map(len, inputs))
        return [
            (
                [_read(seen, number, count, outputs) for seen in inputs],
                [seen[number] if number < len(seen) else None for seen in outputs],
            )
            for number in range(count)
        ]


class _Prepared(NamedTuple):
    """Operators that are passed on together, and their tensors."""

    block: ArrayBlock
    keys: tuple[Key, ...]
    operators: tuple[ChosenOperator, ...]

    def emit(self, seen: Sequence[ObservedValue], run: GraphRun, hosts: dict[int, HostTensor]) -> None:
        """Pass them on with the values of their tensors."""
        self.block.emit(run, [each.array for each in seen], lambda number: _host(seen[number], hosts))


def _read(
    seen: Sequence[ObservedValue], number: int, count: int, outputs: Sequence[Sequence[ObservedValue]]
) -> ObservedValue | None:
    """The value that an execution read: its own if there is one for each execution, otherwise the last one before its output."""
    if len(seen) <= 1:
        return seen[0] if seen else None
    if len(seen) in (count, count + 1):  # a merge at the head of a loop runs once more than its body
        return seen[number]
    moment = next((each[number].moment for each in outputs if number < len(each)), None)
    if moment is None:
        return seen[min(number, len(seen) - 1)]
    before = [each for each in seen if each.moment <= moment]
    return before[-1] if before else seen[0]


def _host(value: ObservedValue, hosts: dict[int, HostTensor]) -> HostTensor:
    """The same object for all readers of the value, so that it is examined once."""
    host = hosts.get(id(value))
    if host is None:
        host = hosts[id(value)] = HostTensor.of_array(value.array, stays=value.stays)
    return host


def _live(slot: Slot, value: ObservedValue | None, hosts: dict[int, HostTensor], chosen: ChosenOperator) -> LiveTensor:
    if value is None:
        return live_tensor(slot.slot, slot.argument, slot.dtype_name, slot.source, chosen.unseen_tensor(slot))
    return live_tensor(slot.slot, slot.argument, _host(value, hosts), slot.source)
