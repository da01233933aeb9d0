"""The operators of a program: those of a graph or a function and, at each place that runs a function, those of its body.

The name of a tensor is `{operator}:{slot}`; that of an operator in a body has the path of its caller (`loop/body/MatMul`); that of an
argument of a function is `{path}{argument}:0`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.graphs.library import (
    BRANCHING,
    LAUNCH,
    LOOPS,
    Key,
    Library,
    Slot,
    are_handles,
    arguments_of,
    callees_of,
    definition_in,
    functions_of,
    hidden_callees,
    in_order,
    input_names,
    is_call,
    is_compiled,
    is_pure,
    needed_nodes,
    outputs_of,
    producer,
    reachable,
    type_of,
)
from opdump.adapters.tensorflow.stacks import Stacks, stack_of_node
from opdump.records import Phase, SkipReason


@dataclass(frozen=True, slots=True)
class ProgramOperator:
    """An operator. `body` is the number of its body, 0 for the graph itself; `is_pure`: see `nodes.is_pure`."""

    name: str
    op_type: str
    node: Any
    stack: Stack
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    body: int = 0
    is_pure: bool = True
    caller: str = ""
    """For an operator in a body, the operator that runs the body."""
    is_needed: bool = True
    """For an operator in a body, whether a used result or an effect depends on it."""
    is_known: bool = True
    """Whether its slots are known."""

    def named(
        self,
        place: int,
        *,
        name: str = "",
        skip: SkipReason = "",
        facts: Mapping[str, str] | None = None,
        phase: Phase = "forward",
    ) -> NamedOperator:
        """The operator for records, optionally under another `name`; `facts` describe how it ran, in addition to its arguments."""
        arguments = {**arguments_of(self.node), **(facts or {})}
        kernel = "" if self.op_type == LAUNCH else f"tf::{self.op_type}"
        return NamedOperator(self.op_type, name or self.name, place, arguments, self.stack, kernel, skip, phase)


@dataclass(frozen=True, slots=True)
class ProgramBody:
    """A function at one of the places that run it; `around` is the number of the body that contains the place."""

    number: int
    path: str
    function: str = ""
    caller: str = ""
    around: int = 0
    is_call: bool = False
    """Whether it runs once for each run of its caller."""
    is_sure: bool = False
    """Whether it runs as often as the whole."""


@dataclass(slots=True)
class Program:
    """The operators in a running order, each followed by those of the functions that it runs.

    `given` are operators that do not run because their tensors are fed, `unseen` those of functions that run elsewhere, with the reason why
    they are skipped.
    """

    operators: list[ProgramOperator]
    given: list[ProgramOperator] = field(default_factory=list)
    unseen: list[tuple[ProgramOperator, SkipReason]] = field(default_factory=list)
    bodies: list[ProgramBody] = field(default_factory=list)
    """By number."""
    behind: dict[Key, Key] = field(default_factory=dict)
    """Tensor -> the equal tensor: for arguments of a function, and results of a call."""
    arguments: dict[tuple[str, str], list[Key]] = field(default_factory=dict)
    """Operator that runs functions, and the label of one (`body`) -> the tensors that are its arguments."""
    returned: list[Key] = field(default_factory=list)
    """The results of the function itself, in order."""
    results: dict[Key, str] = field(default_factory=dict)
    """Results of a body, and the operator that runs it; empty for the function itself."""

    def resolved(self, key: Key) -> Key:
        """The tensor that a function's argument, or the result of a call, stands for."""
        seen = set()
        while key in self.behind and key not in seen:
            seen.add(key)
            key = self.behind[key]
        return key

    def readers(self) -> dict[str, list[str]]:
        """Operator -> the operators that read its results."""
        found: dict[str, list[str]] = {}
        for op in self.operators:
            for slot in op.inputs:
                found.setdefault(slot.key.rpartition(":")[0], []).append(op.name)
        return found


def function_program(
    name: str, library: Library, stacks: Stacks, stack: Stack = (), used: Collection[int] | None = None
) -> Program:
    """Lay out a function. `stack` are the program lines for operators that have none, `used` the results that are read, None for all."""
    return ProgramBuilder(library, stacks).function(name, stack, used)


