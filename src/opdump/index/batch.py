"""Prepares the records of one call, a batch, for the index and for statistic.csv.

A regular training runs the same operators on the same tensors in every step. What ran is an `IndexTemplate`. A batch that repeats one of the last
few has the same template object, so code that caches by template can compare with `is`. The arguments of operators may differ (`Batch.arguments`): for example,
Adam divides by a different number in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from opdump.records import WITHOUT_KERNEL, FiledTensor, OpRecord
from opdump.step_table import OtherArguments, StepTable, TemplateRun

Key = tuple[object, ...]


# Not compared by value: `Batches` finds out once whether a batch repeats an earlier one.
@dataclass(frozen=True, slots=True, eq=False)
class IndexTemplate:
    """What ran, as rows of the index: everything except time stamps, statistics and files. Arguments of operators are those of the first time."""

    operators: Sequence[Key]
    """For each operator, its columns in the index's `operators` in order, without the arguments and with the stack by identity."""
    places: Sequence[int]
    """For each tensor, the index of its operator."""
    signatures: Sequence[Key]
    """For each tensor, its columns in the index's `signatures` in order, with shape and memory as objects."""
    first_operators: tuple[OpRecord, ...]
    """The first operators of this template, with their arguments. They keep alive the objects whose identities are in `operators`."""
    graph_ids: frozenset[int]
    """Graphs that executed something."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The records of a step, or of a part of it."""

    template: IndexTemplate
    table: StepTable[FiledTensor]
    """The operators passed in, followed by operators of tensors that were not among them."""
    arguments: OtherArguments
    """By operator index, the arguments that differ from those in the template."""


@dataclass(slots=True, eq=False)
class _Known:
    """What earlier batches ran."""

    template: IndexTemplate
    parts: Sequence[Key]
    """The keys of the parts of the last batch; equal for a batch that runs the same."""
    arguments: OtherArguments
    """The arguments in the templates of these parts that differ from those in the template."""


_MOST_RECENT: Final = 4
_MOST_OPERATORS: Final = 50_000
"""Limit for all templates that are kept except the last. A training has a few kinds of steps; of very long steps, only the last is kept."""


class Batches:
    """Creates batches, and keeps the last templates. `arguments` of operators must not be changed after they were passed in."""

    def __init__(self) -> None:
        self._recent: list[_Known] = []
        """The last one is first."""

    @property
    def recent(self) -> list[IndexTemplate]:
        """The templates that are kept."""
        return [known.template for known in self._recent]

    def of(self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> Batch:
        """Return these records as a batch. No records are created if it repeats one of the last."""
        table = StepTable.of(ops, tensors)
        parts = _keys_of_parts(table)
        if parts is None:  # a tensor whose operator was written before
            ops, tensors = table.records
            known_ops = {id(op) for op in ops}
            others = {id(each.op): each.op for each in tensors if id(each.op) not in known_ops}
            return self.of([*ops, *others.values()], tensors)
        known = next((each for each in self._recent if each.parts == parts), None) or self._learned(table, parts)
        self._recent = [known, *(each for each in self._recent if each is not known)][:_MOST_RECENT]
        while len(self._recent) > 1 and sum(len(each.operators) for each in self.recent[1:]) > _MOST_OPERATORS:
            self._recent.pop()
        singles = ((place, op.arguments) for op, place in table.singles)
        given = chain(known.arguments.items(), singles, table.other_arguments.items())
        return Batch(known.template, table, _other_arguments(known.template, dict(given).items()))

    def _learned(self, table: StepTable[FiledTensor], parts: Sequence[Key]) -> _Known:
        """Return one of the last templates if its flat keys are those of the table, else a new one."""
        ops, tensors = table.records
        keys = operator_keys(ops), table.owners.tolist(), signature_keys(tensors)
        known = next(
            (
                each
                for each in self._recent
                if (each.template.operators, each.template.places, each.template.signatures) == keys
            ),
            None,
        )
        if known is None:
            graph_ids = frozenset(op.graph_id for op in ops if op.skip not in WITHOUT_KERNEL)
            known = _Known(IndexTemplate(*keys, tuple(ops), graph_ids), parts, {})
        known.parts = parts
        usual = (
            (start + place, op.arguments)
            for part, start in zip(table.parts, table.op_starts, strict=False)
            if isinstance(part, TemplateRun)
            for place, op in enumerate(part.template.ops)
        )
        known.arguments = _other_arguments(known.template, usual)
        return known

    def forget(self) -> None:
        """Release the memory of the last templates; the next batch repeats none."""
        self._recent = []


def operator_keys(ops: Iterable[OpRecord]) -> list[Key]:
    """Return the keys of operators, as in `IndexTemplate.operators`."""
    return [
        (
            op.op_type,
            op.op_name,
            op.net_name,
            op.graph_id,
            op.rank_id,
            op.device_id,
            op.task_id,
            op.stream_id,
            op.phase,
            op.kernel,
            op.forward_op,
            op.order,
            op.occurrence,
            op.skip,
            id(op.stack),
        )
        for op in ops
    ]


def signature_keys(tensors: Iterable[FiledTensor]) -> list[Key]:
    """Return the keys of tensors, as in `IndexTemplate.signatures`."""
    return [
        (
            tensor.io,
            tensor.slot,
            tensor.dtype,
            tensor.shape,
            tensor.format,
            tensor.data_size,
            tensor.argument,
            tensor.source,
            tensor.skip,
            tensor.sample,
            tensor.memory,
        )
        for tensor in tensors
    ]


def _keys_of_parts(table: StepTable[FiledTensor]) -> list[Key] | None:
    """Return keys that are equal for steps that differ only in time stamps, statistics and arguments. None if a tensor's operator is not in the
    step.
    """
    owners = table.owners
    if len(owners) and owners.min() < 0:
        return None
    return [
        part.key
        if isinstance(part, TemplateRun)
        else (operator_keys(part.ops), signature_keys(part.tensors), owners[start:][: len(part.tensors)].tolist())
        for part, start in zip(table.parts, table.tensor_starts, strict=False)
    ]


def _other_arguments(template: IndexTemplate, given: Iterable[tuple[int, Mapping[str, Any]]]) -> OtherArguments:
    """Return, by operator index, the arguments that differ from those in the template. Adapters pass the same object for equal arguments."""
    first = template.first_operators
    return {
        place: arguments
        for place, arguments in given
        if arguments is not first[place].arguments and (arguments or first[place].arguments)
    }
