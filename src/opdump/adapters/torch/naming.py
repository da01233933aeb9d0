"""Stable full names for operators: the same place of the program has the same name in every step.

A name is a scope and `{op_type}-op{id}`; ids are unique in a graph, so that the last component alone identifies an operator
there. An operator is identified by its scope, its type, its line and its position among the operators alike in these within one
call of the root module, one `optimizer.step`, or one backward; gradient accumulation and repeated calls repeat names, and
`occurrence` counts the repetitions within a step.
"""

from __future__ import annotations

GRADIENTS = "Gradients/"


class OpNames:
    """Hands out full names; ids are counted per graph."""

    def __init__(self) -> None:
        self._names: dict[tuple[object, ...], str] = {}
        self._ids: dict[int, int] = {}
        self._positions: dict[tuple[object, ...], int] = {}
        self._occurrences: dict[tuple[int, str], int] = {}

    def next(self, graph_id: int, scope: str, op_type: str, call: object, place: object) -> tuple[str, int]:
        """The full name of the next operator of this type in this scope, and how often it ran in this step before.

        `call` identifies the running call (root module, optimizer, backward); positions count from 0 in each.
        `place` separates operators of one scope further: the line of the program, or the forward operator that a
        backward operator belongs to.
        """
        counted = (call, graph_id, scope, op_type, place)
        position = self._positions.get(counted, 0)
        self._positions[counted] = position + 1
        key = (graph_id, scope, op_type, place, position)
        name = self._names.get(key)
        if name is None:
            number = self._ids.get(graph_id, 0)
            self._ids[graph_id] = number + 1
            name = self._names[key] = f"{scope}/{op_type}-op{number}"
        return name, self.occurrence(graph_id, name)

    def occurrence(self, graph_id: int, name: str) -> int:
        """How often this name ran in the current step before; counts this time."""
        key = (graph_id, name)
        count = self._occurrences.get(key, 0)
        self._occurrences[key] = count + 1
        return count

    def next_step(self) -> None:
        """Starts counting positions and occurrences anew; names stay."""
        self._positions.clear()
        self._occurrences.clear()
