"""Makes a copy of a function whose optimised graph cannot be had as a whole, from the definition of the function.

That is so where the runtime keeps a call as a call (`_noinline`, LSTM and GRU of Keras 2): it optimises what is called for itself, when it runs.
Then the operators that give the results stay as they are, unobserved, and a *shadow* of each that has no effects is observed: it reads the same
variables, batches and random numbers. What has effects is there once, and is observed itself. Functions that the function runs are copied for each
place that runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops import script_ops

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.functions.function_parts import FunctionPart, running_order
from opdump.adapters.tensorflow.functions.library import (
    CALLS,
    HANDLES,
    LOOPS,
    Definition,
    Library,
    LibraryNode,
    NodeSlot,
    producer,
    reason_of_handles,
)
from opdump.adapters.tensorflow.functions.observed import BodyOperators
from opdump.adapters.tensorflow.functions.probe import CurrentCall, Probe
from opdump.adapters.tensorflow.functions.shadow_edits import (
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
from opdump.adapters.tensorflow.operator_kinds import ModelSlots
from opdump.adapters.tensorflow.xla import is_compiled, note_of_call, type_of
from opdump.records import IO, SkipReason

_STRING: Final = tf.string.as_datatype_enum
_NUMBERS: Final = itertools.count()


def add_shadowed(
    parts: Sequence[FunctionPart],
    library: Library,
    add: Callable[[Definition], object],
    capture: Capture,
    selection: ModelSlots,
    current: CurrentCall,
) -> tuple[str, tuple[BodyOperators, ...], tuple[str, ...], tuple[Probe, ...]]:
    """Copies a function and hands the copies to the runtime through `add`: the name, what stands in each body, all names, the probes."""
    builder = _Builder(capture, selection, library, add, current)
    name = builder.add(parts[0], shadowed=True)
    bodies = tuple(builder.bodies[number] for number in range(len(parts)))
    return name, bodies, tuple(builder.definitions), tuple(builder.probes)


class _Builder:
    """Makes the definitions of the copies, the innermost first."""

    def __init__(
        self,
        capture: Capture,
        selection: ModelSlots,
        library: Library,
        add: Callable[[Definition], object],
        current: CurrentCall,
    ) -> None:
        self._current = current
        self.probes: list[Probe] = []
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
        self.bodies[part.number] = BodyOperators.of([operator for _, operator in named], part.number)
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
        mark = Probe(self._current, Block([]), bodies=[part.number])
        marks = [self._probe(copy, mark, (), ())] if part.number else []
        marks += self._probe_operators(copy, part, named, observed, beginning)
        if shadowed:
            copy_summands(copy, part.body.nodes, is_argument_held=not part.number)
        if part.caller is not None and part.caller.node.op in LOOPS and part.path.endswith("/cond/"):
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
        return reason_of_handles(node, wants_inputs=self._selection.wants_inputs)

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
        places = {node.node.name: place for place, (each, node) in enumerate(running_order(part)) if each is part}
        for node, operator in sorted(named, key=lambda each: places[each[0].node.name]):
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
        inputs: tuple[BlockSlot, ...] = ()
        outputs: tuple[BlockSlot, ...] = ()
        if self._selection.wants_inputs:
            inputs = self._slots(part, node.inputs, operator, "input", read)
        if self._selection.wants_outputs:
            outputs = self._slots(part, node.outputs, operator, "output", read)
        seen = observed[node.node.name]
        # What the observed node itself reads, which an operator with effects shares with nobody.
        given = [text for text in seen.input if not text.startswith("^")]
        made = {slot.reference: renamed(slot.reference, seen.name) for slot in node.outputs}
        references = [made.get(slot.reference) or given[slot.slot] for slot in read]
        # Texts stand behind the arrays, as many as there are slots of them.
        texts = ["string"] * sum(slot.tensor < 0 for slot in (*inputs, *outputs))
        block = Block([BlockOperator(operator, _behind(inputs, len(read)), _behind(outputs, len(read)))])
        probe = Probe(self._current, block, texts)
        return self._probe(copy, probe, read, (seen.name, *sorted(before)), references)

    def _slots(
        self, part: FunctionPart, slots: Sequence[NodeSlot], operator: NamedOperator, io: IO, read: list[NodeSlot]
    ) -> tuple[BlockSlot, ...]:
        excluded = self._selection.excluded(operator.op_name, operator.op_type, io)
        found = []
        for slot in slots:
            if slot.dtype in HANDLES or slot.slot in excluded:
                continue
            source = part.source(slot) if io == "input" else ""
            if slot.dtype == _STRING:
                found.append(BlockSlot(slot.slot, slot.argument, source, -1))
                continue
            found.append(BlockSlot(slot.slot, slot.argument, source, len(read)))
            read.append(slot)
        return tuple(found)

    def _probe(
        self,
        copy: Definition,
        probe: Probe,
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


def _behind(slots: Sequence[BlockSlot], count: int) -> tuple[BlockSlot, ...]:
    """The same slots, those of texts with the place behind so many arrays: all texts are alike."""
    return tuple(slot._replace(tensor=count) if slot.tensor < 0 else slot for slot in slots)
