"""Edits a definition that is to be observed: second nodes, copies, arguments, what must run.

See `shadows` for what they are for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.tensorflow.effects import Library, is_pure
from opdump.adapters.tensorflow.functions.executed import rounds
from opdump.adapters.tensorflow.functions.library import LOOPS, Definition, LibraryNode, producer
from opdump.adapters.tensorflow.sessions.summands import LEAST_INPUTS, SHARES
from opdump.adapters.tensorflow.xla import is_compiled

HOST: Final = "/device:CPU:0"
_INT32: Final = tf.int32.as_datatype_enum
_BEGINNING: Final = "opdump_beginning"
# Nodes whose functions hold probes may not be taken for free of effects: those would be folded, merged or dropped.
_STATEFUL: Final = {
    "StatelessIf": "If",
    "StatelessWhile": "While",
    "StatelessCase": "Case",
    "PartitionedCall": "StatefulPartitionedCall",
}
_ADDS: Final = frozenset({"AddN", "Add", "AddV2"})
_SHADOW: Final = "_opdump_shadow"


def add_shadows(copy: Definition, nodes: Sequence[LibraryNode], observed: dict[str, Any], library: Library) -> None:
    """Adds a second node for each that may run twice, reading the second ones of others; `observed` then has those.

    What XLA compiles has none: nothing is rewritten across it, so it can be looked at itself.
    """
    names = {
        node.node.name: f"{node.node.name}{_SHADOW}"
        for node in nodes
        if not is_compiled(node.node) and is_pure(node.node, library)
    }
    for node in nodes:
        if node.node.name not in names:
            continue
        shadow = copy.node_def.add()
        shadow.CopyFrom(node.node)
        shadow.name = names[node.node.name]
        shadow.attr[_SHADOW].b = True  # the runtime merges nodes that differ in nothing
        for place, text in enumerate(shadow.input):
            maker = producer(text)
            if maker in names:
                shadow.input[place] = f"^{names[maker]}" if text.startswith("^") else renamed(text, names[maker])
        observed[node.node.name] = shadow


def add_beginning(copy: Definition) -> frozenset[str]:
    """Adds an argument, and a node that runs once it is there."""
    copy.signature.input_arg.add(name=_BEGINNING, type=_INT32)
    node = copy.node_def.add(op="Identity", name=f"{_BEGINNING}_reached", input=[_BEGINNING], device=HOST)
    node.attr["T"].type = _INT32
    return frozenset({node.name})


def hand_on(copy: Definition, call: Any, before: Collection[str]) -> None:
    """Gives a call the argument that its copy waits for, behind `before`."""
    moment = copy.node_def.add(op="Const", name=f"{call.name}_{_BEGINNING}_moment", device=HOST)
    moment.attr["dtype"].type = _INT32
    moment.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
    given = copy.node_def.add(op="Identity", name=f"{call.name}_{_BEGINNING}", device=HOST)
    given.attr["T"].type = _INT32
    given.input.extend([f"{moment.name}:output:0", *(f"^{name}" for name in sorted(before))])
    inputs = [text for text in call.input if not text.startswith("^")]
    controls = [text for text in call.input if text.startswith("^")]
    del call.input[:]
    call.input.extend([*inputs, f"{given.name}:output:0", *controls])
    call.attr["Tin"].list.type.append(_INT32)


def copy_summands(copy: Definition, nodes: Sequence[LibraryNode], *, is_argument_held: bool) -> None:
    """Gives copies of what is summed to those who only look at it, before the sum is made: see `sums`.

    `is_argument_held`: the caller holds the arguments in any case.
    """
    own = {node.node.name for node in nodes}
    mains = [node for node in copy.node_def if node.name in own]
    added = [node for node in copy.node_def if node.name not in own]
    dtypes = {slot.reference: slot.dtype for node in nodes for slot in (*node.inputs, *node.outputs)}
    looked_at = {text for node in added for text in node.input}
    summed = _summed(mains)
    for number, reference in enumerate(sorted(looked_at & summed)):
        is_argument = producer(reference) not in own
        if reference not in dtypes or not rounds(dtypes[reference]) or (is_argument and is_argument_held):
            continue
        seen = copy.node_def.add(op="DeepCopy", name=f"opdump_summand_{number}", input=[reference])
        waits = copy.node_def.add(op="Identity", name=f"opdump_wait_{number}", input=[reference, f"^{seen.name}"])
        seen.attr["T"].type = waits.attr["T"].type = dtypes[reference]
        for changed, instead in ((added, f"{seen.name}:y:0"), (mains, f"{waits.name}:output:0")):
            for node in changed:
                for place, text in enumerate(node.input):
                    if text == reference:
                        node.input[place] = instead


def _summed(nodes: Sequence[Any]) -> set[str]:
    """The tensors whose buffers a sum of three or more may be made in; the runtime makes one of several."""
    named = {node.name: node for node in nodes}
    added = {name for name, node in named.items() if node.op in _ADDS}
    nested = {name for name in added for text in named[name].input if producer(text) in added}
    nested |= {producer(text) for name in nested for text in named[name].input}
    found: set[str] = set()
    waiting = [
        text
        for node in nodes
        if node.name in nested & added or (node.op == "AddN" and node.attr["N"].i >= LEAST_INPUTS)
        for text in node.input
    ]
    while waiting:
        reference = waiting.pop()
        maker = named.get(producer(reference))
        # What a variable gives is held by it.
        if reference.startswith("^") or reference in found or (maker is not None and maker.op == "ReadVariableOp"):
            continue
        found.add(reference)
        if maker is not None and maker.op in SHARES:
            waiting += maker.input
    return found


def redirect(node: Any, copies: Mapping[tuple[str, int], str]) -> bool:
    """Lets a node run copies of the functions that it runs; whether it runs any."""
    for (attribute, place), name in copies.items():
        value = node.attr[attribute]
        (value.func if value.WhichOneof("value") == "func" else value.list.func[place]).name = name
    if copies:
        node.op = _STATEFUL.get(node.op, node.op)
        if node.op in LOOPS and "parallel_iterations" in node.attr:
            node.attr["parallel_iterations"].i = 1  # probes of one iteration before those of the next
    return bool(copies)


def renamed(reference: str, node: str) -> str:
    """The same output of another node."""
    return f"{node}:{reference.partition(':')[2]}"


def wait_before_deciding(copy: Definition, marks: Sequence[str]) -> None:
    """Makes the results of a loop's condition wait for its probes: the runtime keeps nothing of a condition but what is behind its results."""
    for number, (result, reference) in enumerate(sorted(copy.ret.items())):
        node = copy.node_def.add(op="Identity", name=f"opdump_result_{number}")
        node.attr["T"].type = next(each.type for each in copy.signature.output_arg if each.name == result)
        node.input.append(reference)
        node.input.extend(f"^{mark}" for mark in marks)
        copy.ret[result] = f"{node.name}:output:0"


def must_run(copy: Definition, node: str) -> None:
    if node not in copy.control_ret:
        copy.control_ret[node] = node
        copy.signature.control_output.append(node)
