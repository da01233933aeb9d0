"""Decides by type whether an operator is recorded, passes its input on, or updates a variable; and whether a plan selects it.

docs/compatibility.md#tensorflow-programs lists the skipped operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tensorflow.python.framework import op_def_registry

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.plan.unmatched_names import ListMatches
from opdump.records import IO, SkipReason

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.graphs.library import Slot
    from opdump.adapters.tensorflow.graphs.program import ProgramOperator

_WITHOUT_DATA: Final[Mapping[SkipReason, tuple[str, ...]]] = MappingProxyType(
    {
        "constant": ("Const", "HostConst"),
        "fed": ("Placeholder", "PlaceholderV2", "_Arg", "_DeviceArg"),
        "handle": (
            *("VarHandleOp", "VarHandlesOp", "_VarHandlesOp", "Iterator", "IteratorV2", "OneShotIterator"),
            *("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3", "MutableHashTable"),
            *("MutableHashTableV2", "HashTable", "HashTableV2", "FIFOQueueV2", "RandomShuffleQueueV2", "TensorArrayV3"),
            *("StackV2", "DummyIterationCounter", "AnonymousMultiDeviceIterator", "AnonymousSeedGenerator"),
        ),
        "control flow": (
            *("NoOp", "ControlTrigger", "Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge", "Enter", "RefEnter"),
            *("Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond", "Abort"),
            *("If", "StatelessIf", "_If", "While", "StatelessWhile", "_While", "Case", "StatelessCase", "For"),
            *("PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient", "_Retval"),
        ),
    }
)
SKIPS: Final[Mapping[str, SkipReason]] = MappingProxyType(
    {op_type: reason for reason, types in _WITHOUT_DATA.items() for op_type in types}
)
"""Operator type -> why operators of this type are skipped."""

DATA_TYPES: Final = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "Data"})
"""Data operators: dumped together with an operator of `dump_layer` that reads them."""

PASSES_ON: Final = frozenset(
    {"Identity", "RefIdentity", "Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "RefExit"}
    | {"NextIteration", "RefNextIteration", "StopGradient", "PreventGradient", "Snapshot"}
)
"""They return one of their inputs unchanged."""

# Parts of loops and branches in a graph, and values that are the same in each run.
CONSTANTS: Final = frozenset({"Const", "HostConst"})
SWITCHES: Final = frozenset({"Switch", "RefSwitch", "_SwitchN"})
MERGES: Final = frozenset({"Merge", "RefMerge"})
ENTERS: Final = frozenset({"Enter", "RefEnter"})
EXITS: Final = frozenset({"Exit", "RefExit"})
NEXT: Final = frozenset({"NextIteration", "RefNextIteration"})

_UPDATES: Final = ("ResourceApply", "ResourceSparseApply", "SparseApply", "Apply", "AssignAdd", "AssignSub", "Scatter",
                   "ResourceScatter", "ResourceStridedSliceAssign")  # fmt: skip
_ASSIGNS: Final = frozenset({"Assign", "AssignVariableOp", "AssignVariableXlaConcatND"})


def is_update(op_type: str) -> bool:
    """Whether an operator of this type changes a variable based on its old value, like an optimizer."""
    return op_type.startswith(_UPDATES) and not op_type.startswith("ScatterNd")


def is_assignment(op_type: str) -> bool:
    """Whether an operator of this type assigns a value to a variable regardless of its old value."""
    return op_type in _ASSIGNS


def writes_variable(op_type: str) -> bool:
    """Whether an operator of this type changes a variable in either way."""
    return is_update(op_type) or is_assignment(op_type)


def is_stateful(op_type: str) -> bool:
    """Whether operators of this type are stateful according to TensorFlow; False for an unknown type."""
    found = op_def_registry.get(op_type)
    return found is not None and bool(found.is_stateful)


class ModelSlots(OperatorSelection):
    """The selection of a plan in one model; `matches` collects the names in the `dump_list` that its operators have."""

    def __init__(
        self, plan: DumpPlan, model_filter: ModelFilter, held: frozenset[str] | None, matches: ListMatches
    ) -> None:
        super().__init__(plan, model_filter, held, matches)
        self._entries = model_filter.entries
        self._listed = matches
        self._names_layers = any(entry.layers is not None for entry in model_filter.entries)

    def skip_of(
        self, op_type: str, op_name: str, readers: Collection[str] = (), *, shown: str | None = None
    ) -> SkipReason:
        """Why an operator is skipped; empty if it is recorded.

        `readers` are the operators that read it: a data operator is dumped together with an operator that is selected by name. `shown`, the name
        in records, can also select it.
        """
        self._listed.operator(self._entries, op_name, (op_name,), op_type)
        if self._names_layers and op_type in DATA_TYPES and any(self.names(reader) for reader in readers):
            return ""
        others = () if shown in (None, op_name) else (str(shown),)
        return SKIPS.get(op_type, "") or ("" if self.selects(op_name, op_type, others) else "not selected")

    def taken(self, op: ProgramOperator, io: IO, name: str = "") -> tuple[Slot, ...]:
        """The selected inputs, or outputs, of an operator, without handles. `name` is its name in records."""
        if not self.wants(io):
            return ()
        excluded = self.excluded(name or op.name, op.op_type, io)
        slots = op.inputs if io == "input" else op.outputs
        return tuple(slot for slot in slots if slot.slot not in excluded and not slot.is_handle)
