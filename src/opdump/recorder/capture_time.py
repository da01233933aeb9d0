"""How long a program has waited for its capture.

What adapters do beside the program is measured from the outermost call of opdump's to its return (`own_errors.beside_the_program`). An
operator of the program never runs in there. Of calls that overlap, in several threads, the longest counts: the sum stays below the time
that has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns


class CaptureClock:
    """`spent` nanoseconds of the time since it was made. A call that ends sets it to what it was at its begin and the time between."""

    __slots__ = ("is_measured", "now", "spent")

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.now = perf_counter_ns if now is None else now
        self.spent = 0
        self.is_measured = False
        """Whether the adapter can tell its own time from the program's; it sets this where it can."""

    @property
    def seconds(self) -> float | None:
        """The time spent; None where nobody knows."""
        return self.spent / 1e9 if self.is_measured else None
