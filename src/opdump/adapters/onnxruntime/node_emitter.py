"""Emits the nodes of a run, and those in bodies of control operators, to the recorder as if they had run one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from onnx import GraphProto

from opdump.adapters.graph_runtime import GraphRun, RunEmitter, live_tensor
from opdump.adapters.host.host_tensor import HostTensor
from opdump.adapters.onnxruntime.bodies import BodyReplay, BodyRun
from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.adapters.onnxruntime.selection import Choice, ChosenNode, Slots
from opdump.adapters.onnxruntime.tensors_of_run import Tensors
from opdump.plan import WatchedLook
from opdump.recorder import LiveTensor, Recorder, WatchRecorder

NOT_SHOWN: Final = "the bodies of {} are not shown: {}"


class NodeEmitter:
    """Emits the runs of one model.

    `model` is the model that runs; `model_name` and `model_id` are written to the records. `choice` is the selection, `within` the
    selection inside each control operator, by its name. `notes` collects what the dump lacks.
    """

    def __init__(
        self,
        recorder: Recorder,
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
        self._emitter = RunEmitter(recorder)
        self._model = model
        self._model_name = model_name
        self._model_id = model_id
        self._choice = choice
        self._within = within
        self._replay = replay
        self._notes = notes
        self._fixed: Tensors = {}

    def run(self, step: int) -> GraphRun:
        """Begin another run, with this step."""
        return GraphRun(self._emitter, self._model_name, self._model_id, step, order=itertools.count())

    def emit(self, run: GraphRun, nodes: Sequence[ChosenNode], first: int, tensors: Tensors) -> None:
        """Pass nodes of a run to the recorder, one after the other; `first` is the order of the first one."""
        for place, chosen in enumerate(nodes, first):
            if run.is_over:
                return
            if chosen.skip:
                with run.recorder.losing(chosen.node.operator):
                    if not (chosen.around and self._emit_bodies(run, chosen, tensors)):
                        self._emit_closed(run, chosen, tensors)
                continue
            self._emit_node(run, chosen, tensors)
            if isinstance(run.recorder, WatchRecorder) and self._choice.watched:
                self._emit_watched(run, run.recorder, chosen, tensors, place)

    def _emit_node(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> None:
        operator = chosen.node.operator
        with run.recorder.losing(operator):
            run.emit(operator, self.live(chosen.inputs, tensors), self.live(chosen.outputs, tensors))

    def _emit_closed(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> None:
        """Emit a control operator without its bodies. A selected one is recorded, because otherwise its results would be in no dump."""
        itself, *inside = chosen.node.with_bodies
        if chosen.has_slots:
            self._emit_node(run, chosen, tensors)
        else:
            run.skip(itself.operator, chosen.skip)
        for node in inside:
            run.skip(node.operator, chosen.skip)

    def _emit_bodies(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> bool:
        """Emit the executions inside a control operator. Returns whether they are known."""
        node = chosen.node
        around = {name: tensors[name] if name in tensors else self._constant(name) for name in chosen.around}
        try:
            bodies = self._replay.runs(node, around)
        except Exception as problem:  # noqa: BLE001  the runtime's errors have no class of their own; the note contains the error
            note = NOT_SHOWN.format(node.name, problem)
            if note not in self._notes:
                self._notes.append(note)
            return False
        within = self._within[node.name]
        if chosen.has_slots and not _is_recorded(bodies, within):
            self._emit_node(run, chosen, tensors)  # a branch of constants, a loop without iterations
        else:
            run.skip(node.operator, chosen.skip)
        self._emit_body_runs(run, bodies, within)
        return True

    def _emit_body_runs(self, run: GraphRun, bodies: Sequence[BodyRun], within: Mapping[str, ChosenNode]) -> None:
        for body in bodies:
            for node in body.nodes:
                chosen = within[node.name]
                inner = body.within.get(node.name, ())
                if chosen.skip and (not chosen.has_slots or _is_recorded(inner, within)):
                    run.skip(node.operator, chosen.skip)
                else:
                    self._emit_node(run, chosen, body.tensors)
                self._emit_body_runs(run, inner, within)

    def _emit_watched(
        self, run: GraphRun, recorder: WatchRecorder, after: ChosenNode, tensors: Tensors, place: int
    ) -> None:
        """After a node that is not watched itself, emit the contents of the outputs of the watched nodes that have run."""
        watched = {chosen.node.name: chosen for chosen in self._choice.watched}
        if after.node.name in watched:
            return
        for other in self._choice.nodes[:place]:
            if other.node.name in watched:
                operator = replace(other.node.operator, op_name=str(WatchedLook(after.node.name, other.node.name)))
                recorder.watched(run.record(operator), self.live(watched[other.node.name].outputs, tensors))

    def live(self, slots: Slots, tensors: Tensors) -> list[LiveTensor]:
        """The values in these slots, for the recorder."""
        lives: list[LiveTensor] = []
        for slot, argument, value, source in slots:
            tensor = tensors.get(value)
            lives.append(live_tensor(slot, argument, self._constant(value) if tensor is None else tensor, source))
        return lives

    def _constant(self, name: str) -> HostTensor | str:
        if name not in self._fixed:
            written = self._constants.get(name)
            # A value that no node, input or initialiser provides was omitted.
            self._fixed[name] = (
                self._sparse.get(name, "undefined") if written is None else self._model.fixed_tensor(written)
            )
        return self._fixed[name]


def _is_recorded(bodies: Sequence[BodyRun], within: Mapping[str, ChosenNode]) -> bool:
    """Whether an operator that ran in these bodies is recorded."""
    chosen = (within[node.name] for body in bodies for node in body.nodes)
    return any(not each.skip or each.has_slots for each in chosen)
