"""Which tensors can be fetched beside what a program fetches without its answer changing in the last bit.

The runtime rewrites a graph before it runs it, and what is fetched is not rewritten, so more fetches can mean other roundings. The same
rewriting is therefore tried with and without the tensors of a dump. Those that keep it from being the same are not fetched: a run
of their own makes them afterwards, from tensors that were fetched. Operators that change a state never run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from opdump.adapters.tensorflow.functions.library import runs_functions
from opdump.adapters.tensorflow.sessions.buffer_forwarding import BufferForwarding
from opdump.adapters.tensorflow.sessions.fusions import Fusions
from opdump.adapters.tensorflow.sessions.grappler import Rewriting, Rewritten
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph

_ATTEMPTS: Final = 6


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What is fetched in a run, and what is computed after it, from which of the tensors that were fetched or fed."""

    fetches: tuple[Any, ...]
    replayed: tuple[Any, ...] = ()
    feeds: tuple[Any, ...] = ()
    watched: tuple[Any, ...] = ()
    """Watched in the run: some of what was to be watched, and what cannot be had in another way."""
    lost: tuple[str, ...] = ()
    """Tensors that cannot be had without another answer, but by being watched."""
    left_to_chance: tuple[str, ...] = ()
    """BufferForwarding whose order the timing decides, also in a run that is left alone."""


class BaselineGraph:
    """A run of `elements` that nobody looks into, as the runtime rewrites it. `config` is the session's ConfigProto."""

    def __init__(self, elements: Sequence[Any], subgraph: Subgraph, config: Any | None) -> None:
        self.subgraph = subgraph
        self.asked = tuple(element.name for element in elements if element.name not in subgraph.fed)
        self.rewriting = Rewriting(subgraph, config)
        self.rewritten = self.rewriting.of(self.asked)
        self.fusions = Fusions(self.rewritten.graph, self.rewriting.placeholders, self.rewriting.config)

    @cached_property
    def removed(self) -> frozenset[str]:
        """The operators that do not run, because nothing reads what they would give. What is folded or fused is not among them, nor what
        calls a function, which may stand in its place.
        """
        nodes = self.rewritten.nodes
        operators = {op.name: op for op in self.subgraph.operators}
        waiting = [
            op.name
            for op in self.subgraph.operators
            if (op.name in nodes and (nodes[op.name].op != "NoOp" or op.op_type == "NoOp"))
            or runs_functions(op.operation.node_def)
        ]
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in needed or name not in operators:
                continue
            needed.add(name)
            waiting += [slot.tensor.op.name for slot in operators[name].inputs if slot.source not in self.subgraph.fed]
        return frozenset(operators.keys() - needed)


def plan_fetches(
    plain: BaselineGraph,
    wanted: Sequence[Any],
    watches: Sequence[Any],
    *,
    alike: frozenset[str] = frozenset(),
    streams: bool = False,
) -> FetchPlan:
    """How `wanted` are got hold of, and `watches` watched, so that the answer of the run stays the same, bit for bit.

    `alike` names fused operators that give the bits of what they are made of. `streams`: what is fetched may be given away while the run
    goes on. Costs one or two rewritings of the graph.
    """
    subgraph, asked = plain.subgraph, plain.asked
    wanted = [tensor for tensor in wanted if tensor.name not in subgraph.fed]
    sums = BufferForwarding(plain.rewritten.nodes, asked)
    for strict in (True,) if streams else (False, True):
        search = _Search(plain, sums, alike, strict=strict, streams=streams)
        found = _access(search, wanted, plain)
        if not found.replayed:
            break
        # What is computed again begins with tensors that were found apart from what is dumped: together they may disturb a sum.
        fetched = [tensor.name for tensor in found.fetches]
        if not sums.disturbing(search.rewritten(found.fetches).nodes, fetched, strict=strict):
            break
    found = replace(found, left_to_chance=sums.left_to_chance)
    lost = set(found.lost)
    return _watched(found, [*watches, *(tensor for tensor in wanted if tensor.name in lost)], plain)


def _access(search: _Search, wanted: Sequence[Any], plain: BaselineGraph) -> FetchPlan:
    subgraph = plain.subgraph
    # What the program asks for is what it is given, and is not computed again.
    broken = {tensor.name for tensor in wanted if tensor.name not in plain.asked and _cannot_be_fetched(tensor)}
    candidates = [tensor for tensor in wanted if tensor.name not in broken]
    kept = search.kept(candidates)
    names = {*plain.asked, *(tensor.name for tensor in kept)}
    missing = [tensor for tensor in candidates if tensor.name not in names]
    if not missing:
        return FetchPlan(tuple(kept), lost=tuple(broken))
    # What is computed again starts from what the run gives, whether or not that is dumped.
    everything = [
        slot.tensor
        for op in subgraph.operators
        if op.name not in plain.removed
        for slot in op.outputs
        if subgraph.access(slot.tensor) == "fetch"
        and slot.tensor.name not in subgraph.fed
        and not _cannot_be_fetched(slot.tensor)
    ]
    asked = [tensor for tensor in everything if tensor.name in plain.asked]
    sources = {tensor.name: tensor for tensor in (*asked, *kept, *search.kept(everything))}
    dropped = {tensor.name for tensor in missing}
    sources = {name: tensor for name, tensor in sources.items() if name not in dropped}
    replayed, used, lost = _replay(missing, sources, subgraph)
    fetches = {
        tensor.name: tensor for tensor in (*kept, *(tensor for tensor in used if tensor.name not in subgraph.fed))
    }
    return FetchPlan(tuple(fetches.values()), tuple(replayed), tuple(used), lost=(*broken, *lost))


