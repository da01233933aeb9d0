"""Casts to a narrower type that one run has in a few places alone.

A whole network in a narrower type is a choice; one operator in it, among others of its kind that are not, or a value that is rounded and
widened again at once, is a difference that somebody made. Products of matrices and convolutions are of one kind: autocast takes all of them,
and what chooses a narrower type for a network chooses it for these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from opdump.checks.operator_classes import class_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import epsilon_of
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

_MOST: Final = 0.5
"""Where at least this share of the operators of a kind runs in the narrower type, it is the choice of the whole."""
_PRODUCTS: Final = frozenset(
    {"addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "convolution", "dot", "linear", "matmul", "mm", "mv"}
)


def narrowing_casts(trace: Trace, matched: Mapping[int, int]) -> Iterator[Node]:
    """Casts to a narrower float that the other run does not have; not those of gradients, which follow from others."""
    for node in trace.nodes:
        # What no operator made is data, which programs cast as they like.
        if node.index not in matched and node.op.phase != "backward" and node.makers and _narrows(node):
            yield node


def planted_casts(trace: Trace, matched: Mapping[int, int], *, is_b: bool) -> Iterator[Suspect]:
    """Those that stand alone: what reads them is widened at once, or computes in a type that its kind does not use elsewhere."""
    casts = list(narrowing_casts(trace, matched))
    if not casts:
        return
    by_kind: dict[str, list[bool]] = {}
    for node in trace.nodes:
        by_kind.setdefault(_kind(node), []).append(_is_narrow(node))
    floats = [_is_narrow(node) for node in trace.nodes if any(epsilon_of(each.dtype) for each in node.outputs.values())]
    for node in casts:
        beside = [reader for reader in _readers(trace, node) if reader.op.phase == node.op.phase]
        if not beside:
            continue
        if all(_widens(reader) for reader in beside):
            why = "is rounded to it and widened again"
        elif all(_share(by_kind[_kind(reader)]) < _MOST for reader in beside if not _widens(reader)):
            why = f"is computed with in it, where most operators like {beside[0].op.op_type} are not"
        elif _share(by_kind.get("product") or floats) < _MOST:
            what = "products of matrices" if "product" in by_kind else "operators"
            why = f"is computed with in it, where most {what} are not"
        else:
            continue
        record = next(iter(node.outputs.values()))
        source = next(iter(node.inputs.values()))
        score = epsilon_of(record.dtype) / (epsilon_of(source.dtype) or math.inf)
        what = f"{source.dtype} is cast to {record.dtype} and {why}; the other run has no such cast"
        yield Suspect("precision", None if is_b else node, node if is_b else None, "output", record.slot, score, what)


def _readers(trace: Trace, node: Node) -> list[Node]:
    """What reads a value; where that only moves elements, what reads these."""
    users = trace.users()
    found: dict[int, Node] = {}
    waiting, seen = [node], {node.index}
    while waiting:
        each = waiting.pop()
        for index in {index for slot in each.outputs for index, _ in users.get((each.index, slot), ())} - seen:
            seen.add(index)
            reader = trace.nodes[index]
            if class_of(reader.op.op_type) == "moves":
                waiting.append(reader)
            else:
                found[index] = reader
    return [found[index] for index in sorted(found)]


def narrowed_results(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Suspect]:
    """Operators that are given the same types in both runs, and in one of them give a narrower float than they are given."""
    for index, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[index]
        given = [record.dtype for record in one.inputs.values()]
        if one.op.phase == "backward" or given != [record.dtype for record in other.inputs.values()]:
            continue
        widest = max((epsilon_of(each) for each in given), default=0.0)
        for slot, record in other.outputs.items():
            before = one.outputs.get(slot)
            if before is None or not widest or before.dtype == record.dtype:
                continue
            epsilons = epsilon_of(before.dtype), epsilon_of(record.dtype)
            if max(epsilons) > widest >= min(epsilons) > 0:
                what = f"it gives {before.dtype} in A and {record.dtype} in B, of {', '.join(dict.fromkeys(given))}"
                yield Suspect("precision", one, other, "output", slot, max(epsilons) / min(epsilons), what)
                break


def accepted_rounding(a: Trace, b: Trace, alignment: Alignment) -> float:
    """The coarsest rounding that is a choice of the programs, and not of a single operator in one of them."""
    both = (
        epsilon_of(record.dtype)
        for here, there in alignment.b_of.items()
        for slot, record in a.nodes[here].outputs.items()
        if slot in b.nodes[there].outputs and b.nodes[there].outputs[slot].dtype == record.dtype
    )
    return max(epsilon_of("float32"), chosen_rounding(a), chosen_rounding(b), *both)


def chosen_rounding(trace: Trace) -> float:
    """The rounding of the narrowest type that most products of matrices of a run have, or, where it has none, most of what it gives."""
    return epsilon_of(_chosen(trace)[0])


def told_choices(a: Trace, b: Trace) -> str:
    """What a reader has to know of runs that chose types of other rounding; empty where they did not."""
    (type_a, of_a), (type_b, of_b) = _chosen(a), _chosen(b)
    if not type_a or not type_b or epsilon_of(type_a) == epsilon_of(type_b):
        return ""
    again = "" if of_a == of_b else f"{of_b} are "
    return f"{of_a} are {type_a} in A, {again}{type_b} in B: differences that this precision explains are accepted"


def _chosen(trace: Trace) -> tuple[str, str]:
    """The type that `chosen_rounding` is of, empty where there is none, and what has it."""
    products = [node for node in trace.nodes if _kind(node) == "product"]
    counts: dict[float, int] = {0.0: 0}
    names = {0.0: ""}
    for node in products or trace.nodes:
        name = max((record.dtype for record in node.outputs.values()), key=epsilon_of, default="")
        epsilon = epsilon_of(name)
        if epsilon:
            counts[epsilon] = counts.get(epsilon, 0) + 1
            names.setdefault(epsilon, name)
    most = _MOST * sum(counts.values())
    chosen = max((each for each, count in counts.items() if count >= most), default=0.0)
    return names[chosen], "most products of matrices" if products else "most outputs"


def coarsest(records: Iterable[TensorRecord]) -> float:
    """The rounding of the narrowest of the types; 0 where all are exact."""
    return max((epsilon_of(record.dtype) for record in records), default=0.0)


def _kind(node: Node) -> str:
    return "product" if node.bare_type in _PRODUCTS else node.bare_type


def _dtypes(node: Node) -> tuple[str, str] | None:
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    return next(iter(node.inputs.values())).dtype, next(iter(node.outputs.values())).dtype


def _narrows(node: Node) -> bool:
    kinds = _dtypes(node)
    return kinds is not None and 0 < epsilon_of(kinds[0]) < epsilon_of(kinds[1])


def _widens(node: Node) -> bool:
    kinds = _dtypes(node)
    return kinds is not None and epsilon_of(kinds[0]) > epsilon_of(kinds[1]) > 0


def _is_narrow(node: Node) -> bool:
    return any(epsilon_of(record.dtype) > epsilon_of("float32") for record in node.outputs.values())


def _share(narrow: list[bool]) -> float:
    return sum(narrow) / len(narrow)
