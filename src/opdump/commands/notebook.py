"""`%%opdump`: runs a notebook cell under capture. `%load_ext opdump` installs it.

%%opdump --path dump --full
loss = model(batch).mean()
loss.backward()

Below the output of the cell is the line that `opdump run` ends with; `_opdump` is the catalog of the dump. An error of the cell
is shown as without opdump.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from opdump.commands.run_options import RunOptions
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.capturing.report import CaptureReport

_MARK = "# %%opdump\n"
"""Replaces the line of the magic, so that line numbers match the notebook."""


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext opdump`, with IPython's shell."""

    def opdump(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    opdump.__doc__ = _command().get_help(click.Context(_command(), info_name="%%opdump"))
    shell.register_magic_function(opdump, magic_kind="cell", magic_name="opdump")


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell under capture with the options in `line`. Raises what the cell raises, and IPython's UsageError for an invalid
    line.
    """
    from opdump.catalog.catalog import open_dump
    from opdump.commands.ending import print_reports

    asked = _asked(line)
    if asked is None:
        return
    name, options = asked
    shell.user_ns.pop(name, None)  # not the dump of an earlier cell
    report, error, raised_at = _captured(shell, cell, options)
    if report is not None:
        with redirect_stderr(sys.stdout):  # only errors are shown in red
            print_reports([report], rank=None, as_json=False)
        if report.captured or any(child.captured for child in report.children):
            shell.user_ns[name] = open_dump(report.path)
    if error is not None:
        raise _shown_as_the_cells_own(shell, error, raised_at)


def _captured(
    shell: Any, cell: str, options: RunOptions
) -> tuple[CaptureReport | None, BaseException | None, TracebackType | None]:
    """The report, and the error of the cell with the place where it was raised."""
    from opdump.capturing.capture import capture
    from opdump.capturing.report import told_elsewhere

    dumps = []
    error: BaseException | None = None
    raised_at: TracebackType | None = None
    try:
        file = options.file(os.environ)
        plan = options.plan(file, os.environ, program="cell", directory=os.getcwd())
        with capture(plan, **options.settings) as dump, _without_traceback(shell):
            dumps.append(dump)
            dump.when_ended = told_elsewhere
            result = shell.run_cell(cell if cell.startswith("%%") else _MARK + cell)
            if result.error_before_exec is not None:
                raise _usage_error("%%opdump: nothing ran; the mistake in the cell is shown above")
            error = result.error_in_exec
            if error is not None:
                raised_at = error.__traceback__
                raise error
    except (OpdumpError, click.UsageError) as mistake:
        if mistake is not error:
            raise _usage_error(str(mistake)) from mistake
    except BaseException as other:
        if other is not error:
            raise
    return dumps[0].report if dumps else None, error, raised_at


@contextmanager
def _without_traceback(shell: Any) -> Iterator[None]:
    """IPython shows no error of the cell inside the block; it is raised once, after the report."""
    shell.showtraceback = lambda *_, **__: None
    try:
        yield
    finally:
        del shell.showtraceback  # hides the method of the class


def _shown_as_the_cells_own(shell: Any, error: BaseException, raised_at: TracebackType | None) -> BaseException:
    """The error in a form that IPython shows with the lines of the cell and of the code that it called, without those of opdump."""
    from opdump.commands.ending import comes_from_opdump, without_opdump_frames

    error.__traceback__ = raised_at
    if not comes_from_opdump(error):
        without_opdump_frames(error)
    own = error.__traceback__
    lines = shell.InteractiveTB.structured_traceback(type(error), error, own, tb_offset=1)  # below IPython's own frame
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython asks for it
    return error


def _asked(line: str) -> tuple[str, RunOptions] | None:
    """The variable for the catalog, and the options; None if the line asked for help."""
    try:
        arguments = shlex.split(line)
    except ValueError as error:
        raise _usage_error(f"%%opdump {line}: {error}") from error
    command = _command()
    if {"-h", "--help"} & set(arguments):
        print(command.get_help(click.Context(command, info_name="%%opdump")))  # noqa: T201
        return None
    try:
        options: dict[str, Any] = command.make_context("%%opdump", arguments).params
    except click.ClickException as error:
        raise _usage_error(f"%%opdump: {error.format_message()} (%%opdump --help)") from error
    name = options.pop("name")
    if not name.isidentifier():
        raise _usage_error(f"%%opdump: {name!r} is not a variable name; expected one for the catalog")
    return name, RunOptions(**options)


def _command() -> click.Command:
    return click.Command(
        "%%opdump",
        params=[
            click.Option(["--path"], metavar="DIR", help="Dump directory.  [default: a new directory here]"),
            click.Option(["--full"], is_flag=True, help="Record tensor values, not just statistics."),
            click.Option(["--steps"], metavar="STEPS", help='Steps of the cell to record: "0|5-8" or "all".'),
            click.Option(
                ["--kernels"],
                metavar="NAME",
                multiple=True,
                help="Record only operators of this type or name, or name-regex(...). Repeatable.",
            ),
            click.Option(["-c", "--config"], metavar="FILE", help="A data_dump.json or acl.json."),
            click.Option(
                ["--eager"], is_flag=True, help="Run compiled regions eagerly, and record the operators inside."
            ),
            click.Argument(["name"], default="_opdump", required=False),
        ],
        help="Run the cell and record what its operators read and write. NAME is the variable for the catalog of the dump (_opdump).",
    )


def _usage_error(text: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(text)
    return error