def shown_names(program: Program) -> dict[str, str]:
    """Operator -> its name in records: its name in the function; if several share one, all but the outermost have the path as a prefix."""
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
        """Argument -> the maker of its value, if the caller passes arguments one by one."""
        self.program = Program([], bodies=[_ROOT])

    def function(self, name: str, stack: Stack, used: Collection[int] | None) -> Program:
        """All operators of a function: see `function_program`."""
        self.program.bodies[0] = replace(_ROOT, function=name)
        self.program.operators += self._of_body(self._library(name), used, _ROOT, stack, (name,))
        return self.program

    def inside(
        self, caller: ProgramOperator, chain: tuple[str, ...] = (), used: Collection[int] | None = None
    ) -> Iterator[ProgramOperator]:
        """The operators of the functions that one runs, at this place; `used` are the numbers of the results that are read, None for all."""
        node = caller.node
        if is_compiled(node):
            return
        calls = is_call(node.op)
        for callee in callees_of(node):
            label, function = callee.label, callee.function
            definition = None if function in chain else definition_in(function, self._library)
            if definition is None:
                continue
            path = f"{caller.name}/{label}/" if label else f"{caller.name}/"
            is_sure = calls and self.program.bodies[caller.body].is_sure
            place = ProgramBody(len(self.program.bodies), path, function, caller.name, caller.body, calls, is_sure)
            self.program.bodies.append(place)
            arguments = [f"{path}{argument.name}:0" for argument in definition.signature.input_arg]
            self.program.arguments[caller.name, label] = arguments
            if node.op not in LOOPS:  # the values that a loop passes on are new in each iteration
                passed = caller.inputs[1:] if node.op in BRANCHING else caller.inputs
                for argument, slot in zip(arguments, passed, strict=False):
                    self.program.behind[argument] = slot.key
                    self._sources[argument] = slot.source
            results = used if calls or node.op in BRANCHING else None
            yield from self._of_body(definition, results, place, caller.stack, (*chain, function))

    def _of_body(
        self, definition: Any, used: Collection[int] | None, place: ProgramBody, stack: Stack, chain: tuple[str, ...]
    ) -> Iterator[ProgramOperator]:
        """Operators follow those that they read or wait for, even if they were traced in another order."""
        function = _Function(definition, self._library, place.path)
        nodes = function.nodes
        read = self._results_read(function, used, place)
        needed = needed_nodes(definition, read)
        read.update(text for name in needed for text in nodes[name].input)
        stacks = self._stacks.of_function(definition.signature.name)
        for name in in_order(nodes, lambda each: filter(nodes.__contains__, map(producer, nodes[each].input))):
            node, outputs, shown = nodes[name], function.made[name], f"{place.path}{name}"
            own = ProgramOperator(
                shown,
                type_of(node),
                node,
                stack_of_node(name, stacks, stack),
                tuple(function.inputs(node, self._sources)),
                tuple(replace(slot, key=f"{shown}:{slot.slot}") for slot in outputs or ()),
                place.number,
                outputs is not None and self._is_pure(node),
                place.caller,
                name in needed,
                outputs is not None,
            )
            yield own
            yield from self.inside(own, chain, [slot.slot for slot in outputs or () if slot.key in read])

    def _results_read(self, function: _Function, used: Collection[int] | None, place: ProgramBody) -> set[str]:
        """The references of the results that are read, by their numbers, None for all; the program gets the results of this place."""
        given = [function.definition.ret[each.name] for each in function.definition.signature.output_arg]
        read = {reference for number, reference in enumerate(given) if used is None or number in used}
        for number, reference in enumerate(given):
            result = function.tensor(reference)[0]
            if not place.number:
                self.program.returned.append(result)
            if place.is_call:
                self.program.behind[f"{place.caller}:{number}"] = result
            elif reference in read:
                self.program.results.setdefault(result, place.caller)
        return read

    def _is_pure(self, node: Any) -> bool:
        if is_compiled(node):
            return False
        if functions_of(node):
            return is_pure(node, self._library)
        known = self._pure_types.get(node.op)
        if known is None:
            known = self._pure_types[node.op] = is_pure(node, self._library)
        return known


