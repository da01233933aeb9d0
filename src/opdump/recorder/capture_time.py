"""Measures how long the program has waited for its capture.

The time that an adapter needs is measured from the outermost call into opdump to its return (`capture_errors.isolated_from_program`). No operator of the
program runs inside. If calls in several threads overlap, the longest one counts, so that the sum stays below the elapsed time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns


class CaptureClock:
    """`spent` is the capture time in nanoseconds since creation. A call that ends sets it to its value at the start plus the time in between."""

    __slots__ = ("is_measured", "now", "spent")

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.now = perf_counter_ns if now is None else now
        self.spent = 0
        self.is_measured = False
        """Whether the adapter can distinguish its own time from the program's; the adapter sets it."""

    @property
    def seconds(self) -> float | None:
        """The time spent in seconds, or None if it is not measured."""
        return self.spent / 1e9 if self.is_measured else None
