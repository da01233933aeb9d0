"""ArrayBlock: operators whose tensors are arrays that are new in each run, usually with the types and shapes of the previous run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.adapters.graph_runtime.block import Block, BlockOperator
from opdump.adapters.graph_runtime.run_emitter import GraphRun
from opdump.adapters.host import Choice, ChosenTensors, HostColumns, HostTensor


class ArrayBlock:
    """Emits operators by the addresses of their arrays if the recorder accepts whole blocks. A slot refers to its tensor by position.

    `texts` are the types of values that are not arrays; their positions follow those of the arrays.
    """

    def __init__(self, operators: Sequence[BlockOperator], texts: Sequence[str] = ()) -> None:
        self._block = Block(operators)
        self._texts = texts
        self._kinds: list[tuple[Any, ...]] = []
        self._choice: Choice | None = None
        """The choice for arrays of these types and shapes."""

    def emit(self, run: GraphRun, arrays: Sequence[npt.NDArray[Any]], host: Callable[[int], HostTensor | str]) -> None:
        """Pass the operators of a run on. `host` wraps the array with a given number. The arrays must not change meanwhile."""

        def tensor(number: int) -> HostTensor | str:
            return host(number) if number < len(arrays) else self._texts[number - len(arrays)]

        def whole() -> ChosenTensors | list[HostTensor | str]:
            if all(array.flags.c_contiguous for array in arrays):
                return self._chosen(arrays, host)
            return [*map(tensor, range(len(arrays) + len(self._texts)))]

        run.emit_block(self._block, tensor, whole)

    def _chosen(self, arrays: Sequence[npt.NDArray[Any]], host: Callable[[int], HostTensor | str]) -> ChosenTensors:
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
