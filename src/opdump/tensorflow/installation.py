"""Examines the sessions of this process between `install` and `finish`."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdump.capturing.capture import start as start_capture
from opdump.capturing.capture import stop as stop_capture
from opdump.capturing.report import CaptureReport, log_report, told_elsewhere
from opdump.interpreter.first_import import after_import, forget_import
from opdump.interpreter.tracebacks import printed_as_the_programs
from opdump.plan import OnError
from opdump.plan.field_types import check_values
from opdump.tensorflow.recordings import Recordings, SessionOptions, adapter_module

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.sessions.interception import Interception
    from opdump.capturing.dump import Dump
    from opdump.configs.tensorflow.plan import TrainingDump


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
        interception = adapter_module("sessions.interception").Interception(
            recordings.capture_of, recordings.session_ended
        )
        interception.put_in()
        _STATE.around.enter_context(adapter_module("tracebacks").program_tracebacks())
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
