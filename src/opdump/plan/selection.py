"""What a plan selects: steps, kernels by name or type, and operators of models."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opdump.errors import ConfigError
from opdump.op_types import is_called
from opdump.plan.field_types import check_fields
from opdump.records import IO

# The steps to dump, in the form of the `iteration` key of data_dump.json: `all` or `0|5-8|100-120`; and `all every 20`, an
# extension of opdump.

# MindSpore reads each number into a size_t; larger numbers have no meaning there.
_LARGEST = 2**64 - 1
_ALPHABET = re.compile(r"[0-9|-]+")
_EVERY = re.compile(r"(.+) every ([0-9]{1,9})", re.ASCII)
_ITEM = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_EXAMPLE = 'write it as "0|5-8|100-120" or "all"'


@dataclass(frozen=True, slots=True)
class StepSet:
    """A set of step numbers, counted from 0, stored as ranges: a huge range costs no memory.

    `ranges` contains inclusive (first, last) pairs, sorted and disjoint; None stands for every step. Only multiples of `every`
    belong to the set. Raises ConfigError if there is none.
    """

    ranges: tuple[tuple[int, int], ...] | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"every is {self.every}, expected 1 or more: every Nth step is dumped")
        if self.ranges is not None and not self.reaches(0, self.ranges[-1][1]):
            raise ConfigError(
                f"none of the steps {_text(self.ranges)} is a multiple of {self.every}, so nothing would be dumped"
            )

    @classmethod
    def all(cls) -> StepSet:
        """Every step."""
        return cls(None)

    @classmethod
    def of(cls, *steps: int) -> StepSet:
        """The given steps and no others.

        Raises ConfigError for a negative step and for an empty list.
        """
        if not steps or min(steps) < 0:
            raise ConfigError(f"found the steps {list(steps)}, expected one or more numbers, each 0 or more")
        return cls(_merged([(step, step) for step in steps]))

    @classmethod
    def parse(cls, text: str, key: str = "iteration") -> StepSet:
        """Parse `all` or items joined by `|`; an item is a number or an inclusive range; empty items are skipped. ` every 20` may
        follow.

        `key` is the name of the text in messages.

        Raises ConfigError for any other character, and for text that cannot match a step: an open or reversed range, two dashes,
        a number beyond 64 bits, no item at all. (MindSpore accepts these and dumps nothing for them.)
        """
        cadence = _EVERY.fullmatch(text)
        if cadence is not None:
            return cls(cls.parse(cadence[1], key).ranges, int(cadence[2]))
        if text == "all":
            return cls(None)
        if not _ALPHABET.fullmatch(text):
            raise ConfigError(
                f"{key} only supports digits, '-' and '|', or just \"all\" (no spaces, lower case), "
                f"found {text!r}; {_EXAMPLE}"
            )
        ranges = [_item_range(item, text, key) for item in text.split("|") if item]
        if not ranges:
            raise ConfigError(f"{key} {text!r} names no step, so nothing would be dumped; {_EXAMPLE}")
        return cls(_merged(ranges))

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int) or step % self.every:
            return False
        if self.ranges is None:
            return step >= 0
        index = bisect_right(self.ranges, step, key=lambda pair: pair[0]) - 1
        return index >= 0 and step <= self.ranges[index][1]

    @property
    def are_all(self) -> bool:
        """Whether every step is in the set."""
        return self.ranges is None and self.every == 1

    @property
    def last(self) -> int | None:
        """The largest step of the set; None if every step is in it."""
        if self.ranges is None:
            return None
        return max(last - last % self.every for first, last in self.ranges if last - last % self.every >= first)

    def ends_by(self, step: int) -> bool:
        """Whether no step after this one is in the set."""
        return self.last is not None and step >= self.last

    def reaches(self, first: int, last: int) -> bool:
        """Whether a step from `first` to `last` inclusive is in the set."""
        ranges = [(0, last)] if self.ranges is None else self.ranges
        within = ((max(low, first), min(high, last)) for low, high in ranges)
        return any(high - high % self.every >= low for low, high in within if high >= low)

    def __str__(self) -> str:
        """The shortest text that `parse` reads as this set."""
        text = "all" if self.ranges is None else _text(self.ranges)
        return text if self.every == 1 else f"{text} every {self.every}"


def _text(ranges: Iterable[tuple[int, int]]) -> str:
    return "|".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _item_range(item: str, text: str, key: str) -> tuple[int, int]:
    found = _ITEM.fullmatch(item)
    if found is None:
        raise ConfigError(
            f'{key} {text!r}: the item {item!r} matches no step; expected a number such as "5" '
            f'or a closed range such as "5-8"; {_EXAMPLE}'
        )
    # Python refuses to convert thousands of digits, so their number is checked first.
    first_text, last_text = ((digits.lstrip("0") or "0") for digits in (found[1], found[2] or found[1]))
    for number in (first_text, last_text):
        if len(number) > len(str(_LARGEST)) or int(number) > _LARGEST:
            raise ConfigError(
                f"{key} {_shortened(text)}: the number {_shortened(number)} is out of range, the largest step is {_LARGEST}; "
                f'for "from a step on" write a large last step, as in "100-4000000000"'
            )
    first, last = int(first_text), int(last_text)
    if first > last:
        raise ConfigError(f'{key} {text!r}: the range {item!r} is reversed and matches no step; write "{last}-{first}"')
    return first, last


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _shortened(number: str) -> str:
    return number if len(number) <= 40 else f"{number[:20]}... ({len(number)} characters)"


# One entry of the `kernels` list: a full name, an operator type, or `name-regex(...)`.

_REGEX_HEAD = "name-regex("


@dataclass(frozen=True, slots=True)
class KernelPattern:
    """Selects operators by name or type. `text` is the entry without quotes and spaces; `kind` follows from it."""

    text: str
    kind: Literal["regex", "name", "type"]
    _is_meant: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> KernelPattern:
        """Parse one entry. All double quotes and spaces are removed first, as in MindSpore.

        `name-regex(E)` is an ECMAScript expression that must match the whole name. An entry with neither `/` nor `-op` is a type.
        Any other entry is a full name. The empty entry matches every operator.

        Raises ConfigError for an invalid expression, and for one whose matching time cannot be bounded.
        """
        entry = text.replace('"', "").replace(" ", "")
        if entry.startswith(_REGEX_HEAD) and entry.endswith(")"):
            from opdump.plan.bounded_pattern import UnboundedPatternError, matcher_of

            try:
                is_meant = matcher_of(entry[len(_REGEX_HEAD) : -1])
            except UnboundedPatternError as error:
                raise ConfigError(f"kernels: {entry!r} could take unlimited time to match: {error}") from error
            except (ValueError, re.error, OverflowError, RecursionError) as error:
                raise ConfigError(
                    f"kernels: {entry!r} is not a valid regular expression: {error}; "
                    f'write it like "name-regex(Default/.+)", with "[(]" for a literal parenthesis'
                ) from error
            return cls(entry, "regex", is_meant)
        if "/" not in entry and "-op" not in entry:
            return cls(entry, "type")
        return cls(entry, "name")

    def matches(self, op_name: str, op_type: str) -> bool:
        """Whether the operator is selected.

        `op_name` is the full scope with slashes; for a parameter (`op_type` "Parameter") it is the dotted name, with or without
        the prefix `Parameter.`, which is not part of the name. A type matches, case-insensitively, a part of the last component
        of the name before its final `-`, a part of any name of the operator in another framework, or another complete name in
        its own framework (`linear` matches `addmm`).
        """
        if op_type == "Parameter" and op_name.startswith("Parameter."):
            return op_name == self.text or self._matches_name(op_name[len("Parameter.") :], op_type)
        return self._matches_name(op_name, op_type)

    def _matches_name(self, op_name: str, op_type: str) -> bool:
        if self._is_meant is not None:
            return self._is_meant(op_name)
        if self.kind == "name":
            return op_name == self.text
        wanted = self.text.lower()
        component = op_name.rpartition("/")[2]
        head, dash, _ = component.rpartition("-")
        own = head if dash else component
        if wanted in own.lower():
            return True
        # a parameter is named by its owner, not by an operator: "layers.add.weight" is not an addition
        if op_type == "Parameter":
            return False
        return any(is_called(known, wanted) for known in {own, op_type})


# The operators of each model that are dumped: the `dump_list` of acl.json (docs/acl-json.md#dump_list).


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
