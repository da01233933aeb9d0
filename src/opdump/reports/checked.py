"""What the checks found while a program ran: the same tables as those of `opdump check`, on standard error."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from opdump.checks.checked import Checked
from opdump.reports.findings import print_findings
from opdump.reports.table import Printer

_ROWS: Final = 20
"""Of each table; `--json` has all."""


def print_checked(checked: Checked, *, path: str, rank: int | None) -> None:
    """Print what was found; `rank` is named where several processes ran."""
    if not checked.tensors and not checked.problems:
        return  # why nothing was captured is said elsewhere
    where = "opdump" if rank is None else f"opdump rank {rank}"
    printer = Printer(sys.stderr)
    printer.text(f"{where}: what the checks found:")
    of_rank = "" if rank is None else f" --rank {rank}"
    shows_all = f"opdump check {shlex.quote(path)}{of_rank} --limit 0"
    print_findings(printer, checked, limit=_ROWS, folds=True, shows_all=shows_all)
    for problem in checked.problems:
        printer.text(f"{where}: problem: {problem}")
