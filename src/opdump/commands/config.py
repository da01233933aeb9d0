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
from pathlib import Path

import click

from opdump.configs.mindspore import load_plan
from opdump.configs.starting_file import starting_file
from opdump.errors import ConfigError


@click.group()
def config() -> None:
    """Write or check a data_dump.json."""


@config.command(
    epilog="""\b
Examples:
  opdump config check data_dump.json             the resolved plan as JSON
  opdump config check data_dump.json --strict    a mistyped key is an error
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump config check"""
)
@click.argument("file", required=False, type=click.Path(path_type=str))
@click.option("--strict", is_flag=True, help="Make an unknown key an error.")
def check(file: str | None, strict: bool) -> None:
    """Check FILE and print the plan that it resolves to.

    Without FILE the one that MINDSPORE_DUMP_CONFIG names. The plan goes to standard output, warnings go to standard
    error. The dump directory is created, as a run would. Exit code 0 if FILE can be used, 1 if not.
    """
    plan = load_plan(file, environ=os.environ, strict=strict)
    for warning in plan.warnings:
        click.echo(f"opdump: warning: {warning}", err=True)
    click.echo(plan.to_json())


@config.command(
    epilog="""\b
Examples:
  opdump config new                              write data_dump.json here
  opdump config new lenet.json --path /tmp/lenet --force"""
)
@click.argument("file", default="data_dump.json", type=click.Path(path_type=Path))
@click.option("--path", "directory", default=None, help="Where to dump; an absolute path.  [default: ./dump]")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def new(file: Path, directory: str | None, force: bool) -> None:
    """Write a starting configuration to FILE (data_dump.json).

    It dumps everything of the first step; docs/config.md explains each key.
    """
    if file.suffix != ".json":
        raise ConfigError(f"invalid json file name: {str(file)!r}; it must end in .json, write {file}.json")
    text = starting_file(Path(directory) if directory is not None else None)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} is there already; name another file, or replace it with --force") from error
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}; name a file that can be written") from error
    click.echo(f"wrote {file}; next: opdump run -c {file} train.py")
