"""Processes that the program starts while it is captured, and the program that takes the place of this one (`os.exec`)."""

from __future__ import annotations

import os
from dataclasses import replace

from opdump.capturing.children import FAMILY_VARIABLE
from opdump.capturing.children.place import Place
from opdump.capturing.dump import Dump
from opdump.capturing.process_state import STATE
from opdump.interpreter.process_starts import Start, watch_starts


def follow_starts() -> None:
    """From now on the capture that runs is told of each process before it begins."""
    if not STATE.watches_starts:
        STATE.watches_starts = True
        watch_starts(_starts)


def _starts(start: Start) -> None:
    """A process is about to begin, or to take the place of this one."""
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
    """Whether the system would run it: who looks for a program in many places tries each."""
    return not file or (os.path.isfile(file) and os.access(file, os.X_OK))


def _end_before(start: Start, dump: Dump, place: Place) -> None:
    """Ends the capture of the first process, which becomes another program."""
    assert STATE.running is not None, "it has a dump"
    STATE.running.close()
    os.environ.pop(FAMILY_VARIABLE, None)
    place.family.end()
    if dump.report is not None:
        command = " ".join(start.command[:6]) + (" ..." if len(start.command) > 6 else "")
        text = (
            f"this process became another program (os.exec): {command}; what that runs is not in this report, and is captured as "
            "a run of its own where OPDUMP_START asks for it"
        )
        dump.report = replace(dump.report, warnings=(*dump.report.warnings, text))
        dump.when_replaced(dump.report)
