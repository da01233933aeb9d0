"""Determines the purpose of a session's run, and thereby which runs are iterations.

A dump of the steps "0|5|10" means iterations of the computation. Runs that prepare a session, save or restore it, write
summaries or only read variables are not iterations. The documents of the dump system recommend removing such runs from a script;
opdump detects them (docs/tensorflow.md#models-and-steps).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.operator_kinds import SKIPS, is_assignment, is_update
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, op_type_of

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


def purpose_of(subgraph: Subgraph, fetched: Sequence[Any]) -> Purpose:
    """The purpose of a run that fetches these operations and tensors."""
    types = {op_type_of(op) for op in subgraph.operations}
    if any(is_update(op.type) and not _counts_steps(op) for op in subgraph.operations):
        return "step"
    if types & _RESTORES:
        return "restore"
    if types & _SAVES:
        return "save"
    operations = [element if isinstance(element, tf.Operation) else element.op for element in fetched]
    # An operation without results may be a group: the operations that it waits for are then requested.
    requested = [other for operation in operations for other in _behind_groups(operation)]
    if requested and all("Summary" in operation.type for operation in requested):
        return "summary"
    if requested and all("Enqueue" in operation.type or "QueueClose" in operation.type for operation in requested):
        return "input pipeline"
    if types & _CHECKS and not types & {"IteratorGetNext"}:
        return "initialisation"
    if _initialises(subgraph.operations, requested):
        return "initialisation"
    if types <= _READS:
        return "reading"
    return "step"


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
