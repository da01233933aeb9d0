"""How the ranks of two runs share the work, as far as their records show it: runs that share it differently cannot be compared yet.

    A ran on 1 rank, B on 4
    A and B share the work of 2 ranks differently: up.weight has 128 elements on each rank of A and 64 + 64 in B

Operators of one rank of a data-parallel run see a part of the batch, those of a tensor-parallel run a part of the weights: each gives other numbers than
the operator of the same name in the other run, and none is wrong.

Of runs with the same number of ranks these tell it, and only together with other collectives, since a program may be edited and stay what it was:
parameters that are in parts in one run and whole or in other parts in the other; parameters that are on other ranks; collectives of runs that share
parts (gathers, scattered sums, messages between two ranks), where the other run has none; an optimizer that hands out what it updated. A collective
that one run lacks is a difference to be found. Where neither run has any collective, nothing but the parameters tells how the work is shared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opdump import amounts
from opdump.catalog.catalog import Catalog
from opdump.comparison.trace import is_input
from opdump.graph import PARAMETER_PREFIX
from opdump.records import OpRecord

_KINDS: Final = (
    # The first that a name contains counts: `reduce_scatter_tensor` is no `scatter`.
    *(("allreduce", "all-reduce"), ("reducescatter", "reduce-scatter"), ("allgather", "all-gather")),
    *(("alltoall", "all-to-all"), ("broadcast", "broadcast"), ("scatter", "scatter"), ("gather", "gather")),
    *(("reduce", "reduce"), ("send", "send"), ("recv", "receive"), ("receive", "receive")),
)
_NAMESPACES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Of PyTorch's kernels."""
_BY_TYPE: Final = frozenset(
    {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Broadcast", "Send", "Receive"}
)
"""Operators of frameworks whose kernels have no namespace."""
_SHARES: Final = frozenset({"all-gather", "reduce-scatter", "all-to-all", "send", "receive"})
_MESSAGES: Final = frozenset({"send", "receive"})
_HANDS_OUT: Final = frozenset({"broadcast", "all-gather"})
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module)\.")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class UnlikeLayouts:
    """Why two runs cannot be compared, and what was seen of the layout of each."""

    reason: str
    notes: tuple[str, ...]


