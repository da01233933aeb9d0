"""Sessions of this process are looked at from `install` to `finish`."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdump.session import CaptureReport
from opdump.tensorflow.on_import import after_import, forget_import
from opdump.tensorflow.recordings import Recordings, adapter_module

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.interception import Interception
    from opdump.configs.tensorflow import TrainingDump
    from opdump.session import Dump


class _Installation:
    """What is in place in this process."""

    def __init__(self) -> None:
        self.recordings: Recordings | None = None
        self.interception: Interception | None = None
        self.started: Dump | None = None
        """What `start` began."""


# Sessions are made through one class a process, so there is one of these.
_STATE = _Installation()


def install(*, path: Path | None = None, stream_in_names: bool = False, streams: bool = False) -> None:
    """Has every session that is made from now on dumped as the entry NpuOptimizer of its config says.

    path             dump into this directory, whatever the configs say; it has to be there
    stream_in_names  five parts in the names of files, `{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}`, as newer
                     versions write them; four by default, without the stream
    streams          hand over tensors one by one while a step runs, so that memory stays bounded; slower

    A second call changes nothing but the options of sessions to come. What was recorded is complete after `finish`, which the end of
    the process calls. Raises FrameworkMissingError without TensorFlow.
    """
    if _STATE.recordings is None:
        recordings = Recordings(os.environ)
        interception = adapter_module("interception").Interception(recordings.capture_of, recordings.session_ended)
        interception.put_in()
        _STATE.recordings, _STATE.interception = recordings, interception
    _STATE.recordings.path = path
    _STATE.recordings.stream_in_names, _STATE.recordings.streams = stream_in_names, streams


def install_on_import(*, path: Path | None = None, stream_in_names: bool = False, streams: bool = False) -> None:
    """`install`, as soon as the program imports tensorflow: now where it has done so."""

    def now(_: Any = None) -> None:
        install(path=path, stream_in_names=stream_in_names, streams=streams)

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
    recordings, started = _STATE.recordings, _STATE.started
    _STATE.interception = _STATE.recordings = _STATE.started = None
    reports = [] if recordings is None else recordings.close()
    if started is not None:
        reports.append(stop() if started.report is None else started.report)
    return tuple(reports)


def uninstall() -> None:
    """`finish`, without the reports."""
    finish()


def start(dump: TrainingDump) -> Dump | None:
    """Begins a capture of functions, Keras models, eager programs and sessions; None where `dump` asks for none."""
    from opdump.session import start as start_capture

    if dump.plan is None:
        return None
    _STATE.started = start_capture(dump.plan, framework="tensorflow", device_id=dump.device_id)
    return _STATE.started


def stop() -> CaptureReport:
    """Ends what `start` began."""
    from opdump.session import stop as stop_capture

    return stop_capture()


atexit.register(uninstall)
