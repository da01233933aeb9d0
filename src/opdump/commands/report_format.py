"""`--format NAME` and `--json` of the commands that print reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from opdump.interpreter.late_imports import imported_for_good


def format_options(*, json_help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options; the command receives the chosen format as `report_format`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--format",
            "format_name",
            metavar="NAME",
            help="text, json, or a format of an installed package.  [default: text]",
        )
        @click.option("--json", "as_json", is_flag=True, help=json_help)
        @functools.wraps(command)
        def with_format(*, format_name: str | None, as_json: bool, **given: Any) -> None:
            command(report_format=_format(format_name, as_json=as_json), **given)

        return with_format

    return decorate


def _format(name: str | None, *, as_json: bool) -> Any:
    from opdump.reports.formats import FORMATS

    if as_json and name not in (None, "json"):
        raise click.UsageError(f"--json means --format json, but --format {name} was given, too; remove one of them")
    name = "json" if as_json else name or "text"
    if name not in FORMATS:
        from opdump.plan.unmatched_names import with_nearest

        known = FORMATS.names()
        text = f"{name!r} is not a format; expected one of {', '.join(map(repr, known))}"
        raise click.BadParameter(with_nearest(text, name, known), param_hint="--format")
    with imported_for_good("opdump.catalog.catalog"):
        return FORMATS.load(name)
