"""Prints the findings of the checks that ran with a program, on standard error, in the same tables as `opdump check`."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from opdump.checks.histories import Checked
from opdump.reports.findings import print_findings
from opdump.reports.table import Printer

_ROWS: Final = 20
"""Rows per table; `--json` has all of them."""


def print_checked(checked: Checked, *, path: str, rank: int | None) -> None:
    """Print the findings. `rank` is named if several processes ran."""
    if not checked.tensors and not checked.problems:
        return  # the completeness line says why nothing was captured
    where = "opdump" if rank is None else f"opdump rank {rank}"
    printer = Printer(sys.stderr)
    printer.text(f"{where}: what the checks found:")
    of_rank = "" if rank is None else f" --rank {rank}"
    shows_all = f"opdump check {shlex.quote(path)}{of_rank} --limit 0"
    print_findings(printer, checked, limit=_ROWS, folds=True, shows_all=shows_all)
    for problem in checked.problems:
        printer.text(f"{where}: problem: {problem}")
