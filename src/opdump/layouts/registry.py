"""The layouts of dumps, by their names in plans: opdump's own, and those of installed packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from opdump.extensions import Registry
from opdump.layouts.base import Layout, RankWriter
from opdump.plan import layouts

if TYPE_CHECKING:
    from opdump.index.writer import RunFacts
    from opdump.plan import DumpPlan

LAYOUTS: Final = cast(Registry[Layout], layouts.LAYOUTS)
"""The registry that plans use to check names, with the complete layouts."""


def open_writer(plan: DumpPlan, run: RunFacts) -> RankWriter:
    """Open a writer in the layout of the plan."""
    return LAYOUTS.load(plan.layout).open_writer(plan, run)
