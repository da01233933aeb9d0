"""The operators of each model that are dumped: the `dump_list` of acl.json.

>>> chosen = ModelFilter.of((ModelSelection(model_name="ResNet-50", layers=("conv1", "pool1")),), ("ResNet-50",))
>>> chosen.selects("conv1"), chosen.selects("conv2")
(True, False)

See docs/acl-json.md#dump_list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opdump.plan.field_types import check_fields
from opdump.records import IO


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An entry of `opname_blacklist` or `optype_blacklist`: the slots to leave out of a dump; none if it names none.

    The name is the complete, case-sensitive name of an operator or a type.
    """

    name: str
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    def slots(self, io: IO) -> frozenset[int]:
        return self.inputs if io == "input" else self.outputs


@dataclass(frozen=True, slots=True)
class OperatorRange:
    """An entry of `opname_range`: from `begin` to `end` in execution order, both included."""

    begin: str
    end: str

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSelection:
    """An entry of `dump_list`. A missing key means all."""

    model_name: str | None = None
    """None for every model."""
    layers: tuple[str, ...] | None = None
    """Names of operators, original ones or those of the optimised model; None for every operator."""
    watcher_nodes: tuple[str, ...] = ()
    """The operators whose outputs are written after each operator of `layers` (only in watch mode)."""
    ranges: tuple[OperatorRange, ...] = ()
    type_exclusions: tuple[Exclusion, ...] = ()
    name_exclusions: tuple[Exclusion, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """The entries of a `dump_list` that apply to one model."""

    entries: tuple[ModelSelection, ...]

    @classmethod
    def of(cls, models: Sequence[ModelSelection] | None, names: Iterable[str]) -> ModelFilter:
        """The filter of the model with these names (of its file, of its graph). None selects everything."""
        if models is None:
            return cls((ModelSelection(),))
        wanted = set(names)
        return cls(tuple(entry for entry in models if entry.model_name is None or entry.model_name in wanted))

    @classmethod
    def of_single_operators(cls, models: Sequence[ModelSelection] | None) -> ModelFilter:
        """The filter of operators outside of any model: entries without a name; everything if there are no entries.

        Whether such operators are dumped at all is decided elsewhere: see `DumpPlan.single_operators` and
        `single_operator_models`.
        """
        return cls(tuple(entry for entry in models or () if entry.model_name is None) or (ModelSelection(),))

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the model is dumped."""
        return not self.entries

    def selects(self, op_name: str, original_names: Iterable[str] = (), held: frozenset[str] | None = None) -> bool:
        """Whether an operator is dumped, by its own name or by the name of an operator of the original model that it replaces.

        `held` is the result of `in_ranges` for the model. An entry selects the operators that its layers name and its ranges
        contain, and every operator if it has neither; the entries are combined. Without `held`, ranges are ignored.
        """
        names = {op_name, *original_names}
        for entry in self.entries:
            if entry.layers is None and (held is None or not entry.ranges):
                return True
            if entry.layers is not None and not names.isdisjoint(entry.layers):
                return True
            if held is not None and entry.ranges and op_name in held:
                return True
        return False

    def in_ranges(self, order: Sequence[str]) -> frozenset[str] | None:
        """The operators, given in execution order, that are in a range; None if there is no range.

        A `begin` within an open range has no effect; an `end` before its `begin` makes the range empty; a range without its `end`
        runs to the last operator. Pass the result to `selects`.
        """
        ranges = [each for entry in self.entries for each in entry.ranges]
        if not ranges:
            return None
        held: set[str] = set()
        for each in ranges:
            inside = False
            for name in order:
                if not inside and name == each.end != each.begin:
                    break
                inside = inside or name == each.begin
                if inside:
                    held.add(name)
                    if name == each.end:
                        break
        return frozenset(held)

    def excluded(self, op_name: str, op_type: str, io: IO) -> frozenset[int]:
        """The slots of an operator that the blacklists leave out."""
        slots: set[int] = set()
        for entry in self.entries:
            for exclusions, name in ((entry.type_exclusions, op_type), (entry.name_exclusions, op_name)):
                for exclusion in exclusions:
                    if exclusion.name == name:
                        slots |= exclusion.slots(io)
        return frozenset(slots)
