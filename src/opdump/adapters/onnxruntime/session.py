"""OnnxSession: an ONNX model whose runs are recorded, node by node, and whose answers stay those of ONNX Runtime.

    session = OnnxSession("resnet.onnx", recorder=recorder, plan=plan, model_id=1)
    outputs = session.run(None, {"x": array})

The values that the plan wants are outputs of a copy of the graph, so one run gives them all, and the answer with them. They
are then told to the recorder as if the nodes had run one after the other. A run that is not dumped goes through a session of
the model as it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnxruntime
from onnx import ModelProto

from opdump.adapters.host.host_tensor import HostTensor
from opdump.adapters.onnxruntime.apart import Apart
from opdump.adapters.onnxruntime.bodies import BodyReplay, values_around
from opdump.adapters.onnxruntime.chunks import chunks_of
from opdump.adapters.onnxruntime.differences import largest_difference, same_bits
from opdump.adapters.onnxruntime.failures import FailureSearch
from opdump.adapters.onnxruntime.hazards import has_half_precision, has_random_operators, is_random
from opdump.adapters.onnxruntime.model_file import ModelFile, load_model, open_session, optimized
from opdump.adapters.onnxruntime.model_graph import ModelNode, nodes_of, producers
from opdump.adapters.onnxruntime.node_emitter import NOT_SHOWN, NodeEmitter
from opdump.adapters.onnxruntime.selection import choose, chosen_within, matches_of, slots_of
from opdump.adapters.onnxruntime.tensors_of_run import Tensors, answer_and_tensors, fed_tensors
from opdump.errors import CaptureStateError
from opdump.plan import DumpPlan, StepSet
from opdump.plan.list_matches import ChoseNothing
from opdump.plan.model_selection import ModelFilter
from opdump.recorder import Recorder
from opdump.sink.temporary_directories import remove_own, temporary_directory

Level = Literal["disable", "basic", "extended", "all"]


class OnnxSession:
    """Runs an ONNX model under capture.

    `model` is a path, the bytes of a file, or a ModelProto. `model_id` is the number of its graph in the dump. At an
    optimisation `level` above `disable` the nodes are those of the optimised model, which is run as it was saved.
    `largest_difference` tells how far the outputs of the dumped run were from those of a plain run at that level, where the two
    were compared: at levels above `disable`, on devices, and for models with float16 or bfloat16. The answer is the plain one. `session_options` and
    `providers` are ONNX Runtime's own; the options' level belongs to this session. `memory_limit` (bytes) bounds the tensors
    that are held at a time: more of them cost further runs of the model. `is_single_operator`: the model is one operator that
    runs by itself, and is dumped as that: under no model's name. `given_name` is the first of the model's names, where there is one.

    Every run is a step, numbered from the plan's `initial_iteration`. Calls from several threads are recorded one after the
    other. `notes` tells what the dump lacks beside operators that were skipped with a reason. Raises ModelFileError for what
    is no model, and the runtime's own errors, unchanged.
    """

    def __init__(
        self,
        model: str | Path | bytes | ModelProto,
        *,
        recorder: Recorder,
        plan: DumpPlan,
        model_id: int,
        level: Level = "disable",
        providers: Sequence[Any] | None = None,
        session_options: onnxruntime.SessionOptions | None = None,
        memory_limit: int | None = None,
        is_single_operator: bool = False,
        given_name: str | None = None,
    ) -> None:
        self.model: ModelFile = load_model(model)
        if given_name:
            self.model = replace(self.model, names=tuple(dict.fromkeys((given_name, *self.model.names))))
        self.level: Level = level
        self.model_id = model_id
        self.notes: list[str] = []
        self.largest_difference: float | None = None
        """Of the model's outputs between the dumped and the plain run, None where they were not compared."""
        self._recorder = recorder
        self._plan = plan
        self._options = session_options if session_options is not None else onnxruntime.SessionOptions()
        self._providers = list(providers) if providers is not None else ["CPUExecutionProvider"]
        self._memory_limit = memory_limit
        self._lock = threading.RLock()
        self._remove_folder: Callable[[], object] = _nothing
        self.chose_nothing: ChoseNothing = ""
        """Why the configuration chose no node of this model."""
        self._ran = self.model
        originals: Mapping[str, str] | None = None
        if level != "disable":
            originals = producers(nodes_of(self.model.proto))
            folder = temporary_directory("onnx")
            self._remove_folder = weakref.finalize(self, remove_own, folder)
            self._ran = optimized(self.model, level, folder, self._options, self._providers)
        self.nodes: tuple[ModelNode, ...] = nodes_of(self._ran.proto, originals)
        """The nodes that run, in an order in which they can run."""
        if is_single_operator:
            # No API was called, and it has no counter of steps: none of its runs is one that was asked for by number.
            self.nodes = tuple(replace(node, kernel=node.op_type) for node in self.nodes)
            wanted = (plan.single_operator_models or not plan.mode.files_selected) and plan.steps == StepSet.all()
            model_filter = ModelFilter.of_single_operators(plan.models) if wanted else ModelFilter(())
        else:
            model_filter = ModelFilter.of(plan.models, self.model.names)
            matches = matches_of(self.nodes, model_filter, plan.dialect)
            self.notes += matches.texts()
            self.chose_nothing = matches.chose_nothing
        self._apart = Apart.of(self._ran, self.nodes)
        constants = self._ran.constants()
        self._sources = self._value_sources(constants)
        choice = choose(self.nodes, plan, model_filter, self._sources)
        chosen_in_bodies = {
            node.name: within
            for node in self.nodes
            if node.bodies and (within := chosen_within(node, plan, model_filter, self._sources))
        }
        for node in self.nodes:
            if node.name not in chosen_in_bodies:
                continue
            if self._apart is not None and node.name in self._apart.operators:
                del chosen_in_bodies[node.name]
                operator = self._apart.operators[node.name]
                self.notes.append(NOT_SHOWN.format(node.name, f"nobody knows what a second run of {operator} does"))
            elif is_random(node):
                del chosen_in_bodies[node.name]
                self.notes.append(NOT_SHOWN.format(node.name, "a second run of random operators gives other values"))
        self._choice = replace(
            choice,
            nodes=tuple(
                replace(chosen, around=tuple(values_around(chosen.node)))
                if chosen.node.name in chosen_in_bodies
                else chosen
                for chosen in choice.nodes
            ),
        )
        self._emitter = NodeEmitter(
            recorder,
            plan,
            self._ran,
            "" if is_single_operator else self.model.name,
            0 if is_single_operator else model_id,
            self._choice,
            chosen_in_bodies,
            BodyReplay(self._ran, lambda: self._options, self._providers),
            self.notes,
        )
        self._records_data = not plan.mode.failures_only and not model_filter.is_empty
        recorder.matched_kernels.update(self._choice.matched_kernels)
        self._is_random = has_random_operators(self._ran.proto)
        if self._is_random and memory_limit is not None and self._apart is None:
            self.notes.append(
                "memory_limit has no effect: a second run of the model's random operators gives other values"
            )
        if self._choice.watched:
            self.notes.append(
                "values of ONNX Runtime are watched as their operators made them: every one has memory of its own while it is "
                "recorded, so an operator that overwrites another's result cannot be seen"
            )
        made = {value for node in self.nodes for value in node.outputs}
        if self._apart is not None:
            made.difference_update(self._apart.values)
        self._wanted = tuple(value for value in self._choice.values if value in made and value not in constants)
        self._recorded_session: onnxruntime.InferenceSession | None = None
        self._plain_session: onnxruntime.InferenceSession | None = None
        if self._records_data and self._apart is not None:
            refusal = self._apart.refusal(self.model, self._plain())
            self._records_data = not refusal
            self.notes.append(f"no run is recorded: {refusal}" if refusal else self._apart.note)
        if self._records_data:
            self._recorded_session = self._open_recorded()
        else:
            self._plain()
        session = self._plain() if self._apart is not None or self._recorded_session is None else self._recorded_session
        own = len(self.model.proto.graph.output)
        self.inputs: tuple[Any, ...] = tuple(session.get_inputs())
        self.outputs: tuple[Any, ...] = tuple(session.get_outputs()[:own])
        self._next_step = plan.initial_iteration
        self._closed = False
        self._answers_may_differ = has_half_precision(self.model.proto)
        """Whatever an earlier run showed."""
        on_host = self._providers == ["CPUExecutionProvider"]
        self._compares = self._answers_may_differ or level != "disable" or not on_host
        self._sizes: dict[str, int] = {}

    @property
    def ran(self) -> ModelFile:
        """The model that runs: the optimised one, or the one that was given."""
        return self._ran

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """What `InferenceSession.run` gives for the same arguments. The run is recorded where the plan takes this step."""
        with self._lock:
            if self._closed:
                raise CaptureStateError(f"the session of {self.model.name} is closed; open another one to run it")
            step = self._next_step
            self._next_step += 1
            if step not in self._plan.steps or self._recorder.is_over:
                return self._answer(output_names, feeds, run_options)
            if self._plan.mode.failures_only:
                return self._run_until_failure(output_names, feeds, run_options, step)
            if not self._records_data:
                return self._answer(output_names, feeds, run_options)
            return self._record(output_names, feeds, run_options, step)

    @property
    def runs(self) -> int:
        """How often it ran."""
        return self._next_step - self._plan.initial_iteration

    def run_plain(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """The same without capture, in a session of the model as it is. It is no step."""
        names = output_names
        if self._apart is not None and not names:
            names = [output.name for output in self.outputs]
        return list(self._plain().run(names, feeds, run_options))

    def close(self) -> None:
        """Frees the sessions and what was saved of the optimised model."""
        with self._lock:
            self._closed = True
            self._recorded_session = self._plain_session = None
            self._remove_folder()

    def _plain(self) -> onnxruntime.InferenceSession:
        with self._lock:
            if self._plain_session is None:
                content = self.model.source
                if self._apart is not None and self._records_data:
                    made = {value for node in self.model.proto.graph.node for value in node.output}
                    content = self.model.with_outputs(value for value in self._apart.values if value in made)
                self._plain_session = open_session(self.model, content, self.level, self._options, self._providers)
            return self._plain_session

    def _open_recorded(self) -> onnxruntime.InferenceSession | None:
        """The session that gives what is wanted; None where the operators of the program give all of it."""
        content = self._ran.with_outputs(self._wanted)
        if self._apart is not None:
            if not self._wanted:
                return None
            content = self._apart.rest_of(self._ran, self.nodes, self._wanted, self._plain())
        return open_session(self._ran, content, "disable", self._options, self._providers)

    def _answer(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: onnxruntime.RunOptions | None
    ) -> list[Any]:
        """The answer of a run that is not dumped."""
        if self._apart is None and self._is_random and self._recorded_session is not None and not self._compares:
            # The generators are the session's: with two sessions the runs would not get the numbers that they get in one.
            names = list(output_names) if output_names else [output.name for output in self.outputs]
            return list(self._recorded_session.run(names, feeds, run_options))
        return self.run_plain(output_names, feeds, run_options)

    def _record(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        step: int,
    ) -> list[Any]:
        names = list(output_names) if output_names else [output.name for output in self.outputs]
        if self._apart is not None:
            return self._record_apart(self._apart, names, feeds, run_options, step)
        try:
            answer = self._run_and_tell(names, feeds, run_options, step, {})
        except _RunError as failure:
            # Whatever is wrong with the model or with what was fed, a plain run says it in its own words.
            plain = self.run_plain(output_names, feeds, run_options)
            self.notes.append(f"run {step} was not recorded: {failure.error}")
            self._recorder.end_step(step)  # what was told of it before it failed
            return plain
        return self._compared(answer, output_names, feeds, run_options) if self._compares else answer

    def _record_apart(
        self,
        apart: Apart,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        step: int,
    ) -> list[Any]:
        """The answer of the plain run, in which the operators of the program ran; the others run once more for the dump."""
        try:
            answer, made, tensors = apart.run(self._plain(), names, feeds, run_options)
        except Exception as error:
            self.notes.append(f"run {step} was not recorded: {error}")
            self._recorder.end_step(step)
            raise
        given = {**fed_tensors(self._plain(), feeds), **tensors}
        try:
            self._run_and_tell([], {**feeds, **made}, run_options, step, given)
        except _RunError as failure:
            self.notes.append(f"run {step} was not recorded: {failure.error}")
            self._recorder.end_step(step)  # what was told of it before it failed
        return answer

    def _compared(
        self,
        answer: list[Any],
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> list[Any]:
        """The answer of a plain run, where that of the dumped run may be another."""
        plain = self.run_plain(output_names, feeds, run_options)
        if not self._is_random:
            difference = largest_difference(answer, plain)
            self.largest_difference = max(difference, self.largest_difference or 0.0)
        # Once equal to the last bit: the same kernels ran. Otherwise the plain answer counts, every time.
        self._compares = self._answers_may_differ or not same_bits(answer, plain)
        return plain

    def _run_and_tell(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        step: int,
        given: Tensors,
    ) -> list[Any]:
        """Runs what is recorded and tells it; `given` are tensors that are known before."""
        session = self._recorded_session
        answer: list[Any] | None = None if session is not None else []
        self._emitter.begin()
        private = self._plan.saves_tensors
        for first, last in self._chunks(feeds):
            chosen = self._choice.nodes[first:last]
            values = dict.fromkeys(value for each in (*chosen, *self._choice.watched) for value in each.values)
            wanted = [value for value in self._wanted if value in values]
            tensors: Tensors = {}
            if session is not None:
                try:
                    found, tensors = answer_and_tensors(
                        session, names if answer is None else [], wanted, feeds, run_options, answer_is_private=private
                    )
                    if answer is None:
                        answer = found
                        given = given or fed_tensors(session, feeds)
                except Exception as error:
                    raise _RunError(error) from error
            if self._memory_limit is not None:
                self._sizes.update(
                    (name, tensor.size) for name, tensor in tensors.items() if isinstance(tensor, HostTensor)
                )
            self._emitter.emit(chosen, first, {**given, **tensors}, step)
            if self._recorder.is_over:
                break
        assert answer is not None
        self._recorder.end_step(step)
        return answer

    def _chunks(self, feeds: Mapping[str, Any]) -> list[tuple[int, int]]:
        whole = [(0, len(self._choice.nodes))]
        if self._memory_limit is None or (self._is_random and self._apart is None):
            return whole
        return chunks_of(self._choice.nodes, self._wanted, self._memory_limit, self._ran.proto, feeds, self._sizes)

    def _value_sources(self, constants: Iterable[str]) -> dict[str, str]:
        """Who makes a value: `{op_name}:{slot}`, `Parameter.{name}` of an initialiser, `{name}:0` of an input of the model."""
        sources = {value.name: f"{value.name}:0" for value in self._ran.proto.graph.input}
        sources.update((name, f"Parameter.{name}") for name in constants)
        for node in self.nodes:
            sources.update((value, f"{node.name}:{slot}") for slot, value in enumerate(node.outputs) if value)
        return sources

    def _run_until_failure(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        step: int,
    ) -> list[Any]:
        try:
            return self.run_plain(output_names, feeds, run_options)
        except Exception as error:
            try:
                self._file_failure(error, feeds, step)
            except Exception as problem:  # noqa: BLE001  the user gets the error of the run, whatever happens to its dump
                self.notes.append(f"the failure of run {step} could not be dumped: {problem!r}")
            raise

    def _file_failure(self, error: Exception, feeds: Mapping[str, Any], step: int) -> None:
        once = () if self._apart is None else tuple(self._apart.operators)
        search = FailureSearch(self._ran, self.nodes, lambda: self._options, self._providers, once)
        failure = search.find(error, feeds)
        if failure is None and once:
            self.notes.append(
                f"run {step} failed; to find out where would run {', '.join(once)} of the program again: {error}"
            )
            return
        if failure is None:
            self.notes.append(f"run {step} failed outside of every operator: {error}")
            return
        node = failure.node
        tensors = {**fed_tensors(self._plain(), feeds), **failure.inputs}
        slots = slots_of(node.inputs, node.input_arguments, self._sources)
        self._emitter.begin()
        op = replace(self._emitter.operator(node, step), order=self.nodes.index(node))
        self._recorder.failed_op(op, error, self._emitter.live(slots, tensors))


def _nothing() -> None:
    """There is no folder to remove."""


class _RunError(Exception):
    """The run itself failed, not what was done with its tensors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
