"""The operators that a program has: those of a graph or a function, and at each place that runs a function those of its body.

Tensors are named by `{operator}:{slot}`, an operator of a body by the path of its caller (`loop/body/MatMul`), an argument of a function by
`{path}{argument}:0`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.effects import Library, definition_in, functions_of, is_pure
from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import (
    BRANCHING,
    LOOPS,
    Body,
    LibraryNode,
    Slot,
    body_of,
    callees_of,
    is_call,
)
from opdump.adapters.tensorflow.stacks import Stack, Stacks, stack_of_node
from opdump.adapters.tensorflow.xla import is_compiled, type_of
from opdump.records import SkipReason


@dataclass(frozen=True, slots=True)
class ProgramOperator:
    """An operator. `body` is the number of that in which it stands, 0 of the graph itself; `is_pure`: see `effects`."""

    name: str
    op_type: str
    node: Any
    stack: Stack
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    body: int = 0
    is_pure: bool = True
    caller: str = ""
    """Of one of a body, the operator that runs it."""
    is_needed: bool = True
    """Of one of a body, whether a result that is used, or an effect, depends on it."""
    is_known: bool = True
    """Whether anything says its slots."""

    def named(
        self, place: int, *, name: str = "", skip: SkipReason = "", facts: Mapping[str, str] | None = None
    ) -> NamedOperator:
        """What records say of it: under another `name`, where one is given; `facts` say how it ran, beside its arguments."""
        arguments = {**arguments_of(self.node), **(facts or {})}
        return NamedOperator(self.op_type, name or self.name, place, arguments, self.stack, skip=skip)


@dataclass(frozen=True, slots=True)
class ProgramBody:
    """A function at one of the places that run it; `around` is the number of the body in which that place is."""

    number: int
    path: str
    function: str = ""
    caller: str = ""
    around: int = 0
    is_call: bool = False
    """Whether it runs once for each time that its caller does."""
    is_sure: bool = False
    """Whether it runs as often as the whole."""


@dataclass(slots=True)
class Program:
    """The operators in a running order, each followed by those of the functions that it runs.

    `given` are operators that fed tensors keep from running, `unseen` those of functions that run elsewhere, with why they leave no data.
    """

    operators: list[ProgramOperator]
    given: list[ProgramOperator] = field(default_factory=list)
    unseen: list[tuple[ProgramOperator, SkipReason]] = field(default_factory=list)
    bodies: list[ProgramBody] = field(default_factory=list)
    """By their numbers."""
    behind: dict[Key, Key] = field(default_factory=dict)
    """Tensor -> what it is the same as: an argument of a function, and what a call of one gives."""
    arguments: dict[tuple[str, str], list[Key]] = field(default_factory=dict)
    """Operator that runs functions, and the label of one (`body`) -> the tensors that are its arguments."""
    results: dict[Key, str] = field(default_factory=dict)
    """Tensors that a body gives to who runs it, and that operator; empty of the function itself."""


def function_program(
    name: str, library: Library, stacks: Stacks, stack: Stack = (), used: Collection[int] | None = None
) -> Program:
    """Lays out a function; `stack` are the lines of those of its operators that have none, `used` its results that somebody reads, None for all."""
    return ProgramBuilder(library, stacks).function(name, stack, used)


def shown_names(program: Program) -> dict[str, str]:
    """Operator -> its name in records: that in its function; where several share one, each but the outermost has the path before it."""
    counts = Counter(op.node.name for op in program.operators)
    taken: set[str] = set()
    found = {}
    for op in sorted(program.operators, key=lambda each: each.body):
        name = op.node.name
        shown = name if counts[name] == 1 or not op.body else op.name
        while shown in taken:
            shown += "_"
        taken.add(shown)
        found[op.name] = shown
    return found


class ProgramBuilder:
    """Lays out the bodies of a `program`, at each place that runs them."""

    def __init__(self, library: Library, stacks: Stacks) -> None:
        self._library = library
        self._stacks = stacks
        self._pure_types: dict[str, bool] = {}
        self._sources: dict[Key, Key] = {}
        """Argument -> who makes what it is, where the caller gives arguments one by one."""
        self.program = Program([], bodies=[_ROOT])

    def function(self, name: str, stack: Stack, used: Collection[int] | None) -> Program:
        """All of a function: see `function_program`."""
        body = body_of(self._library(name), self._library, used)
        self.program.bodies[0] = replace(_ROOT, function=name)
        self.program.operators += self._of_body(body, _ROOT, stack, (name,))
        return self.program

    def inside(
        self, caller: ProgramOperator, chain: tuple[str, ...] = (), used: Collection[int] | None = None
    ) -> Iterator[ProgramOperator]:
        """The operators of the functions that one runs, at this place; `used` are the numbers of the results that somebody reads, None for all."""
        node = caller.node
        if is_compiled(node):
            return
        calls = is_call(node.op)
        for callee in callees_of(node):
            label, function = callee.label, callee.function
            definition = None if function in chain else definition_in(function, self._library)
            if definition is None:
                continue
            body = body_of(definition, self._library, used if calls or node.op in BRANCHING else None)
            path = f"{caller.name}/{label}/" if label else f"{caller.name}/"
            is_sure = calls and self.program.bodies[caller.body].is_sure
            place = ProgramBody(len(self.program.bodies), path, function, caller.name, caller.body, calls, is_sure)
            self.program.bodies.append(place)
            arguments = [f"{path}{argument.name}:0" for argument in definition.signature.input_arg]
            self.program.arguments[caller.name, label] = arguments
            if node.op not in LOOPS:  # what a loop hands on is made anew in each iteration
                for argument, slot in zip(
                    arguments, caller.inputs[1:] if node.op in BRANCHING else caller.inputs, strict=False
                ):
                    self.program.behind[argument] = slot.key
                    self._sources[argument] = slot.source
            yield from self._of_body(body, place, caller.stack, (*chain, function))

    def _of_body(
        self, body: Body, place: ProgramBody, stack: Stack, chain: tuple[str, ...]
    ) -> Iterator[ProgramOperator]:
        makers = {slot.key: f"{node.node.name}:{slot.slot}" for node in body.nodes for slot in node.outputs}

        def key(reference: str) -> Key:
            return f"{place.path}{makers.get(reference, f'{reference}:0')}"

        for number, argument in enumerate(body.definition.signature.output_arg):
            result = key(body.definition.ret[argument.name])
            if place.is_call:
                self.program.behind[f"{place.caller}:{number}"] = result
            elif body.definition.ret[argument.name] in body.read:
                self.program.results.setdefault(result, place.caller)
        stacks = self._stacks.of_function(body.definition.signature.name)
        for node in body.nodes:
            inputs = []
            for slot in node.inputs:
                found = key(slot.key)
                source = found if slot.key in makers else self._sources.get(found, "")
                inputs.append(replace(slot, key=found, source=source))
            name = f"{place.path}{node.node.name}"
            outputs = [replace(slot, key=f"{name}:{slot.slot}") for slot in node.outputs]
            own = ProgramOperator(
                name,
                type_of(node.node),
                node.node,
                stack_of_node(node.node.name, stacks, stack),
                tuple(inputs),
                tuple(outputs),
                place.number,
                self._is_pure(node),
                place.caller,
                node.node.name in body.needed,
                node.known,
            )
            yield own
            yield from self.inside(own, chain, [slot.slot for slot in node.outputs if slot.key in body.read])

    def _is_pure(self, node: LibraryNode) -> bool:
        if not node.known or is_compiled(node.node):
            return False
        if functions_of(node.node):
            return is_pure(node.node, self._library)
        known = self._pure_types.get(node.node.op)
        if known is None:
            known = self._pure_types[node.node.op] = is_pure(node.node, self._library)
        return known


_ROOT: Final = ProgramBody(0, "", is_sure=True)
