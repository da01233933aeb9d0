"""Values that a program makes of nothing: masks, positions, filled tensors.

One that the other program has nowhere is no cause by itself: the same choice is written as a mask, as indices, or as a sum with infinities. Who
reads it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from opdump.comparison.execution import Execution, draws

_OF_THE_SHAPE: Final = frozenset({"full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"})
"""Types of operators that ask an input for its shape alone."""


@dataclass(slots=True)
class Constants:
    """The operators of an execution that depend on no data, parameter, state or random number."""

    run: Execution
    _known: dict[int, bool] = field(default_factory=lambda: {-1: False})
    """By node; -1 stands for what no operator made."""

    def __contains__(self, index: object) -> bool:
        """Whether a node gives a constant. It has run."""
        assert isinstance(index, int)
        waiting = [index]
        while waiting:
            makers = self._makers(waiting[-1])
            unknown = makers - self._known.keys()
            if unknown:
                waiting.extend(unknown)
            else:
                last = waiting.pop()
                if last not in self._known:
                    self._known[last] = not draws(self.run.trace.nodes[last]) and all(
                        self._known[each] for each in makers
                    )
        return self._known[index]

    def _makers(self, index: int) -> set[int]:
        if index in self._known:
            return set()
        node = self.run.trace.nodes[index]
        if node.bare_type in _OF_THE_SHAPE:
            return set()
        read = (slot for slot in node.inputs if not node.clears(slot) and not node.overwrites(slot))
        return set().union(*(self.run.writers.get((index, slot), {-1}) for slot in read)) - {index}
