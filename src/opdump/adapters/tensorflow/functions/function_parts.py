"""Lays out a traced function and those that it runs, at each of the places that run them: names, sources, stacks of their operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from opdump.adapters.tensorflow.functions.library import (
    BRANCHING,
    CALLS,
    LOOPS,
    Body,
    Library,
    LibraryNode,
    NodeSlot,
    body_of,
    producer,
)
from opdump.adapters.tensorflow.stacks import Stack, Stacks, stack_of_node


@dataclass(slots=True)
class FunctionPart:
    """A function at one of the places that run it."""

    body: Body
    path: str
    number: int
    around: FunctionPart | None = None
    """The part that runs it; None of the function itself."""
    caller: LibraryNode | None = None
    """The node of that which does."""
    parts: dict[tuple[str, str, int], FunctionPart] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Node -> the operator's name in records."""
    sources: dict[str, str] = field(default_factory=dict)
    """Argument -> who makes it, where the caller says it."""
    stacks: dict[str, Stack] = field(default_factory=dict)
    """Node -> where it was traced."""
    recursive: set[str] = field(default_factory=set)
    """Nodes that run a function which runs already."""
    makers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Tensor -> the node that makes it, and its slot."""
    readers: dict[str, list[str]] = field(default_factory=dict)
    """Node -> nodes that read it."""
    given: dict[str, str] = field(default_factory=dict)
    """Argument -> what the caller gives for it, of a call."""

    def __post_init__(self) -> None:
        if self.caller is not None and self.is_call:
            arguments = self.body.definition.signature.input_arg
            given = zip(arguments, self.caller.inputs, strict=False)
            self.given = {argument.name: slot.reference for argument, slot in given}
        for node in self.body.nodes:
            self.makers.update((slot.reference, (node.node.name, slot.slot)) for slot in node.outputs)
            for text in node.node.input:
                self.readers.setdefault(producer(text), []).append(node.node.name)

    @property
    def is_call(self) -> bool:
        """Whether it runs where it is called, once for each time that its caller does."""
        return self.caller is not None and self.caller.node.op in CALLS

    def source(self, slot: NodeSlot) -> str:
        """Who makes a tensor, as `{op_name}:{slot}`; empty where that is not known."""
        made = self.makers.get(slot.reference)
        if made is None:
            return self.sources.get(producer(slot.reference), "")
        return f"{self.names[made[0]]}:{made[1]}"


def parts_of(name: str, library: Library, stacks: Stacks) -> list[FunctionPart]:
    """A function, and all that it runs; the function itself first, by their numbers."""
    parts: list[FunctionPart] = []
    root = _part(name, library, "", None, (), parts, None)
    _name_operators(parts)
    _trace_sources(root)
    _trace_stacks(root, stacks, ())
    return parts


def _part(
    name: str,
    library: Library,
    path: str,
    used: Collection[int] | None,
    chain: tuple[str, ...],
    parts: list[FunctionPart],
    around: tuple[FunctionPart, LibraryNode] | None,
) -> FunctionPart:
    body = body_of(library(name), library, used)
    part = FunctionPart(body, path, len(parts), *(around or ()))
    parts.append(part)
    results = _used_references(body, used)
    for node in body.nodes:
        for callee in node.callees:
            if callee.function in (*chain, name):
                part.recursive.add(node.node.name)
                continue
            inside = f"{node.node.name}/{callee.label}" if callee.label else node.node.name
            wanted = _used_results(node, results) if node.node.op in BRANCHING | CALLS else None
            part.parts[node.node.name, callee.attribute, callee.place] = _part(
                callee.function, library, f"{path}{inside}/", wanted, (*chain, name), parts, (part, node)
            )
    return part


def running_order(part: FunctionPart) -> Iterator[tuple[FunctionPart, LibraryNode]]:
    """The nodes of a part and of those that it runs, each after all that it reads or waits for, before those of the functions that it runs."""
    named = {node.node.name: node for node in part.body.nodes}
    inside: dict[str, list[FunctionPart]] = {}
    for (name, _, _), inner in part.parts.items():
        inside.setdefault(name, []).append(inner)
    done: set[str] = set()
    for first in part.body.nodes:  # mostly, not always, in such an order
        waiting = [first]
        while waiting:
            node = waiting[-1]
            missing = (
                [] if node.node.name in done else [each for each in map(producer, node.node.input) if each not in done]
            )
            behind = [named[each] for each in missing if each in named]
            if behind:
                waiting += behind
                continue
            waiting.pop()
            if node.node.name not in done:
                done.add(node.node.name)
                yield part, node
                for inner in inside.get(node.node.name, ()):
                    yield from running_order(inner)


def _used_references(body: Body, used: Collection[int] | None) -> frozenset[str]:
    """The tensors that some needed node reads, or that are results which the caller uses."""
    signature = body.definition.signature
    results = [argument.name for argument in signature.output_arg]
    found = {body.definition.ret[result] for number, result in enumerate(results) if used is None or number in used}
    for node in body.nodes:
        if node.node.name in body.needed:
            found.update(node.node.input)
    return frozenset(found)


def _used_results(node: LibraryNode, references: Collection[str]) -> frozenset[int]:
    return frozenset(slot.slot for slot in node.outputs if slot.reference in references)


def _name_operators(parts: Sequence[FunctionPart]) -> None:
    """An operator keeps its name; where functions of a model share one, each but the outermost has the path before it."""
    counts = Counter(node.node.name for part in parts for node in part.body.nodes)
    taken: set[str] = set()
    for part in parts:
        for node in part.body.nodes:
            name = node.node.name
            shown = name if counts[name] == 1 or not part.path else f"{part.path}{name}"
            while shown in taken:
                shown += "_"
            taken.add(shown)
            part.names[name] = shown


def _trace_sources(part: FunctionPart) -> None:
    """What the arguments of inner functions are, where the place that runs them gives them one by one."""
    for node in part.body.nodes:
        given = node.inputs[1:] if node.node.op in BRANCHING else node.inputs
        for callee in node.callees:
            inner = part.parts.get((node.node.name, callee.attribute, callee.place))
            if inner is None:
                continue
            if node.node.op not in LOOPS:  # what a loop hands on is made anew in each iteration
                arguments = inner.body.definition.signature.input_arg
                for argument, slot in zip(arguments, given, strict=False):
                    inner.sources[argument.name] = part.source(slot)
            _trace_sources(inner)


def _trace_stacks(part: FunctionPart, stacks: Stacks, called_at: Stack) -> None:
    """Where the nodes of a function and of those that it runs were traced; of what has none, where the function is called."""
    known = stacks.of_function(part.body.definition.signature.name)
    for node in part.body.nodes:
        part.stacks[node.node.name] = stack_of_node(node.node.name, known, called_at)
    for (node_name, _, _), inner in part.parts.items():
        _trace_stacks(inner, stacks, part.stacks[node_name])
