"""The layouts of dumps, by the names that plans give them: opdump's own, and those that installed packages add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from opdump.extensions import Registry
from opdump.layouts.base import Layout, RankWriter
from opdump.plan import layouts

if TYPE_CHECKING:
    from opdump.index.writer import RunFacts
    from opdump.plan import DumpPlan

LAYOUTS: Final = cast(Registry[Layout], layouts.LAYOUTS)
"""The registry whose names plans are checked by, with all that a layout has."""


def open_writer(plan: DumpPlan, run: RunFacts) -> RankWriter:
    """A writer in the layout of the plan."""
    return LAYOUTS.load(plan.layout).open_writer(plan, run)
