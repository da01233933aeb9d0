"""A run in parts: begun by `partial_run_setup`, continued by calls of `partial_run`.

It has no options, so nothing can be watched. Additional fetches are declared in the setup, and fetched in one of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdump.adapters.tensorflow.capture import Model
from opdump.adapters.tensorflow.sessions.looking import Looking
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, operations_behind
from opdump.adapters.tensorflow.sessions.watches import values_of


class RunInParts:
    """A run in parts. `dump` has the additional fetches; `emit` gets all values at the end.

    Additional tensors are fetched in a part only if the program waits for them, too: its own fetches of that part depend on them, or it has
    nothing else to fetch. They may otherwise wait for an action of the program between two parts.
    """

    def __init__(
        self,
        model: Model,
        step: int,
        subgraph: Subgraph,
        dump: Looking,
        values: dict[str, Any],
        emit: Callable[[dict[str, Any]], None],
    ) -> None:
        self.model = model
        self.step = step
        self._may_be_fed = subgraph.fed
        self._programs = {tensor.name: tensor for tensor in dump.programs}
        self._asked = self._programs.keys() - subgraph.fed
        self._added = {tensor.name: tensor for tensor in dump.fetches}
        self._values = values
        self._emit = emit
        self._fed: frozenset[str] = frozenset()
        self._behind: dict[str, frozenset[str]] = {}
        """Operator -> the fed tensors that it depends on."""
        for op in subgraph.operations:
            fed = {tensor.name for tensor in op.inputs if tensor.name in subgraph.fed}
            makers = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
            before = [self._behind.get(each.name, frozenset()) for each in makers]
            self._behind[op.name] = frozenset(fed).union(*before)

    @property
    def has_ended(self) -> bool:
        """Whether all declared fetches of the program are done."""
        return not self._asked

    def run(self, run: Callable[[Any], Any], fetches: Any, elements: Sequence[Any], fed: frozenset[str]) -> Any:
        """Run a part. Its fetches, of these elements, are the program's; `fed` is fed in it."""
        names = {tensor.name for tensor in elements}
        known = self._fed | fed
        is_last = self._asked <= names
        waited = self._behind.keys() if is_last else operations_behind(elements, self._may_be_fed)[0].keys()
        added = [
            tensor
            for tensor in self._added.values()
            if tensor.op.name in waited and self._behind[tensor.op.name] <= known
        ]
        own = [tensor for name, tensor in self._programs.items() if name in names | fed]
        result, given = run([fetches, [*own, *added]])
        self._fed = known
        self._asked -= names
        self._values.update(values_of(own, given, fed, stays=False))  # the program may write into these
        for name, value in values_of(added, given[len(own) :]):
            self._values[name] = value
            del self._added[name]
        return result

    def file(self) -> None:
        """Emit the collected values."""
        self._emit(self._values)
