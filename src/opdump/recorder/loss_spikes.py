"""Triggers on a jump of the loss, for the steps in memory (`ring`).

A loss is a spike if it exceeds the median of the previous losses by more than eight standard deviations, estimated from the median absolute
deviation, and by more than half of the median. The last 64 losses count, and at least eight are needed. If losses stay high, only the first one
fires. NaN and infinities have triggers of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

_WINDOW: Final = 64
_FEWEST: Final = 8
_DEVIATIONS: Final = 8
_NORMAL: Final = 1.4826
"""Ratio of the standard deviation of a normal distribution to its median absolute deviation."""
_LEAST_RISE: Final = 0.5


class LossSpikes:
    """Judges the loss of each step. `fire` receives a text such as `loss-spike in step 12: 8.31, the median before is 0.42`."""

    def __init__(self, fire: Callable[[str], object]) -> None:
        self._fire = fire
        self._before: deque[float] = deque(maxlen=_WINDOW)
        self._of_step: list[float] = []
        self._is_up = False
        self._is_told = False
        self.seen = False
        """Whether any loss was seen."""

    def note(self, loss: float) -> None:
        """Note the loss of a backward pass in this step; if there are several, their mean counts. Ignored once the program has passed a loss to
        `tell`.
        """
        if not self._is_told:
            self._of_step.append(loss)

    def end_step(self, step: int) -> None:
        """Judge what was noted in the step that ends."""
        losses, self._of_step = self._of_step, []
        if losses:
            self._judge(step, math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan)

    def tell(self, step: int, loss: float) -> None:
        """Judge the loss that the program reports for this step."""
        self._is_told = True
        self._of_step = []
        self._judge(step, loss)

    def _judge(self, step: int, loss: float) -> None:
        self.seen = True
        if not math.isfinite(loss):
            return
        was_up, self._is_up = self._is_up, False
        if len(self._before) >= _FEWEST:
            usual = median(self._before)
            spread = _NORMAL * median(abs(each - usual) for each in self._before)
            self._is_up = loss - usual > max(_DEVIATIONS * spread, _LEAST_RISE * abs(usual))
            if self._is_up and not was_up:
                self._fire(f"loss-spike in step {step}: {loss:.6g}, the median before is {usual:.6g}")
        self._before.append(loss)
