"""The report of a run whose processes outlive its program: Python waits for them when the interpreter ends, and so does the
report.

Pools of `concurrent.futures` and joblib, and processes that were not joined, continue after the last line of a program.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_OK
from opdump.commands.ending import print_error, print_reports
from opdump.errors import IncompleteCaptureError

if TYPE_CHECKING:
    from opdump.capturing.dump import Dump


class LastWord:
    """Prints the report of a capture after everything else in this process has ended.

    Create it before the program is loaded: handlers registered first are called last, after multiprocessing has waited for its
    processes.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._say: Callable[[], int] = lambda: EXIT_OK
        self._ended_well = False
        atexit.register(self._call)

    def leave_to_it(self, say: Callable[[], int], *, ended_well: bool) -> None:
        """Set what runs at the end. `say` returns an exit code, which is used if the program `ended_well`."""
        self._say, self._ended_well = say, ended_well

    def _call(self) -> None:
        if os.getpid() != self._process:
            return
        code = self._say()
        if code and self._ended_well:
            end_with(code)


def tell_at_last(dump: Dump, *, rank: int | None, as_json: bool, strict: bool) -> int:
    """Print the report of a capture whose processes have ended; returns the exit code."""
    report = dump.look_again()
    code = EXIT_INCOMPLETE if report.failure else EXIT_OK
    if strict:
        try:
            report.raise_for_gaps()
        except IncompleteCaptureError as error:
            print_error(error, sys.__excepthook__)
            code = EXIT_ERROR
    print_reports([report], rank=rank, as_json=as_json)
    return code


def end_with(code: int) -> None:
    """Flush the output streams and end the process at once."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
