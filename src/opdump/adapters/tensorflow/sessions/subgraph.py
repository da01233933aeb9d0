"""What a run of a session computes: the operators behind its fetches, in an order in which they can run.

A tensor of them is *fetched* in the same run; or *watched* by the runtime's debugger, where fetching would give another value or fail
(reference variables, branches that may not be taken, bodies of loops); or neither: handles of resources.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.effects import definitions_of, is_pure
from opdump.adapters.tensorflow.graphs.library import CALLS
from opdump.adapters.tensorflow.graphs.summands import SHARES
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON
from opdump.adapters.tensorflow.xla import type_of

Access = Literal["fetch", "watch", "handle"]

_HANDLES = (tf.resource, tf.variant)
_VARIABLES = frozenset({"VariableV2", "Variable"})
_SHARES_MEMORY = SHARES | frozenset(
    {"IdentityN", "Split", "Print", "Concat", "ConcatV2", "Pack", "AddN", "GuaranteeConst", "Merge", "_SwitchN"}
)
"""May give the memory of what they read, for one shape or another."""
_SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a slot of an operator."""

    slot: int
    argument: str
    tensor: Any
    source: str = ""
    """Of an input: `{op_name}:{slot}` of who makes it."""


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """An operator of a signature. `place` is that in the running order."""

    operation: Any
    name: str
    op_type: str
    place: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The operators of a signature."""

    operators: tuple[GraphOperator, ...]
    given: tuple[GraphOperator, ...]
    """Operators that fed tensors keep from running; they have no inputs, and the last places."""
    fed: frozenset[str]
    """Names of fed tensors."""
    unsure: frozenset[str]
    """Operators that may not run, or may run more than once: between a switch and the merge behind it, and within loops."""
    aliases: frozenset[str]
    """Operators that may give the memory of a reference variable itself, which an update changes under whoever holds it."""
    read_late: frozenset[str]
    """Those of them that are read after an update: their readers see it, and would not if they were given a copy."""
    with_effects: frozenset[str]
    """Operators that are not to run once more: see `effects`."""

    def access(self, tensor: Any) -> Access:
        """How the value of a tensor is got hold of."""
        if tensor.dtype.base_dtype in _HANDLES:
            return "handle"
        op = tensor.op
        if op.name in self.unsure or tensor.dtype._is_ref_dtype or op.name in self.aliases:
            return "watch"
        return "fetch" if op.graph.is_fetchable(tensor) else "watch"


def subgraph_of(fetched: Iterable[Any], fed: Collection[str]) -> Subgraph:
    """The closure of fetched operations and tensors, where the tensors named in `fed` (`x:0`) are given."""
    fetched = tuple(fetched)
    found: dict[str, Any] = {}
    given: dict[str, Any] = {}
    waiting = []
    for element in fetched:
        if isinstance(element, tf.Operation):
            waiting.append(element)
        elif element.name not in fed:
            waiting.append(element.op)
    while waiting:
        operation = waiting.pop()
        if operation.name in found:
            continue
        found[operation.name] = operation
        for tensor in operation.inputs:
            if tensor.name in fed:
                given[tensor.op.name] = tensor.op
            else:
                waiting.append(tensor.op)
        waiting += operation.control_inputs
    order = _running_order(list(found.values()), found)
    operators = tuple(_operator(operation, place) for place, operation in enumerate(order))
    kept = _by_creation([operation for name, operation in given.items() if name not in found])
    at_rest = tuple(replace(_operator(operation, len(order) + each), inputs=()) for each, operation in enumerate(kept))
    aliases = _aliases(order)
    return Subgraph(
        operators,
        at_rest,
        frozenset(fed),
        _maybe_dead(order) | _within_loops(order),
        aliases,
        _read_after_updates(
            order, aliases, {element.op.name for element in fetched if not isinstance(element, tf.Operation)}
        ),
        _with_effects(order),
    )


def _with_effects(order: Sequence[Any]) -> frozenset[str]:
    if not order:
        return frozenset()
    definitions = definitions_of(order[0].graph)
    return frozenset(each.name for each in order if not is_pure(each.node_def, definitions.__getitem__))


def read_variable(tensor: Any) -> Any | None:
    """The reference variable that a tensor is read from at once; None for other tensors.

    The debugger would put a copy in the place of such a tensor, where the program may see an update through the memory
    that it shares with the variable. The variable itself it looks at from beside.
    """
    operation = tensor.op
    if operation.type not in ("Identity", "RefIdentity") or operation.control_inputs:
        return None
    source = operation.inputs[0]
    return source if source.op.type in _VARIABLES and source.dtype._is_ref_dtype else None


def _operator(operation: Any, place: int) -> GraphOperator:
    names = _argument_names(operation.op_def.input_arg, operation, len(operation.inputs))
    inputs = tuple(
        Slot(slot, name, tensor, tensor.name)
        for slot, (name, tensor) in enumerate(zip(names, operation.inputs, strict=True))
    )
    names = _argument_names(operation.op_def.output_arg, operation, len(operation.outputs))
    outputs = tuple(
        Slot(slot, name, tensor) for slot, (name, tensor) in enumerate(zip(names, operation.outputs, strict=True))
    )
    op_type = type_of(operation.node_def) if operation.type in CALLS else operation.type
    return GraphOperator(operation, operation.name, op_type, place, inputs, outputs)


def _argument_names(arguments: Sequence[Any], operation: Any, count: int) -> list[str]:
    """The names of an operator's arguments, one for each tensor: those of a list are numbered."""
    names: list[str] = []
    for argument in arguments:
        if argument.number_attr:
            size = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            size = len(operation.get_attr(argument.type_list_attr))
        else:
            names.append(argument.name)
            continue
        names += [f"{argument.name}_{number}" for number in range(size)]
    return names if len(names) == count else [""] * count


