"""The part of a graph that a run of a session computes: the operators behind its fetches, in an order in which they can run.

Each of its tensors is *fetched* in the same run; or *watched* by the runtime's debugger, if a fetch would return another value or fail
(reference variables, branches that may not be taken, bodies of loops); or neither (handles of resources).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.graphs.library import (
    CALLS,
    Key,
    Slot,
    argument_names,
    definitions_of,
    in_order,
    is_pure,
    reachable,
    type_of,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import (
    ENTERS,
    NEXT,
    PASSES_ON,
    SHARES,
    SKIPS,
    SWITCHES,
    VARIABLES,
    is_assignment,
    is_update,
)
from opdump.adapters.tensorflow.graphs.outcomes import ROOT, Region, region_of
from opdump.adapters.tensorflow.graphs.program import (
    Program,
    ProgramBuilder,
    ProgramOperator,
    datasets_read,
    hidden_functions,
    hidden_operators,
)
from opdump.adapters.tensorflow.stacks import Stacks

Access = Literal["fetch", "watch", "handle"]

_HANDLES = (tf.resource, tf.variant)

_SHARES_MEMORY = SHARES | frozenset(
    {"IdentityN", "Split", "Print", "Concat", "ConcatV2", "Pack", "AddN", "GuaranteeConst", "Merge", "_SwitchN"}
)
"""They may return the memory of their inputs, for one shape or another."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The operations of a signature, in running order."""

    operations: tuple[Any, ...]
    given: tuple[Any, ...]
    """Operations that do not run because their tensors are fed."""
    fed: frozenset[str]
    """Names of fed tensors."""
    unsure: frozenset[str]
    """Operators that may not run, or may run several times: between a switch and its merge, and within loops."""
    aliases: frozenset[str]
    """Operators that may return the memory of a reference variable itself, which an update changes for all holders."""
    read_late: frozenset[str]
    """Those that are read after an update: their readers see the update, which they would not in a copy."""
    with_effects: frozenset[str]
    """Operators that must not run again: see `nodes.is_pure`."""

    def definitions(self) -> dict[str, Any]:
        """The definitions of the graph's functions, by name."""
        return definitions_of(self.operations[0].graph) if self.operations else {}

    def access(self, tensor: Any) -> Access:
        """How the value of a tensor is obtained."""
        if tensor.dtype.base_dtype in _HANDLES:
            return "handle"
        op = tensor.op
        if op.name in self.unsure or tensor.dtype._is_ref_dtype or op.name in self.aliases:
            return "watch"
        return "fetch" if op.graph.is_fetchable(tensor) else "watch"


def subgraph_of(fetched: Iterable[Any], fed: Collection[str]) -> Subgraph:
    """The closure of fetched operations and tensors, if the tensors named in `fed` (`x:0`) are fed."""
    fetched = tuple(fetched)
    found, given = operations_behind(fetched, fed)
    order = _running_order(found)
    aliases = _aliases(order)
    return Subgraph(
        tuple(order),
        tuple(_by_creation([operation for name, operation in given.items() if name not in found])),
        frozenset(fed),
        _unsure(order),
        aliases,
        _read_after_updates(
            order, aliases, {element.op.name for element in fetched if not isinstance(element, tf.Operation)}
        ),
        _with_effects(order),
    )


