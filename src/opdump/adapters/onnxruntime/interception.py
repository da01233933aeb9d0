"""Records the sessions of a program beside the program: its own session gives every answer, and a second one runs for the dump.

    sessions = ProgramSessions(recorder, settings, first=0, manual=False)
    sessions.open()
    onnxruntime.InferenceSession("model.onnx").run(None, feeds)      the methods of the class record
    sessions.close()

Methods of the runtime's classes are replaced in place, so subclasses and names imported before are affected, too. The second session of a
model is opened for its first run that the plan selects. It has the level of optimisation, the providers, the options and the libraries of the
program's session, and runs the nodes that run there.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection as classes

from opdump import amounts
from opdump.adapters.base import DumpComplete, Settings, StepController, SupportsOrder
from opdump.adapters.host import BY_DTYPE, BY_NUMBER, HostTensor
from opdump.adapters.onnxruntime.loaded_models import LoadedModels
from opdump.adapters.onnxruntime.model_file import ModelFile, OwnSession, level_of, load_model
from opdump.adapters.onnxruntime.recorded_model import RunPlace
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.adapters.onnxruntime.tensors_of_run import feed_of
from opdump.adapters.program_stacks import ProgramStacks
from opdump.adapters.replacements import Replacements
from opdump.errors import ModelFileError
from opdump.recorder import Recorder

Feeds = Mapping[str, Any]
Copy = Callable[[], Any]
_ORT_FORMAT: Final = b"ORTM"
_KEPT_BYTES: Final = 2**26
"""The content of a model file up to this size is kept until its first run, because the program may remove the file."""
_BESIDE_IDS: Final = 10_000
"""The first number of a graph beside those of another framework."""
_PLAIN_OPTIONS: Final = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
)
_REMEMBERED: Final = (
    "add_external_initializers",
    "add_external_initializers_from_files_in_memory",
    "add_free_dimension_override_by_denotation",
    "add_free_dimension_override_by_name",
    "add_initializer",
    "add_session_config_entry",
    "register_custom_ops_library",
)
"""Methods of SessionOptions whose effect cannot be read from the options."""


@dataclass(slots=True)
class _Program:
    """A session of the program."""

    reference: weakref.ref[Any]
    model_id: int
    content: bytes | None = None
    """The content of the model file, until the model is loaded."""
    path: str = ""
    written: tuple[int, int] = (0, 0)
    """Size and time of the file when the session was made."""
    options: Any = None
    """The program's SessionOptions, if it made any."""
    disabled_optimizers: Any = None
    providers: list[tuple[str, Any]] = field(default_factory=list)
    loaded: OnnxSession | None = None
    refusal: str = ""
    """Why its runs cannot be recorded."""
    runs: int = 0

    @property
    def name(self) -> str:
        return self.path or "a model from memory"


@dataclass(slots=True)
class _Step:
    """The place of the next operators, in a step that several runs share."""

    order: Iterator[int] = field(default_factory=itertools.count)
    executions: Counter[str] = field(default_factory=Counter)


