"""A loss that leaps up, as a trigger for the steps in memory (`ring`).

A loss is a spike where it lies above the median of the losses before it by more than eight of their standard deviations, as the median absolute
deviation tells them, and by more than half of the median. Eight losses must have been seen; the last 64 count. Of losses that stay up the
first fires. NaN and infinities have triggers of their own.
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
"""The standard deviation of a normal distribution over its median absolute deviation."""
_LEAST_RISE: Final = 0.5


class LossSpikes:
    """Judges the loss of each step; `fire` gets words such as `loss-spike in step 12: 8.31, the median before is 0.42`."""

    def __init__(self, fire: Callable[[str], object]) -> None:
        self._fire = fire
        self._before: deque[float] = deque(maxlen=_WINDOW)
        self._of_step: list[float] = []
        self._is_up = False
        self._is_told = False
        self.seen = False
        """Whether there was any loss."""

    def note(self, loss: float) -> None:
        """An adapter has seen the loss of a backward of this step; of several their mean counts. Nothing once a program tells its own."""
        if not self._is_told:
            self._of_step.append(loss)

    def end_step(self, step: int) -> None:
        """Judges what was noted in the step that ends."""
        losses, self._of_step = self._of_step, []
        if losses:
            self._judge(step, math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan)

    def tell(self, step: int, loss: float) -> None:
        """The program says what its loss in this step is."""
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
