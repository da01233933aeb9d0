"""The state of a process: whether it is initialised, the current configuration, models, memory, handles, callbacks.

One configuration is current at a time, and a model keeps the one under which it was loaded. See docs/acl.md#order-of-the-calls.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdump.acl.handles import LOG, CallError, Code, Context, Handles, ModelInfo, Stream
from opdump.acl.memory import Memory
from opdump.configs.acl_keys import read_acl_file
from opdump.configs.acl_plan import plan_from_environment, plan_of_nothing
from opdump.configs.dialects import resolve_plan
from opdump.configs.plan_fields import beside_program
from opdump.errors import OpdumpError
from opdump.index.writer import RunFacts
from opdump.layouts.ascend.writer import AscendWriter
from opdump.onnx.recording import ModelRecording
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason
from opdump.sink import DirectorySink
from opdump.sink.directory import Buffer

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.session import OnnxSession

# Runs the callbacks of a stream in the thread that has subscribed to the stream, when the thread polls for them.

_BETWEEN_LOOKS: Final = 0.1
FOREVER: Final = -1


@dataclass(frozen=True, slots=True)
class _Callback:
    function: Callable[[Any], object]
    data: Any
    stream: int


class Reports:
    """The subscriptions of threads to streams, and the callbacks that have not run yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._subscribers: dict[int, int] = {}
        """Thread by stream."""
        self._waiting: dict[int, deque[_Callback]] = {}
        """Callbacks by thread."""
        self._undone: Counter[int] = Counter()
        """The number of callbacks of a stream that have not finished."""

    def subscribe(self, thread: int, stream: int) -> None:
        with self._changed:
            if stream in self._subscribers:
                raise CallError(
                    Code.STREAM_SUBSCRIBE,
                    f"thread {self._subscribers[stream]} has subscribed to this stream; call acl.rt.unsubscribe_report "
                    "first",
                )
            self._subscribers[stream] = thread
            self._waiting.setdefault(thread, deque())
            self._changed.notify_all()

    def unsubscribe(self, thread: int, stream: int) -> None:
        with self._changed:
            if self._subscribers.get(stream) != thread:
                raise CallError(Code.STREAM_SUBSCRIBE, f"thread {thread!r} has not subscribed to this stream")
            del self._subscribers[stream]
            if thread not in self._subscribers.values() and not self._waiting[thread]:
                del self._waiting[thread]

    def launch(self, function: Callable[[Any], object], data: Any, stream: int) -> None:
        with self._changed:
            thread = self._subscribers.get(stream)
            if thread is None:
                raise CallError(
                    Code.STREAM_NO_CALLBACK,
                    "no thread has subscribed to this stream; call acl.rt.subscribe_report(thread, stream) first",
                )
            self._waiting[thread].append(_Callback(function, data, stream))
            self._undone[stream] += 1
            self._changed.notify_all()

    def process(self, timeout: int) -> None:
        """Run the callbacks that wait for the calling thread; if there are none, wait for some.

        An exception of a callback leaves this call. Raises CallError if none arrived within `timeout` milliseconds.
        """
        own = threading.get_ident()
        deadline = None if timeout == FOREVER else time.monotonic() + timeout / 1000
        with self._changed:
            while not self._waiting.get(own):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    if own in self._waiting:
                        raise CallError(Code.REPORT_TIMEOUT, f"no callback arrived within {timeout} ms", is_answer=True)
                    raise CallError(
                        Code.THREAD_SUBSCRIBE,
                        f"this thread ({own}) has subscribed to no stream; call acl.rt.subscribe_report with its number",
                        is_answer=True,
                    )
                self._changed.wait(left)
            callbacks = self._waiting[own]
        while callbacks:
            callback = callbacks.popleft()
            try:
                callback.function(callback.data)
            finally:
                with self._changed:
                    self._undone[callback.stream] -= 1
                    self._changed.notify_all()

    def has_undone(self, stream: int) -> bool:
        return self._undone[stream] > 0

    def wait(self, stream: int | None, timeout: int = FOREVER) -> None:
        """Return when the callbacks of a stream, or of all, have run.

        Raises CallError if that can never happen, and if it did not happen within `timeout` milliseconds.
        """
        deadline = None if timeout == FOREVER else time.monotonic() + timeout / 1000
        with self._changed:
            while left := {each for each in self._undone if self._undone[each] > 0 and stream in (None, each)}:
                for each in left:
                    self._must_be_running(each)
                if deadline is not None and time.monotonic() >= deadline:
                    raise CallError(
                        Code.STREAM_SYNC_TIMEOUT,
                        f"the callbacks did not run within {timeout} ms; the thread may be busy",
                    )
                self._changed.wait(_BETWEEN_LOOKS)

    def _must_be_running(self, stream: int) -> None:
        thread = self._subscribers.get(stream)
        if thread == threading.get_ident():
            raise CallError(
                Code.REPORT_TIMEOUT,
                "this thread itself runs the callbacks of the stream; call acl.rt.process_report, or wait in another",
            )
        if thread is None or all(each.ident != thread for each in threading.enumerate()):
            raise CallError(
                Code.REPORT_TIMEOUT,
                f"callbacks wait for thread {thread}, which has ended or unsubscribed; let it call "
                "acl.rt.process_report until the stream is done",
            )


