"""Tells a recorder what ran, node by node, as if the nodes had run one after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from onnx import GraphProto

from opdump.adapters.host.host_tensor import HostTensor
from opdump.adapters.onnxruntime.bodies import BodyReplay, BodyRun
from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.adapters.onnxruntime.model_graph import ModelNode
from opdump.adapters.onnxruntime.selection import Choice, ChosenNode, Slots
from opdump.adapters.onnxruntime.tensors_of_run import Tensors
from opdump.plan import DumpPlan
from opdump.recorder import LiveTensor, OperatorRecorder, Recorder
from opdump.records import OpRecord, SkipReason

NOT_SHOWN: Final = "the bodies of {} are not shown: {}"


class NodeEmitter:
    """What a session tells its recorder of one model after another run.

    `model` is what runs, `model_name` and `model_id` stand in the records, `choice` and `within` (by the name of a control
    operator) are what is taken, `notes` gets what the dump lacks.
    """

    def __init__(
        self,
        recorder: Recorder,
        plan: DumpPlan,
        model: ModelFile,
        model_name: str,
        model_id: int,
        choice: Choice,
        within: Mapping[str, Mapping[str, ChosenNode]],
        replay: BodyReplay,
        notes: list[str],
    ) -> None:
        self._constants = model.constants()
        sparse = GraphProto(sparse_initializer=model.proto.graph.sparse_initializer)
        self._sparse = model.fixed_tensors(sparse)
        self._recorder = recorder
        self._plan = plan
        self._model = model
        self._model_name = model_name
        self._model_id = model_id
        self._choice = choice
        self._within = within
        self._replay = replay
        self._notes = notes
        self._fixed: Tensors = {}
        self._listed: set[str] = set()
        """Nodes that leave no data and were listed."""
        self._timestamp = 0
        self._order = 0
        self._emitted: Counter[str] = Counter()
        """How often a node was told in the current run."""

    def begin(self) -> None:
        """Another run."""
        self._order = 0
        self._emitted.clear()

    def emit(self, nodes: Sequence[ChosenNode], first: int, tensors: Tensors, step: int) -> None:
        """Hands the nodes to the recorder, one after the other."""
        for place, chosen in enumerate(nodes, first):
            if self._recorder.is_over:
                return
            if chosen.skip:
                if not (chosen.around and self._emit_bodies(chosen, tensors, step)):
                    self._emit_skipped(chosen.node.with_bodies, chosen.skip, step)
                continue
            self._emit_node(chosen, tensors, step)
            if isinstance(self._recorder, OperatorRecorder) and self._choice.watched:
                self._emit_watched(self._recorder, chosen, tensors, step, place)

    def _emit_node(self, chosen: ChosenNode, tensors: Tensors, step: int) -> None:
        op = self.operator(chosen.node, step)
        opened = self._recorder.before_op(op, self.live(chosen.inputs, tensors))
        self._recorder.after_op(opened, self.live(chosen.outputs, tensors))

    def _emit_bodies(self, chosen: ChosenNode, tensors: Tensors, step: int) -> bool:
        """Tells what ran within a control operator; whether that is known."""
        node = chosen.node
        around = {name: tensors[name] if name in tensors else self._constant(name) for name in chosen.around}
        try:
            runs = self._replay.runs(node, around)
        except Exception as problem:  # noqa: BLE001  the runtime's errors have no class of their own; the note says which it was
            note = NOT_SHOWN.format(node.name, problem)
            if note not in self._notes:
                self._notes.append(note)
            return False
        self._emit_skipped([node], chosen.skip, step)
        self._emit_runs(runs, self._within[node.name], step)
        return True

    def _emit_runs(self, runs: Sequence[BodyRun], within: Mapping[str, ChosenNode], step: int) -> None:
        for run in runs:
            for node in run.nodes:
                chosen = within[node.name]
                if chosen.skip:
                    self._emit_skipped([node], chosen.skip, step)
                else:
                    self._emit_node(chosen, run.tensors, step)
                self._emit_runs(run.within.get(node.name, ()), within, step)

    def _emit_watched(
        self, recorder: OperatorRecorder, after: ChosenNode, tensors: Tensors, step: int, place: int
    ) -> None:
        """What the outputs of the watched nodes that have run by then hold, after a node that is not watched itself."""
        watched = {chosen.node.name: chosen for chosen in self._choice.watched}
        if after.node.name in watched:
            return
        for other in self._choice.nodes[:place]:
            if other.node.name in watched:
                name = f"{after.node.name}_To_{other.node.name}"
                op = replace(self.operator(other.node, step), op_name=name, occurrence=0)
                recorder.watched(op, self.live(watched[other.node.name].outputs, tensors))

    def _emit_skipped(self, nodes: Iterable[ModelNode], reason: SkipReason, step: int) -> None:
        """Lists nodes that leave no data, the first time; then counts them. A mode that may leave nothing lists nothing."""
        for node in nodes:
            if node.name in self._listed or not self._plan.mode.lists_skipped:
                self._count(node)
                self._recorder.count_op(reason)
            else:
                self._listed.add(node.name)
                self._recorder.skip_op(self.operator(node, step, reason))

    def operator(self, node: ModelNode, step: int, skip: SkipReason = "") -> OpRecord:
        """The node as the operator that runs next."""
        self._timestamp = max(self._timestamp + 1, time.time_ns() // 1000)
        order, occurrence = self._order, self._emitted[node.name]
        self._count(node)
        return OpRecord(
            op_type=node.op_type,
            op_name=node.name,
            timestamp=self._timestamp,
            step=step,
            net_name=self._model_name,
            graph_id=self._model_id,
            order=order,
            occurrence=occurrence,
            kernel=node.kernel,
            arguments=node.arguments,
            skip=skip,
        )

    def _count(self, node: ModelNode) -> None:
        self._order += 1
        self._emitted[node.name] += 1

    def live(self, slots: Slots, tensors: Tensors) -> list[LiveTensor]:
        """The values in these slots, for the recorder."""
        lives: list[LiveTensor] = []
        for slot, argument, value, source in slots:
            tensor = tensors.get(value)
            if tensor is None:
                tensor = self._constant(value)
            lives.append((slot, argument, tensor, source, "opaque" if tensor.__class__ is str else ""))
        return lives

    def _constant(self, name: str) -> HostTensor | str:
        if name not in self._fixed:
            written = self._constants.get(name)
            # What is neither made nor fed nor an initialiser was left out.
            self._fixed[name] = (
                self._sparse.get(name, "undefined") if written is None else self._model.fixed_tensor(written)
            )
        return self._fixed[name]
