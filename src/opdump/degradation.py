"""What a dump leaves out from a certain step on because a limit was reached (`max_disk`, `min_free_disk`, `max_memory`, `max_overhead`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Bound = Literal["max_disk", "min_free_disk", "max_memory", "max_overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """From `step` on, a dump contains less, or more again.

    `now` is "statistics": no elements; "every N": only selected steps that are multiples of N; "ring N": a ring keeps at most N steps; "off":
    nothing. `why` describes in words how the limit was reached. `time` is in microseconds since the Unix epoch.
    """

    step: int
    time: int
    bound: str
    now: str
    why: str

    def __str__(self) -> str:
        """`from step 12 on only statistics, no elements: 16.1 GB of 20.0 GB are used (max_disk)`."""
        return f"from step {self.step} on {in_words(self.now)}: {self.why} ({self.bound})"

    def as_json(self) -> dict[str, Any]:
        """Return every field, by its name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Degradation:
        """Return the object from the result of `as_json`."""
        return cls(**{item.name: values[item.name] for item in fields(cls)})


def in_words(now: str) -> str:
    """Describe `Degradation.now`."""
    kind, _, number = now.partition(" ")
    if kind == "statistics":
        return "only statistics, no elements"
    if kind == "every":
        return "every selected step again" if number == "1" else f"only steps that are multiples of {number}"
    if kind == "ring":
        return f"at most the last {number} steps are kept" if number != "1" else "only the last step is kept"
    return "nothing is recorded" if kind == "off" else now


def told(degraded: Iterable[Degradation]) -> str:
    """Describe all of them in one line, or return an empty string if there are none. Of successive changes of the step interval, only the last is
    included.
    """
    shown: list[Degradation] = []
    for each in degraded:
        if shown and shown[-1].now.startswith("every") and each.now.startswith("every"):
            shown.pop()
        shown.append(each)
    return "; ".join(map(str, shown))


def left_out_at(step: int, degraded: Iterable[Degradation]) -> Degradation | None:
    """Return the degradation that left out this step, or None if it was not left out."""
    found = None
    for each in degraded:
        kind, _, number = each.now.partition(" ")
        if each.step <= step and kind in ("every", "off"):
            found = each if kind == "off" or step % int(number) else None
    return found
