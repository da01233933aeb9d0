"""Sessions of this process are looked at from `install` to `finish`."""

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
    """What is in place in this process."""

    def __init__(self) -> None:
        self.recordings: Recordings | None = None
        self.interception: Interception | None = None
        self.around = ExitStack()
        """What errors show, as long as sessions are looked at."""
        self.started: Dump | None = None
        """What `start` began."""


# Sessions are made through one class a process, so there is one of these.
_STATE = _Installation()


def install(
    *,
    path: Path | None = None,
    stream_in_names: bool = False,
    streams: bool = False,
    on_error: OnError | None = None,
) -> None:
    """Has every session that is made from now on dumped as the entry NpuOptimizer of its config says.

    path             dump into this directory, whatever the configs say; it has to be there
    stream_in_names  five parts in the names of files, `{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}`, as newer
                     versions write them; four by default, without the stream
    streams          hand over tensors one by one while a step runs, so that memory stays bounded; slower
    on_error         where a dump cannot be written any more: "continue", the default, runs the program on without it; "stop" raises

    A second call changes nothing but the options of sessions to come. What was recorded is complete after `finish`, which the end of
    the process calls. Raises FrameworkMissingError without TensorFlow.
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
    """`install`, as soon as the program imports tensorflow: now where it has done so."""

    def now(_: Any = None) -> None:
        _install(options or SessionOptions())

    if "tensorflow" in sys.modules:
        now()
    else:
        after_import("tensorflow", now)


def finish() -> tuple[CaptureReport, ...]:
    """Ends what `install` and `start` began: everything is on disk afterwards. A report for each recording; none where none was asked for.

    Sessions that are open run on, and file nothing any more.
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
    """`finish`, with what the reports warn of in the log."""
    for report in finish():
        log_report(report)


def start(dump: TrainingDump) -> Dump | None:
    """Begins a capture of functions, Keras models, eager programs and sessions; None where `dump` asks for none."""
    if dump.plan is None:
        return None
    _STATE.started = start_capture(dump.plan, framework="tensorflow", device_id=dump.device_id)
    _STATE.started.when_ended = told_elsewhere  # by `stop`, or by who asks `finish` for the reports
    return _STATE.started


def stop() -> CaptureReport:
    """Ends what `start` began, and logs what its report warns of."""
    report = stop_capture()
    log_report(report)
    return report


atexit.register(uninstall)
