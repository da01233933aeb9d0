"""The levels of a schedule as blocks: operators that run one after the other are prepared once, whatever calls of the function follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator
from opdump.adapters.host import Choice
from opdump.adapters.jax.host import Facts
from opdump.adapters.jax.materialised import Outcomes
from opdump.adapters.jax.schedule import Argument, Branches, Equation, Level, Ref, Scan, Shards, Slot, While


@dataclass(slots=True)
class Prepared:
    """A block, and where each of its tensors is to be found."""

    block: Block
    refs: Sequence[Ref]
    _choice: tuple[Choice, Sequence[Facts], int] | None = None

    def choice(
        self, facts: Sequence[Facts], first_tap: int, values: Callable[[], tuple[Sequence[Any], Sequence[int | None]]]
    ) -> Choice:
        """The same among the columns of a call: prepared once, for the facts of its arguments and the place of its first tap.

        `values` gives the tensors, and their places.
        """
        known = self._choice
        if known is None or known[1] is not facts or known[2] != first_tap:
            self._choice = known = (Choice(*values()), facts, first_tap)
        return known[0]

    def is_ready(self, facts: Sequence[Facts]) -> bool:
        """Whether nothing needs an object of an argument any more that is in columns."""
        return self.block.is_known and self._choice is not None and self._choice[1] is facts


Part: TypeAlias = "Prepared | Scan | While | Branches | Shards"


class Blocks:
    """The parts of levels. The operators say that a twin computed them, and what became of them in the compiled program."""

    def __init__(self, executable: Any) -> None:
        """`executable` is the compiled program, None where nobody knows it."""
        self.has_outcomes = executable is not None
        self._outcomes = Outcomes(executable)
        self._known: dict[int, tuple[Level, list[Part]]] = {}

    def of(self, level: Level) -> list[Part]:
        known = self._known.get(id(level))
        if known is None:
            known = self._known[id(level)] = (level, self._parts(level))
        return known[1]

    def are_ready(self, level: Level, facts: Sequence[Facts]) -> bool:
        """Whether its operators have run before on such arguments, and nothing is among them but operators: no loops and branches."""
        return id(level) in self._known and all(
            isinstance(part, Prepared) and part.is_ready(facts) for part in self.of(level)
        )

    def arguments(self, level: Level) -> set[int]:
        """The numbers of the arguments that its operators read."""
        parts = [part for part in self.of(level) if isinstance(part, Prepared)]
        return {ref.index for part in parts for ref in part.refs if isinstance(ref, Argument)}

    def _parts(self, level: Level) -> list[Part]:
        parts: list[Part] = []
        together: list[Equation] = []
        for entry in level.entries:
            if isinstance(entry, Equation):
                together.append(entry)
                continue
            parts += [self._prepared(together)] if together else []
            parts.append(entry)
            together = []
        return [*parts, self._prepared(together)] if together else parts

    def _prepared(self, equations: Sequence[Equation]) -> Prepared:
        places: dict[Ref, int] = {}

        def slots(found: Sequence[Slot]) -> tuple[BlockSlot, ...]:
            return tuple(
                BlockSlot(each.slot, "", each.source, places.setdefault(each.ref, len(places))) for each in found
            )

        operators = [
            BlockOperator(self._with_facts(each), slots(each.inputs), slots(each.outputs)) for each in equations
        ]
        return Prepared(Block(operators), tuple(places))

    def _with_facts(self, equation: Equation) -> NamedOperator:
        facts = {"source": "twin", "materialised": self._outcomes.of(equation)}
        return replace(equation.operator, arguments={**equation.operator.arguments, **facts})
