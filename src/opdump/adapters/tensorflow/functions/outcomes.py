"""What became of the operators of a function when the runtime optimised it.

| outcome | |
|---|---|
| `ran` | a node of the executed graph is it, or gives what it gives |
| `apart` | it was fused into another one, rewritten or found to be superfluous: it has to be computed apart |
| `constant` | it was computed before the function runs |
| `not executed` | nothing needs it |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from opdump.adapters.tensorflow.effects import SHAPES, functions_of, is_pure
from opdump.adapters.tensorflow.functions.executed import PLUMBING, ExecutedGraph, Tensor, base_type
from opdump.adapters.tensorflow.functions.function_parts import FunctionPart
from opdump.adapters.tensorflow.functions.library import Library, LibraryNode, producer
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON, SKIPS
from opdump.adapters.tensorflow.xla import is_compiled

Kind = Literal["ran", "apart", "constant", "not executed"]
_MEANS_THE_SAME: Final = frozenset({("RealDiv", "Mul"), ("AddV2", "AddN"), ("Add", "AddN"), ("Add", "AddV2")})
"""Types of which the runtime makes others that give the same, in the place of the operator itself."""
_Place = tuple[FunctionPart, str]
"""A tensor of a part, by its reference."""


@dataclass(slots=True)
class Outcome:
    """`node` is that of the executed graph, `inside` the name of the operator that contains this one or was kept in its place."""

    kind: Kind
    node: str = ""
    inside: str = ""
    is_changed: bool = False
    """The node has another type, and reads other tensors."""


_NOT_EXECUTED: Final = Outcome("not executed")


@dataclass(frozen=True, slots=True)
class _Reader:
    part: FunctionPart
    node: LibraryNode
    slot: int


class Outcomes:
    """Of all operators of a function and of those that it runs."""

    def __init__(self, parts: Sequence[FunctionPart], graph: ExecutedGraph, library: Library) -> None:
        self._graph = graph
        self._library = library
        self._found: dict[tuple[int, str], Outcome] = {}
        self._pure_types: dict[str, bool] = {}
        self._used: dict[tuple[int, str], str] = {}
        self._nodes = [{node.node.name: node for node in part.body.nodes} for part in parts]
        self._readers: dict[tuple[int, str], list[_Reader]] = {}
        self._results: dict[tuple[int, str], str] = {}
        """Tensors that a body gives -> the operator that runs it."""
        self._seen = self._parts_seen(parts)
        for part in parts:
            self._collect(part)
        self._varying = self._find_varying(parts)

    def of(self, part: FunctionPart, node: LibraryNode) -> Outcome:
        key = (part.number, node.node.name)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._of(part, node)
        return found

    def executed(self, part: FunctionPart, reference: str) -> Tensor | None:
        """The executed tensor that is one of a part; None where there is none, or nobody knows it."""
        part, reference = self.origin(part, reference)
        made = part.makers.get(reference)
        if made is not None:
            outcome = self.of(part, self._nodes[part.number][made[0]])
            if outcome.kind == "ran" and outcome.node:
                return outcome.node, made[1]
            if outcome.kind != "ran":
                return None
        elif not part.number:
            name = self._graph.named.get(producer(reference))
            return None if name is None or self._graph.nodes[name].op != "_Arg" else (name, 0)
        return next(self._read(part, reference), None)

    def maker(self, part: FunctionPart, reference: str) -> tuple[FunctionPart, LibraryNode, int] | None:
        """Who makes a tensor of a part, and in which slot; None of the argument of a body."""
        part, reference = self.origin(part, reference)
        made = part.makers.get(reference)
        return None if made is None else (part, self._nodes[part.number][made[0]], made[1])

    def origin(self, part: FunctionPart, reference: str) -> _Place:
        """The same tensor where it is made: through calls, into them and out of them."""
        while True:
            made = part.makers.get(reference)
            if made is None:
                given = part.given.get(producer(reference))
                if given is None or part.around is None:
                    return part, reference
                part, reference = part.around, given
                continue
            inner = part.parts.get((made[0], "f", 0))
            if inner is None or not inner.is_call:
                return part, reference
            results = inner.body.definition.signature.output_arg
            part, reference = inner, inner.body.definition.ret[results[made[1]].name]

    def is_fixed(self, part: FunctionPart, node: LibraryNode) -> bool:
        """Whether an operator gives the same in each call, as far as shapes do not change."""
        return (part.number, node.node.name) not in self._varying

    def _find_varying(self, parts: Sequence[FunctionPart]) -> set[tuple[int, str]]:
        found: set[tuple[int, str]] = set()
        waiting = [(part, node) for part in parts for node in part.body.nodes if self._varies(part, node)]
        while waiting:
            part, node = waiting.pop()
            if (part.number, node.node.name) in found:
                continue
            found.add((part.number, node.node.name))
            for slot in node.outputs:
                place, reference = self.origin(part, slot.reference)
                waiting += [
                    (each.part, each.node)
                    for each in self._readers.get((place.number, reference), ())
                    if each.node.node.op not in SHAPES
                ]
        return found

    def _varies(self, part: FunctionPart, node: LibraryNode) -> bool:
        """Whether an operator gives something else in each call whatever others give."""
        if node.node.op in SHAPES:
            return False
        given = all(self.maker(part, slot.reference) is not None for slot in node.inputs)
        return not (given and node.outputs and self._is_pure(node))

    def _is_pure(self, node: LibraryNode) -> bool:
        if not node.known or node.callees or is_compiled(node.node):
            return False
        if functions_of(node.node):
            return is_pure(node.node, self._library)
        known = self._pure_types.get(node.node.op)
        if known is None:
            known = self._pure_types[node.node.op] = is_pure(node.node, self._library)
        return known

    def _of(self, part: FunctionPart, node: LibraryNode) -> Outcome:
        if (node.callees or node.node.op in SKIPS) and not is_compiled(node.node):
            return Outcome("ran") if node.node.name in part.body.needed else _NOT_EXECUTED
        name = self._graph.named.get(f"{part.path}{node.node.name}")
        if name is not None:
            executed = self._graph.nodes[name]
            if base_type(executed) == node.node.op or is_compiled(node.node):
                changed = len(self._graph.inputs[name]) != len(node.inputs)
                return Outcome("ran", name, is_changed=changed)
            if _means_the_same(node.node.op, executed.op):
                return Outcome("ran", name, is_changed=True)
        if node.node.name not in part.body.needed:
            return _NOT_EXECUTED
        if part.number not in self._seen:
            return _NOT_EXECUTED
        if self.is_fixed(part, node):
            return Outcome("constant")
        inside = self._inside(part, node)
        if not inside:
            return _NOT_EXECUTED
        if self._is_pure(node):
            return Outcome("apart", inside=inside)
        return self._merged(part, node, inside)

    def _merged(self, part: FunctionPart, node: LibraryNode, inside: str) -> Outcome:
        """Where another operator of this type is read in its place."""
        for slot in node.outputs:
            for name, number in self._read(*self.origin(part, slot.reference), of_program=True):
                if number == slot.slot and base_type(self._graph.nodes[name]) == node.node.op:
                    return Outcome("ran", name, inside)
        return _NOT_EXECUTED

    def _inside(self, part: FunctionPart, node: LibraryNode) -> str:
        """The first operator behind this one that ran and needs it; empty where none does."""
        key = (part.number, node.node.name)
        known = self._used.get(key)
        if known is None:
            self._used[key] = ""
            known = self._used[key] = next(filter(None, self._needing(part, node)), "")
        return known

    def _needing(self, part: FunctionPart, node: LibraryNode) -> Iterator[str]:
        for slot in node.outputs:
            place = (part.number, slot.reference)
            for reader in self._readers.get(place, ()):
                outcome = self.of(reader.part, reader.node)
                shown = reader.part.names[reader.node.node.name]
                if outcome.kind == "ran" and not outcome.inside:
                    read = self._executed_input(reader, outcome)
                    if read is None or self._graph.nodes[read[0]].op != "Const":
                        yield shown
                elif outcome.kind != "constant":
                    yield self._inside(reader.part, reader.node)
            if place in self._results:
                yield self._results[place] or part.names[node.node.name]

    def _executed_input(self, reader: _Reader, outcome: Outcome) -> Tensor | None:
        """What the node of a reader reads in the place of what the reader does."""
        if not outcome.node or outcome.is_changed:
            return None
        return self._graph.inputs[outcome.node][reader.slot]

    def _read(self, part: FunctionPart, reference: str, *, of_program: bool = False) -> Iterator[Tensor]:
        """What nodes read in the place of a tensor that has no node of its own: the argument of a body, the result of a loop."""
        for reader in self._readers.get((part.number, reference), ()):
            outcome = self.of(reader.part, reader.node)
            if outcome.kind == "apart" and reader.node.node.op in PASSES_ON and not of_program:
                yield from self._read(*self.origin(reader.part, reader.node.outputs[reader.slot].reference))
                continue
            read = self._executed_input(reader, outcome) if outcome.kind == "ran" else None
            if read is not None and (of_program or self._is_handed_on(read[0])):
                yield read

    def _is_handed_on(self, name: str) -> bool:
        op = self._graph.nodes[name].op
        return op in PASSES_ON or op in PLUMBING or op == "_SwitchN"

    def _parts_seen(self, parts: Sequence[FunctionPart]) -> set[int]:
        """Those of which something is executed, and those around them."""
        of_path = {part.path: part for part in parts}
        found: set[int] = {0}
        for name in {name.rpartition("/")[0] for name in self._graph.named}:
            path, part = name, of_path.get(f"{name}/")
            while path and part is None:  # a node's own name may have parts too
                path = path.rpartition("/")[0]
                part = of_path.get(f"{path}/")
            while part is not None and part.number not in found:
                found.add(part.number)
                part = part.around
        return found

    def _collect(self, part: FunctionPart) -> None:
        for node in part.body.nodes:
            if node.node.name in part.body.needed and (not part.parts or not self._is_called(part, node)):
                for slot in node.inputs:
                    place, reference = self.origin(part, slot.reference)
                    self._readers.setdefault((place.number, reference), []).append(_Reader(part, node, slot.slot))
        if not part.is_call:
            caller = "" if part.around is None or part.caller is None else part.around.names[part.caller.node.name]
            for result in part.body.definition.ret.values():
                place, reference = self.origin(part, result)
                self._results[place.number, reference] = caller

    def _is_called(self, part: FunctionPart, node: LibraryNode) -> bool:
        inner: Any = part.parts.get((node.node.name, "f", 0))
        return inner is not None and bool(inner.is_call)


def _means_the_same(op_type: str, executed: str) -> bool:
    """Whether a node of this type, in the place of an operator of the other one, gives what that gives."""
    if executed == "Const":
        return False
    return "Fused" in executed or (op_type, executed) in _MEANS_THE_SAME or op_type == "Pow"
