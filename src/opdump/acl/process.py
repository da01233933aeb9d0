"""The state of a process: whether it is initialised, the current configuration, models, memory, handles.

One configuration is current at a time, and a model keeps the one under which it was loaded. See docs/acl.md#order-of-the-calls.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdump.acl.codes import Code
from opdump.acl.delivery import CallbackWriter, Delivery
from opdump.acl.failures import LOG, CallError
from opdump.acl.handles import Handles
from opdump.acl.memory import Memory
from opdump.acl.model_info import ModelInfo
from opdump.acl.reports import Reports
from opdump.configs.acl.keys import read_acl_file
from opdump.configs.acl.plan import plan_from_environment, plan_of_nothing
from opdump.configs.dialects import resolve_plan
from opdump.configs.shared.directories import beside_program
from opdump.errors import OpdumpError
from opdump.onnx.recording import ModelRecording
from opdump.plan import DumpPlan

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.session import OnnxSession


from opdump.acl.handles import Context


class Contexts:
    """The contexts of a process. The first `set_device` creates the default context of the device; later calls return it."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._of_thread = threading.local()
        self._default: int | None = None

    def create(self, device_id: int) -> int:
        """A new context, which becomes the current one of the calling thread."""
        context = self._handles.add(Context(device_id))
        self._of_thread.context = context
        return context

    def use(self, context: int, where: str) -> None:
        self._handles.get(context, Context, where)
        self._of_thread.context = context

    def current(self, where: str) -> int:
        """The current context. Raises CallError (107002) if the thread has none, or if it was destroyed."""
        context: int | None = getattr(self._of_thread, "context", None)
        if context is None or not self._handles.has(context, Context):
            raise CallError(
                Code.CONTEXT_NULL,
                f"{where}: this thread has no context; call acl.rt.set_device, or acl.rt.set_context with that of another thread",
                is_answer=True,
            )
        return context

    def use_default(self, device_id: int) -> None:
        if self._default is None:
            self._default = self._handles.add(Context(device_id))
        self._of_thread.context = self._default

    def destroy(self, context: int, where: str) -> None:
        self._handles.remove(context, Context, where)
        if context == self._default:
            self._default = None

    def reset(self) -> None:
        """Destroy the default context, if there is one."""
        if self._default is not None:
            self.destroy(self._default, "acl.rt.reset_device")


@dataclass(slots=True)
class LoadedModel:
    """A model and the dump that it belongs to."""

    model_id: int
    session: OnnxSession
    recording: ModelRecording
    _info: ModelInfo | None = None
    gear: int | None = None
    """The gear that was last set."""
    output_dims: list[tuple[int, ...]] | None = None
    """The output shapes of the last run."""
    gear_of_run: int | None = None

    @property
    def info(self) -> ModelInfo:
        """Inputs, outputs and gears; single operators have none."""
        assert self._info is not None, "it was loaded as a model"
        return self._info

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """The outputs of one inference, which is dumped until `finalize_dump`."""
        if self.recording.report is not None:
            return self.session.run_plain(None, feeds)
        return self.recording.run(self.model_id, None, feeds)