@dataclass(slots=True)
class _RankLayout:
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The kinds of the step that was looked at, each with its phase, and how many of each."""
    groups: set[str] = field(default_factory=set)
    parameters: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """How many elements a parameter has on this rank, and the shape that it was read in first."""


_Layout = Mapping[int, _RankLayout]
"""By rank."""


def is_collective(op: OpRecord) -> bool:
    """Whether an operator gets its result from other ranks."""
    return _kind(op) is not None


def unlike_layouts(a: Catalog, b: Catalog, rank: int | None) -> UnlikeLayouts | None:
    """Why the runs cannot be compared; None where they can. `rank` is the one that the user wants compared, None for all.

    Runs on one rank each are alike. One rank of runs that talk to no other may be compared, whatever number of them ran.
    """
    if len(a.ranks) == len(b.ranks) == 1:
        return None
    # The first step also makes groups and hands out parameters.
    place = min([1, *(max(0, len(dump.steps_of(each)) - 1) for dump in (a, b) for each in dump.ranks)])
    one, other = _layout(a, place), _layout(b, place)
    if len(one) == len(other):
        reason = _shared_differently(one, other) or (_numbered_differently(one, other) if rank is None else "")
    elif rank is not None and not _kinds(one) and not _kinds(other):
        reason = ""
    else:
        reason = f"A ran on {amounts.count(len(one), 'rank')}, B on {len(other)}"
    if not reason:
        return None
    return UnlikeLayouts(reason, (f"A: {_described(one, other)}", f"B: {_described(other, one)}"))


def _layout(dump: Catalog, place: int) -> _Layout:
    return {rank: _of_rank(dump, rank, place) for rank in dump.ranks}


def _of_rank(dump: Catalog, rank: int, place: int) -> _RankLayout:
    """Collectives of the step at that place among those of the rank, parameters of the first."""
    found = _RankLayout()
    steps = dump.steps_of(rank)
    for step in steps[place : place + 1]:
        for op in (execution.op for execution in dump.ops(step=step, rank=rank, include_skipped=True)):
            kind = _kind(op)
            if kind is not None:
                found.collectives[kind, op.phase] += 1
                group = op.arguments.get("group_name")
                if isinstance(group, str):
                    found.groups.add(group)
    for step in steps[:1]:
        for tensor in dump.tensors(step=step, rank=rank):
            name = tensor.source.removeprefix(PARAMETER_PREFIX)
            if name != tensor.source and not is_input(name):
                found.parameters.setdefault(_WRAPPERS.sub("", name), (math.prod(tensor.shape), tensor.shape))
    return found


def _kind(op: OpRecord) -> str | None:
    if op.kernel.partition("::")[0] not in _NAMESPACES and op.op_type not in _BY_TYPE:
        return None
    name = op.op_type.replace("_", "").lower()
    return next((kind for part, kind in _KINDS if part in name), None)


def _kinds(layout: _Layout, phase: str = "") -> set[str]:
    """Of the collectives, or of those in a phase."""
    return {kind for rank in layout.values() for kind, its in rank.collectives if phase in ("", its)}


def _shared_differently(one: _Layout, other: _Layout) -> str:
    if _kinds(one) and [(each.collectives, each.groups) for _, each in sorted(one.items())] == [
        (each.collectives, each.groups) for _, each in sorted(other.items())
    ]:
        return ""
    kinds = _kinds(one), _kinds(other)
    reason = (
        _in_parts(one, other)
        or _elsewhere(one, other)
        or _other_collectives(*kinds)
        or _handed_out(_kinds(one, "optimizer"), _kinds(other, "optimizer"))
        or (_nothing_shared(one, other) if kinds[0] & _SHARES and kinds[1] & _SHARES else "")
    )
    return reason and f"A and B share the work of {len(one)} ranks differently: {reason}"


def _numbered_differently(one: _Layout, other: _Layout) -> str:
    if set(one) == set(other):
        return ""
    return f"A ran on rank {_numbers(one)}, B on rank {_numbers(other)}"


def _numbers(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _in_parts(one: _Layout, other: _Layout) -> str:
    for name in _common(one, other):
        a, b = (
            [rank.parameters[name][0] for rank in each.values() if name in rank.parameters] for each in (one, other)
        )
        if _are_parts(b, of=a):
            return f"{name} has {a[0]:,} elements on each rank of A and {_sum(b)} in B"
        if _are_parts(a, of=b):
            return f"{name} has {_sum(a)} elements in A and {b[0]:,} on each rank of B"
    return ""


def _are_parts(counts: Sequence[int], *, of: Sequence[int]) -> bool:
    """Whether these are the elements of shards, of a parameter that is whole on each rank. On a mesh of two axes every shard is there several times."""
    if len(set(of)) != 1 or len(of) != len(counts) or not of[0]:
        return False
    copies, rest = divmod(sum(counts), of[0])
    return rest == 0 and 0 < copies < len(counts)


def _sum(counts: Sequence[int]) -> str:
    return " + ".join(f"{each:,}" for each in counts[:4]) + (" + ..." if len(counts) > 4 else "")


def _common(one: _Layout, other: _Layout) -> Iterator[str]:
    names = [dict.fromkeys(name for rank in each.values() for name in rank.parameters) for each in (one, other)]
    return (name for name in names[0] if name in names[1])


def _elsewhere(one: _Layout, other: _Layout) -> str:
    for name in _common(one, other):
        held = [[rank for rank, found in each.items() if name in found.parameters] for each in (one, other)]
        if held[0] != held[1]:
            return f"{name} is on rank {_numbers(held[0])} of A and on rank {_numbers(held[1])} of B"
    return ""


def _other_collectives(one: set[str], other: set[str]) -> str:
    for shares, without in ((one & _SHARES, other), (other & _SHARES, one)):
        if shares and not without & _SHARES:
            whose = one if shares <= one else other
            if len(shares) > 1 or shares & _MESSAGES or not without <= whose:
                return f"A uses {_listed(one)}, B {_listed(other)}"
    return ""


def _handed_out(one: set[str], other: set[str]) -> str:
    """Optimizers that update a part of the parameters on each rank and hand it out, where those of the other run update all."""
    if bool(one & _HANDS_OUT) == bool(other & _HANDS_OUT):
        return ""
    return f"the optimizer of A uses {_listed(one)}, that of B {_listed(other)}"


def _nothing_shared(one: _Layout, other: _Layout) -> str:
    held = [next((name for rank in each.values() for name in rank.parameters), "") for each in (one, other)]
    if not all(held) or next(_common(one, other), None) is not None:
        return ""
    return f"no parameter is in both; A has {held[0]}, B has {held[1]}"


def _listed(kinds: set[str]) -> str:
    return ", ".join(sorted(kinds)) or "no collectives"


def _described(layout: _Layout, other: _Layout) -> str:
    facts = [amounts.count(len(layout), "rank")]
    collectives: Counter[str] = Counter()
    for rank in layout.values():
        for (kind, _), count in rank.collectives.items():
            collectives[kind] += count
    counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(collectives.items()))
    facts.append(f"collectives of a step: {counted}" if counted else "no collectives")
    groups = sorted({group for rank in layout.values() for group in rank.groups})
    if groups:
        facts.append(f"groups {', '.join(groups)}")
    shapes = []
    for name in _common(layout, other):
        here = [rank.parameters.get(name) for rank in layout.values()]
        if here != [rank.parameters.get(name) for rank in other.values()]:
            shown = list(dict.fromkeys("none" if each is None else str(each[1]) for each in here))
            shapes.append(f"{name} {' and '.join(shown[:_SHOWN])}")
        if len(shapes) == _SHOWN:
            break
    if shapes:
        facts.append(f"a rank has {', '.join(shapes)}")
    return "; ".join(facts)
