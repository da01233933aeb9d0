"""`opdump extensions`: lists the frameworks, layouts, statistics, checks and formats, opdump's own and those of installed
packages.

opdump extensions
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from opdump.commands import EXIT_ERROR


@click.command(
    epilog="""\b
Examples:
  opdump extensions                  all, with the packages that add them
  opdump extensions --json | jq .    as JSON

\b
Packages extend opdump by entry points; the first column shows their groups. The exit
code is 1 if an extension cannot be loaded. A framework that is not installed is
not an error.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def extensions(*, as_json: bool) -> None:
    """List frameworks, dialects, layouts, statistics, checks, metrics and report formats, and the packages that add them."""
    from opdump.adapters.registry import FRAMEWORKS
    from opdump.adapters.replay import REPLAYERS
    from opdump.checks.registry import CHECKS
    from opdump.checks.watchpoints import WATCHPOINTS
    from opdump.layouts.base import LAYOUTS
    from opdump.metrics import METRICS
    from opdump.plan.dialects import DIALECTS
    from opdump.reports.formats import FORMATS
    from opdump.statistics import STATISTICS

    registries = (FRAMEWORKS, DIALECTS, LAYOUTS, STATISTICS, CHECKS, WATCHPOINTS, METRICS, FORMATS, REPLAYERS)
    found = [each for registry in registries for each in registry.listed()]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        from opdump.reports.table import Column, Printer

        rows = [(each.group, each.name, each.package or "opdump", each.reason or "yes") for each in found]
        Printer().table([Column("group"), Column("name"), Column("of"), Column("can be loaded", gives_way=True)], rows)
    if any(each.reason and each.package for each in found):
        sys.exit(EXIT_ERROR)
