"""Makes the instrumented copy of a traced function: the same operators, and a probe for each that emits what it reads and writes.

The copy is made from the function's definition, not by tracing the Python program again: names, attributes, seeds and variables are
those of the function itself, and nothing of the program runs twice. Functions that the function runs (branches, bodies of loops,
inner functions) are copied for each place that runs them.

The runtime fuses operators and rewrites arithmetic where nobody looks at what lies between, and that changes the last bits. So the
operators that give the results stay as they are, unobserved, and a *shadow* of each that has no effects is observed: it reads the same
variables, batches and random numbers. What has effects is there once, and is observed itself.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops import script_ops

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.effects import functions_of
from opdump.adapters.tensorflow.functions.edits import (
    HOST,
    add_beginning,
    add_shadows,
    copy_summands,
    hand_on,
    must_run,
    redirect,
    renamed,
    wait_before_deciding,
)
from opdump.adapters.tensorflow.functions.function_parts import FunctionPart, parts_of
from opdump.adapters.tensorflow.functions.library import (
    CALLS,
    Definition,
    Library,
    LibraryNode,
    NodeSlot,
    hidden_callees,
    producer,
)
from opdump.adapters.tensorflow.functions.probe import BodyProbe, CurrentCall, OperatorProbe, ProbedSlot
from opdump.adapters.tensorflow.operator_kinds import ModelSlots
from opdump.adapters.tensorflow.xla import is_compiled, note_of_call, type_of
from opdump.records import IO, SkipReason

_HANDLES: Final = frozenset({tf.resource.as_datatype_enum, tf.variant.as_datatype_enum})
_STRING: Final = tf.string.as_datatype_enum
_NUMBERS: Final = itertools.count()
_SUFFIX: Final = re.compile(r"_opdump_(\d+|shadow)")


@dataclass(frozen=True, slots=True)
class BodyOperators:
    """A function within the copy: the operators in it that leave no data, and those that leave some."""

    skipped: tuple[NamedOperator, ...]
    emitted: tuple[NamedOperator, ...]
    reasons: Counter[SkipReason]
    """Of those that leave none, where it runs."""
    not_executed: Counter[SkipReason]
    """Of all, where it does not."""


@dataclass(frozen=True, slots=True)
class InstrumentedFunction:
    """An instrumented copy that the runtime knows."""

    name: str
    current: CurrentCall
    bodies: tuple[BodyOperators, ...]
    """By number; 0 is the function itself, which runs in each call."""
    definitions: tuple[str, ...]
    """Names under which the copies stand in the runtime."""
    probes: tuple[Callable[..., Any], ...]
    """Kept alive: the runtime knows them by a token alone."""
    hidden: tuple[str, ...] = ()
    """Functions that its operators have run elsewhere: bodies of loops over data sets."""
    listed: set[tuple[int, bool]] = field(default_factory=set)
    """Numbers of bodies whose operators without data were listed: of one that ran, of one that did not."""


def without_suffix(text: str) -> str:
    """A message of the runtime with the names of the functions and operators in place of those of the copies."""
    return _SUFFIX.sub("", text)


def instrument(
    name: str, library: Library, add: Callable[[Definition], object], capture: Capture, model: Model
) -> InstrumentedFunction:
    """Copies a function and hands the copies to the runtime through `add`."""
    parts = parts_of(name, library, capture.stacks)
    order = [part.names[node.node.name] for part in parts for node in part.body.nodes]
    selection = capture.selection(capture.filter_of(model), order)
    builder = _Builder(capture, selection, library, add)
    copy_name = builder.add(parts[0], shadowed=True)
    capture.recorder.matched_kernels |= selection.matched_kernels
    hidden = tuple(_note_hidden(parts, capture))
    bodies = tuple(builder.bodies[number] for number in range(len(parts)))
    return InstrumentedFunction(
        copy_name, builder.current, bodies, tuple(builder.definitions), tuple(builder.probes), hidden
    )


def _note_hidden(parts: Sequence[FunctionPart], capture: Capture) -> Iterator[str]:
    """The functions that nobody sees, by name."""
    for part in parts:
        for node in part.body.nodes:
            if node.node.name in part.body.needed and hidden_callees(node.node):
                name = part.names[node.node.name]
                capture.note(
                    f"the functions that {name} ({node.node.op}) runs are not shown: they run outside of the graph"
                )
                yield from functions_of(node.node)


class _Builder:
    """Makes the definitions of the copies, the innermost first."""

    def __init__(
        self, capture: Capture, selection: ModelSlots, library: Library, add: Callable[[Definition], object]
    ) -> None:
        self.current = CurrentCall()
        self.probes: list[Callable[..., Any]] = []
        self.definitions: list[str] = []
        self.bodies: dict[int, BodyOperators] = {}
        self._capture = capture
        self._selection = selection
        self._library = library
        self._add = add
        self._task_ids: Iterator[int] = itertools.count()

    def add(self, part: FunctionPart, *, shadowed: bool, waits: bool = False) -> str:
        """Makes the copy of a function, and of what it runs; its name. Without shadows the operators are observed themselves.

        `waits`: the copy has one more argument; once that is there, its operators may be emitted.
        """
        named = [(node, self._named(part, node)) for node in part.body.nodes]
        self.bodies[part.number] = _operators(named)
        copy = type(part.body.definition)()
        copy.CopyFrom(part.body.definition)
        signature = copy.signature
        signature.name = f"{signature.name}_opdump_{next(_NUMBERS)}"
        signature.is_stateful = True
        # One of several functions that the runtime may put in each other's place: the copy is to stay what it is.
        copy.attr.pop("api_implements", None)
        observed = {node.name: node for node in copy.node_def}
        if shadowed:
            add_shadows(
                copy, [node for node, _ in named if node.node.name in part.body.needed], observed, self._library
            )
        inner = {
            place: self.add(
                inside,
                shadowed=observed[place[0]].name == place[0] and shadowed,
                waits=observed[place[0]].op in CALLS,
            )
            for place, inside in part.parts.items()
        }
        beginning = add_beginning(copy) if waits else frozenset()
        for name, node in observed.items():
            if redirect(node, {place[1:]: made for place, made in inner.items() if place[0] == name}):
                must_run(copy, node.name)
        marks = [self._probe(copy, BodyProbe(self.current, part.number), (), ())] if part.number else []
        marks += self._probe_operators(copy, part, named, observed, beginning)
        if shadowed:
            copy_summands(copy, part.body.nodes, is_argument_held=not part.number)
        if part.decides:
            wait_before_deciding(copy, marks)
        self._add(copy)
        self.definitions.append(signature.name)
        return str(signature.name)

    def _named(self, part: FunctionPart, node: LibraryNode) -> NamedOperator:
        name = part.names[node.node.name]
        arguments, skip = arguments_of(node.node), self._skip_of(part, node, name)
        if skip in ("", "not selected") and is_compiled(node.node):
            self._capture.note(note_of_call(name, node.node))
        return NamedOperator(
            type_of(node.node), name, next(self._task_ids), arguments, part.stacks[node.node.name], skip=skip
        )

    def _skip_of(self, part: FunctionPart, node: LibraryNode, name: str) -> SkipReason:
        if node.node.name not in part.body.needed:
            return "not executed"
        readers = [part.names[reader] for reader in part.readers.get(node.node.name, ())]
        reason = self._selection.skip_of(type_of(node.node), name, readers)
        if reason:
            return reason
        if not node.known or node.node.name in part.recursive:
            return "not observed"
        if node.outputs and all(slot.dtype in _HANDLES for slot in node.outputs):
            reads = self._selection.wants_inputs and any(slot.dtype not in _HANDLES for slot in node.inputs)
            return "" if reads else "handle"
        return ""

    def _probe_operators(
        self,
        copy: Definition,
        part: FunctionPart,
        named: Sequence[tuple[LibraryNode, NamedOperator]],
        observed: Mapping[str, Any],
        beginning: frozenset[str],
    ) -> list[str]:
        """Adds the probes, each after those of what its operator reads, so that operators are emitted in an order in which they can run."""
        latest: dict[str, frozenset[str]] = {}
        """Node -> the probes, and nodes that run others, behind which its own effects are seen."""
        added = []
        for node, operator in sorted(named, key=lambda each: part.depth[each[0].node.name]):
            name = node.node.name
            before = beginning.union(*(latest.get(producer(text), beginning) for text in node.node.input))
            if node.callees:
                seen = observed[name]
                if node.node.op in CALLS:
                    # What waits for a call's inputs waits for all of it, once it stands in the call's place: that is added to
                    # the probes alone, so that the runtime rewrites what it calls as it does without them.
                    if name not in part.recursive:
                        hand_on(copy, seen, before)
                else:
                    seen.input.extend(f"^{other}" for other in sorted(before) if f"^{other}" not in seen.input)
                latest[name] = frozenset({seen.name})
            elif operator.skip:
                latest[name] = before
            else:
                added.append(self._probe_operator(copy, part, node, operator, observed, before))
                latest[name] = frozenset({added[-1]})
        return added

    def _probe_operator(
        self,
        copy: Definition,
        part: FunctionPart,
        node: LibraryNode,
        operator: NamedOperator,
        observed: Mapping[str, Any],
        before: Collection[str],
    ) -> str:
        read: list[NodeSlot] = []
        inputs: tuple[ProbedSlot, ...] = ()
        outputs: tuple[ProbedSlot, ...] = ()
        if self._selection.wants_inputs:
            inputs = self._slots(part, node.inputs, operator, "input", read)
        if self._selection.wants_outputs:
            outputs = self._slots(part, node.outputs, operator, "output", read)
        seen = observed[node.node.name]
        # What the observed node itself reads, which an operator with effects shares with nobody.
        given = [text for text in seen.input if not text.startswith("^")]
        made = {slot.reference: renamed(slot.reference, seen.name) for slot in node.outputs}
        references = [made.get(slot.reference) or given[slot.slot] for slot in read]
        probe = OperatorProbe(self.current, operator, inputs, outputs)
        return self._probe(copy, probe, read, (seen.name, *sorted(before)), references)

    def _slots(
        self, part: FunctionPart, slots: Sequence[NodeSlot], operator: NamedOperator, io: IO, read: list[NodeSlot]
    ) -> tuple[ProbedSlot, ...]:
        excluded = self._selection.excluded(operator.op_name, operator.op_type, io)
        found = []
        for slot in slots:
            if slot.dtype in _HANDLES or slot.slot in excluded:
                continue
            source = part.source(slot) if io == "input" else ""
            if slot.dtype == _STRING:
                found.append(ProbedSlot(slot.slot, slot.argument, None, source, "string"))
                continue
            found.append(ProbedSlot(slot.slot, slot.argument, len(read), source))
            read.append(slot)
        return tuple(found)

    def _probe(
        self,
        copy: Definition,
        probe: Callable[..., Any],
        read: Sequence[NodeSlot],
        after: Sequence[str],
        references: Sequence[str] = (),
    ) -> str:
        node = copy.node_def.add(op="PyFunc", name=f"opdump_probe_{len(self.probes)}", device=HOST)
        self.probes.append(probe)
        node.attr["token"].s = script_ops._py_funcs.insert(probe).encode()
        node.attr["Tin"].list.type.extend(slot.dtype for slot in read)
        node.attr["Tin"].list.SetInParent()
        node.attr["Tout"].list.SetInParent()
        node.input.extend(references)
        node.input.extend(f"^{name}" for name in after)
        must_run(copy, node.name)
        return str(node.name)


def _operators(named: Sequence[tuple[LibraryNode, NamedOperator]]) -> BodyOperators:
    skipped = tuple(operator for _, operator in named if operator.skip)
    emitted = tuple(operator for _, operator in named if not operator.skip)
    reasons: Counter[SkipReason] = Counter(operator.skip for operator in skipped)
    not_executed: Counter[SkipReason] = Counter()
    not_executed["not executed"] = len(named)
    return BodyOperators(skipped, emitted, reasons, not_executed)
