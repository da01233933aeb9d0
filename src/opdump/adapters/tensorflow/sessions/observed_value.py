"""A value that a tensor had in a run."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt


class ObservedValue:
    """The elements, and whether they stay what they are; `moment` in microseconds orders those of one run that were watched."""

    __slots__ = ("array", "moment", "stays")

    def __init__(self, array: npt.NDArray[Any], moment: int = 0, *, stays: bool = True) -> None:
        self.array = array
        self.moment = moment
        self.stays = stays
