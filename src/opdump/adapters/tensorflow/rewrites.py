"""Which tensors can be fetched beside what a program fetches without its answer changing in the last bit.

The runtime rewrites a graph before it runs it (grappler): `a / sqrt(b)` becomes `a * rsqrt(b)`, constants of a product are gathered. What
is fetched is not rewritten, so more fetches can mean other roundings. The same rewriting is therefore tried here, with and without
the tensors of a dump. Those that keep it from being the same are not fetched: a run of their own makes them afterwards, from tensors
that were fetched. Operators that change a state never run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from .closure import Closure
from .fusions import ATTRIBUTES, FUSED, Fusions, fused_with
from .operator_kinds import is_assignment, is_stateful, is_update
from .sums import Sums

_DEVICE: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_READER: Final = "opdump_reader/"
_SAME: Final = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})
"""Give what they read; they come and go."""
_ALSO_KNOWN_AS: Final = {"BiasAdd": "Add", "AddV2": "Add"}
"""A bias is a sum; some are written, and fused, as one."""
_BY_NAME: Final = frozenset({"Merge", "RefMerge", "Placeholder", "VariableV2", "Variable"})
_ATTEMPTS: Final = 6
_LEAST_NODES: Final = 4
"""Smaller graphs are not rewritten."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What is fetched in a run, and what is computed after it, from which of the tensors that were fetched or fed."""

    fetches: tuple[Any, ...]
    replayed: tuple[Any, ...] = ()
    feeds: tuple[Any, ...] = ()
    watched: tuple[Any, ...] = ()
    """Watched in the run: some of what was to be watched, and what cannot be had in another way."""
    lost: tuple[str, ...] = ()
    """Tensors that cannot be had without another answer, but by being watched."""
    left_to_chance: tuple[str, ...] = ()
    """Sums whose order the timing decides, also in a run that is left alone."""


class PlainRun:
    """A run of `elements` that nobody looks into, as the runtime rewrites it. `config` is the session's ConfigProto."""

    def __init__(self, elements: Sequence[Any], closure: Closure, config: Any | None) -> None:
        self.closure = closure
        self.asked = tuple(element.name for element in elements if element.name not in closure.fed)
        self.rewriting = _Rewriting(closure, config)
        self.rewritten = self.rewriting.of(self.asked)
        self.fusions = self.rewriting.fusions(self.rewritten)

    def removed(self) -> set[str]:
        """The operators that do not run, because nothing reads what they would give. What is folded or fused is not among them."""
        nodes = self.rewritten.nodes
        operators = {op.name: op for op in self.closure.operators}
        waiting = [
            op.name
            for op in self.closure.operators
            if op.name in nodes and (nodes[op.name].op != "NoOp" or op.op_type == "NoOp")
        ]
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in needed or name not in operators:
                continue
            needed.add(name)
            waiting += [slot.tensor.op.name for slot in operators[name].inputs if slot.source not in self.closure.fed]
        return operators.keys() - needed


def undisturbed(
    plain: PlainRun,
    wanted: Sequence[Any],
    watches: Sequence[Any],
    *,
    alike: frozenset[str] = frozenset(),
    streams: bool = False,
) -> Undisturbed:
    """How `wanted` are got hold of, and `watches` watched, so that the answer of the run stays the same, bit for bit.

    `alike` names fused operators that give the bits of what they are made of. `streams`: what is fetched may be given away while the run
    goes on. Costs one or two rewritings of the graph.
    """
    closure, asked, rewriting = plain.closure, plain.asked, plain.rewriting
    wanted = [tensor for tensor in wanted if tensor.name not in closure.fed]
    sums = Sums(plain.rewritten.nodes, asked)
    for strict in (True,) if streams else (False, True):
        search = _Search(plain, sums, alike, strict=strict, streams=streams)
        found = _access(search, wanted, closure)
        if not found.replayed:
            break
        # What is computed again begins with tensors that were found apart from what is dumped: together they may disturb a sum.
        fetched = [tensor.name for tensor in found.fetches]
        if not sums.disturbing(search.rewritten(found.fetches).nodes, fetched, strict=strict):
            break
    found = replace(found, left_to_chance=sums.left_to_chance)
    lost = set(found.lost)
    return _watched(found, [*watches, *(tensor for tensor in wanted if tensor.name in lost)], rewriting, asked)


