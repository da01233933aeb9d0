"""Counts, bytes and seconds in the form that people read."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("kB", "MB", "GB", "TB")


def count(number: int, noun: str) -> str:
    """`1 file`, `2,412 files`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def size(number: int) -> str:
    """Bytes in powers of 1000, three digits: `999 B`, `1.20 kB`, `48.1 MB`."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in _UNITS:
        value /= 1000
        if value < 999.5 or unit == _UNITS[-1]:
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {unit}"


def seconds(number: float) -> str:
    """`0.42 s`, `75 s`, `12 min 5 s`."""
    if number < 9.995:
        return f"{number:.2f} s"
    if number < 120:
        return f"{number:.0f} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes:,} min {rest} s"


def steps(numbers: Sequence[int]) -> str:
    """`step 0`, `steps 0-2, 7`, `no step`."""
    if not numbers:
        return "no step"
    ordered = sorted(set(numbers))
    runs: list[list[int]] = [[ordered[0], ordered[0]]]
    for number in ordered[1:]:
        if number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"step {text}" if len(ordered) == 1 else f"steps {text}"
