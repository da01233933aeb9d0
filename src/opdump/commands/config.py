"""`opdump config check` and `opdump config new`: validate a configuration, or create one.

$ opdump config new --path /tmp/dump
wrote data_dump.json; next: opdump run -c data_dump.json train.py
$ opdump config check data_dump.json
{
  "path": "/tmp/dump",
  "net_name": "Net",
  ...
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdump.commands.ending import print_warnings
from opdump.configs.dialects import load_plan
from opdump.configs.plan_fields import make_writable
from opdump.errors import ConfigError
from opdump.plan.dialects import DIALECTS

if TYPE_CHECKING:
    from opdump.configs.acl_plan import DialectVersion


class _DialectName(click.Choice[str]):
    """One of opdump's own dialects, which the help lists, or one of an installed package."""

    def __init__(self) -> None:
        super().__init__(DIALECTS.own)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if value in DIALECTS else super().convert(value, param, ctx)


@click.group(epilog="Examples: opdump config new; opdump config check data_dump.json")
def config() -> None:
    """Create or check a data_dump.json, acl.json or npu_dump.json."""


@config.command(
    epilog="""\b
Examples:
  opdump config check data_dump.json             print the plan as JSON
  opdump config check data_dump.json --strict    unknown keys are errors
  opdump config check acl.json                   the dialect is detected
  opdump config check acl.json --dialect-version current
  opdump config check npu_dump.json              keys of a TensorFlow parameter_map
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump config check"""
)
@click.argument("file", required=False, type=click.Path(path_type=str))
@click.option("--strict", is_flag=True, help="Treat unknown keys as errors.")
@click.option(
    "--dialect",
    type=_DialectName(),
    help="Dialect of FILE.  [default: detected from its content]",
)
@click.option(
    "--dialect-version",
    type=click.Choice(["seed", "current"]),
    default="seed",
    show_default=True,
    help="For acl.json: the behaviour that the documents describe (seed), or that of newer versions (current).",
)
def check(file: str | None, strict: bool, dialect: str | None, dialect_version: DialectVersion) -> None:
    """Check FILE and print the dump plan that it describes.

    FILE defaults to $MINDSPORE_DUMP_CONFIG. The plan goes to standard output, warnings go to standard error. The dump directory
    of a data_dump.json is created, as in a run; that of an acl.json or npu_dump.json must exist. A relative dump_path of an
    acl.json is relative to the directory of FILE here, and to that of the program in a run. The exit code is 0 if FILE is valid
    and 1 if not; for an acl.json the message starts with the code of the dump system (EP0001 to EP0005).
    """
    # An acl.json usually lies beside its program, so its directory is the best guess at the program's, which is unknown here.
    plan = load_plan(
        file,
        environ=os.environ,
        dialect=dialect,
        strict=strict,
        dialect_version=dialect_version,
        program_directory=None if file is None else Path(file).parent,
    )
    print_warnings(plan.warnings)
    click.echo(plan.to_json())


@config.command(
    short_help="Create a starting config in FILE.",
    epilog="""\b
Examples:
  opdump config new                              write data_dump.json here
  opdump config new lenet.json --path /tmp/lenet --force
  opdump config new --dialect acl                write acl.json here
  opdump config new --dialect tensorflow         write npu_dump.json here""",
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--dialect",
    type=_DialectName(),
    default="mindspore",
    show_default=True,
    help="Dialect of the new file.",
)
@click.option("--path", "directory", default=None, help="Dump directory, an absolute path.  [default: ./dump]")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def new(file: Path | None, dialect: str, directory: str | None, force: bool) -> None:
    """Create a starting config in FILE, a data_dump.json, acl.json or npu_dump.json.

    The new file dumps all operators in the first step. docs/config.md, docs/acl-json.md and docs/tensorflow-config.md explain each key. The
    dump directory of an acl.json or npu_dump.json is created, because it must exist before a run.
    """
    chosen = DIALECTS.load(dialect)
    file = file or Path(chosen.words.file)
    if file.suffix != ".json":
        raise ConfigError(f"invalid json file name: {str(file)!r}; it must end in .json, write {file}.json")
    target = Path(directory or "dump").absolute() if chosen.directory_must_exist else None
    text = chosen.starting_file(target if target is not None or directory is None else Path(directory))
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists already; name another file, or replace it with --force") from error
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}; name a writable file") from error
    if target is not None:
        make_writable(target)
        click.echo(f"wrote {file}; next: opdump config check {file}")
    else:
        click.echo(f"wrote {file}; next: opdump run -c {file} train.py")
