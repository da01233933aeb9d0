"""Runs an ONNX model and records its runs node by node; the answers stay those of ONNX Runtime.

    session = OnnxSession("resnet.onnx", recorder=recorder, plan=plan, model_id=1)
    outputs = session.run(None, {"x": array})

The values that the plan needs are outputs of a copy of the graph, so one run returns them together with the answer. They
are then emitted to the recorder as if the nodes had run one after the other. A run that is not dumped uses a session of
the unchanged model.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import onnxruntime

from opdump.adapters.graph_runtime import RunEmitter, StepCount, UniqueNames
from opdump.adapters.host import HostTensor
from opdump.adapters.onnxruntime.bodies import BodyReplay
from opdump.adapters.onnxruntime.model_file import ModelFile, ModelSource, load_model, open_session, optimized
from opdump.adapters.onnxruntime.model_graph import ModelNode, has_half_precision, nodes_of, with_origins
from opdump.adapters.onnxruntime.recorded_model import (
    NodeEmitter,
    RecordedModel,
    RunOnce,
    RunPlace,
    chunks_of,
    slots_of,
)
from opdump.adapters.onnxruntime.tensors_of_run import (
    Tensors,
    answer_and_tensors,
    fed_tensors,
    largest_difference,
    same_bits,
)
from opdump.errors import CaptureStateError
from opdump.plan import DumpPlan
from opdump.plan.unmatched_names import ChoseNothing
from opdump.recorder import Recorder
from opdump.sink.outside import remove_own, temporary_directory

Level = Literal["disable", "basic", "extended", "all"]
_DIFFERENT: Final = (
    "{}: the answers of the program differ from those of the recorded runs, in which more values are outputs of the graph; the records are those of "
    "the recorded runs"
)


class OnnxSession:
    """Runs an ONNX model under capture.

    `model` is a path, the bytes of a file, or a ModelProto. `model_id` is the number of its graph in the dump. At an
    optimisation `level` above `disable`, the nodes are those of the optimised model, which is saved and run.
    `largest_difference` is the difference between the outputs of the dumped run and of a plain run at that level, if the two
    were compared: at levels above `disable`, on devices, and for models with float16 or bfloat16. The answer is that of the plain run.
    `session_options` and `providers` are ONNX Runtime's own; this session sets the optimisation level in the options. `memory_limit` (bytes)
    bounds the tensors that are kept at a time; if more are needed, the model runs several times. `is_single_operator`: the model is one
    operator, and is dumped as such, without a model name. `given_name`, if given, is the first of the model's names.
    `own` returns the program's own session of the model, which gives every answer; its runs are passed to `record_run` and `record_failure`, not to `run`.

    Every run is a step, numbered from the plan's `initial_iteration`. Calls from several threads are recorded one after the
    other. `notes` are what the dump lacks in addition to skipped operators. Raises ModelFileError for an invalid model, and the
    runtime's own errors, unchanged.
    """

    def __init__(
        self,
        model: ModelSource | ModelFile,
        *,
        recorder: Recorder,
        plan: DumpPlan,
        model_id: int,
        level: Level = "disable",
        providers: Sequence[Any] | None = None,
        session_options: onnxruntime.SessionOptions | None = None,
        disabled_optimizers: Collection[str] | None = None,
        memory_limit: int | None = None,
        is_single_operator: bool = False,
        given_name: str | None = None,
        own: Callable[[], onnxruntime.InferenceSession] | None = None,
        rank_id: int = 0,
    ) -> None:
        self.model: ModelFile = model if isinstance(model, ModelFile) else load_model(model)
        names = filter(None, (given_name, *self.model.names))
        self.model = replace(self.model, names=tuple(dict.fromkeys(names)))
        self.level: Level = level
        self.model_id = model_id
        self.largest_difference: float | None = None
        """The difference between the model's outputs in the dumped and the plain run; None if they were not compared."""
        self._recorder = recorder
        self._plan = plan
        self._options = session_options or onnxruntime.SessionOptions()
        self._providers = list(providers or ["CPUExecutionProvider"])
        self._disabled_optimizers = disabled_optimizers
        self._memory_limit = memory_limit
        self._own = own
        self._lock = threading.RLock()
        self._remove_folder: Callable[[], object] = _nothing
        ran, nodes = self._what_runs()
        self._recorded = recorded = RecordedModel.of(
            ran,
            nodes,
            plan,
            self.model.names,
            is_single_operator=is_single_operator,
            is_limited=memory_limit is not None,
            is_beside=own is not None,
        )
        self._once = recorded.once
        self.notes: list[str] = list(recorded.notes)
        recorder.matched_kernels.update(recorded.choice.matched_kernels)
        self._emitter = NodeEmitter(
            RunEmitter(recorder, rank_id=rank_id, device_id=rank_id),
            ran,
            "" if is_single_operator else self.model.name if plan.layout_facts.by_model else plan.net_name,
            0 if is_single_operator else model_id,
            recorded.choice,
            recorded.within,
            BodyReplay(ran, self._options, self._providers),
            self.notes,
        )
        self._plain_session: onnxruntime.InferenceSession | None = None
        self._records_data = not plan.mode.failures_only and recorded.is_wanted
        if self._records_data and self._once is not None:
            self._records_data = self._can_run(self._once)
        self._recorded_session = self._open_recorded() if self._records_data else None
        session = self._recorded_session
        if self._once is not None or session is None:
            session = self._plain()
        results = len(self.model.proto.graph.output)
        self.inputs: tuple[Any, ...] = tuple(session.get_inputs())
        self.outputs: tuple[Any, ...] = tuple(session.get_outputs()[:results])
        self._steps = StepCount(plan.initial_iteration)
        self._closed = False
        self._answers_may_differ = has_half_precision(self.model.proto)
        on_host = self._providers == ["CPUExecutionProvider"]
        self._compares = self._answers_may_differ or level != "disable" or not on_host
        self._sizes: dict[str, int] = {}

    @property
    def nodes(self) -> tuple[ModelNode, ...]:
        """The nodes that run, in an order in which they can run."""
        return self._recorded.nodes

    @property
    def chose_nothing(self) -> ChoseNothing:
        """Why the configuration selects no node of this model."""
        return self._recorded.chose_nothing

    @property
    def ran(self) -> ModelFile:
        """The model that runs: the optimised one, or the given one."""
        return self._recorded.ran

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """The result of `InferenceSession.run` with the same arguments. The run is recorded if the plan selects this step."""
        with self._lock:
            if self._closed:
                raise CaptureStateError(f"the session of {self.model.name} is closed; open another one to run it")
            step = self._steps.take()
            if not self._recorder.wants(step):
                return self._answer(output_names, feeds, run_options)
            if self._plan.mode.failures_only:
                return self._run_until_failure(output_names, feeds, run_options, RunPlace(step))
            if not self._records_data:
                return self._answer(output_names, feeds, run_options)
            return self._record(output_names, feeds, run_options, RunPlace(step))

    def record_run(
        self,
        output_names: Sequence[str],
        feeds: Mapping[str, Any],
        answer: Sequence[Any] | None,
        run_options: onnxruntime.RunOptions | None,
        place: RunPlace,
    ) -> None:
        """Record a run of the program's own session by a second run. `answer` is that of the program, None if it is unknown."""
        with self._lock:
            if self._closed or not self._records_data:
                return
            try:
                found = self._run_and_emit(output_names, feeds, run_options, place, {})
            except _RunError as failure:
                self.notes.append(f"run {place.step} of {self.model.name} was not recorded: {failure.error}")
                self._end(place)  # including what was emitted of it before it failed
                return
            if answer is None or self._recorded.is_random:
                return
            difference = largest_difference(found, answer)
            if not self.largest_difference and difference:
                self.notes.append(_DIFFERENT.format(self.model.name))
            self.largest_difference = max(difference, self.largest_difference or 0.0)

    def record_failure(self, error: Exception, feeds: Mapping[str, Any], place: RunPlace) -> None:
        """Record the operator that failed in a run of the program's own session, if the plan asks for failures."""
        with self._lock:
            if self._plan.mode.failures_only and not self._closed:
                self._note_failure(error, feeds, place)

    def count_run(self) -> None:
        """Count a run of the program's own session."""
        self._steps.take()

    @property
    def runs(self) -> int:
        """The number of runs."""
        return self._steps.ended

    def run_plain(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """The same without capture, in a session of the unchanged model. It is not a step."""
        names = output_names
        if self._once is not None and not names:
            names = [output.name for output in self.outputs]
        return list(self._plain().run(names, feeds, run_options))

    def close(self) -> None:
        """Free the sessions, and remove the saved optimised model."""
        with self._lock:
            self._closed = True
            self._recorded_session = self._plain_session = None
            self._remove_folder()

    def _plain(self) -> onnxruntime.InferenceSession:
        with self._lock:
            if self._own is not None:
                return self._own()  # the program uses it at this moment
            if self._plain_session is None:
                content = self.model.source
                if self._once is not None and self._records_data:
                    made = {value for node in self.model.proto.graph.node for value in node.output}
                    content = self.model.with_outputs(value for value in self._once.values if value in made)
                self._plain_session = open_session(self.model, content, self.level, self._options, self._providers)
            return self._plain_session

    def _what_runs(self) -> tuple[ModelFile, tuple[ModelNode, ...]]:
        """The given model, or the optimised one, and its nodes."""
        names = None if self._plan.layout_facts.by_model else UniqueNames()
        originals = nodes_of(self.model.proto, names=names)
        if self.level == "disable":
            return self.model, originals
        folder = temporary_directory("onnx")
        self._remove_folder = weakref.finalize(self, remove_own, folder)
        ran = optimized(
            self.model,
            self.level,
            folder,
            self._options,
            self._providers,
            disabled_optimizers=self._disabled_optimizers,
        )
        return ran, with_origins(nodes_of(ran.proto, originals, names), originals, ran.proto.graph)

    def _can_run(self, once: RunOnce) -> bool:
        """Whether the rest of the model can run separately. Adds to the notes how it is recorded."""
        refusal = once.refusal_beside if self._own is not None else once.refusal(self.model, self._plain())
        self.notes.append(f"no run is recorded: {refusal}" if refusal else once.note)
        return not refusal

    def _open_recorded(self) -> onnxruntime.InferenceSession | None:
        """The session that returns the wanted values; None if the operators of the program provide all of them."""
        ran, wanted = self.ran, self._recorded.wanted
        content = ran.with_outputs(wanted)
        if self._once is not None:
            if not wanted:
                return None
            content = self._once.rest_of(ran, self.nodes, wanted, self._plain())
        return open_session(ran, content, "disable", self._options, self._providers)

    def _answer(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: onnxruntime.RunOptions | None
    ) -> list[Any]:
        """The answer of a run that is not dumped."""
        if (
            self._once is None
            and self._recorded.is_random
            and self._recorded_session is not None
            and not self._compares
        ):
            # Each session has its own random generators: with two sessions, runs would not get the numbers that they get in one.
            names = list(output_names) if output_names else [output.name for output in self.outputs]
            return list(self._recorded_session.run(names, feeds, run_options))
        return self.run_plain(output_names, feeds, run_options)

    def _record(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        place: RunPlace,
    ) -> list[Any]:
        names = list(output_names) if output_names else [output.name for output in self.outputs]
        if self._once is not None:
            return self._record_rest(self._once, names, feeds, run_options, place)
        try:
            answer = self._run_and_emit(names, feeds, run_options, place, {})
        except _RunError as failure:
            # If the model or the inputs are invalid, the plain run raises the original error.
            plain = self.run_plain(output_names, feeds, run_options)
            self.notes.append(f"run {place.step} was not recorded: {failure.error}")
            self._end(place)  # including what was emitted of it before it failed
            return plain
        return self._compared(answer, output_names, feeds, run_options) if self._compares else answer

    def _record_rest(
        self,
        once: RunOnce,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        place: RunPlace,
    ) -> list[Any]:
        """The answer of the plain run, in which the operators of the program ran. The others run again for the dump."""
        try:
            answer, made, tensors = once.run(self._plain(), names, feeds, run_options)
        except Exception as error:
            self.notes.append(f"run {place.step} was not recorded: {error}")
            self._end(place)
            raise
        given = {**fed_tensors(self._plain(), feeds), **tensors}
        try:
            self._run_and_emit([], {**feeds, **made}, run_options, place, given)
        except _RunError as failure:
            self.notes.append(f"run {place.step} was not recorded: {failure.error}")
            self._end(place)  # including what was emitted of it before it failed
        return answer

    def _compared(
        self,
        answer: list[Any],
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> list[Any]:
        """The answer of a plain run, if the answer of the dumped run may differ."""
        plain = self.run_plain(output_names, feeds, run_options)
        if not self._recorded.is_random:
            difference = largest_difference(answer, plain)
            self.largest_difference = max(difference, self.largest_difference or 0.0)
        # If both were equal bit for bit once, the same kernels ran. Otherwise the plain answer is always used.
        self._compares = self._answers_may_differ or not same_bits(answer, plain)
        return plain

    def _run_and_emit(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        place: RunPlace,
        given: Tensors,
    ) -> list[Any]:
        """Run the recorded part and emit it; `given` are tensors that are already known."""
        session = self._recorded_session
        answer: list[Any] | None = None if session is not None else []
        run, choice, private = self._emitter.run(place), self._recorded.choice, self._plan.saves_tensors
        for first, last in self._chunks(feeds):
            chosen = choice.nodes[first:last]
            values = dict.fromkeys(value for each in (*chosen, *choice.watched) for value in each.values)
            wanted = [value for value in self._recorded.wanted if value in values]
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
                self._note_sizes(tensors)
            self._emitter.emit(run, chosen, first, {**given, **tensors})
            if self._recorder.is_over:
                break
        assert answer is not None
        self._end(place)
        return answer

    def _end(self, place: RunPlace) -> None:
        if place.ends_step:
            self._recorder.end_step(place.step)

    def _note_sizes(self, tensors: Tensors) -> None:
        known = tensors.items()
        self._sizes.update((name, tensor.size) for name, tensor in known if isinstance(tensor, HostTensor))

    def _chunks(self, feeds: Mapping[str, Any]) -> list[tuple[int, int]]:
        nodes = self._recorded.choice.nodes
        whole = [(0, len(nodes))]
        if self._memory_limit is None or (self._recorded.is_random and self._once is None):
            return whole
        return chunks_of(nodes, self._recorded.wanted, self._memory_limit, self.ran.proto, feeds, self._sizes)

    def _run_until_failure(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        place: RunPlace,
    ) -> list[Any]:
        try:
            return self.run_plain(output_names, feeds, run_options)
        except Exception as error:
            self._note_failure(error, feeds, place)
            raise

    def _note_failure(self, error: Exception, feeds: Mapping[str, Any], place: RunPlace) -> None:
        try:
            self._file_failure(error, feeds, place)
        except Exception as problem:  # noqa: BLE001  the user gets the error of the run, even if its dump fails
            self.notes.append(f"the failure of run {place.step} could not be dumped: {problem!r}")

    def _file_failure(self, error: Exception, feeds: Mapping[str, Any], place: RunPlace) -> None:
        kept = () if self._once is None else tuple(self._once.operators)
        search = FailureSearch(self.ran, self.nodes, self._options, self._providers, kept)
        failure = search.find(error, feeds)
        if failure is None and kept:
            self.notes.append(
                f"run {place.step} failed; the failed operator is unknown, because a search would run {', '.join(kept)} of the program again: {error}"
            )
            return
        if failure is None:
            self.notes.append(f"run {place.step} failed outside of every operator: {error}")
            return
        node = failure.node
        tensors = {**fed_tensors(self._plain(), feeds), **failure.inputs}
        slots = slots_of(node.inputs, node.input_arguments, self._recorded.sources)
        inputs = self._emitter.live(slots, tensors)
        self._emitter.run(place).fail(node.operator, error, inputs, order=self.nodes.index(node))


def _nothing() -> None:
    """Do nothing: there is no folder to remove."""


class _RunError(Exception):
    """The run itself failed, not the processing of its tensors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# Finds the node that failed in a run, and its inputs.
#
# ONNX Runtime names the node in its message, but in a model several nodes may have the same name, or none. The run is therefore repeated
# on a copy in which every node has a unique name. If that message names none of them (for a function that the runtime expanded), a bisection
# over prefixes of the model finds the first node that fails.

_RUNNING: Final = "Non-zero status code returned while running"
_NAMED: Final = re.compile(r"while running \S+ node\. Name:'(.*?)' Status Message")


@dataclass(frozen=True, slots=True)
class Failure:
    """The node of the model's own graph that failed, and the values of its inputs, including those that its bodies read."""

    node: ModelNode
    inputs: Tensors


class FailureSearch:
    """Finds the failed nodes of one model. `once` are the names of nodes that must not run a second time."""

    def __init__(
        self,
        model: ModelFile,
        nodes: Sequence[ModelNode],
        options: onnxruntime.SessionOptions,
        providers: Sequence[Any],
        once: Collection[str] = (),
    ) -> None:
        self._model = model
        self._nodes = nodes
        self._once = once
        self._options = options
        self._providers = providers
        self._makers = {value: node for node in nodes for value in node.outputs if value}

    def find(self, error: BaseException, feeds: Mapping[str, Any]) -> Failure | None:
        """The node that failed with `error`; None if no node failed because the inputs do not fit the model."""
        if _RUNNING not in str(error):
            return None
        node = self._named_once(str(error))
        if node is None and not self._once:
            node = self._named_uniquely(feeds) or self._first_failing(feeds)
        if node is None:
            return None
        return Failure(node, self._inputs_of(node, feeds))

    def _named_once(self, message: str) -> ModelNode | None:
        found = _NAMED.search(message)
        if found is None or not found[1]:
            return None
        called = [node for top in self._nodes for node in top.with_bodies if node.written_name == found[1]]
        # Nodes in bodies only make a name ambiguous: the message names the outermost node first.
        return called[0] if len(called) == 1 and not called[0].parent else None

    def _named_uniquely(self, feeds: Mapping[str, Any]) -> ModelNode | None:
        names = {node.position: node.name for node in self._nodes}
        own_outputs = [output.name for output in self._model.proto.graph.output]
        error = self._error_of(self._model.part(names, own_outputs, names), feeds)
        found = _NAMED.search(str(error)) if error is not None else None
        return next((node for node in self._nodes if found is not None and node.name == found[1]), None)

    def _first_failing(self, feeds: Mapping[str, Any]) -> ModelNode | None:
        good, bad = 0, len(self._nodes)
        if not self._beginning_fails(bad, feeds):
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._beginning_fails(middle, feeds):
                bad = middle
            else:
                good = middle
        return self._nodes[bad - 1]

    def _beginning_fails(self, count: int, feeds: Mapping[str, Any]) -> bool:
        beginning = self._nodes[:count]
        outputs = [value for value in beginning[-1].outputs if value]
        return self._error_of(self._model.part([node.position for node in beginning], outputs), feeds) is not None

    def _error_of(self, content: bytes, feeds: Mapping[str, Any]) -> Exception | None:
        session = self._session(content)
        try:
            session.run(None, self._accepted(session, feeds))
        except Exception as error:  # noqa: BLE001  the runtime's errors have no class of their own
            return error
        return None

    def _inputs_of(self, node: ModelNode, feeds: Mapping[str, Any]) -> Tensors:
        """The inputs of the node, recomputed by the nodes before it; empty if these must not run again."""
        made = [value for value in dict.fromkeys(node.inputs) if value in self._makers]
        if not made:
            return {}
        needed: dict[str, ModelNode] = {}
        waiting = list(made)
        while waiting:
            maker = self._makers.get(waiting.pop())
            if maker is not None and maker.name not in needed:
                needed[maker.name] = maker
                waiting.extend(maker.reads)
        if any(name in self._once for name in needed):
            return {}
        session = self._session(self._model.part([each.position for each in needed.values()], made))
        _, tensors = answer_and_tensors(
            session, [], made, self._accepted(session, feeds), None, answer_is_private=False
        )
        return tensors

    def _session(self, content: bytes) -> onnxruntime.InferenceSession:
        options = self._options
        severity = options.log_severity_level
        try:
            options.log_severity_level = 4  # these sessions are expected to fail
            return open_session(self._model, content, "disable", options, self._providers)
        finally:
            options.log_severity_level = severity

    @staticmethod
    def _accepted(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
        known = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
        return {name: value for name, value in feeds.items() if name in known}
