"""Reports as JSON, in the shapes of docs/json/: NaN and infinities are strings."""

from __future__ import annotations

import click

from opdump.conversion.overflow import OverflowSearch
from opdump.reports.dump_json import dump_json
from opdump.reports.findings import findings_json
from opdump.reports.formats import DumpReport, FindingsReport
from opdump.reports.overflows import overflows_json
from opdump.reports.shown_part import each_selected
from opdump.reports.watch import watch_json


class JsonFormat:
    """For programs: all rows, never cut."""

    rows = 0
    tells_failures = True

    def dump(self, report: DumpReport, *, wide: bool) -> None:
        catalog, limit = report.catalog, report.part.limit
        if report.watched is not None:
            shown = report.watched[:limit] if limit else report.watched
            more = len(shown) < len(report.watched)
            lines = dump_json(catalog, (), limit=limit, watched=watch_json(shown), more=more, damaged=[])
        else:
            found = each_selected(catalog, report.part)
            lines = dump_json(catalog, found, limit=limit, run=report.run, search=report.search, damaged=report.damaged)
        for line in lines:
            click.echo(line)

    def findings(self, report: FindingsReport, *, wide: bool) -> None:
        click.echo(findings_json(report.catalog, report.checked))

    def overflows(self, search: OverflowSearch, *, wide: bool) -> None:
        click.echo(overflows_json(search))


JSON = JsonFormat()
