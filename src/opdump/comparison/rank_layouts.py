"""Compares how the ranks of two runs share the work, as far as the records show it. Runs that share it differently are not compared.

    A ran on 1 rank, B on 4
    A and B share the work of 2 ranks differently: up.weight has 128 elements on each rank of A and 64 + 64 in B

A data-parallel run splits the batch, a tensor-parallel run the weights. An operator then computes different numbers than the operator of the
same name in the other run, although neither is wrong.

With the same number of ranks, layouts differ if the collectives differ and, in addition: one run splits parameters into smaller parts;
parameters are on other ranks; only one run gathers, scatters or sends between ranks; or only one optimizer distributes what it updated (ZeRO).
Otherwise, a collective that one run lacks is a difference like any other. Without collectives, only parameters count.
"""

from __future__ import annotations

import itertools
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
    # The first match in a name counts: `reduce_scatter_tensor` is not a `scatter`.
    *(("allreduce", "all-reduce"), ("reducescatter", "reduce-scatter"), ("allgather", "all-gather")),
    *(("alltoall", "all-to-all"), ("broadcast", "broadcast"), ("scatter", "scatter"), ("gather", "gather")),
    *(("reduce", "reduce"), ("send", "send"), ("recv", "receive"), ("receive", "receive")),
)
_NAMESPACES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of PyTorch's collectives."""
_BY_TYPE: Final = frozenset(
    {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Broadcast", "Send", "Receive"}
)
"""Collectives of frameworks whose kernels have no namespace."""
_SHARES: Final = frozenset({"all-gather", "reduce-scatter", "all-to-all", "send", "receive"})
_MESSAGES: Final = frozenset({"send", "receive"})
_HANDS_OUT: Final = frozenset({"broadcast", "all-gather"})
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module)\.")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class UnlikeLayouts:
    """The reason why two runs cannot be compared, and what was seen of each layout."""

    reason: str
    notes: tuple[str, ...]


@dataclass(slots=True)
class _RankLayout:
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of collectives in the inspected step, by kind and phase."""
    groups: set[str] = field(default_factory=set)
    parameters: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """The number of elements of each parameter on this rank, and the shape in which it was first read."""


_Layout = Mapping[int, _RankLayout]
"""The layout of each rank."""


def is_collective(op: OpRecord) -> bool:
    """Whether an operator exchanges data with other ranks."""
    return _kind(op) is not None


def unlike_layouts(a: Catalog, b: Catalog, rank: int | None) -> UnlikeLayouts | None:
    """Why the runs cannot be compared; None if they can. `rank` is the rank that the user selected, None for all.

    Two runs on one rank each can be compared. So can a selected rank of runs without collectives, whatever their numbers of ranks.
    """
    if len(a.ranks) == len(b.ranks) == 1:
        return None
    # The first step also creates groups and hands out parameters.
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
    """The collectives of the step at this place among the steps of the rank, and the parameters of its first step."""
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
    """The kinds of collectives, in all phases or in one."""
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
    """Whether `counts` are the sizes of shards of a tensor that each rank of the other run has as a whole. On a two-axis mesh, shards repeat."""
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
    """The reason, if only one optimizer updates a part of the parameters on each rank and distributes it (ZeRO)."""
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
    shapes = list(itertools.islice(_unlike_shapes(layout, other), _SHOWN))
    if shapes:
        facts.append(f"a rank has {', '.join(shapes)}")
    return "; ".join(facts)


def _unlike_shapes(layout: _Layout, other: _Layout) -> Iterator[str]:
    """The shapes of each parameter on the ranks, for parameters with different shapes in the other run."""
    for name in _common(layout, other):
        here = [rank.parameters.get(name) for rank in layout.values()]
        if here != [rank.parameters.get(name) for rank in other.values()]:
            shown = list(dict.fromkeys("none" if each is None else str(each[1]) for each in here))
            yield f"{name} {' and '.join(shown[:_SHOWN])}"
