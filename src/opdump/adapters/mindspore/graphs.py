"""Records what compiled code ran: MindSpore's own dump of it, execution by execution."""

from __future__ import annotations

import importlib
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opdump.adapters.base import DumpComplete, Settings
from opdump.adapters.graph_runtime import live_tensor
from opdump.adapters.mindspore.executions import Execution, Executions, rank_directories
from opdump.adapters.mindspore.failures import failed_operator, inputs_of, record_of
from opdump.adapters.mindspore.graph_files import GraphFiles
from opdump.adapters.mindspore.graph_selection import GraphSelection
from opdump.adapters.mindspore.interception import Interception
from opdump.adapters.mindspore.own_dump import OWN_DUMP
from opdump.layouts.mindspore_sync.names import PARAMETER
from opdump.recorder import LiveTensor, Recorder
from opdump.records import IO, OpRecord

_LOG = logging.getLogger("opdump")
_COMPLEX = "Unexpected type Complex"


class GraphPieces:
    """Emits the executions of graphs as they end, and files the step once it is there."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self.step = recorder.plan.initial_iteration
        self._recorder = recorder
        self._settings = settings
        self._executions: dict[Path, Executions] = {}
        self._files: dict[Path, GraphFiles] = {}
        self._selections: dict[int, GraphSelection] = {}
        self._orders: defaultdict[int, int] = defaultdict(int)
        self._occurrences: Counter[tuple[int, int, str]] = Counter()
        self._ran = 0
        self._told: set[str] = set()
        module = importlib.import_module("mindspore._c_expression")
        self._interception = Interception(module, self._has_run, self._compiles, self._compilation_failed)

    def open(self) -> None:
        lacks = self._interception.lacks()
        if lacks:
            self._recorder.circumstances.unable = (
                f"this MindSpore cannot be captured: it lacks {lacks}; MindSpore 2.10 has it"
            )
            return
        late = OWN_DUMP.ask_for(self._recorder.plan)
        if late:
            self._recorder.warnings.append(late)
        self._remove()  # what ran between two captures
        self._interception.open()

    def close(self) -> None:
        self._interception.close()
        self._guarded(None)
        for selection in self._selections.values():
            self._recorder.matched_kernels |= selection.matched_kernels
        if self._ran and not self._executions:
            self._recorder.warnings.append(
                "compiled code ran and MindSpore dumped nothing of it: it had compiled something before the capture began, and reads "
                "once what it is to dump; begin the capture before the first call of compiled code, or type: opdump run SCRIPT"
            )

    def _has_run(self, error: BaseException | None) -> None:
        self._ran += 1
        self._guarded(error)
        last = self._recorder.plan.steps.last
        if error is None and self._settings.stop_after_dump and last is not None and self.step >= last:
            raise DumpComplete

    def _guarded(self, failure: BaseException | None) -> None:
        try:
            self._collect(failure)
        except Exception as error:  # noqa: BLE001  the program is not to fail of what opdump does
            self._recorder.stopped(error)

    def _collect(self, failure: BaseException | None) -> None:
        recorder = self._recorder
        for root in rank_directories(OWN_DUMP.root):
            executions = self._executions.get(root)
            if executions is None:
                executions = self._executions[root] = Executions(root, self._settings.rank_id)
                self._files[root] = GraphFiles(recorder, executions)
            self._files[root].file_new()
            if recorder.is_over:
                self._remove()
                continue
            steps = set()
            taken = list(executions.take())
            for execution in taken:
                steps.add(execution.op.step)
                self._emit(executions, execution)
            if failure is not None:
                self._emit_failed(executions, taken, failure)
            for problem in executions.problems:
                self._warn(str(problem))
            for step in sorted(steps):
                recorder.end_step(step)
                self.step = max(self.step, step)

    def _emit_failed(self, executions: Executions, ran: Sequence[Execution], error: BaseException) -> None:
        """The operator that raised, where MindSpore has dumped something of the same execution."""
        if not ran:
            return
        last, tree = ran[-1].op, executions.tree
        ran = [
            execution for execution in ran if (execution.op.graph_id, execution.op.step) == (last.graph_id, last.step)
        ]
        graph, names = tree.graph(last.graph_id), tree.true_names(last.graph_id)
        order = tree.execution_order(last.graph_id)
        node = None if graph is None else failed_operator(graph, names, order, ran, error)
        if node is not None:
            op = self._numbered(record_of(node, last))
            if self._selection(executions, op.graph_id).selects(op):
                self._recorder.failed_op(op, error, inputs_of(node, names, ran))

    def _emit(self, executions: Executions, execution: Execution) -> None:
        op, recorder = execution.op, self._recorder
        selection = self._selection(executions, op.graph_id)
        if not selection.selects(op):
            if op.op_type != PARAMETER:
                recorder.count_op("not selected")
            return
        op = self._numbered(op)
        inputs = _side(execution, "input", selection.excluded(op, "input"))
        outputs = _side(execution, "output", selection.excluded(op, "output"))
        recorder.after_op(recorder.before_op(op, inputs), outputs)

    def _selection(self, executions: Executions, graph_id: int) -> GraphSelection:
        selection = self._selections.get(graph_id)
        if selection is None:
            tree = executions.tree
            marked = {
                target.__name__ for target, _ in self._settings.marks.enabled_targets() if isinstance(target, type)
            }
            selection = self._selections[graph_id] = GraphSelection(
                self._recorder.plan, tree.true_names(graph_id), tree.execution_order(graph_id), marked
            )
        return selection

    def _numbered(self, op: OpRecord) -> OpRecord:
        order = self._orders[op.step]
        self._orders[op.step] = order + 1
        key = (op.step, op.graph_id, op.op_name)
        occurrence = self._occurrences[key]
        self._occurrences[key] += 1
        return replace(op, order=order, occurrence=occurrence, kernel=op.op_type, device_id=self._settings.rank_id)

    def _compiles(self) -> None:
        if self._recorder.plan.selection == "marked":
            from opdump.adapters.mindspore.graph_marks import mark_cells

            mark_cells(self._settings.marks)

    def _compilation_failed(self, error: BaseException) -> None:
        if _COMPLEX in str(error):
            self._warn(
                "MindSpore cannot compile complex numbers while its dump is on, for any iteration (`Unexpected type Complex`); without "
                "opdump the program compiles. Operators of complex numbers are captured in PyNative mode: "
                "mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
            )

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._recorder.warnings.append(text)

    def _remove(self) -> None:
        for root in rank_directories(OWN_DUMP.root):
            for _ in Executions(root, 0).take():
                pass


def _side(execution: Execution, io: IO, excluded: frozenset[int]) -> list[LiveTensor]:
    return [
        live_tensor(slot, "", tensor, source, "not selected" if slot in excluded else "")
        for side, slot, tensor, source in execution.tensors
        if side == io
    ]
