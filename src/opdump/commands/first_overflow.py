"""The option `--first` of the commands that dump: of all operators that overflow, the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opdump.plan import DumpPlan


def first_option() -> Callable[[Any], Any]:
    """The option, for a command."""
    return click.option("--first", is_flag=True, help="In overflow mode, dump the first operator that overflows alone.")


def with_first(plan: DumpPlan, *, first: bool) -> DumpPlan:
    """The plan, which ends with the first overflow where `first` is given. Raises UsageError in another mode."""
    if not first:
        return plan
    if not plan.mode.detects_overflow:
        raise click.UsageError(
            '--first needs a config in overflow mode: "dump_debug": "on" in an acl.json, op_debug_mode 1 to 3 in a data_dump.json'
        )
    return replace(plan, overflow_number=1)