def _access(search: _Search, wanted: Sequence[Any], closure: Closure) -> Undisturbed:
    broken = {tensor.name for tensor in wanted if _cannot_be_fetched(tensor)}
    candidates = [tensor for tensor in wanted if tensor.name not in broken]
    kept = search.kept(candidates)
    names = {tensor.name for tensor in kept}
    missing = [tensor for tensor in candidates if tensor.name not in names]
    if not missing:
        return Undisturbed(tuple(kept), lost=tuple(broken))
    # What is computed again starts from what the run gives, whether or not that is dumped.
    everything = [
        slot.tensor
        for op in closure.operators
        for slot in op.outputs
        if closure.access(slot.tensor) == "fetch"
        and slot.tensor.name not in closure.fed
        and not _cannot_be_fetched(slot.tensor)
    ]
    sources = {tensor.name: tensor for tensor in (*kept, *search.kept(everything))}
    dropped = {tensor.name for tensor in missing}
    sources = {name: tensor for name, tensor in sources.items() if name not in dropped}
    replayed, used, lost = _replay(missing, sources, closure)
    fetches = {
        tensor.name: tensor for tensor in (*kept, *(tensor for tensor in used if tensor.name not in closure.fed))
    }
    return Undisturbed(tuple(fetches.values()), tuple(replayed), tuple(used), lost=(*broken, *lost))


def _watched(found: Undisturbed, watches: Sequence[Any], rewriting: _Rewriting, asked: Sequence[str]) -> Undisturbed:
    """With those of `watches` that may be watched; who watches holds a tensor for some time, which a sum may see."""
    if not watches:
        return found
    held = [*asked, *(tensor.name for tensor in found.fetches)]
    nodes = rewriting.of(held).nodes
    unwatched = Sums(nodes, held).disturbing(nodes, [tensor.name for tensor in watches], strict=True)
    watched = tuple(tensor for tensor in watches if tensor.name not in unwatched)
    return replace(found, watched=watched, lost=(*found.lost, *sorted(unwatched.difference(found.lost))))


class _Search:
    """Finds tensors that can be fetched beside what is asked for."""

    def __init__(self, plain: PlainRun, sums: Sums, alike: frozenset[str], *, strict: bool, streams: bool) -> None:
        self._rewriting = plain.rewriting
        self._plain = plain.rewritten.digested(alike)
        self._alike = alike
        self._sums = sums
        self._asked = plain.asked
        self._strict = strict
        """See `Sums.disturbing`."""
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

    def rewritten(self, tensors: Sequence[Any]) -> _Rewritten:
        """The graph as it is rewritten where these are fetched, or read."""
        if self._streams:
            return self._rewriting.of(self._asked, tensors, self._alike)
        return self._rewriting.of([*self._asked, *(tensor.name for tensor in tensors)], (), self._alike)

    def _without_disturbing(self, rewritten: _Rewritten, tensors: list[Any]) -> list[Any]:
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
    missing: Iterable[Any], sources: Mapping[str, Any], closure: Closure
) -> tuple[list[Any], list[Any], list[str]]:
    """What of `missing` a run can compute from `sources` without touching a state; the sources that it needs; the rest."""
    fed = {
        slot.tensor.name: slot.tensor for op in closure.operators for slot in op.inputs if slot.source in closure.fed
    }
    given = {name: tensor for name, tensor in {**sources, **fed}.items() if tensor.graph.is_feedable(tensor)}
    operations = {op.name: op.operation for op in closure.operators}
    blocked: dict[str, bool] = {}
    for op in closure.operators:  # in a running order
        operation = op.operation
        before = [tensor.op.name for tensor in operation.inputs if tensor.name not in given]
        before += [other.name for other in operation.control_inputs]
        blocked[op.name] = (
            operation.op_def.is_stateful
            or _touches_reference(operation)
            or op.name in closure.unsure
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


class _Rewriting:
    """The runtime's rewriting of what a signature computes."""

    def __init__(self, closure: Closure, config: Any | None) -> None:
        self._config = tf.compat.v1.ConfigProto()
        if config is not None:
            self._config.CopyFrom(config)
        self._fed = closure.fed
        graph = graph_pb2.GraphDef()
        if closure.operators:
            whole = closure.operators[0].operation.graph
            rewriting = self._config.graph_options.rewrite_options
            if rewriting.min_graph_nodes == 0 and len(whole.get_operations()) >= _LEAST_NODES:
                rewriting.min_graph_nodes = -1  # the runtime counts all that the graph has
            graph.library.CopyFrom(_library(whole))
            graph.versions.CopyFrom(whole.graph_def_versions)
        known = {op.name for op in closure.operators}
        for op in closure.operators:
            node = graph.node.add()
            node.CopyFrom(op.operation.node_def)
            node.device = node.device or _DEVICE
            for position, name in enumerate(node.input):
                source = _tensor_name(name)
                if source in self._fed:
                    node.input[position] = _placeholder(source)
            kept = [name for name in node.input if not name.startswith("^") or name[1:] in known]
            del node.input[:]
            node.input.extend(kept)
        for name in sorted(self._fed):
            self._add_placeholder(graph, name, closure)
        self._graph = graph
        self._is_off = self._config.graph_options.rewrite_options.disable_meta_optimizer

    def _add_placeholder(self, graph: Any, name: str, closure: Closure) -> None:
        tensors = (slot.tensor for op in closure.operators for slot in op.inputs if slot.tensor.name == name)
        tensor = next(tensors, None)
        if tensor is None:
            return
        node = graph.node.add()
        node.name, node.op, node.device = _placeholder(name), "Placeholder", _DEVICE
        node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())

    def fusions(self, rewritten: _Rewritten) -> Fusions:
        """What is fused in a rewritten graph."""
        return Fusions(rewritten.graph, {name: _placeholder(name) for name in self._fed}, self._config)

    def of(self, names: Iterable[str], read: Sequence[Any] = (), alike: frozenset[str] = frozenset()) -> _Rewritten:
        """The rewritten graph where these operations and tensors are asked for, and the tensors of `read` read by an operator each."""
        meta = meta_graph_pb2.MetaGraphDef()
        meta.graph_def.CopyFrom(self._graph)
        asked = list(dict.fromkeys(names))
        for tensor in read:
            reader = meta.graph_def.node.add(op="PyFunc", name=f"{_READER}{tensor.op.name}_{tensor.value_index}")
            reader.input.append(tensor.name)
            reader.device = _DEVICE
            reader.attr["token"].s = reader.name.encode()
            reader.attr["Tin"].list.type.append(tensor.dtype.base_dtype.as_datatype_enum)
            reader.attr["Tout"].list.SetInParent()
            asked.append(reader.name)
        meta.collection_def["train_op"].node_list.value.extend(asked)
        rewritten = self._graph if self._is_off else tf_optimizer.OptimizeGraph(self._config, meta, verbose=False)
        return _Rewritten(rewritten, asked, alike)


