"""Runs a capture: opens its files, attaches the adapter, and closes both in reverse order.

It follows processes that the program starts, and ends if another program replaces this one (`os.exec`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from opdump.adapters.base import Adapter, DumpComplete, Settings
from opdump.capturing.children import FAMILY_VARIABLE
from opdump.capturing.children.place import Place
from opdump.capturing.dump import CaptureParts, Dump
from opdump.capturing.late_writer import LateWriter
from opdump.capturing.process_state import STATE
from opdump.capturing.recording import Recording
from opdump.capturing.triggers import triggers
from opdump.interpreter.process_starts import Start, watch_starts
from opdump.interpreter.tracebacks import printed_as_the_programs, strip
from opdump.plan import DumpPlan
from opdump.protobuf_messages import load_protobuf

_LOG = logging.getLogger("opdump")


@contextmanager
def running(adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Iterator[Dump]:
    """Run the capture of this process during the block."""
    _follow_starts()
    with ExitStack() as stack, _stripped_errors(), printed_as_the_programs():
        STATE.begin(stack)
        dump = _open(stack, adapter, plan, options, place)
        assert STATE.parts is not None, "it was opened"
        with (
            suppress(DumpComplete),
            triggers(STATE.parts.recording.recorder),
        ):  # DumpComplete: the program was asked to end here
            yield dump


@contextmanager
def _stripped_errors() -> Iterator[None]:
    """Remove opdump's frames from an error that leaves the block. It is printed after the end of the capture, when that is no longer possible."""
    try:
        yield
    except BaseException as error:
        strip(error)
        raise


def _open(stack: ExitStack, adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Dump:
    for text in plan.warnings:
        _LOG.warning("%s", text)
    recording = Recording(plan, options.rank_id, adapter, place.writer)
    if plan.max_disk is not None:
        recording.bytes_of_others = place.shared_bytes(recording.own_bytes).of_others
    writer = recording.writer
    if isinstance(writer, LateWriter):
        recording.recorder.wait_for_place(lambda: place.settled(writer))
    parts = CaptureParts(recording, place, options.marks)
    dump = Dump(parts, stack)
    load_protobuf()
    parts.controller = stack.enter_context(adapter.attach(recording.recorder, options))
    STATE.dump, STATE.parts = dump, parts
    return dump


def _follow_starts() -> None:
    """Notify the running capture of each process before it starts."""
    if not STATE.watches_starts:
        STATE.watches_starts = True
        watch_starts(_starts)


def _starts(start: Start) -> None:
    """Handle a process that is about to start or to replace this one."""
    dump, parts = STATE.dump, STATE.parts
    if dump is None or parts is None or os.getpid() != parts.process:
        return
    parts.place.starts(start)
    if start.kind != "replaced" or not _is_executable(start.file):
        return
    if STATE.end_child is not None:
        STATE.end_child()
    else:
        _end_before(start, dump, parts.place)


def _is_executable(file: str) -> bool:
    """Return whether the system would execute the file; a search for a program tries several paths."""
    return not file or (os.path.isfile(file) and os.access(file, os.X_OK))


def _end_before(start: Start, dump: Dump, place: Place) -> None:
    """End the capture of the first process, which is about to become another program."""
    assert STATE.running is not None, "it has a dump"
    STATE.running.close()
    os.environ.pop(FAMILY_VARIABLE, None)
    place.family.end()
    if dump.report is not None:
        command = " ".join(start.command[:6]) + (" ..." if len(start.command) > 6 else "")
        text = (
            f"this process became another program (os.exec): {command}; what that runs is not in this report, and is captured as "
            "a run of its own if OPDUMP_START asks for it"
        )
        dump.report = replace(dump.report, warnings=(*dump.report.warnings, text))
        dump.when_replaced(dump.report)