class _Function:
    """The nodes of a function, and its tensors under their names at one place."""

    def __init__(self, definition: Any, library: Library, path: str) -> None:
        self.definition = definition
        self.nodes = {node.name: node for node in definition.node_def}
        self.made = {name: outputs_of(node, library) for name, node in self.nodes.items()}
        """The outputs of each node; None if they are unknown."""
        self._library = library
        self._path = path
        self._tensors = {each.name: (f"{path}{each.name}:0", each.type) for each in definition.signature.input_arg}
        for name, slots in self.made.items():
            self._tensors.update((each.key, (f"{path}{name}:{each.slot}", each.dtype)) for each in slots or ())

    def tensor(self, reference: str) -> tuple[Key, int]:
        """The name and the type of a tensor, also of an operator with unknown slots."""
        return self._tensors.get(reference, (f"{self._path}{reference}:0", 0))

    def inputs(self, node: Any, sources: Mapping[Key, Key]) -> Iterator[Slot]:
        """The inputs of a node; `sources` are the makers of the function's arguments."""
        references = [text for text in node.input if not text.startswith("^")]
        for slot, argument in enumerate(input_names(node, self._library, len(references))):
            key, dtype = self.tensor(references[slot])
            source = key if producer(references[slot]) in self.nodes else sources.get(key, "")
            yield Slot(slot, argument, key, dtype, source)


_ROOT: Final = ProgramBody(0, "", is_sure=True)


# Finds the data sets that a run of a graph reads, and the functions that data sets and other operators run unobserved.

_ITERATORS: Final = frozenset({"Iterator", "IteratorV2"})
_BY_NAME: Final = frozenset({"IteratorFromStringHandle", "IteratorFromStringHandleV2"})
_STARTS: Final = frozenset({"MakeIterator"})
_OF_GENERATORS: Final = "__inference_Dataset_from_generator_"
"""Prefixes of TensorFlow's own functions that call a generator. The generator's Python is observed."""


def datasets_read(operations: Iterable[Any]) -> Iterator[Any]:
    """The operators of the data sets whose iterators these operations may use; iterators are started in a separate run."""
    starts: dict[str, Any] = {}
    for operation in operations:
        if operation.type in _ITERATORS:
            starts.update((reader.name, reader) for output in operation.outputs for reader in output.consumers())
        elif operation.type in _BY_NAME:  # the name of an iterator is fed, so it may be any
            starts.update((each.name, each) for each in operation.graph.get_operations() if each.type in _STARTS)
    first = [start.inputs[0].op for start in starts.values() if start.type in _STARTS]
    return reachable(first, lambda each: (tensor.op for tensor in each.inputs if tensor.dtype.base_dtype == tf.variant))


def hidden_functions(node: Any) -> Iterator[tuple[str, str]]:
    """For each function that a node runs unobserved, the prefix of the path of its operators, and the function."""
    if not hidden_callees(node):
        return
    found = []
    for attribute, value in sorted(node.attr.items()):
        names = [value.func.name] if value.func.name else [each.name for each in value.list.func]
        found += [(attribute, name) for name in names if not name.startswith(_OF_GENERATORS)]
    for number, (attribute, name) in enumerate(found):
        is_list = [each for each, _ in found].count(attribute) > 1
        yield (f"{attribute}_{number}/" if is_list else f"{attribute}/") if len(found) > 1 else "", name


def hidden_operators(
    functions: Iterable[tuple[str, str, Stack]], library: Library, stacks: Stacks
) -> Iterator[tuple[ProgramOperator, SkipReason]]:
    """The operators of functions that run unobserved, and of those that these run, each with the reason why it is skipped.

    For each function the prefix of its operators' names, its own name, and the program lines for operators without any are given.
    """
    waiting = [(path, name, stack, frozenset[str]()) for path, name, stack in functions]
    while waiting:
        path, name, stack, around = waiting.pop(0)
        definition = None if name in around else definition_in(name, library)
        if definition is None:
            continue
        traced = stacks.of_function(name)
        for node in definition.node_def:
            own, shown = stack_of_node(node.name, traced, stack), f"{path}{node.name}"
            called = callees_of(node)
            is_handle = are_handles(outputs_of(node, library) or ())
            reason: SkipReason = "control flow" if called else "handle" if is_handle else "not observed"
            yield ProgramOperator(shown, node.op, node, own, (), (), is_pure=False), reason
            if not is_compiled(node):
                below = [(f"{each.label}/" if each.label else "", each.function) for each in called]
                below += hidden_functions(node)
                waiting += [(f"{shown}/{inner}", callee, own, around | {name}) for inner, callee in below]