def operations_behind(fetched: Iterable[Any], fed: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operations that run for fetched operations and tensors, by name; and those whose tensors are fed to them."""
    given: dict[str, Any] = {}

    def before(operation: Any) -> Iterator[Any]:
        for tensor in operation.inputs:
            if tensor.name in fed:
                given[tensor.op.name] = tensor.op
            else:
                yield tensor.op
        yield from operation.control_inputs

    first = [
        element if isinstance(element, tf.Operation) else element.op for element in fetched if element.name not in fed
    ]
    return {operation.name: operation for operation in reachable(first, before)}, given


def _with_effects(order: Sequence[Any]) -> frozenset[str]:
    if not order:
        return frozenset()
    definitions = definitions_of(order[0].graph)
    return frozenset(each.name for each in order if not is_pure(each.node_def, definitions.__getitem__))


def read_variable(tensor: Any) -> Any | None:
    """The reference variable that a tensor is read from directly; None for other tensors.

    The debugger would replace such a tensor by a copy, although the program may see an update through the memory
    that it shares with the variable. The variable itself is watched without replacing it.
    """
    operation = tensor.op
    if operation.type not in ("Identity", "RefIdentity") or operation.control_inputs:
        return None
    source = operation.inputs[0]
    return source if source.op.type in VARIABLES and source.dtype._is_ref_dtype else None


def op_type_of(operation: Any) -> str:
    """The type of an operation, which differs if XLA compiles it."""
    return type_of(operation.node_def) if operation.type in CALLS else str(operation.type)


def _running_order(found: Mapping[str, Any]) -> list[Any]:
    """Operators after those that they read and wait for; otherwise in the order of creation. Loops are entered at their merges."""

    def before(operation: Any) -> list[Any]:
        makers = (*(tensor.op for tensor in operation.inputs), *operation.control_inputs)
        return [each for each in makers if each.name in found and each.type not in NEXT]

    return in_order(_by_creation(found.values()), before)


def _by_creation(operations: Iterable[Any]) -> list[Any]:
    return sorted(operations, key=lambda operation: operation._id)


def _unsure(order: Sequence[Any]) -> frozenset[str]:
    """The operators that run only for one result of a switch, and those in loops; `order` is a running order.

    Includes operators of gradients in a loop, which a session considers fetchable.
    """
    regions: dict[str, Region] = {}
    for operation in order:
        # A missing input comes from the previous iteration, and a fed one is available as often as the whole.
        read = [_region_of(tensor, regions) for tensor in operation.inputs if tensor.op.name in regions]
        waited = [regions[other.name] for other in operation.control_inputs if other.name in regions]
        entered = operation.get_attr("frame_name").decode() if operation.type in ENTERS else ""
        regions[operation.name] = region_of(operation.type, read, waited, entered)
    switches = {operation.name for operation in order if operation.type in SWITCHES}
    return frozenset(name for name, region in regions.items() if region != ROOT) | switches


def _region_of(tensor: Any, regions: Mapping[str, Region]) -> Region:
    own = regions[tensor.op.name]
    if tensor.op.type in SWITCHES:
        decides = tensor.op.inputs[1]
        return own.behind((decides.op.name, decides.value_index), tensor.value_index)
    return own


def _aliases(order: Sequence[Any]) -> frozenset[str]:
    """The tensors that may share the memory of a reference variable, by types and inputs."""
    found: set[str] = set()
    for operation in order:
        if operation.type in _SHARES_MEMORY and any(
            tensor.dtype._is_ref_dtype or tensor.op.name in found for tensor in operation.inputs
        ):
            found.add(operation.name)
    return frozenset(found)


def _read_after_updates(order: Sequence[Any], aliases: Collection[str], asked: Collection[str]) -> frozenset[str]:
    """The aliases of reference variables that are read, directly or through other aliases, after an update.

    The program itself, which gets its fetches, reads last.
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


# The operators of a signature in the program: those of its graph and, at each place that runs a function, those of its body.


def program_of(subgraph: Subgraph, stacks: Stacks) -> Program:
    """Lays out the operators of a signature."""
    library = subgraph.definitions().__getitem__
    builder = ProgramBuilder(library, stacks)
    program = builder.program
    for operation in subgraph.operations:
        own = operator_of(operation, subgraph, stacks)
        program.operators.append(own)
        program.operators += builder.inside(own)
    program.given += [replace(operator_of(each, subgraph, stacks), inputs=()) for each in subgraph.given]
    read = {each.name: each for each in (*subgraph.operations, *datasets_read(subgraph.operations))}
    hidden = (
        (f"{each.name}/{path}", name, stacks.of_operation(each))
        for each in read.values()
        for path, name in hidden_functions(each.node_def)
    )
    program.unseen += hidden_operators(hidden, library, stacks)
    return program


def _slot(slot: int, argument: str, tensor: Any, source: Key = "") -> Slot:
    return Slot(slot, argument, tensor.name, tensor.dtype.base_dtype.as_datatype_enum, source)


def operator_of(operation: Any, subgraph: Subgraph, stacks: Stacks) -> ProgramOperator:
    """An operation of a signature."""
    pure = operation.name not in subgraph.with_effects and not any(
        tensor.dtype._is_ref_dtype for tensor in (*operation.inputs, *operation.outputs)
    )
    node, op_def = operation.node_def, operation.op_def
    inputs = zip(argument_names(op_def.input_arg, op_def, node), operation.inputs, strict=True)
    outputs = zip(argument_names(op_def.output_arg, op_def, node), operation.outputs, strict=True)
    return ProgramOperator(
        operation.name,
        op_type_of(operation),
        node,
        stacks.of_operation(operation),
        tuple(_slot(slot, name, tensor, tensor.name) for slot, (name, tensor) in enumerate(inputs)),
        tuple(_slot(slot, name, tensor) for slot, (name, tensor) in enumerate(outputs)),
        is_pure=pure,
    )


# Determines the purpose of a session's run, and thereby which runs are iterations.
#
# A dump of the steps "0|5|10" means iterations of the computation. Runs that prepare a session, save or restore it, write
# summaries or only read variables are not iterations. The documents of the dump system recommend removing such runs from a script;
# opdump detects them (docs/tensorflow.md#models-and-steps).

Purpose = Literal["step", "initialisation", "restore", "save", "summary", "input pipeline", "reading"]

_RESTORES: Final = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
_SAVES: Final = frozenset({"Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints"})
_CHECKS: Final = frozenset({"IsVariableInitialized", "VarIsInitializedOp", "IteratorGetNextAsOptional"})
_INITIALISES: Final = frozenset(
    {
        *("MakeIterator", "InitializeTable", "InitializeTableV2", "InitializeTableFromTextFile"),
        *("InitializeTableFromTextFileV2", "LookupTableImport", "LookupTableImportV2", "CreateSummaryFileWriter"),
    }
)
_READS: Final = frozenset({"ReadVariableOp", "VariableV2", "Variable", "Identity", "Shape", "VariableShape", *SKIPS})


def _fills_queue(operation: Any) -> bool:
    return "Enqueue" in operation.type or "QueueClose" in operation.type


def _requested(fetched: Sequence[Any]) -> Iterator[Any]:
    """The operations that are fetched. One without results may be a group: then those that it waits for are."""
    for element in fetched:
        yield from _behind_groups(element if isinstance(element, tf.Operation) else element.op)


def purpose_of(subgraph: Subgraph, fetched: Sequence[Any]) -> Purpose:
    """The purpose of a run that fetches these operations and tensors."""
    types = {op_type_of(op) for op in subgraph.operations}
    if any(is_update(op.type) and not _counts_steps(op) for op in subgraph.operations):
        return "step"
    if types & _RESTORES:
        return "restore"
    if types & _SAVES:
        return "save"
    requested = list(_requested(fetched))
    if requested:
        if all("Summary" in operation.type for operation in requested):
            return "summary"
        if all(map(_fills_queue, requested)):
            return "input pipeline"
    is_checked = types & _CHECKS and "IteratorGetNext" not in types
    if is_checked or _initialises(subgraph.operations, requested):
        return "initialisation"
    return "reading" if types <= _READS else "step"


def _behind_groups(operation: Any) -> Iterable[Any]:
    if operation.type == "NoOp" and operation.control_inputs:
        for other in operation.control_inputs:
            yield from _behind_groups(other)
    else:
        yield operation


def _initialises(operators: Sequence[Any], requested: Sequence[Any]) -> bool:
    """Whether all assignments are those of initialisers, and nothing else is requested."""
    if not requested:
        return False
    assigned = [op for op in operators if is_assignment(op.type)]
    if assigned:
        initialisers = _initialisers(assigned[0].graph)
        if not all(op.name in initialisers for op in assigned):
            return False
    return all(is_assignment(op.type) or op.type in _INITIALISES or op.type == "NoOp" for op in requested)


def _initialisers(graph: Any) -> frozenset[str]:
    """The names of the operators that initialise the variables of a graph."""
    items = (item for key in graph.get_all_collection_keys() for item in graph.get_collection_ref(key))
    found = (getattr(item, "initializer", None) for item in items)
    return frozenset(each.name for each in found if isinstance(each, tf.Operation))


def _counts_steps(op: Any) -> bool:
    """Whether it increments the global step, as hooks and optimizers do."""
    return bool(op.inputs) and op.inputs[0].op.name.rpartition("/")[2] == "global_step"