@dataclass(slots=True)
class Process:
    """The state behind the calls. A process has one."""

    references: int = 0
    """Number of `init` calls without a `finalize`."""
    is_dump_started: bool = False
    """Between `init_dump` and `finalize_dump`."""
    first_config: bytes | None = None
    recording: ModelRecording | None = None
    """The dump of models that are loaded from now on; None without a configuration."""
    unconfigured: ModelRecording | None = None
    """The recording of models that were loaded without a configuration: it dumps nothing."""
    refused: str = ""
    """Why the latest `set_dump` since `init_dump` was rejected."""
    recordings: list[ModelRecording] = field(default_factory=list)
    models: dict[int, LoadedModel] = field(default_factory=dict)
    operators: dict[Any, LoadedModel] = field(default_factory=dict)
    """Models of single operators, by recording and signature."""
    library: list[Any] = field(default_factory=list)
    """Models of single operators that the program has loaded."""
    is_writing_args: bool = False
    device_id: int = 0
    memory: Memory = field(default_factory=Memory)
    handles: Handles = field(default_factory=Handles)
    contexts: Contexts = field(init=False)
    reports: Reports = field(default_factory=Reports)
    delivery: Delivery = field(default_factory=Delivery)
    lock: Any = field(default_factory=threading.RLock)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.contexts = Contexts(self.handles)

    def init(self, path: str | os.PathLike[str] | None) -> None:
        with self.lock:
            if self.references:
                self.references += 1
                raise CallError(
                    Code.REPEAT_INITIALIZE, "acl.init: it was called before; one more acl.finalize is needed now"
                )
            path = beside_program(path) if path else path
            content = read_acl_file(path) if path else b""
            if path and self.first_config is not None and content != self.first_config:
                raise CallError(
                    Code.INVALID_PARAM,
                    f"acl.init: {os.fspath(path)!r} has another content than the first configuration of this process; "
                    "use acl.mdl.init_dump and acl.mdl.set_dump, or another process",
                )
            plan = resolve_plan(path, dialect="acl") if path else None
            if plan is None or plan.enables_nothing:
                plan = plan_from_environment(os.environ) or plan
            self._switch_to(plan)
            self.references = 1
            if path:
                self.first_config = content

    def finalize(self) -> None:
        with self.lock:
            if not self.references:
                raise CallError(Code.REPEAT_FINALIZE, "acl.finalize: it was called once more than acl.init")
            self.references -= 1
            if not self.references:
                self.is_dump_started = False
                self._close_recordings(lambda _: True)
                for model_id in list(self.models):
                    self.unload(model_id)
                self.library.clear()

    def init_dump(self) -> None:
        with self.lock:
            self.must_be_initialised("acl.mdl.init_dump")
            if self.is_dump_started:
                raise CallError(
                    Code.REPEAT_INITIALIZE, "acl.mdl.init_dump: it was called before; call acl.mdl.finalize_dump first"
                )
            self.is_dump_started = True

    def set_dump(self, path: str | os.PathLike[str] | None) -> None:
        with self.lock:
            self._must_be_dumping("acl.mdl.set_dump")
            if path is None:
                raise CallError(Code.INVALID_PARAM, "acl.mdl.set_dump: found None, expected the path of an acl.json")
            try:
                plan = resolve_plan(beside_program(path), dialect="acl")
            except OpdumpError as error:
                self.refused = str(error)
                raise
            self.refused = ""
            self._switch_to(plan)

    def finalize_dump(self) -> None:
        with self.lock:
            self._must_be_dumping("acl.mdl.finalize_dump")
            self.is_dump_started = False
            self._close_recordings(lambda recording: not _stays_on(recording))
            self.refused = ""

    def load(self, source: Any, where: str) -> int:
        """Load a model under the current configuration, and return its number."""
        with self.lock:
            self.must_be_initialised(where)
            recording = self._recording_in_force()
            model_id: int = next(self._ids)
            session = recording.load(source, model_id)
            try:
                info = ModelInfo(session.model, session.inputs, session.outputs, where)
            except CallError:
                recording.unload(model_id)
                raise
            self.models[model_id] = LoadedModel(model_id, session, recording, info)
            return model_id

    def model(self, model_id: Any, where: str) -> LoadedModel:
        found = self.models.get(model_id) if isinstance(model_id, int) else None
        if found is None:
            loaded = ", ".join(map(str, self.models)) or "none"
            raise CallError(Code.INVALID_MODEL_ID, f"{where}: no model {model_id!r} is loaded; loaded: {loaded}")
        return found

    def unload(self, model_id: int) -> None:
        with self.lock:
            model = self.model(model_id, "acl.mdl.unload")
            del self.models[model_id]
            model.recording.unload(model_id)
            model.session.close()

    def single_operator(self, signature: Any, make: Callable[[], Any]) -> LoadedModel:
        """The model of a single operator under the current configuration, created on first use."""
        with self.lock:
            recording = self._recording_in_force()
            key = (id(recording), signature)
            loaded = self.operators.get(key)
            if loaded is None:
                number = -1 - len(self.operators)
                session = recording.load(make(), number, is_single_operator=True)
                loaded = self.operators[key] = LoadedModel(number, session, recording)
            return loaded

    def must_be_initialised(self, where: str) -> None:
        if not self.references:
            raise CallError(Code.UNINITIALIZE, f"{where}: call acl.init first")

    def _must_be_dumping(self, where: str) -> None:
        self.must_be_initialised(where)
        if not self.is_dump_started:
            raise CallError(Code.DUMP_NOT_RUN, f"{where}: call acl.mdl.init_dump first")

    def _switch_to(self, plan: DumpPlan | None) -> None:
        """Load models under this plan from now on. Loaded models keep theirs."""
        if plan is None:
            self.recording = None
            return
        for text in plan.warnings:
            LOG.warning("%s", text)
        self.recording = self._open(plan)

    def _open(self, plan: DumpPlan) -> ModelRecording:
        recording = ModelRecording(
            plan,
            open_it=lambda plan, run: CallbackWriter(plan, run, self.delivery),
            may_write=lambda: not self.delivery.is_on,
        )
        self.recordings.append(recording)
        return recording

    def _recording_in_force(self) -> ModelRecording:
        if self.recording is None:
            self.recording = self.unconfigured = self._open(plan_of_nothing(Path()))
        return self.recording

    def _close_recordings(self, ends: Callable[[ModelRecording], bool]) -> None:
        ending = [recording for recording in self.recordings if ends(recording)]
        self.recordings = [recording for recording in self.recordings if not ends(recording)]
        if self.recording in ending:
            self.recording = None
        for key, operator in list(self.operators.items()):
            if operator.recording in ending:
                del self.operators[key]
                operator.recording.unload(operator.model_id)
        for recording in ending:
            report = recording.close()
            for warning in report.warnings:
                LOG.warning("%s", warning)
            if recording is self.unconfigured:
                if self.refused and recording.recorder.circumstances.models_seen:
                    LOG.warning(
                        "nothing was captured: acl.mdl.set_dump refused its file, and no other is in force: %s",
                        self.refused,
                    )
                continue
            nothing = report.nothing
            if nothing is not None and nothing.is_gap and recording.recorder.circumstances.models_seen:
                LOG.warning("nothing was captured: %s", nothing.reason)


def _stays_on(recording: ModelRecording) -> bool:
    """Whether no call switches it off: the detailed dump of failing operators."""
    return recording.plan.mode.failures_only and recording.plan.exception_detail == "detail"


class _Current:
    """Holds the state of this process."""

    def __init__(self) -> None:
        self.process = Process()


# The calls of a C library have no object to belong to.
_CURRENT: Final = _Current()


def process() -> Process:
    """The state of this process."""
    return _CURRENT.process


def start_anew() -> None:
    """Reset the state, as if the process had just begun. Earlier memory and handles become unknown."""
    old = _CURRENT.process
    while old.references:
        old.finalize()
    _CURRENT.process = Process()