def _watched(found: FetchPlan, watches: Sequence[Any], plain: BaselineGraph) -> FetchPlan:
    """With those of `watches` that may be watched. Who watches holds a tensor for some time, which a sum may see, and a copy is read then."""
    if not watches:
        return found
    held = [*plain.asked, *(tensor.name for tensor in found.fetches)]
    nodes = plain.rewriting.of(held).nodes
    unwatched = BufferForwarding(nodes, held).disturbing(nodes, [tensor.name for tensor in watches], strict=True)
    unwatched |= {tensor.name for tensor in watches if tensor.op.name in plain.subgraph.read_late}
    watched = tuple(tensor for tensor in watches if tensor.name not in unwatched)
    return replace(found, watched=watched, lost=(*found.lost, *sorted(unwatched.difference(found.lost))))


class _Search:
    """Finds tensors that can be fetched beside what is asked for."""

    def __init__(
        self, plain: BaselineGraph, sums: BufferForwarding, alike: frozenset[str], *, strict: bool, streams: bool
    ) -> None:
        self._rewriting = plain.rewriting
        self._plain = plain.rewritten.digested(alike)
        self._alike = alike
        self._sums = sums
        self._asked = plain.asked
        self._strict = strict
        """See `BufferForwarding.disturbing`."""
        self._streams = streams

    def kept(self, tensors: Sequence[Any]) -> list[Any]:
        """Those of the tensors that may be fetched."""
        kept, radius = list(tensors), -1
        while radius < _ATTEMPTS:
            rewritten = self.rewritten(kept)
            left = [tensor for tensor in kept if tensor.op.name in rewritten.nodes]
            if len(left) < len(kept):  # fused away although it is fetched: the run would fail
                kept = left
                continue
            blamed = self._plain.differences(rewritten, radius)
            if blamed:
                kept = [tensor for tensor in kept if tensor.op.name not in blamed or tensor.op.op_def.is_stateful]
                radius += 1
                continue
            least = self._without_disturbing(rewritten, kept)
            if len(least) == len(kept):
                return kept
            kept = least
        kept = [tensor for tensor in tensors if tensor.op.op_def.is_stateful]
        rewritten = self.rewritten(kept)
        return [] if self._plain.differences(rewritten, 0) else self._without_disturbing(rewritten, kept)

    def rewritten(self, tensors: Sequence[Any]) -> Rewritten:
        """The graph as it is rewritten where these are fetched, or read."""
        if self._streams:
            return self._rewriting.of(self._asked, tensors, self._alike)
        return self._rewriting.of([*self._asked, *(tensor.name for tensor in tensors)], (), self._alike)

    def _without_disturbing(self, rewritten: Rewritten, tensors: list[Any]) -> list[Any]:
        while True:
            names = [tensor.name for tensor in tensors]
            disturbed = self._sums.disturbing(rewritten.nodes, names, strict=self._strict)
            if not disturbed:
                return tensors
            tensors = [tensor for tensor in tensors if tensor.name not in disturbed]


def _cannot_be_fetched(tensor: Any) -> bool:
    # The rewriting makes a product and a sum of it, which have one output, also where another is fetched: the run fails.
    operation = tensor.op
    return (
        tensor.value_index > 0
        and operation.type.startswith("FusedBatchNorm")
        and "Grad" not in operation.type
        and not operation.get_attr("is_training")
    )


def _replay(
    missing: Iterable[Any], sources: Mapping[str, Any], subgraph: Subgraph
) -> tuple[list[Any], list[Any], list[str]]:
    """What of `missing` a run can compute from `sources` without touching a state; the sources that it needs; the rest."""
    fed = {
        slot.tensor.name: slot.tensor for op in subgraph.operators for slot in op.inputs if slot.source in subgraph.fed
    }
    given = {name: tensor for name, tensor in {**sources, **fed}.items() if tensor.graph.is_feedable(tensor)}
    operations = {op.name: op.operation for op in subgraph.operators}
    blocked: dict[str, bool] = {}
    for op in subgraph.operators:  # in a running order
        operation = op.operation
        before = [tensor.op.name for tensor in operation.inputs if tensor.name not in given]
        before += [other.name for other in operation.control_inputs]
        blocked[op.name] = (
            op.name in subgraph.with_effects
            or _touches_reference(operation)
            or op.name in subgraph.unsure
            or any(blocked.get(name, name in operations) for name in before)
        )
    replayed, lost, used = [], [], {}
    for tensor in missing:
        if blocked[tensor.op.name]:
            lost.append(tensor.name)
        else:
            replayed.append(tensor)
    waiting, seen = [tensor.op for tensor in replayed], set()
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        waiting += operation.control_inputs
        for tensor in operation.inputs:
            if tensor.name in given:
                used[tensor.name] = given[tensor.name]
            else:
                waiting.append(tensor.op)
    return replayed, list(used.values()), lost


def _touches_reference(operation: Any) -> bool:
    return any(tensor.dtype._is_ref_dtype for tensor in (*operation.inputs, *operation.outputs))
