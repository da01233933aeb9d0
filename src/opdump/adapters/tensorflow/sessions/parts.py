"""A run in parts: what `partial_run_setup` begins, and calls of `partial_run` go on with.

It takes no options, so nothing is watched in it. What is fetched beside what the program fetches is declared when it is set up, and fetched in a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from opdump.adapters.tensorflow.capture import Model
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, operations_behind
from opdump.adapters.tensorflow.sessions.watches import ObservedValue, fed_value


class RunInParts:
    """One of them. `asked` are the names of what the program declared, `added` what is fetched beside; `emit` is given all values at the end.

    What is added is fetched in a part only where the program waits for it too: its own fetches of that part depend on it, or nothing else is
    to be fetched any more. It may wait for what the program does between two parts.
    """

    def __init__(
        self,
        model: Model,
        step: int,
        subgraph: Subgraph,
        asked: Iterable[str],
        added: Iterable[Any],
        values: dict[str, Any],
        emit: Callable[[dict[str, Any]], None],
    ) -> None:
        self.model = model
        self.step = step
        self._may_be_fed = subgraph.fed
        self._asked = set(asked)
        self._added = {tensor.name: tensor for tensor in added}
        self._values = values
        self._emit = emit
        self._fed: set[str] = set()
        self._behind: dict[str, frozenset[str]] = {}
        """Operator -> the fed tensors that it depends on."""
        for op in subgraph.operations:
            fed = {tensor.name for tensor in op.inputs if tensor.name in subgraph.fed}
            makers = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
            before = [self._behind.get(each.name, frozenset()) for each in makers]
            self._behind[op.name] = frozenset(fed).union(*before)

    @property
    def has_ended(self) -> bool:
        """Whether all was fetched that the program declared."""
        return not self._asked

    def run(
        self, run: Callable[[list[Any]], Sequence[Any]], fetches: Sequence[Any], feeds: Mapping[Any, Any]
    ) -> Sequence[Any]:
        """Runs a part: its fetches are the program's, with what is added to them."""
        given = {tensor.name: fed_value(tensor, value) for tensor, value in feeds.items()}
        names = [tensor.name for tensor in fetches]
        fed = {*self._fed, *(tensor.name for tensor in feeds)}
        is_last = self._asked <= {*names}
        waited = self._behind.keys() if is_last else operations_behind(fetches, self._may_be_fed)[0].keys()
        added = [
            tensor
            for tensor in self._added.values()
            if tensor.op.name in waited and self._behind[tensor.op.name] <= fed
        ]
        results = run([*fetches, *added])
        self._fed = fed
        self._asked.difference_update(names)
        self._values.update((name, (fed,)) for name, fed in given.items() if fed is not None)
        self._values.update(zip(names, map(_observed, results), strict=False))  # the program may write into these
        for tensor, value in zip(added, results[len(names) :], strict=True):
            self._values[tensor.name] = (ObservedValue(np.asarray(value)),)
            del self._added[tensor.name]
        return results[: len(names)]

    def file(self) -> None:
        """Emits what was seen."""
        self._emit(self._values)


def _observed(value: Any) -> tuple[ObservedValue]:
    return (ObservedValue(np.asarray(value), stays=False),)
