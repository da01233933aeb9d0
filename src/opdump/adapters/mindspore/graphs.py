"""Records compiled code from MindSpore's own dump, one graph execution after the other."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from opdump.adapters.base import Settings
from opdump.adapters.graph_runtime import Block, BlockSlot, GraphRun, RunEmitter, live_tensor
from opdump.adapters.mindspore.executions import (
    Execution,
    Executions,
    GraphFiles,
    Program,
    block_of,
    failed_operator,
    given_in_graph,
    has_files,
    inputs_of,
    rank_directories,
)
from opdump.adapters.mindspore.own_dump import OWN_DUMP, GraphSelection, Interception, chooses_by_name
from opdump.adapters.mindspore.pynative.capture import PyNative
from opdump.adapters.models import Models
from opdump.graph import PYNATIVE
from opdump.layouts.mindspore_sync.files import PARAMETER
from opdump.recorder import LiveTensor, Recorder

_COMPLEX = "Unexpected type Complex"


class GraphPieces:
    """Emits graph executions when they end, in one order with the operators of `pynative`."""

    def __init__(self, recorder: Recorder, settings: Settings, pynative: PyNative) -> None:
        self._pynative = pynative
        self._order: Iterator[int] = (pynative.next_order() for _ in itertools.repeat(None))
        self._recorder = recorder
        self._settings = settings
        self._emitter = RunEmitter(recorder, rank_id=settings.rank_id, device_id=settings.rank_id)
        self._ranks: dict[Path, tuple[Executions, GraphFiles]] = {}
        self._selections: dict[int, GraphSelection] = {}
        self._blocks: dict[tuple[int, tuple[tuple[str, str], ...]], tuple[Program, Block]] = {}
        """By the identity of a program and the makers of its arguments. The value keeps the program alive, so its identity stays valid."""
        self._orders: dict[int, dict[str, str]] = {}
        """The operators of each graph, with their types."""
        self._counts: dict[tuple[int, int], Counter[str]] = {}
        """The number of executions of operators, by graph number and iteration."""
        self._stack = ExitStack()
        self._ran = 0
        self._told: set[str] = set()
        module = importlib.import_module("mindspore._c_expression")
        self._pipeline = module.PyNativeExecutor_.get_instance()
        self._interception = Interception(module, self._has_run, self._compiles, self._compilation_failed)

    def open(self) -> None:
        lacks = self._interception.lacks()
        if lacks:
            self._recorder.circumstances.unable = (
                f"this release of MindSpore cannot be captured: it lacks {lacks}; MindSpore 2.10 has it"
            )
            return
        late = OWN_DUMP.ask_for(self._recorder.plan)
        if late:
            self._recorder.warnings.append(late)
        _remove()  # files of executions between two captures
        self._stack.enter_context(OWN_DUMP.alone())
        self._stack.callback(self._interception.close)
        self._interception.open()

    def close(self) -> None:
        """End the capture of compiled code."""
        self._stack.close()
        self._guarded(None)
        for executions, _ in self._ranks.values():
            executions.close()
        for selection in self._selections.values():
            self._recorder.matched_kernels |= selection.matched_kernels
        if self._ran and not self._ranks:
            self._recorder.warnings.append(
                "compiled code ran, but MindSpore dumped nothing: it reads its dump configuration only once, when it first compiles something, "
                "and that was before the capture; start the capture before the first call of compiled code, or type: opdump run SCRIPT"
            )

    def _has_run(self, error: BaseException | None) -> None:
        self._ran += 1
        self._guarded(error)

    def _guarded(self, failure: BaseException | None) -> None:
        try:
            self._collect(failure)
        except Exception as error:  # noqa: BLE001  the program must not fail because of opdump
            self._recorder.stopped(error)

    def _collect(self, failure: BaseException | None) -> None:
        roots = rank_directories(OWN_DUMP.root)
        if failure is None and (self._pynative.is_wanted or any(has_files(root) for root in roots)):
            # Wait for MindSpore's pipeline, so that the files are complete and come before the next operators.
            self._pipeline.sync()
            roots = rank_directories(OWN_DUMP.root)
        for root in roots:
            if root not in self._ranks:
                is_unique = self._recorder.plan.layout == "mindspore-2.3"
                executions = Executions(root, self._settings.rank_id, is_unique=is_unique)
                self._ranks[root] = (executions, GraphFiles(self._recorder, executions))
            executions, files = self._ranks[root]
            if self._recorder.is_over:
                _remove()
                continue
            ran = files.file_new()
            for execution in executions.take():
                self._emit_or_lose(executions, execution, failure)
            if chooses_by_name(self._recorder.plan):
                for graph_id, step in ran:
                    self._count_others(executions, graph_id, step)
            for problem in executions.problems:
                self._warn(str(problem))

    def _count_others(self, executions: Executions, graph_id: int, step: int) -> None:
        """Count the operators of an execution that MindSpore did not dump, because no entry of `kernels` selects them."""
        if graph_id not in self._orders:
            graph, order = executions.tree.graph(graph_id), executions.tree.execution_order(graph_id)
            types = {} if graph is None else {node.op_name: node.op_type for node in graph.nodes}
            self._orders[graph_id] = {name: types.get(name, "") for name in order}
            self._recorder.names_seen.update(self._orders[graph_id])
        dumped = self._counts.get((graph_id, step), Counter())
        left = sum(1 for name in self._orders[graph_id] if name not in dumped)
        if left:
            self._recorder.count_op("not selected", left)

    def _emit_or_lose(self, executions: Executions, execution: Execution, failure: BaseException | None) -> None:
        with self._recorder.losing(execution.place.net_name):
            self._emit(executions, execution, failure)

    def _emit(self, executions: Executions, execution: Execution, failure: BaseException | None) -> None:
        place, program = execution.place, execution.program
        step = place.step or 0
        models = self._pynative.models
        run = GraphRun(
            self._emitter,
            place.net_name,
            # If operators belong to models, `models` numbers the models, and compiled code is treated like PyNative mode.
            place.graph_id if models is None else PYNATIVE,
            step,
            order=self._order,
            executions=self._counts.setdefault((place.graph_id, step), Counter()),
        )
        if models is not None:
            self._emit_in_models(models, run, execution, self._counts[place.graph_id, step])
            return
        selection = self._selection(executions, place.graph_id)
        given = given_in_graph(program, self._pynative.given)
        makers = {name: origin.source for name, origin in given.items()}
        key = (id(program), tuple(sorted(makers.items())))
        in_files = executions.names_in_files(place.graph_id)
        if key not in self._blocks:
            self._blocks[key] = (program, block_of(program, selection.selects, selection.excluded, makers, in_files))
        block = self._blocks[key][1]
        execution.place_arguments({name: origin.memory for name, origin in given.items()})
        run.emit_block(block, execution.tensors.__getitem__, lambda: execution.tensors)
        left_out = sum(1 for op in program.ops if not selection.selects(op) and not selection.is_value(op))
        run.count_skipped({"not selected": left_out})
        graph = executions.tree.graph(place.graph_id)
        if failure is not None and graph is not None:
            names, order = executions.tree.true_names(place.graph_id), executions.tree.execution_order(place.graph_id)
            failed = failed_operator(graph, names, order, program, failure)
            if failed is not None:
                run.fail(failed.operator, failure, inputs_of(failed, execution))

    def _emit_in_models(self, models: Models, run: GraphRun, execution: Execution, counts: Counter[str]) -> None:
        """Emit the operators that `dump_list` selects, each in its model. `counts` has the executions of operators in the iteration."""
        inside, recorder = self._pynative.is_in_model, self._recorder
        unknown = recorder.plan.layout_facts.unknown_id
        given = given_in_graph(execution.program, self._pynative.given)
        makers = {name: origin.source for name, origin in given.items()}
        for op, each in zip(execution.program.ops, execution.program.operators, strict=True):
            if op.op_type == PARAMETER:
                continue
            record = replace(
                run.record(each.operator, occurrence=counts[op.op_name]), task_id=unknown, stream_id=unknown
            )
            counts[op.op_name] += 1
            placed = models.placed(record, inside=inside)
            if placed.skip:
                recorder.count_op(placed.skip)
                continue
            read, wrote = (_lives(slots, execution, makers) for slots in (each.inputs, each.outputs))
            wants = recorder.plan
            recorder.before_op(placed, models.without_excluded(placed, "input", read) if wants.inputs else ())
            recorder.after_op(placed, models.without_excluded(placed, "output", wrote) if wants.outputs else ())

    def _selection(self, executions: Executions, graph_id: int) -> GraphSelection:
        selection = self._selections.get(graph_id)
        if selection is None:
            tree = executions.tree
            marked = {
                target.__name__ for target, _ in self._settings.marks.enabled_targets() if isinstance(target, type)
            }
            selection = self._selections[graph_id] = GraphSelection(
                self._recorder.plan,
                tree.true_names(graph_id),
                tree.execution_order(graph_id),
                marked,
                executions.names_in_files(graph_id),
            )
        return selection

    def _compiles(self) -> None:
        if self._recorder.plan.selection == "marked":
            from opdump.adapters.mindspore.graph_marks import mark_cells

            mark_cells(self._settings.marks)

    def _compilation_failed(self, error: BaseException) -> None:
        if _COMPLEX in str(error):
            self._warn(
                "MindSpore cannot compile complex numbers while its own dump is on (`Unexpected type Complex`), whatever is selected; without "
                "opdump the program compiles. To record operators of complex numbers, use PyNative mode: "
                "mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
            )

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._recorder.warnings.append(text)


def _lives(slots: Sequence[BlockSlot], execution: Execution, makers: Mapping[str, str]) -> list[LiveTensor]:
    return [
        live_tensor(slot, argument, execution.tensors[tensor], makers.get(source, source))
        for slot, argument, source, tensor in slots
    ]


def _remove() -> None:
    """Remove the files that MindSpore has dumped so far, without recording them."""
    for root in rank_directories(OWN_DUMP.root):
        executions = Executions(root, 0)
        for _ in executions.take():
            pass
        executions.close()