class ProgramSessions:
    """Records the runs of all sessions of the program. Runs of several threads are recorded one after the other.

    Every run is a step, unless steps are `manual` or those of another framework (`beside`). In a layout with one directory per model, the
    steps of a model are its own runs.
    """

    def __init__(
        self, recorder: Recorder, settings: Settings, *, first: int, manual: bool, beside: StepController | None = None
    ) -> None:
        self.step = first
        self._recorder = recorder
        self._settings = settings
        self._manual = manual
        self._beside = beside
        self._models = LoadedModels(recorder)
        self._known: weakref.WeakKeyDictionary[Any, _Program] = weakref.WeakKeyDictionary()
        self._ids = itertools.count(1 if beside is None else _BESIDE_IDS)
        self._lock = threading.RLock()
        self._replacements = Replacements()
        self._remembered: weakref.WeakKeyDictionary[Any, list[tuple[str, tuple[Any, ...], dict[str, Any]]]]
        self._remembered = weakref.WeakKeyDictionary()
        self._bound: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()
        self._gone: list[int] = []
        """Models whose session the program has dropped."""
        self._of_step = _Step()
        self._is_over = False
        self._may_end = False
        """Whether the last selected step has ended."""
        self._refusals: Counter[str] = Counter()
        """Why models are not recorded, and the number of sessions for which that holds."""
        self._stacks = ProgramStacks([f"{Path(onnxruntime.__file__).parent}/"])
        self._process = os.getpid()

    def open(self) -> None:
        """Replace the methods of the runtime's classes."""
        base, session, binding, options = (
            classes.Session,
            classes.InferenceSession,
            classes.IOBinding,
            onnxruntime.SessionOptions,
        )
        put = self._replacements.replace
        put(session, "__init__", self._made(session.__init__))
        for name, replaced in (
            ("run", self._run),
            ("run_with_ort_values", self._run_with_ort_values),
            ("run_with_iobinding", self._run_with_iobinding),
            ("run_async", self._run_async),
        ):
            if hasattr(base, name):
                put(base, name, replaced(getattr(base, name)))
        for name, copy in (
            ("bind_cpu_input", _copy_of_array),
            ("bind_ortvalue_input", _copy_of_value),
            ("bind_input", _copy_of_memory),
        ):
            put(binding, name, self._bind(getattr(binding, name), copy))
        put(binding, "clear_binding_inputs", self._clear(binding.clear_binding_inputs))
        for name in _REMEMBERED:
            if hasattr(options, name):
                put(options, name, self._remember(name, getattr(options, name)))

    def close(self) -> None:
        """Restore the classes, and file everything."""
        self._replacements.restore()
        if os.getpid() != self._process:
            return
        with self._lock:
            self._is_over = True
            recorder = self._recorder
            if self._beside is None:
                if self._manual:
                    recorder.end_step(self.step)
                around, by_model = recorder.circumstances, recorder.plan.layout_facts.by_model
                notes = self._models.notes()
                self._models.tell_circumstances(around.framework)
                around.next_step = None if by_model else self.step
                around.unable = around.unable or next(iter(self._refusals), "")
            else:
                notes = self._models.notes()
            recorder.warnings += notes
            recorder.warnings += [
                f"{amounts.count(number, 'session')} not recorded: {reason}"
                for reason, number in self._refusals.items()
            ]
            for known in [*self._known.values()]:
                self._models.unload(known.model_id)

    def abandon(self) -> None:
        """Restore the classes in a forked process, and record nothing more."""
        self._replacements.restore()
        self._is_over = True

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        with self._lock:
            self._manual = True
            self._recorder.end_step(self.step)
            self._begin_next()

    def _begin_next(self) -> None:
        self._may_end = self._may_end or self._recorder.plan.steps.ends_by(self.step)
        self.step += 1
        self._of_step = _Step()

    # The replaced methods

    def _made(self, original: Callable[..., None]) -> Callable[..., None]:
        def made(session: Any, *args: Any, **kwargs: Any) -> None:
            known = None
            if not isinstance(session, OwnSession) and not self._is_left:
                with suppress(Exception):  # of wrong arguments, which the runtime reports
                    known = self._noted(session, *args, **kwargs)
            original(session, *args, **kwargs)
            if known is not None:
                self._known[session] = known

        return made

    def _run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(session: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
            recorded = self._begin(session)
            if recorded is None:
                return original(session, output_names, input_feed, run_options)
            with recorded.watching(input_feed):
                answer = original(session, output_names, input_feed, run_options)
            recorded.ran(output_names, input_feed, answer, run_options)
            return answer

        return run

    def _run_with_ort_values(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_with_ort_values(
            session: Any, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
        ) -> Any:
            recorded = self._begin(session)
            if recorded is None:
                return original(session, output_names, input_dict_ort_values, run_options)
            feeds = recorded.copied({name: _copy_of_value(value) for name, value in input_dict_ort_values.items()})
            with recorded.watching(feeds):
                answer = original(session, output_names, input_dict_ort_values, run_options)
            recorded.ran((), feeds, None, run_options)
            return answer

        return run_with_ort_values

    def _run_with_iobinding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_with_iobinding(session: Any, iobinding: Any, run_options: Any = None) -> Any:
            recorded = self._begin(session)
            if recorded is None:
                return original(session, iobinding, run_options)
            # Before the run, because an output may be bound to the memory of an input.
            feeds = recorded.copied(self._bound.get(iobinding, {}))
            with recorded.watching(feeds):
                answer = original(session, iobinding, run_options)
            recorded.ran((), feeds, None, run_options)
            return answer

        return run_with_iobinding

    def _run_async(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_async(
            session: Any, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
        ) -> Any:
            recorded = self._begin(session)
            if recorded is None:
                return original(session, output_names, input_feed, callback, user_data, run_options)
            # The program may write into its inputs as soon as its callback was called.
            feeds = recorded.copied({name: _copy_of_array(value) for name, value in input_feed.items()})
            answer = original(session, output_names, input_feed, callback, user_data, run_options)
            recorded.ran((), feeds, None, run_options)
            return answer

        return run_async

    def _bind(self, original: Callable[..., Any], copy: Callable[..., Copy]) -> Callable[..., Any]:
        def bind(binding: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            result = original(binding, name, *args, **kwargs)
            self._bound.setdefault(binding, {})[name] = copy(*args, **kwargs)
            return result

        return bind

    def _clear(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clear_binding_inputs(binding: Any) -> Any:
            self._bound.pop(binding, None)
            return original(binding)

        return clear_binding_inputs

    def _remember(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(options: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(options, *args, **kwargs)
            self._remembered.setdefault(options, []).append((name, args, kwargs))
            return result

        return remembered

    # What is known of the sessions of the program

    @property
    def _is_left(self) -> bool:
        """Whether nothing is recorded here: the capture is over, or belongs to the parent of this process."""
        return self._is_over or os.getpid() != self._process

    def _noted(
        self,
        session: Any,
        path_or_bytes: Any,
        sess_options: Any = None,
        _providers: Any = None,
        _provider_options: Any = None,
        disabled_optimizers: Any = None,
        **_: Any,
    ) -> _Program:
        """What must be known of a session from the time when it is made."""
        known = _Program(weakref.ref(session, lambda _: self._gone.append(known.model_id)), next(self._ids))
        known.options = self._options_like(sess_options)
        known.disabled_optimizers = disabled_optimizers
        if isinstance(path_or_bytes, bytes):
            known.content = path_or_bytes
        else:
            known.path = os.path.abspath(os.fspath(path_or_bytes))
            known.written = _written(known.path)
            if known.written[0] <= _KEPT_BYTES:
                known.content = Path(known.path).read_bytes()
        return known

    def _options_like(self, options: Any) -> onnxruntime.SessionOptions:
        """Options with the effect of those of the program, without what writes files."""
        copy = onnxruntime.SessionOptions()
        if options is None:
            return copy
        for name in _PLAIN_OPTIONS:
            if hasattr(options, name):
                setattr(copy, name, getattr(options, name))
        for name, args, kwargs in self._remembered.get(options, ()):
            getattr(copy, name)(*args, **kwargs)
        return copy

    def _program_of(self, session: Any) -> _Program:
        """The facts of a session; those of one that was made before the capture began are read from its attributes."""
        known = self._known.get(session)
        if known is None:
            source = session._model_path or session._model_bytes
            known = self._known[session] = self._noted(session, source, session._sess_options_initial)
        return known

    def _load(self, known: _Program, session: Any) -> OnnxSession | None:
        """The second session of a model; None if its runs cannot be recorded."""
        options = session.get_provider_options()
        providers = [(name, options.get(name, {})) for name in session.get_providers()]
        if known.loaded is not None and known.providers != providers:  # by `set_providers`
            self._models.unload(known.model_id)
            known.loaded, known.model_id = None, next(self._ids)
        while self._gone:
            self._models.unload(self._gone.pop())
        if known.loaded is None and not known.refusal:
            known.providers = providers
            try:
                known.loaded = self._opened(known)
            except ModelFileError as error:
                known.refusal = str(error)
            except Exception as error:  # noqa: BLE001  the runtime's errors have no class of their own
                known.refusal = f"{known.name}: its second session cannot be opened: {error}"
            if known.refusal:
                self._refusals[known.refusal] += 1
        return known.loaded

    def _opened(self, known: _Program) -> OnnxSession:
        return self._models.load(
            _model_of(known),
            known.model_id,
            level=level_of(known.options),
            providers=_names_if_plain(known.providers),
            session_options=known.options,
            disabled_optimizers=known.disabled_optimizers,
            own=known.reference,
            rank_id=self._settings.rank_id,
            given_name=self._settings.model_names.of_file(known.path) if known.path else None,
        )

    # Runs

    def _begin(self, session: Any) -> _RecordedRun | None:
        """The run that begins, if it is recorded. Raises DumpComplete if the program is to end here."""
        if isinstance(session, OwnSession) or self._is_left:
            return None
        if self._settings.stop_after_dump and self._may_end and self._beside is None:
            raise DumpComplete
        with self._lock, self._recorder.losing("a run of the program"):
            known = self._program_of(session)
            if self._recorder.plan.layout_facts.by_model:
                self._load(known, session)  # a run that is not selected counts, too
            place = self._place(known)
            if self._recorder.wants(place.step) and (loaded := self._load(known, session)) is not None:
                return _RecordedRun(self, loaded, place)
        return None

    def _place(self, known: _Program) -> RunPlace:
        """The place of a run that begins. Counts it."""
        called_at = self._stacks.running(sys._getframe())
        plan = self._recorder.plan
        known.runs += 1
        if known.loaded is not None:
            known.loaded.count_run()
        if plan.layout_facts.by_model:
            step = plan.initial_iteration + known.runs - 1
            self._may_end = plan.steps.ends_by(step)
            return RunPlace(step, called_at=called_at)
        if self._beside is not None and self._beside.step != self.step:
            self.step, self._of_step = self._beside.step, _Step()
        if self._beside is None and not self._manual:
            place = RunPlace(self.step, called_at=called_at)
            self._begin_next()
            return place
        order, executions = self._of_step.order, self._of_step.executions
        steps: object = self._beside
        if isinstance(steps, SupportsOrder):
            order = iter(steps.next_order, -1)
        return RunPlace(self.step, ends_step=False, order=order, executions=executions, called_at=called_at)

    def record(self, run: Callable[[], object], model_id: int) -> None:
        """Call a function that records a run, as the only one at a time."""
        with self._lock, self._recorder.losing("a run of the program"), self._models.running(model_id):
            run()


class _RecordedRun:
    """A run of the program's session that is recorded by a second run."""

    def __init__(self, sessions: ProgramSessions, loaded: OnnxSession, place: RunPlace) -> None:
        self._sessions = sessions
        self._loaded = loaded
        self._place = place
        self._refusal = ""

    @contextmanager
    def watching(self, feeds: Feeds) -> Iterator[None]:
        """The program's own run. If it fails, and failures are recorded, so is this one."""
        try:
            yield
        except Exception as error:
            failure = error  # the name of the clause is deleted after it
            self._record(lambda: self._loaded.record_failure(failure, feeds, self._place))
            raise

    def copied(self, copies: Mapping[str, Copy]) -> dict[str, Any]:
        """The inputs as they are now."""
        try:
            return {name: copy() for name, copy in copies.items()}
        except Exception as error:  # noqa: BLE001  the runtime's errors have no class of their own
            self._refusal = f"run {self._place.step} of {self._loaded.model.name} was not recorded: an input cannot be read: {error}"
            return {}

    def ran(self, output_names: Any, feeds: Feeds, answer: Any, run_options: Any) -> None:
        """Record the run; `answer` is None if it is unknown."""
        if self._refusal:
            self._loaded.notes.append(self._refusal)
            return
        if answer is not None and not output_names:
            output_names = [output.name for output in self._loaded.outputs]
        self._record(lambda: self._loaded.record_run(output_names, feeds, answer, run_options, self._place))

    def _record(self, run: Callable[[], object]) -> None:
        self._sessions.record(run, self._loaded.model_id)


def _written(path: str) -> tuple[int, int]:
    """The size of a file, and the time of its last change."""
    facts = os.stat(path)
    return facts.st_size, facts.st_mtime_ns


def _model_of(known: _Program) -> ModelFile:
    """The model of a session. Raises ModelFileError if it cannot be read as an ONNX graph."""
    content, known.content = known.content, None
    if content is None and _written(known.path) != known.written:
        raise ModelFileError(f"{known.name}: the file has changed since the program opened it")
    if known.path.endswith(".ort") or (content or b"")[4:8] == _ORT_FORMAT:
        raise ModelFileError(
            f"{known.name}: the model is in ORT format, which contains no ONNX graph; run the ONNX model from which it was made"
        )
    model = load_model(Path(known.path) if content is None else content)
    if content is None:
        return model
    if not known.path:
        return replace(model, folder=Path.cwd())
    path = Path(known.path)
    return replace(model, folder=path.parent, names=tuple(dict.fromkeys((path.stem, model.proto.graph.name))))


def _names_if_plain(providers: Sequence[tuple[str, Any]]) -> list[Any]:
    return [name if name == "CPUExecutionProvider" else (name, options) for name, options in providers]


# Copies of the inputs of a run, made just before it.


def _copy_of_array(arr_on_cpu: Any) -> Copy:
    return lambda: np.array(arr_on_cpu) if isinstance(arr_on_cpu, np.ndarray) else arr_on_cpu


def _copy_of_value(ortvalue: Any) -> Copy:
    def copy() -> Any:
        if not ortvalue.is_tensor():
            return ortvalue
        element = BY_NUMBER[ortvalue.element_type()]
        if element.known_to_numpy or element.bits == 0 or ortvalue.device_name() != "cpu":
            return np.array(ortvalue.numpy())
        bits = HostTensor.of_ort_value(ortvalue).raw().copy()
        return feed_of(bits.reshape(ortvalue.shape()) if element.bits >= 8 else bits, element.dtype)

    return copy


def _copy_of_memory(device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> Copy:
    def copy() -> Any:
        if device_type != "cpu":
            raise ModelFileError(f"it is bound to memory of {device_type}:{device_id} by its address")
        element = BY_NUMBER[element_type] if isinstance(element_type, int) else BY_DTYPE[np.dtype(element_type).name]
        size = element.size(int(np.prod(shape, dtype=np.int64)))
        bits = np.frombuffer(ctypes.string_at(buffer_ptr, size), element.storage)
        return feed_of(bits.reshape(shape) if element.bits >= 8 else bits, element.dtype)

    return copy
