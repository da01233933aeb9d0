"""Examines the sessions of this process between `install` and `finish`, and prepares programs that were written for Ascend devices.

>>> facts = facts_of_script("import tensorflow as tf; session = tf.Session(config=tf.ConfigProto())")
>>> facts.asks_for_dumps, facts.is_tensorflow_1
(False, True)
"""

from __future__ import annotations

import ast
import atexit
import importlib.util
import logging
import os
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdump.adapters.registry import FRAMEWORKS
from opdump.capturing.capture import start as start_capture
from opdump.capturing.capture import stop as stop_capture
from opdump.capturing.dump import Recording
from opdump.capturing.report import CaptureReport, log_report, told_elsewhere
from opdump.configs.acl_plan import exception_directory
from opdump.configs.plan_fields import plan_on_error
from opdump.configs.tensorflow import ExceptionDump, TrainingDump, parameter_values, plan_of_failures, training_dump_of
from opdump.errors import FrameworkMissingError
from opdump.interpreter.frames import printed_as_the_programs
from opdump.interpreter.imports import after_import, forget_import
from opdump.plan import DumpPlan, OnError
from opdump.plan.field_types import check_values

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.capture import Capture
    from opdump.adapters.tensorflow.sessions.session import FailureDump, Interception, SessionCapture
    from opdump.capturing.dump import Dump


class _Installation:
    """The installed parts in this process."""

    def __init__(self) -> None:
        self.recordings: Recordings | None = None
        self.interception: Interception | None = None
        self.around = ExitStack()
        """The filter on the tracebacks of errors, while sessions are examined."""
        self.started: Dump | None = None
        """The capture that `start` began."""


# All sessions of a process are created through one class, so there is one state.
_STATE = _Installation()


def install(
    *,
    path: Path | None = None,
    stream_in_names: bool = False,
    streams: bool = False,
    on_error: OnError | None = None,
) -> None:
    """Record every session created from now on, as the entry NpuOptimizer of its config requests.

    path             the dump directory, whatever the configs say; it must exist
    stream_in_names  use five-part file names, `{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}`, like newer
                     versions; the default is four parts, without the stream
    streams          pass on tensors one by one while a step runs, which bounds the memory but is slower
    on_error         what to do if a dump can no longer be written: "continue", the default, runs the program without it; "stop" raises

    A second call only changes the options of sessions created later. The dump is complete after `finish`, which is called at the end of
    the process. Raises FrameworkMissingError without TensorFlow.
    """
    given = {"stream_in_names": stream_in_names, "streams": streams, "on_error": on_error}
    check_values("install", given, {"stream_in_names": bool, "streams": bool, "on_error": OnError | None})
    _install(SessionOptions(path=path, stream_in_names=stream_in_names, streams=streams, on_error=on_error))


def _install(options: SessionOptions) -> None:
    if _STATE.recordings is None:
        recordings = Recordings(os.environ)
        interception = adapter_module("sessions.session").Interception(recordings.capture_of, recordings.session_ended)
        interception.put_in()
        _STATE.around.enter_context(adapter_module("stacks").program_tracebacks())
        _STATE.around.enter_context(printed_as_the_programs())
        _STATE.recordings, _STATE.interception = recordings, interception
    _STATE.recordings.options = options


def install_on_import(options: SessionOptions | None = None) -> None:
    """Call `install` as soon as the program imports tensorflow, or now if it has."""

    def now(_: Any = None) -> None:
        _install(options or SessionOptions())

    if "tensorflow" in sys.modules:
        now()
    else:
        after_import("tensorflow", now)


def finish() -> tuple[CaptureReport, ...]:
    """End the recordings of `install` and `start`; everything is then on disk. Returns a report for each recording, if any.

    Open sessions continue to run, but are no longer recorded.
    """
    forget_import("tensorflow")
    if _STATE.interception is not None:
        _STATE.interception.take_out()
        _STATE.around.close()
    recordings, started = _STATE.recordings, _STATE.started
    _STATE.interception = _STATE.recordings = _STATE.started = None
    reports = [] if recordings is None else recordings.close()
    if started is not None:
        reports.append(stop_capture() if started.report is None else started.report)
    return tuple(reports)


def uninstall() -> None:
    """Call `finish`, and log the warnings in its reports."""
    for report in finish():
        log_report(report)


def start(dump: TrainingDump) -> Dump | None:
    """Begin a capture of functions, Keras models, eager programs and sessions. Returns None if `dump` requests none."""
    if dump.plan is None:
        return None
    _STATE.started = start_capture(dump.plan, framework="tensorflow", device_id=dump.device_id)
    _STATE.started.when_ended = told_elsewhere  # by `stop`, or by the caller of `finish`
    return _STATE.started


def stop() -> CaptureReport:
    """End the capture that `start` began, and log the warnings in its report."""
    report = stop_capture()
    log_report(report)
    return report


atexit.register(uninstall)


# The recordings of the sessions of this process, one for each plan.