# Delivers dumps to a callback: while one is registered, it receives each chunk, and nothing is written to disk
# (docs/acl.md#the-dump-in-memory).

_HEADER: Final = struct.Struct("<4096sIIqi")
APPEND: Final = -1
_LARGEST_CHUNK: Final = 2**27
"""Files are passed in pieces of 128 MiB, as devices write them."""


@dataclass(frozen=True, slots=True)
class DumpChunk:
    """A piece of a file. `offset` is its position in the file; -1 appends it.

    `bytes(chunk)` is the C struct: the file's path in 4096 bytes, the length of the data (32 bits), whether it is the last piece
    (32 bits), the offset (64 bits, signed), the flag (32 bits, signed), then the data without padding.
    """

    file_name: str
    data: bytes
    is_last_chunk: bool = True
    offset: int = 0
    flag: int = 0

    def __bytes__(self) -> bytes:
        name = self.file_name.encode("utf-8", "surrogateescape")[: 4096 - 1]
        return _HEADER.pack(name, len(self.data), self.is_last_chunk, self.offset, self.flag) + self.data

    def __len__(self) -> int:
        return _HEADER.size + len(self.data)

    @classmethod
    def from_bytes(cls, raw: bytes) -> DumpChunk:
        """The chunk in these bytes. Raises ValueError for fewer bytes than it announces."""
        if len(raw) < _HEADER.size:
            raise ValueError(f"a chunk has {_HEADER.size} bytes and its data, found {len(raw)} bytes")
        name, size, is_last, offset, flag = _HEADER.unpack_from(raw)
        data = raw[_HEADER.size : _HEADER.size + size]
        if len(data) != size:
            raise ValueError(f"expected a chunk with {size} bytes of data, found {len(data)}")
        return cls(name.rstrip(b"\0").decode("utf-8", "surrogateescape"), data, bool(is_last), offset, flag)


Callback = Callable[[DumpChunk, int], int | None]
"""Called with a chunk and the length of its struct; returns 0 or None if it accepted it."""


