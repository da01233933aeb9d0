"""RepeatedArrays: arrays that come in each run, most often with the types and shapes of the run before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.adapters.host.host_columns import Choice, ChosenTensors, HostColumns
from opdump.adapters.host.host_tensor import HostTensor


class RepeatedArrays:
    """Gives arrays to a recorder by their addresses; `texts` are the types of what no array stands for, and stand behind them."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts = texts
        self._kinds: list[tuple[Any, ...]] = []
        self._choice: Choice | None = None
        """Of arrays of these types and shapes."""

    def of(self, arrays: Sequence[npt.NDArray[Any]], host: Callable[[int], HostTensor | str]) -> ChosenTensors:
        """The tensors of a run; `host` makes an object of an array by its number. Each array lies in memory without gaps, in the order of C."""
        kinds = [(array.shape, array.dtype) for array in arrays]
        if self._choice is None or kinds != self._kinds:
            tensors: list[HostTensor | str] = [*map(host, range(len(arrays))), *self._texts]
            places = [*((0, number) for number in range(len(arrays))), *(None for _ in self._texts)]
            self._kinds, self._choice = kinds, Choice(tensors, places)
        columns = HostColumns()
        columns.extend(np.array([array.__array_interface__["data"][0] for array in arrays], np.int64))
        objects = [
            host(number) if number < len(arrays) else self._texts[number - len(arrays)]
            for number in self._choice.objects
        ]
        return self._choice.of(columns, objects=objects)
