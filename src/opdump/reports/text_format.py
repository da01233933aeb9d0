"""Reports as text: tables that fit a terminal, and are whole in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdump.reports.dump_tables import (
    print_details,
    print_earlier_runs,
    print_graph_search,
    print_operators,
    print_runs,
    print_steps,
)
from opdump.reports.formats import DumpReport, FindingsReport
from opdump.reports.shown_part import selected
from opdump.reports.table import Printer

if TYPE_CHECKING:
    from opdump.conversion.overflow import OverflowSearch


class TextFormat:
    """The default format."""

    rows = 20
    tells_failures = False

    def dump(self, report: DumpReport, *, wide: bool) -> None:
        printer = Printer(wide=wide)
        part, catalog = report.part, report.catalog
        if report.watched is not None:
            from opdump.reports.watch import print_watch

            print_watch(printer, report.watched, limit=part.limit)
            return
        executions = selected(catalog, part)
        if part.op is not None or part.source is not None:
            print_details(printer, catalog, executions, report.damaged, limit=part.limit)
        else:
            print_runs(printer, catalog)
            if report.run == "latest":
                print_earlier_runs(printer, catalog)
            printer.text()
            print_graph_search(printer, report.search)
            marked = report.search.marked if report.search is not None else frozenset()
            if part.step is None:
                print_steps(printer, catalog, rank=part.rank, limit=part.limit, marked=marked)
                printer.text()
            print_operators(printer, executions, report.damaged, limit=part.limit)
        printer.tell_left_out()

    def findings(self, report: FindingsReport, *, wide: bool) -> None:
        from opdump.reports.findings import print_findings  # imports all checks, which `show` does not need

        print_findings(Printer(wide=wide), report.checked, limit=report.limit)

    def overflows(self, search: OverflowSearch, *, wide: bool) -> None:
        from opdump.reports.overflows import print_overflows

        print_overflows(search, wide=wide)


TEXT = TextFormat()
