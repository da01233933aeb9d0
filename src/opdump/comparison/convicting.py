"""Which suspects are the cause of what two programs leave otherwise, where both run on in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from opdump.comparison.alignment import Alignment
from opdump.comparison.mending import Mending
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace


@dataclass(frozen=True, slots=True)
class Conviction:
    """Of the suspects that say that the programs differ. What is in none of the lists is as likely as before."""

    causes: Sequence[Suspect] = ()
    refuted: Sequence[Suspect] = ()
    doubtful: Sequence[Suspect] = ()
    """Those that explain nothing which the causes do not explain."""


def convict(
    a: Trace,
    b: Trace,
    alignment: Alignment,
    suspects: Sequence[tuple[Suspect, AbstractSet[int]]],
    unreached: Sequence[Suspect],
    lasting: tuple[AbstractSet[int], AbstractSet[int]],
) -> Conviction:
    """Finds the cause.

    suspects    with the operators of B that each reaches first
    unreached   those that are seen at the end of the step alone
    lasting     the storages of A and of B that outlive the step
    """
    mending = Mending(a, b, alignment, {index for _, nodes in suspects for index in nodes}, lasting)
    behind = mending.left_behind([nodes for _, nodes in suspects])
    if len(behind) == len(suspects) and not unreached:
        behind = set()  # they do leave something else: one of the suspects is the cause
    refuted = [suspect for place, (suspect, _) in enumerate(suspects) if place in behind]
    rest = [each for place, each in enumerate(suspects) if place not in behind]
    chosen, is_all = mending.cures([nodes for _, nodes in rest])
    causes = [rest[place][0] for place in chosen]
    sources = mending.sources()
    places = [suspect.b.index for suspect in causes or [suspect for suspect, _ in rest] if suspect.b is not None]
    # On several lines there are others among them, of which something follows that does not matter.
    is_line = sources and len({b.nodes[index].op.line for index in sources}) == 1
    if is_line and sources[0] <= min(places, default=sources[0]):
        # What A has too may be something else than it has there: then who gives it is the cause.
        makers = {maker for index in sources for maker, _ in b.nodes[index].makers.values()}
        named = [suspect for suspect, _ in rest if suspect.b is not None and suspect.b.index in makers] or [
            _source(a, b, alignment, index, [suspect for suspect, _ in rest]) for index in sources
        ]
        causes = [*named, *(cause for cause in causes if all(cause is not one for one in named))]
    others = [
        each for each in (*(suspect for suspect, _ in rest), *unreached) if all(each is not one for one in causes)
    ]
    if causes and is_all:
        return Conviction(causes, [*refuted, *others])
    return Conviction(causes, refuted, others if causes else ())


def _source(a: Trace, b: Trace, alignment: Alignment, index: int, suspects: Sequence[Suspect]) -> Suspect:
    """The suspect that says this of an operator of B, or a new one."""
    node, partner = b.nodes[index], alignment.a_of.get(index)
    for suspect in suspects:
        if suspect.b is node:
            return suspect
    what = f"{node.op.op_type} is given what A has, and gives what A has nowhere"
    one = None if partner is None else a.nodes[partner]
    return Suspect("extra" if one is None else "operator", one, node, "output", 0, math.inf, what)
