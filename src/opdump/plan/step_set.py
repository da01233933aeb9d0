"""The steps to dump, in the form of the `iteration` key of data_dump.json: `all` or `0|5-8|100-120`; and `all every 20`, an
extension of opdump.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from opdump.errors import ConfigError

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
            raise ConfigError(f"found the steps {list(steps)}, expected one or more numbers of 0 and up")
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
                f"but found {text!r}; {_EXAMPLE}"
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
            f'{key} {text!r}: the item {item!r} can match no step; expected a number such as "5" '
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
        raise ConfigError(
            f'{key} {text!r}: the range {item!r} runs backwards and can match no step; write "{last}-{first}"'
        )
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
