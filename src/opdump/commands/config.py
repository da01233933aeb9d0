"""`opdump config check` and `opdump config new`: is this configuration right, and what does a right one look like?

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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opdump.commands.ending import print_warnings
from opdump.configs.acl.starting_file import acl_starting_file
from opdump.configs.dialects import load_plan
from opdump.configs.mindspore.starting_file import starting_file
from opdump.configs.shared.dump_directory import make_writable
from opdump.configs.tensorflow.file import tensorflow_starting_file
from opdump.errors import ConfigError
from opdump.plan import Dialect

if TYPE_CHECKING:
    from opdump.configs.acl.plan import DialectVersion


_FILES: Final[Mapping[Dialect, str]] = {
    "mindspore": "data_dump.json",
    "acl": "acl.json",
    "tensorflow": "npu_dump.json",
}


@click.group()
def config() -> None:
    """Write or check a data_dump.json, an acl.json or an npu_dump.json."""


@config.command(
    epilog="""\b
Examples:
  opdump config check data_dump.json             the resolved plan as JSON
  opdump config check data_dump.json --strict    a mistyped key is an error
  opdump config check acl.json                   an acl.json; its content tells which it is
  opdump config check acl.json --dialect-version current
  opdump config check npu_dump.json              the keys of a TensorFlow program's parameter_map
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump config check"""
)
@click.argument("file", required=False, type=click.Path(path_type=str))
@click.option("--strict", is_flag=True, help="Make an unknown key an error.")
@click.option(
    "--dialect",
    type=click.Choice(["acl", "mindspore", "tensorflow"]),
    help="What FILE is written in; without it, its content tells.",
)
@click.option(
    "--dialect-version",
    type=click.Choice(["seed", "current"]),
    default="seed",
    show_default=True,
    help="acl.json: as the documents have it, or as newer versions behave.",
)
def check(file: str | None, strict: bool, dialect: Dialect | None, dialect_version: DialectVersion) -> None:
    """Check FILE and print the plan that it resolves to.

    Without FILE the one that MINDSPORE_DUMP_CONFIG names. The plan goes to standard output, warnings go to standard
    error. The dump directory of a data_dump.json is created, as a run would; that of an acl.json or an npu_dump.json must be
    there. Exit code 0 if FILE can be used, 1 if not: for an acl.json the message starts with the dump system's code (EP0001 to EP0005).
    """
    plan = load_plan(file, environ=os.environ, dialect=dialect, strict=strict, dialect_version=dialect_version)
    print_warnings(plan.warnings)
    click.echo(plan.to_json())


@config.command(
    epilog="""\b
Examples:
  opdump config new                              write data_dump.json here
  opdump config new lenet.json --path /tmp/lenet --force
  opdump config new --dialect acl                write acl.json here
  opdump config new --dialect tensorflow         write npu_dump.json here"""
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--dialect",
    type=click.Choice(["acl", "mindspore", "tensorflow"]),
    default="mindspore",
    show_default=True,
    help="What to write.",
)
@click.option("--path", "directory", default=None, help="Where to dump; an absolute path.  [default: ./dump]")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def new(file: Path | None, dialect: Dialect, directory: str | None, force: bool) -> None:
    """Write a starting configuration to FILE (data_dump.json, acl.json or npu_dump.json).

    It dumps everything of the first step; docs/config.md, docs/acl-json.md and docs/tensorflow-config.md explain each key. The
    directory of an acl.json and of an npu_dump.json is made, for it has to be there before a run.
    """
    file = file or Path(_FILES[dialect])
    if file.suffix != ".json":
        raise ConfigError(f"invalid json file name: {str(file)!r}; it must end in .json, write {file}.json")
    target = None if dialect == "mindspore" else Path(directory or "dump").absolute()
    if target is None:
        text = starting_file(Path(directory) if directory is not None else None)
    else:
        text = acl_starting_file(target) if dialect == "acl" else tensorflow_starting_file(target)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} is there already; name another file, or replace it with --force") from error
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}; name a file that can be written") from error
    if target is not None:
        make_writable(target)
        click.echo(f"wrote {file}; next: opdump config check {file}")
    else:
        click.echo(f"wrote {file}; next: opdump run -c {file} train.py")
