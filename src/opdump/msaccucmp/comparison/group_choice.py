"""Selects operators of a model by their `id` in the rules: `-r start,end,step` and `-s index,index`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opdump.msaccucmp.comparison.fusion_rules import RuleGroup
from opdump.msaccucmp.exit_codes import CommandError, ExitCode

_NUMBER: Final = re.compile(r"\s*[0-9]+\s*")
_LAST: Final = -1


def choose_groups(groups: Sequence[RuleGroup], count: int, text: str | None, listed: str | None) -> Sequence[RuleGroup]:
    """The groups that the options select, out of `count`. Raises CommandError."""
    if text:
        start, end, step = _range(text, count)
        chosen = set(range(start, end + 1, step))
    elif listed:
        chosen = _select(listed, count)
    else:
        return groups
    return [group for group in groups if any(operator.number in chosen for operator in group.operators)]


def check_choice(text: str | None, listed: str | None) -> None:
    """Raise CommandError if an option has an invalid form."""
    if text:
        _numbers(text)
    if listed:
        _indices(listed)


def _numbers(text: str) -> list[int | None]:
    parts = text.split(",")
    if len(parts) != 3 or not all(not part or _NUMBER.fullmatch(part) or part.strip() == str(_LAST) for part in parts):
        raise CommandError(ExitCode.BAD_PARAMETER, f"-r {text!r} is not of the form start,end,step")
    return [int(part) if part else None for part in parts]


def _range(text: str, count: int) -> tuple[int, int, int]:
    start, end, step = _numbers(text)
    start = 1 if start is None else start
    end = count if end is None or end == _LAST else end
    step = 1 if step is None else step
    for name, value, lowest, highest in (("start", start, 1, count), ("end", end, start, count)):
        if not lowest <= value <= highest:
            raise CommandError(
                ExitCode.BAD_INDEX, f"-r {text}: the {name} {value} is not between {lowest} and {highest}"
            )
    if not 1 <= step < max(count, 2):
        raise CommandError(ExitCode.BAD_INDEX, f"-r {text}: the step {step} is not between 1 and {count - 1}")
    return start, end, step


def _indices(text: str) -> set[int]:
    parts = [part for part in text.split(",") if part.strip()]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise CommandError(ExitCode.BAD_PARAMETER, f"-s {text!r} is not of the form index,index")
    return {int(part) for part in parts}


def _select(text: str, count: int) -> set[int]:
    chosen = _indices(text)
    too_large = sorted(index for index in chosen if index > count)
    if too_large:
        raise CommandError(ExitCode.BAD_PARAMETER, f"-s {text}: {too_large} are not between 1 and {count}")
    return chosen