def _library(graph: Any) -> Any:
    return graph.as_graph_def(from_version=graph.version).library


def _tensor_name(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _placeholder(tensor: str) -> str:
    name, _, slot = tensor.partition(":")
    return f"{name}/fed_{slot}"


class _Rewritten:
    """A rewritten graph, each of its nodes with a digest of all that its value depends on."""

    def __init__(self, graph: Any, asked: Sequence[str], alike: frozenset[str]) -> None:
        self.graph = graph
        self._alike = alike
        self.nodes = {node.name: node for node in graph.node if not node.name.startswith(_READER)}
        self.stateful = {node.name for node in graph.node if is_stateful(node.op)} & self.nodes.keys()
        self._digests: dict[str, str] = {}
        self._asked = asked
        for name in self.nodes:
            self._find_digest(name)

    def digested(self, alike: frozenset[str]) -> _Rewritten:
        """The same where these fused operators give the bits of what they are made of."""
        return self if alike == self._alike else _Rewritten(self.graph, self._asked, alike)

    def differences(self, other: _Rewritten, radius: int) -> set[str]:
        """The operators of `other` to blame for what it computes otherwise, with those `radius` steps around; of what was asked for
        here, of states and of loops. A `radius` of -1 blames, where there are such, those alone that are not here.
        """
        blamed: set[str] = set()
        roots = {_node_name(name) for name in self._asked} | self.stateful
        roots |= {name for name, node in self.nodes.items() if node.op in ("NextIteration", "Switch")}
        # Updates of reference variables are not told as changing a state.
        roots |= {name for name, node in self.nodes.items() if is_update(node.op) or is_assignment(node.op)}
        met: set[tuple[str, str]] = set()
        readers: dict[tuple[str, str], set[str]] = {}
        waiting = [(name, name) for name in sorted(roots)]
        while waiting:
            pair = waiting.pop()
            if pair in met:
                continue
            met.add(pair)
            mine, theirs = self.nodes.get(pair[0]), other.nodes.get(pair[1])
            if mine is None or theirs is None:
                if mine is not None or theirs is not None:
                    blamed.update(pair)
                continue
            is_root = pair[0] == pair[1] and pair[0] in roots
            if self._digests[pair[0]] == other._digests[pair[1]] and not is_root:
                continue
            own, others = self._inputs(mine), other._inputs(theirs)
            if _facts(mine) != _facts(theirs) or len(own) != len(others):
                if self._digests[pair[0]] != other._digests[pair[1]]:
                    absent = other._behind(pair[1], self.nodes) if radius < 0 else set()
                    nearby = other._around(pair[1], radius) | self._around(pair[0], radius) | readers.get(pair, set())
                    # What is fused with the operator that reads it is not to be fetched; that operator can be.
                    blamed |= absent or nearby
                continue
            for first, second in zip(own, others, strict=True):
                if self._digest_of_input(first) == other._digest_of_input(second):
                    continue
                if first.partition(":")[2] != second.partition(":")[2]:
                    blamed |= {_node_name(first), _node_name(second)}
                below = (_node_name(first), _node_name(second))
                readers.setdefault(below, set()).update(pair)
                waiting.append(below)
        for _ in range(radius):  # a rewriting also looks at who reads
            blamed |= {
                name
                for name, node in other.nodes.items()
                if any(_node_name(each) in blamed for each in node.input) and name not in other.stateful
            }
        return blamed

    def _around(self, name: str, radius: int) -> set[str]:
        """An operator, what it reads, and what these read, `radius` more times."""
        found, edge = {name}, [name]
        for _ in range(max(radius, 0) + 1):
            edge = [
                _node_name(source) for each in edge if each in self.nodes for source in self._inputs(self.nodes[each])
            ]
            found.update(edge)
        return found

    def _behind(self, name: str, others: Collection[str]) -> set[str]:
        """What an operator reads that is not among `others`, and what that reads."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for source in self._inputs(self.nodes[waiting.pop()]):
                before = _node_name(source)
                if before in self.nodes and before not in others and before not in found:
                    found.add(before)
                    waiting.append(before)
        return found

    def _inputs(self, node: Any) -> list[str]:
        return [self._origin(name) for name in node.input if not name.startswith("^")]

    def _origin(self, name: str) -> str:
        """Where a tensor comes from, behind operators that give what they read."""
        while True:
            node = self.nodes.get(_node_name(name))
            if node is None or node.op not in _SAME:
                return name
            name = next(each for each in node.input if not each.startswith("^"))

    def _digest_of_input(self, name: str) -> str:
        return f"{self._digests.get(_node_name(name), name)}:{name.partition(':')[2] or 0}"

    def _find_digest(self, name: str) -> None:
        # Without recursion: graphs are deep.
        waiting = [name]
        while waiting:
            node = self.nodes[waiting[-1]]
            if node.name in self._digests:
                waiting.pop()
                continue
            if node.op in _BY_NAME or node.name in self.stateful:
                self._digests[node.name] = f"{node.op} {node.name}"
                continue
            inputs = self._inputs(node)
            missing = [_node_name(each) for each in inputs if _node_name(each) not in self._digests]
            missing = [each for each in missing if each in self.nodes]
            if missing and not set(missing) & set(waiting):
                waiting += missing
                continue
            self._digests[node.name] = self._digest(node, [self._digest_of_input(each) for each in inputs])

    def _digest(self, node: Any, inputs: Sequence[str]) -> str:
        after = fused_with(node) if node.name in self._alike else []
        if after:
            # As the operators were before they were fused.
            value = _hash(FUSED[node.op], *_facts(node, FUSED[node.op])[1:], *inputs[:2])
            rest = list(inputs[2:])
            for op_type in after:
                summand = [rest.pop(0)] if op_type == "BiasAdd" and rest else []
                value = _hash(_ALSO_KNOWN_AS.get(op_type, op_type), f"{value}:0", *summand)
            return value
        if node.op in ("BiasAdd", "Add", "AddV2", "Relu", "Relu6"):
            return _hash(_ALSO_KNOWN_AS.get(node.op, node.op), *inputs)
        return _hash(*_facts(node), *inputs)


def _facts(node: Any, op_type: str = "") -> tuple[str, ...]:
    """What an operator does, but for its inputs."""
    attributes = [
        f"{name}={value.SerializeToString(deterministic=True).hex()}"
        for name, value in sorted(node.attr.items())
        # The rewriting leaves attributes behind that no operator has, without a value.
        if not name.startswith("_") and value.WhichOneof("value") and (not op_type or name in ATTRIBUTES)
    ]
    if node.op in FUSED.values():
        attributes = [each for each in attributes if each.partition("=")[0] in ATTRIBUTES]
    return (op_type or node.op, *attributes)


def _hash(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _node_name(name: str) -> str:
    return name.lstrip("^").partition(":")[0]