_LOG = logging.getLogger("opdump")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options for sessions in addition to their configs."""

    path: Path | None = None
    """The dump directory; it overrides the configs."""
    stream_in_names: bool = False
    """Whether file names have five parts."""
    streams: bool = False
    """Whether tensors are passed on one by one."""
    on_error: OnError | None = None
    """What to do if a dump can no longer be written; None for the plan's choice."""


class SessionRecording:
    """A plan, its recording, and the capture of the sessions that requested it."""

    def __init__(self, plan: DumpPlan, device_id: int, *, streams: bool = False) -> None:
        self.device_id = device_id
        self._recording = Recording(plan, device_id, adapter_module("capture").runtime())
        recorder = self._recording.recorder
        self.capture: Capture = adapter_module("capture").Capture(recorder, device_id=device_id, streams=streams)
        if not plan.mode.failures_only:
            self.capture.write_graph = adapter_module("sessions.graph_files").GraphFiles(self.capture, os.environ)
        self.not_steps: Counter[str] = Counter()

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk."""
        with self._recording.recorder.writing():
            if self.capture.write_graph is not None:
                self.capture.write_graph.note_files()
            self._recording.sink.flush()

    def close(self) -> CaptureReport:
        """Wait until everything is on disk, and write the totals."""
        if left_out := [f"{count} {purpose}" for purpose, count in sorted(self.not_steps.items())]:
            self._recording.recorder.warnings.append(
                f"runs that are not iterations were not counted: {', '.join(left_out)}"
            )
        self.capture.close()
        self._recording.close()
        return self._recording.report(self.device_id)


class Recordings:
    """Determines what each session requests. Sessions with the same request share a recording and its directory."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.options = SessionOptions()
        """For sessions created later."""
        self._recordings: dict[tuple[DumpPlan, int], SessionRecording] = {}
        self._failures: dict[tuple[ExceptionDump, int], FailureDump] = {}
        self._said: set[str] = set()

    def capture_of(self, config: Any) -> Capture | None:
        """The capture for a session with this ConfigProto; None if it requests none.

        Raises TensorflowConfigError for an invalid request.
        """
        parameters = adapter_module("estimator").parameter_map_of(config)
        if parameters is None:
            return None
        dump = training_dump_of(parameter_values(parameters), environ=self._environ, dump_path=self.options.path)
        return self._capture_of_dump(dump)

    def session_ended(self, session: SessionCapture) -> None:
        """Write the data of a closed session to disk."""
        for recording in self._recordings.values():
            if recording.capture is session.capture:
                recording.not_steps.update(session.not_steps)
                recording.flush()

    def close(self) -> list[CaptureReport]:
        """End all recordings."""
        reports = [recording.close() for recording in self._recordings.values()]
        self._recordings = {}
        return reports

    def _capture_of_dump(self, dump: TrainingDump) -> Capture | None:
        for text in dump.warnings:
            self._warn(text)
        failures = self._failures_of(dump) if dump.exceptions else None
        if dump.plan is not None:
            plan = replace(dump.plan, stream_in_names=self.options.stream_in_names or dump.plan.stream_in_names)
            plan = plan_on_error(plan, self.options.on_error, strict=False)
            capture = self._recording(plan, dump.device_id).capture
        elif failures is not None:
            # This recording writes nothing: the first failure creates the directories.
            capture = SessionRecording(plan_of_failures(Path.cwd(), dump.exceptions), dump.device_id).capture
        else:
            return None
        capture.failures = failures
        return capture

    def _recording(self, plan: DumpPlan, device_id: int) -> SessionRecording:
        key = (plan, device_id)
        if key not in self._recordings:
            self._recordings[key] = SessionRecording(plan, device_id, streams=self.options.streams)
        return self._recordings[key]

    def _failures_of(self, dump: TrainingDump) -> FailureDump:
        key = (dump.exceptions, dump.device_id)
        if key not in self._failures:

            def opened() -> Capture:
                warnings: list[str] = []
                path = exception_directory(None, self._environ, Path.cwd(), warnings)
                for text in warnings:
                    self._warn(text)
                self._warn(f"an operator failed; its inputs are written to {path}/extra-info/data-dump")
                return self._recording(plan_of_failures(path, dump.exceptions), dump.device_id).capture

            self._failures[key] = adapter_module("sessions.session").FailureDump(opened, whole=dump.exceptions == 1)
        return self._failures[key]

    def _warn(self, text: str) -> None:
        """Log a warning once."""
        if text not in self._said:
            self._said.add(text)
            _LOG.warning("%s", text)