def _running_order(operations: Sequence[Any], found: Collection[str]) -> list[Any]:
    """Operators after what they read and wait for; among equals the one that was made first. Loops are entered at their merges."""
    made = {operation.name: number for number, operation in enumerate(_by_creation(operations))}
    missing: dict[str, int] = {}
    readers: dict[str, list[Any]] = {}
    ready: list[tuple[int, str]] = []
    named = {operation.name: operation for operation in operations}
    for operation in operations:
        before = {
            other.name
            for other in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs)
            if other.name in found and other.type not in ("NextIteration", "RefNextIteration")
        }
        missing[operation.name] = len(before)
        for name in before:
            readers.setdefault(name, []).append(operation)
        if not before:
            heapq.heappush(ready, (made[operation.name], operation.name))
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(named[name])
        for reader in readers.get(name, ()):
            missing[reader.name] -= 1
            if missing[reader.name] == 0:
                heapq.heappush(ready, (made[reader.name], reader.name))
    return order


def _by_creation(operations: Sequence[Any]) -> list[Any]:
    return sorted(operations, key=lambda operation: operation._id)


def _maybe_dead(order: Sequence[Any]) -> frozenset[str]:
    """The operators that run only if a switch goes their way; `order` is a running order.

    An operator runs under the conditions of all that it reads and waits for; a merge under those that its inputs share; what leaves a
    loop under those of whoever enters it.
    """
    conditions: dict[str, frozenset[tuple[str, int]]] = {}
    for operation in order:
        # What is not there yet comes round a loop, and what was fed has no condition.
        known = [_conditions(tensor, conditions) for tensor in operation.inputs if tensor.op.name in conditions]
        waited = [conditions[other.name] for other in operation.control_inputs if other.name in conditions]
        if operation.type in ("Merge", "RefMerge"):
            own = frozenset.intersection(*known) if known else frozenset()
        else:
            own = frozenset().union(*known, *waited)
        if operation.type in ("Exit", "RefExit"):
            loop = operation.inputs[0].op.inputs[1].name if operation.inputs[0].op.type in _SWITCHES else ""
            own = frozenset(pair for pair in own if pair[0] != loop)
        conditions[operation.name] = own
    switches = {operation.name for operation in order if operation.type in _SWITCHES}
    return frozenset(name for name, own in conditions.items() if own) | switches


def _aliases(order: Sequence[Any]) -> frozenset[str]:
    """What may give the memory of a reference variable: by types, and by what it reads."""
    found: set[str] = set()
    for operation in order:
        if operation.type in _SHARES_MEMORY and any(
            tensor.dtype._is_ref_dtype or tensor.op.name in found for tensor in operation.inputs
        ):
            found.add(operation.name)
    return frozenset(found)


def _read_after_updates(order: Sequence[Any], aliases: Collection[str], asked: Collection[str]) -> frozenset[str]:
    """The aliases of reference variables that are read, at once or through other aliases, by what comes after an update of some.

    The program itself, which is given what it asked for, comes after all.
    """
    if not aliases:
        return frozenset()
    late: set[str] = set()
    found: set[str] = set()
    for operation in order:
        if any(
            each.name in late for each in (*operation.control_inputs, *(tensor.op for tensor in operation.inputs))
        ) or _is_update_of_reference(operation):
            late.add(operation.name)
    if late:
        found.update(name for name in asked if name in aliases)
    for operation in reversed(order):
        if operation.name in late or operation.name in found:
            found.update(tensor.op.name for tensor in operation.inputs if tensor.op.name in aliases)
    return frozenset(found)


def _is_update_of_reference(operation: Any) -> bool:
    return (
        operation.type not in PASSES_ON
        and any(tensor.dtype._is_ref_dtype for tensor in operation.inputs)
        and any(tensor.dtype._is_ref_dtype for tensor in operation.outputs)
    )


def _within_loops(order: Sequence[Any]) -> frozenset[str]:
    """The operators between the entries of a loop and its exits; those of gradients too, which a session takes for fetchable."""
    depths: dict[str, int] = {}
    for operation in order:
        around = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
        depth = max((depths.get(other.name, 0) for other in around), default=0)
        entered = operation.type in ("Enter", "RefEnter")
        left = operation.type in ("Exit", "RefExit")
        depths[operation.name] = max(0, depth + entered - left)
    return frozenset(name for name, depth in depths.items() if depth)


def _conditions(tensor: Any, conditions: Mapping[str, frozenset[tuple[str, int]]]) -> frozenset[tuple[str, int]]:
    own = conditions[tensor.op.name]
    if tensor.op.type in _SWITCHES:
        return own | {(tensor.op.inputs[1].name, tensor.value_index)}
    return own


def dtype_of(slot: Slot) -> str:
    """The type of the tensor in a slot."""
    return str(slot.tensor.dtype.base_dtype.name)