class Delivery:
    """The callback of a process, if one is registered."""

    def __init__(self) -> None:
        self._callback: Callback | None = None

    @property
    def is_on(self) -> bool:
        return self._callback is not None

    def register(self, callback: Callback | None, flag: int) -> None:
        """A second registration is ignored. Raises CallError for an object that is not callable, and for a flag that is not 0."""
        if not callable(callback) or flag != 0:
            raise CallError(Code.FAILURE, f"found {callback!r} and flag {flag!r}, expected a function and the flag 0")
        if self._callback is None:
            self._callback = callback

    def unregister(self) -> None:
        self._callback = None

    def send(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Pass a file to the callback. Exceptions and rejections of the callback are logged: a dump never ends the run."""
        callback = self._callback
        if callback is None:
            return
        for start in range(0, max(len(data), 1), _LARGEST_CHUNK):
            piece = data[start : start + _LARGEST_CHUNK]
            last = start + len(piece) >= len(data)
            chunk = DumpChunk(path, piece, is_last_chunk=last, offset=APPEND if append else start)
            try:
                answer = callback(chunk, len(chunk))
            except Exception:  # noqa: BLE001  it is the program's own function, and its run continues
                LOG.exception("the dump callback failed; %s is lost", path)
                return
            if answer:
                LOG.error("the dump callback returned %r; %s is lost", answer, path)
                return


class DeliveringSink(DirectorySink):
    """A directory whose files go to a callback while one is registered."""

    def __init__(self, root: Path, delivery: Delivery) -> None:
        super().__init__(root, file_mode=0o600, lazy=True)
        self._delivery = delivery

    def write_parts(self, relative: str, parts: Sequence[Buffer]) -> None:
        if not self._delivery.is_on:
            super().write_parts(relative, parts)
            return
        data = b"".join(bytes(part) for part in parts)
        # Text is passed with a terminating zero byte.
        self._delivery.send(f"{self.root}/{relative}", data + b"\0" if relative.endswith(".csv") else data)

    def write_small(self, files: Sequence[tuple[str, bytes]]) -> None:
        if not self._delivery.is_on:
            super().write_small(files)
            return
        for relative, data in files:
            self.write_parts(relative, [data])


class CallbackWriter(AscendWriter):
    """Writes dumps of models to disk, or passes them to the callback."""

    def __init__(self, plan: DumpPlan, run: RunFacts, delivery: Delivery) -> None:
        super().__init__(plan, run)
        self.sink = DeliveringSink(self.root, delivery)
        self._delivery = delivery

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        if not self._delivery.is_on:
            super().write_step(step, ops, tensors, files, counted)
        elif self.plan.saves_statistics:
            self._write_statistics(tensors)

    def _begin(self, op: OpRecord) -> None:
        if not self._delivery.is_on:
            super()._begin(op)

    def _append(self, relative: str, line: str) -> None:
        if self._delivery.is_on:
            self._delivery.send(f"{self.root}/{relative}", line.encode(), append=True)
        else:
            super()._append(relative, line)

    def _claim(self, above: str) -> None:
        if self._delivery.is_on:
            self._time = self.time  # nothing is on disk that another run could collide with
        else:
            super()._claim(above)

    def _protect(self, relative: str) -> None:
        if not self._delivery.is_on:
            super()._protect(relative)


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

    def use(self, context: int) -> None:
        self._handles.get(context, Context)
        self._of_thread.context = context

    def current(self) -> int:
        """The current context. Raises CallError (107002) if the thread has none, or if it was destroyed."""
        context: int | None = getattr(self._of_thread, "context", None)
        if context is None or not self._handles.has(context, Context):
            raise CallError(
                Code.CONTEXT_NULL,
                "this thread has no context; call acl.rt.set_device, or acl.rt.set_context with that of another thread",
                is_answer=True,
            )
        return context

    def use_default(self, device_id: int) -> None:
        if self._default is None:
            self._default = self._handles.add(Context(device_id))
        self._of_thread.context = self._default

    def destroy(self, context: int) -> None:
        self._handles.remove(context, Context)
        if context == self._default:
            self._default = None

    def reset(self) -> None:
        """Destroy the default context, if there is one."""
        if self._default is not None:
            self.destroy(self._default)


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
                raise CallError(Code.REPEAT_INITIALIZE, "it was called before; it now needs one more acl.finalize")
            path = beside_program(path) if path else path
            content = read_acl_file(path) if path else b""
            if path and self.first_config is not None and content != self.first_config:
                raise CallError(
                    Code.INVALID_PARAM,
                    f"{os.fspath(path)!r} differs from the first configuration of this process; "
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
                raise CallError(Code.REPEAT_FINALIZE, "it was called more often than acl.init")
            self.references -= 1
            if not self.references:
                self.is_dump_started = False
                self._close_recordings(lambda _: True)
                for model_id in list(self.models):
                    self.unload(model_id)
                self.library.clear()

    def init_dump(self) -> None:
        with self.lock:
            self.must_be_initialised()
            if self.is_dump_started:
                raise CallError(Code.REPEAT_INITIALIZE, "it was called before; call acl.mdl.finalize_dump first")
            self.is_dump_started = True

    def set_dump(self, path: str | os.PathLike[str] | None) -> None:
        with self.lock:
            self._must_be_dumping()
            if path is None:
                raise CallError(Code.INVALID_PARAM, "found None, expected the path of an acl.json")
            try:
                plan = resolve_plan(beside_program(path), dialect="acl")
            except OpdumpError as error:
                self.refused = str(error)
                raise
            self.refused = ""
            self._switch_to(plan)

    def finalize_dump(self) -> None:
        with self.lock:
            self._must_be_dumping()
            self.is_dump_started = False
            self._close_recordings(lambda recording: not _stays_on(recording))
            self.refused = ""

    def load(self, source: Any) -> int:
        """Load a model under the current configuration, and return its number."""
        with self.lock:
            self.must_be_initialised()
            recording = self._recording_in_force()
            model_id: int = next(self._ids)
            session = recording.load(source, model_id)
            try:
                info = ModelInfo(session.model, session.inputs, session.outputs)
            except CallError:
                recording.unload(model_id)
                raise
            self.models[model_id] = LoadedModel(model_id, session, recording, info)
            return model_id

    def model(self, model_id: Any) -> LoadedModel:
        found = self.models.get(model_id) if isinstance(model_id, int) else None
        if found is None:
            loaded = ", ".join(map(str, self.models)) or "none"
            raise CallError(Code.INVALID_MODEL_ID, f"no model {model_id!r} is loaded; loaded: {loaded}")
        return found

    def unload(self, model_id: int) -> None:
        with self.lock:
            model = self.model(model_id)
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

    def check_stream(self, stream: int) -> None:
        """Raises CallError for an invalid stream. Stream 0 is the default one."""
        if stream != 0:
            self.handles.get(stream, Stream)

    def must_be_initialised(self) -> None:
        if not self.references:
            raise CallError(Code.UNINITIALIZE, "call acl.init first")

    def _must_be_dumping(self) -> None:
        self.must_be_initialised()
        if not self.is_dump_started:
            raise CallError(Code.DUMP_NOT_RUN, "call acl.mdl.init_dump first")

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
            self._close(recording)

    def _close(self, recording: ModelRecording) -> None:
        """Close a recording, and log its warnings and why it has nothing although a model was loaded."""
        report = recording.close()
        for warning in report.warnings:
            LOG.warning("%s", warning)
        if not recording.recorder.circumstances.models_seen:
            return
        if recording is not self.unconfigured:
            if report.nothing is not None and report.nothing.is_gap:
                LOG.warning("nothing was captured: %s", report.nothing.reason)
        elif self.refused:
            LOG.warning(
                "nothing was captured: acl.mdl.set_dump rejected its file, and no other is active: %s", self.refused
            )


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
