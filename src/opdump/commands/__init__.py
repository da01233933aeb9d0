"""The command line: one file per command, imported when it is called.

`opdump --help` must answer at once, so this file imports only click and lists the commands in a table.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from opdump.errors import OpdumpError

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
"""The program succeeded but its dump is incomplete."""
EXIT_INTERRUPTED = 130


_VERBS = {
    "run": "Run a script or module and dump its operators.",
    "infer": "Run an ONNX model and dump its nodes.",
    "show": "Show the contents of a dump.",
    "check": "Find NaN, infinities and other suspicious values in a dump.",
    "compare": "Find the operator where two runs diverge.",
    "replay": "Run one operator of a dump again, on its recorded inputs.",
    "convert": "Convert dump files of Ascend devices.",
    "unpack": "Write the tensors of a packed dump to separate files.",
    "export": "Export statistics of a dump to a Parquet, Arrow or CSV table.",
    "complete": "Add statistics and an index to a dump that MindSpore wrote.",
    "overflow": "Show which operators overflowed on an Ascend device.",
    "extensions": "List frameworks, layouts and checks, and the packages that add them.",
    "config": "Create or check a data_dump.json, acl.json or npu_dump.json.",
}
_RUN_PROGRAMS = frozenset({"run", "infer"})


class _Verbs(click.Group):
    """A group that knows the names and one-line helps of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, which reports its progress from here on, unless a program owns the error output."""
        name, command, left = super().resolve_command(ctx, args)
        if name is not None and name not in _RUN_PROGRAMS:
            from opdump.commands.progress import signs_of_life

            ctx.with_resource(signs_of_life(name))
        return name, command, left

    def invoke(self, ctx: click.Context) -> Any:
        """Turn the errors that opdump raises on purpose into a message and exit code 1."""
        try:
            return super().invoke(ctx)
        except OpdumpError as error:
            click.echo(f"opdump: error: {error}", err=True)
            ctx.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("opdump")
    except PackageNotFoundError:  # a source tree on the path that was never installed
        found = "(not installed)"
    try:
        from opdump.kernels import active
    except OpdumpError as error:
        click.echo(f"opdump: error: {error}", err=True)
        ctx.exit(EXIT_ERROR)
    click.echo(f"opdump {found}, kernels: {active()}")
    ctx.exit()


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  opdump run train.py                         train, and report the first NaN
  opdump check /tmp/dump                      find suspicious values
  opdump infer resnet.onnx -c acl.json        run a model with a config
  opdump show /tmp/dump                       list the recorded operators
  opdump show /tmp/dump --source train.py:175 operators of one source line""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the kernels in use.",
)
def main() -> None:
    """Record what every operator of a neural network reads and writes."""