def adapter_module(name: str) -> Any:
    """A module of the TensorFlow adapter. Raises FrameworkMissingError if TensorFlow is not installed."""
    try:
        return importlib.import_module(f"opdump.adapters.tensorflow.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensorflow":
            raise
        raise FrameworkMissingError(
            "sessions need tensorflow, which is not installed; run: pip install tensorflow "
            "(reading dumps does not need it)"
        ) from None


# Examines and prepares programs that were written for Ascend devices, so that they run unchanged.

_DROP_INS: Final = ("npu_bridge", "npu_device")
_ON_JAX: Final = frozenset({"jax", "flax", "optax", "equinox", "haiku"})
_MOST_MODULES: Final = 200
_LARGEST_SOURCE: Final = 2**20
_OF_VERSION_1: Final = frozenset(
    {
        *(
            "Session",
            "InteractiveSession",
            "ConfigProto",
            "placeholder",
            "get_variable",
            "global_variables_initializer",
        ),
        *("get_default_graph", "layers", "set_random_seed", "variable_scope"),
    }
)
"""Top-level names that TensorFlow 2 does not have. A program that uses one needs TensorFlow 1."""


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Facts from the source of a program."""

    drop_ins: tuple[str, ...]
    """The packages of Ascend's adapters that it imports."""
    names_optimizer: bool
    """Whether it mentions NpuOptimizer."""
    imports: frozenset[str]
    """Top-level packages that it imports."""
    is_tensorflow_1: bool
    """Whether it uses names of `tensorflow` that version 2 lacks."""

    @property
    def names_no_framework(self) -> bool:
        """Whether it imports no framework that the start-up hook waits for, and no package based on one."""
        return self.imports.isdisjoint({*FRAMEWORKS.names(), "keras", *_DROP_INS, *_ON_JAX})

    @property
    def framework(self) -> str:
        """The framework of its operators, by its imports; if they are inconclusive, by what is installed, PyTorch first."""
        if self.names_no_framework:
            installed = [name for name in FRAMEWORKS.names() if importlib.util.find_spec(name) is not None]
            return installed[0] if installed and "torch" not in installed else "torch"
        if "torch" in self.imports:
            return "torch"
        if self.imports & {"tensorflow", "keras", *_DROP_INS}:
            return "tensorflow"
        if self.imports & _ON_JAX:
            return "jax"
        return next((name for name in FRAMEWORKS.names() if name in self.imports), "torch")

    @property
    def asks_for_dumps(self) -> bool:
        """Whether it may request a dump itself."""
        return bool(self.drop_ins) or self.names_optimizer


def facts_of_script(source: str) -> ScriptFacts:
    """The facts of a program from its source, without running it. Source that does not parse has none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ScriptFacts((), False, frozenset(), False)
    imports: set[str] = set()
    names = {"tensorflow"}
    owners: set[str] = set()
    names_optimizer = False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                imports.update(alias.name.partition(".")[0] for alias in aliases)
                names.update(alias.asname for alias in aliases if alias.name == "tensorflow" and alias.asname)
            case ast.ImportFrom(module=str(module), level=0):
                imports.add(module.partition(".")[0])
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if name in _OF_VERSION_1:
                owners.add(owner)
            case ast.Constant(value="NpuOptimizer"):
                names_optimizer = True
    return ScriptFacts(
        tuple(name for name in _DROP_INS if name in imports),
        names_optimizer,
        frozenset(imports),
        "tensorflow" in imports and not names.isdisjoint(owners),
    )


def facts_of_program(source: str, directory: str | None) -> ScriptFacts:
    """The facts of a script. If it imports no framework itself, the modules beside it in `directory` are examined, too."""
    facts = facts_of_script(source)
    if directory is None or not facts.names_no_framework:
        return facts
    seen: set[str] = set()
    waiting = set(facts.imports)
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.pop()
        seen.add(name)
        for file in (Path(directory, f"{name}.py"), Path(directory, name, "__init__.py")):
            with suppress(OSError, SyntaxError, ValueError):
                if file.stat().st_size <= _LARGEST_SOURCE:
                    with tokenize.open(file) as module:
                        found = facts_of_script(module.read()).imports
                    facts = replace(facts, imports=facts.imports | found)
                    waiting |= found - seen
        if not facts.names_no_framework:
            break
    return facts


@contextmanager
def prepared_for(facts: ScriptFacts, recorded: SessionOptions | None = None) -> Iterator[None]:
    """While the block runs, provide what a program that requests dumps needs: the drop-in packages, names, intercepted sessions.

    If `recorded` is given, its sessions are dumped as they request; the caller ends the recordings (`finish`).
    """
    if not facts.asks_for_dumps:
        yield
        return
    _prepare_on_import(facts)
    for name in facts.drop_ins:
        importlib.import_module(f"opdump.{name}").install()
    if recorded is not None:
        install_on_import(recorded)
    try:
        yield
    finally:
        for name in facts.drop_ins:
            importlib.import_module(f"opdump.{name}").uninstall()


def prepare_main() -> None:
    """Provide the names that `opdump run` would provide, for the program that runs in this process."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or not os.path.isfile(file):
        return
    with tokenize.open(file) as source:
        facts = facts_of_script(source.read())
    if not facts.asks_for_dumps:
        return
    _prepare_on_import(facts)


def _prepare_on_import(facts: ScriptFacts) -> None:
    if "tensorflow" in sys.modules:
        _prepare(facts)
    else:
        after_import("tensorflow", lambda _: _prepare(facts))


def _prepare(facts: ScriptFacts) -> None:
    names = adapter_module("estimator")
    names.give_v1_names()
    if facts.is_tensorflow_1:
        names.use_version_1()
