"""What a dump leaves out from some step on, because a bound was met (`max_disk`, `min_free_disk`, `max_memory`, `max_overhead`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Bound = Literal["max_disk", "min_free_disk", "max_memory", "max_overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """From `step` on a dump holds less, or more again.

    `now` is "statistics": no elements; "every N": of the wanted steps the multiples of N alone; "ring N": a ring keeps N steps at most; "off": nothing.
    `why` says what met the bound, in words; `time` is in microseconds since the Unix epoch.
    """

    step: int
    time: int
    bound: str
    now: str
    why: str

    def __str__(self) -> str:
        """`from step 12 on statistics alone: 16.1 GB of 20.0 GB are used (max_disk)`."""
        return f"from step {self.step} on {in_words(self.now)}: {self.why} ({self.bound})"

    def as_json(self) -> dict[str, Any]:
        """Every field, by its name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Degradation:
        """What `as_json` gave."""
        return cls(**{item.name: values[item.name] for item in fields(cls)})


def in_words(now: str) -> str:
    """What `Degradation.now` means."""
    kind, _, number = now.partition(" ")
    if kind == "statistics":
        return "statistics alone, no elements"
    if kind == "every":
        return "every wanted step again" if number == "1" else f"steps that are multiples of {number} alone"
    if kind == "ring":
        return f"the last {number} steps at most are kept" if number != "1" else "the last step alone is kept"
    return "nothing is recorded" if kind == "off" else now


def told(degraded: Iterable[Degradation]) -> str:
    """All of them in one line; of cadences that follow each other the last. Empty where there is none."""
    shown: list[Degradation] = []
    for each in degraded:
        if shown and shown[-1].now.startswith("every") and each.now.startswith("every"):
            shown.pop()
        shown.append(each)
    return "; ".join(map(str, shown))


def left_out_at(step: int, degraded: Iterable[Degradation]) -> Degradation | None:
    """What left out that step, whose own records may have been wanted; None where no bound did."""
    found = None
    for each in degraded:
        kind, _, number = each.now.partition(" ")
        if each.step <= step and kind in ("every", "off"):
            found = each if kind == "off" or step % int(number) else None
    return found
