"""`opdump check`: finds suspicious values in a dump, and writes the configuration that records them in detail.

opdump check /data/dump
opdump check /data/dump --emit-config data_dump.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdump.commands import EXIT_USAGE
from opdump.commands.progress import format_options
from opdump.errors import OpdumpError
from opdump.interpreter.late_imports import imported_for_good

if TYPE_CHECKING:
    from opdump.catalog.catalog import Catalog
    from opdump.checks.nonfinite_lineage import Checked
    from opdump.configs.drilldown import SecondDialect
    from opdump.reports.formats import ReportFormat

EXIT_FOUND = 1
EXIT_NOT_CHECKED = EXIT_USAGE


@click.command(
    epilog="""\b
Examples:
  opdump check /data/dump                               NaN, Inf, overflow, zeros, extremes
  opdump check /data/dump --step 3 --json | jq .        one step, as JSON
  opdump check /data/dump --watch recommended           the conditions of MindSpore Insight
  opdump check /data/dump --watch "tensor_too_large abs_mean_gt=100"
  opdump check /data/dump --emit-config data_dump.json  then: opdump run -c data_dump.json ...

\b
Exit codes:
  0  nothing suspicious
  1  something suspicious was found
  2  wrong command line, PATH is not a dump, a file is damaged and the rest is
     clean, or the config cannot be written""",
)
@click.argument("path")
@click.option(
    "--watch",
    "watch",
    metavar="CONDITION",
    multiple=True,
    help="Check a watchpoint too, such as 'gradient_vanishing abs_mean_lt=1e-9', or 'recommended'. Repeatable.",
)
@click.option("--emit-config", metavar="FILE", help="Write a config that dumps only the suspicious operators.")
@click.option(
    "--dialect",
    type=click.Choice(["acl", "mindspore"]),
    help="Dialect of FILE.  [default: from its name, or that of the dump]",
)
@click.option("--path", "directory", metavar="DIR", help="Dump directory in FILE.  [default: that of this dump]")
@click.option("--rank", type=int, metavar="N", help="Only this rank.")
@click.option("--step", type=int, metavar="N", help="Only this step.")
@click.option(
    "--extreme",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    metavar="FRACTION",
    help="Report magnitudes above this fraction of the type's maximum.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of rows; 0 for all.",
)
@click.option("--wide", is_flag=True, help="Do not truncate to the terminal width.")
@format_options(json_help="Print JSON.")
def check(
    *,
    path: str,
    watch: tuple[str, ...],
    emit_config: str | None,
    dialect: SecondDialect | None,
    directory: str | None,
    rank: int | None,
    step: int | None,
    extreme: float,
    limit: int,
    wide: bool,
    report_format: ReportFormat,
) -> None:
    """Find NaN, infinities, overflow and other suspicious values in the dump in PATH."""
    if emit_config is None and (dialect is not None or directory is not None):
        raise click.UsageError("--dialect and --path only apply to --emit-config; add --emit-config FILE")
    try:
        code = _check(path, watch, emit_config, dialect, directory, rank, step, extreme, limit, wide, report_format)
    except OpdumpError as error:
        click.echo(f"opdump: error: {error}", err=True)
        code = EXIT_NOT_CHECKED
    sys.exit(code)


def _check(
    path: str,
    watch: tuple[str, ...],
    emit_config: str | None,
    dialect: SecondDialect | None,
    directory: str | None,
    rank: int | None,
    step: int | None,
    extreme: float,
    limit: int,
    wide: bool,
    report_format: ReportFormat,
) -> int:
    with imported_for_good("opdump.reports.findings"):
        from opdump.catalog.catalog import open_dump
        from opdump.checks import Thresholds
        from opdump.configs.watchpoints import watchpoints_of
        from opdump.degradation import left_out_at, told
        from opdump.errors import NotInDumpError
        from opdump.reports.findings import check_dump
        from opdump.reports.formats import FindingsReport

    watchpoints = watchpoints_of(watch)
    catalog = open_dump(path)
    if step is not None and step not in (catalog.steps if rank is None else catalog.steps_of(rank)):
        held = ", ".join(map(str, catalog.steps[:20])) or "none"
        why = next((f"; {found}" for run in catalog.runs if (found := left_out_at(step, run.degraded))), "")
        raise NotInDumpError(f"{path}: holds no step {step}; it holds {held}{why}")
    checked = check_dump(catalog, Thresholds(extreme=extreme), rank=rank, step=step, watchpoints=watchpoints)
    report_format.findings(FindingsReport(catalog=catalog, checked=checked, limit=limit), wide=wide)
    for problem in checked.problems:
        click.echo(f"opdump: problem: {problem}", err=True)
    _tell_unfinished(catalog, rank)
    for run in catalog.runs:
        if run.degraded and rank in (None, run.rank_id):
            click.echo(f"opdump: warning: rank {run.rank_id}, run {run.id}: {told(run.degraded)}", err=True)
    if emit_config is not None:
        _emit(catalog, checked, Path(emit_config), dialect, directory)
    return EXIT_FOUND if not checked.is_clean else EXIT_NOT_CHECKED if checked.problems else 0


def _tell_unfinished(catalog: Catalog, rank: int | None) -> None:
    """Warn about ranks whose last run did not end: each recorded step may be complete although later ones are missing."""
    last = {run.rank_id: run for run in catalog.runs}  # sorted by time
    unfinished = [
        number
        for number, run in last.items()
        if rank in (None, number) and run.opdump_version and not run.complete and not run.end_unknown
    ]
    if unfinished:
        ranks = ", ".join(map(str, unfinished[:8])) + (", ..." if len(unfinished) > 8 else "")
        steps = [step for number in unfinished for step in catalog.steps_of(number)]
        until = (
            f"the steps recorded so far were checked, up to step {max(steps)}" if steps else "no step is recorded yet"
        )
        click.echo(
            f"opdump: warning: rank {ranks}: the run was interrupted or is still running; {until}",
            err=True,
        )


def _emit(catalog: Catalog, checked: Checked, file: Path, dialect: SecondDialect | None, directory: str | None) -> None:
    from opdump.configs.drilldown import SelectedOperator, drilldown_config
    from opdump.errors import ConfigError
    from opdump.reports.findings import dump_path, first_config

    if not checked.findings:
        click.echo(f"opdump: nothing was found, so {file} was not written", err=True)
        return
    if file.suffix != ".json":
        raise ConfigError(f"invalid json file name: {str(file)!r}; it must end in .json, write {file}.json")
    # An operator that only passes values on explains nothing; the source of its input does.
    found = [each for each in checked.findings if each.op_name]
    suspicious = [each for each in found if not each.inherited] or found
    suspects = [SelectedOperator(each.op_name, each.net_name, each.step) for each in suspicious]
    chosen = dialect or _dialect_of(catalog, file)
    text = drilldown_config(
        chosen,
        suspects,
        path=directory or dump_path(catalog),
        first=first_config(catalog),
        recorded_steps=catalog.steps,
    )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}; name a writable file") from error
    operators = len({each.op_name for each in suspects})
    noun = "operator" if operators == 1 else "operators"
    click.echo(f"opdump: wrote {file} ({operators:,} {noun}); next: opdump run -c {file} ...", err=True)


def _dialect_of(catalog: Catalog, file: Path) -> SecondDialect:
    name = file.name.lower()
    if "data_dump" in name:
        return "mindspore"
    if "acl" in name:
        return "acl"
    plans: list[Any] = [run.plan for run in catalog.runs if run.plan]
    is_acl = any(str(plan.get("layout", "")) == "acl" for plan in plans)
    # A dump without a stored configuration and without rank directories comes from a device.
    is_device = not plans and not any((catalog.path / part).is_dir() for part in (".dump_metadata", "rank_0"))
    return "acl" if is_acl or is_device else "mindspore"
