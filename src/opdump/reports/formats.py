"""The formats of reports, by name: text and JSON, and those that installed packages add (group `opdump.reports`).

    FORMATS.load("text").dump(report, wide=False)       what `opdump show --format text` prints

A format is an object with a method for each report. It writes to standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from opdump.extensions import Registry

if TYPE_CHECKING:
    from opdump.catalog.catalog import Catalog
    from opdump.checks.nonfinite_lineage import Checked
    from opdump.conversion.overflow import OverflowSearch
    from opdump.index.runs import RunChoice
    from opdump.reports.computational_graph import GraphSearch
    from opdump.reports.shown_part import ShownPart
    from opdump.reports.watch import WatchedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReport:
    """What `opdump show` prints. A `part.limit` of 0 means all rows."""

    catalog: Catalog
    part: ShownPart
    damaged: list[str]
    """Receives the messages about unreadable files."""
    run: RunChoice = "latest"
    search: GraphSearch | None = None
    """Which model of the dump is the computational graph; None if no search was made."""
    watched: Sequence[WatchedOutput] | None = None
    """What wrote into watched memory, if only that is to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsReport:
    """What `opdump check` found."""

    catalog: Catalog
    checked: Checked
    limit: int


class ReportFormat(Protocol):
    """Prints reports. With `wide`, nothing is cut to the width of a terminal."""

    rows: int
    """Rows of a dump shown by default; 0 for all."""
    tells_failures: bool
    """Whether `overflows` reports unreadable files; otherwise they are reported on standard error."""

    def dump(self, report: DumpReport, *, wide: bool) -> None:
        """The content of a dump (`opdump show`)."""

    def findings(self, report: FindingsReport, *, wide: bool) -> None:
        """The findings in it (`opdump check`)."""

    def overflows(self, search: OverflowSearch, *, wide: bool) -> None:
        """The overflows on devices (`opdump overflow`)."""


FORMATS: Final[Registry[ReportFormat]] = Registry(
    "opdump.reports",
    {"text": "opdump.reports.text_format:TEXT", "json": "opdump.reports.json_format:JSON"},
)
