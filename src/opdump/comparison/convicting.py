"""Which suspects are the cause of what two programs leave otherwise, where both run on in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import unshaped_difference
from opdump.comparison.kernel_accuracy import in_roundings
from opdump.comparison.mending import Mending
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace, has_elements
from opdump.records import TensorRecord

_AGREES: Final = 8.0
"""What is so many units of rounding apart is the same."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """Of the suspects that say that the programs differ. What is in none of the lists is as likely as before."""

    causes: Sequence[Suspect] = ()
    leading: Sequence[Suspect] = ()
    """Those of the causes that come first."""
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
    leading = _leading(a, b, alignment, mending, rest, causes, is_all=is_all)
    causes = [*leading, *(cause for cause in causes if all(cause is not one for one in leading))]
    others = [
        each for each in (*(suspect for suspect, _ in rest), *unreached) if all(each is not one for one in causes)
    ]
    if causes and is_all:
        return Conviction(causes, leading, [*refuted, *others])
    return Conviction(causes, leading, refuted, others if causes else ())


def _leading(
    a: Trace,
    b: Trace,
    alignment: Alignment,
    mending: Mending,
    suspects: Sequence[tuple[Suspect, AbstractSet[int]]],
    causes: Sequence[Suspect],
    *,
    is_all: bool,
) -> list[Suspect]:
    """The causes that come before the others; some of them may not have been suspects."""
    sources = mending.sources()
    accused = causes or [suspect for suspect, _ in suspects]
    places = [suspect.b.index for suspect in accused if suspect.b is not None]
    first = sources[0] if _is_one_line(b, sources) else None
    if first is not None and (first <= min(places, default=first) or _comes_before(b, first, causes, is_all=is_all)):
        # What its partner gives something else than: then who gives it is the cause.
        makers = mending.makers_elsewhere(sources)
        return [suspect for suspect, _ in suspects if _says_of(suspect, makers)] or [
            _source(a, b, alignment, index, suspects) for index in sources
        ]
    if not causes:
        return [_not_stepped(a.nodes[index]) for index in mending.not_stepped()]
    # On several lines there are others among them, of which something follows that does not matter.
    if is_all:
        return [cause for cause in causes[:1] if cause.b is not None and cause.b.op.phase != "backward"]
    of_the_model = {index for index in sources if _is_of_the_model(b, index)}
    return [cause for cause in causes if cause.b is not None and cause.b.index in of_the_model]


def _says_of(suspect: Suspect, nodes: AbstractSet[int]) -> bool:
    """Whether it is about one of these operators of B, and not about a gradient that one of A has."""
    return (
        suspect.b is not None
        and suspect.b.index in nodes
        and (suspect.a is None or suspect.a.op.phase == suspect.b.op.phase)
    )


def _is_one_line(trace: Trace, nodes: Sequence[int]) -> bool:
    return len({trace.nodes[index].op.line for index in nodes}) == 1


def _comes_before(trace: Trace, source: int, causes: Sequence[Suspect], *, is_all: bool) -> bool:
    """Whether a source is the cause, and not these that come before it: some of what follows from those does not matter."""
    if trace.nodes[source].op.phase == "backward":
        return not is_all
    return _is_of_the_model(trace, source) and not (is_all and len(causes) == 1)


def _is_of_the_model(trace: Trace, index: int) -> bool:
    """Whether a node is of the forward pass: before all gradients, which are clipped, and handed to an optimizer."""
    return all(node.op.phase == "forward" for node in trace.nodes[: index + 1])


def _not_stepped(node: Node) -> Suspect:
    """What speaks against an operator of A that writes a parameter or a state, where no optimizer of B does."""
    what = f"no operator of an optimizer in B writes what {node.op.op_name} of A writes last"
    return Suspect("missing", node, None, "output", 0, math.inf, what)


def _source(
    a: Trace, b: Trace, alignment: Alignment, index: int, suspects: Sequence[tuple[Suspect, AbstractSet[int]]]
) -> Suspect:
    """The suspect that says this of an operator of B, or that was noticed in it, or a new one."""
    node, partner = b.nodes[index], alignment.a_of.get(index)
    known = [suspect for suspect, _ in suspects if suspect.b is node]
    noticed = [suspect for suspect, nodes in suspects if index in nodes]
    for suspect in (*known, *noticed):
        return suspect
    one = None if partner is None else a.nodes[partner]
    given = _given(a, one, node)
    what = f"{node.op.op_type} {given}an output that is nowhere in A"
    return Suspect("extra" if one is None else "operator", one, node, "output", 0, math.inf, what)


def _given(a: Trace, one: Node | None, node: Node) -> str:
    """How the recorded inputs of an operator of B compare with those in A, as the begin of a sentence."""
    if one is None:
        return "has the inputs of A and " if all(_is_in(a, each) for each in node.inputs.values()) else "has "
    apart = max((_roundings(record, one.inputs.get(slot)) for slot, record in node.inputs.items()), default=0.0)
    if apart <= _AGREES:
        return "has the inputs of A and "
    return f"has inputs that are off by {apart:,.0f} roundings and " if math.isfinite(apart) else "has "


def _is_in(trace: Trace, record: TensorRecord) -> bool:
    """Whether a run has a tensor, regardless of the operator that made or read it."""
    return any(
        _roundings(record, each) <= _AGREES
        for node in trace.nodes
        for each in (*node.outputs.values(), *node.inputs.values())
        if math.prod(each.shape) == math.prod(record.shape)
    )


def _roundings(record: TensorRecord, other: TensorRecord | None) -> float:
    if other is None or not (has_elements(record) and has_elements(other)):
        return 0.0 if record.skip else math.inf
    found = unshaped_difference(record.numpy(), other.numpy())
    return in_roundings(found, record) if found else 0.0
