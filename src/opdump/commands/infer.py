"""`opdump infer`: runs an ONNX model under capture, on given or random inputs.

opdump infer resnet.onnx -c acl.json
opdump infer resnet.onnx -c acl.json --input x=image.npy --repeat 3
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK
from opdump.commands.ending import print_warnings
from opdump.commands.run_options import check_watchpoints, checking_options, first_option, with_checks, with_first
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.onnx import ModelDump
    from opdump.plan import DumpPlan


@click.command(
    epilog="""\b
Examples:
  opdump infer resnet.onnx -c acl.json
  opdump infer resnet.onnx -c acl.json --input x=image.npy --repeat 3
  opdump infer resnet.onnx -c acl.json --shape x=8,3,224,224 --seed 7
  opdump infer resnet.onnx --path /tmp/dump

\b
Inputs without --input are random; the seed is printed. Open dimensions of the
model are 1 unless --shape gives them.

\b
Exit codes:
  0  done
  1  the model or config is invalid, or the run failed
  2  wrong command line
  3  the dump is incomplete""",
)
@click.option("-c", "--config", metavar="FILE", help="An acl.json or data_dump.json.")
@click.option("--path", metavar="DIR", help="Dump directory. Without a config, all tensors of all nodes are dumped.")
@click.option("--input", "inputs", metavar="NAME=FILE.npy", multiple=True, help="Value of a model input. Repeatable.")
@click.option("--shape", "shapes", metavar="NAME=1,3,8,8", multiple=True, help="Shape of a random input. Repeatable.")
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Run the model N times; each run is a step."
)
@click.option(
    "--optimize",
    type=click.Choice(["disable", "basic", "extended", "all"]),
    default="disable",
    help="Graph optimisation level of ONNX Runtime.  [default: disable, which keeps the nodes of the model]",
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Seed of random inputs.  [default: chosen and printed]"
)
@click.option(
    "--memory-limit",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Maximum memory for recorded tensors.",
)
@click.option(
    "--dialect",
    type=click.Choice(["acl", "mindspore"]),
    help="Dialect of the config.  [default: detected from its keys]",
)
@first_option()
@checking_options()
@click.option("--strict", is_flag=True, help="Treat unknown config keys and gaps in the capture as errors.")
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    help="If the dump can no longer be written, continue without it or stop.  [default: continue; stop with --strict]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the closing line as JSON.")
@click.argument("model", type=click.Path(path_type=Path))
def infer(
    *,
    config: str | None,
    path: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    repeat: int,
    optimize: str,
    seed: int | None,
    memory_limit: int | None,
    dialect: str | None,
    first: bool,
    check: bool,
    watch: tuple[str, ...],
    strict: bool,
    on_error: str | None,
    as_json: bool,
    model: Path,
) -> NoReturn:
    """Run the ONNX file MODEL and dump the inputs and outputs of its nodes."""
    if config is None and path is None:
        raise click.UsageError(
            "no config: give -c acl.json, or --path DIR to dump everything. To write one: opdump config new acl.json --dialect acl"
        )
    files = {name: Path(file) for name, file in _pairs(inputs, "--input", "x=image.npy").items()}
    fixed_shapes = {name: _shape(name, text) for name, text in _pairs(shapes, "--shape", "x=1,3,224,224").items()}
    check_watchpoints(watch)
    plan = with_checks(_plan(config, path, dialect=dialect, strict=strict), check=check, watch=watch)
    plan = with_first(plan, first=first)
    print_warnings(plan.warnings)
    options = {"optimize": optimize, "memory_limit": memory_limit, "strict": strict, "on_error": on_error}
    sys.exit(_infer(model, plan, files, fixed_shapes, repeat=repeat, seed=seed, as_json=as_json, options=options))


def _plan(config: str | None, path: str | None, *, dialect: str | None, strict: bool) -> DumpPlan:
    from opdump.onnx import plan_of

    overrides: dict[str, Any] = {"beside": Path.cwd()}  # the running script is opdump itself
    if path is not None:
        overrides["path"] = path
    if config is None:
        return plan_of(None, dialect="acl", dump_list=[{}], dump_mode="all", strict=strict, **overrides)
    return plan_of(config, dialect=dialect, strict=strict, **overrides)


def _infer(
    model: Path,
    plan: DumpPlan,
    files: Mapping[str, Path],
    shapes: Mapping[str, Sequence[int]],
    *,
    repeat: int,
    seed: int | None,
    as_json: bool,
    options: Mapping[str, Any],
) -> int:
    """Run the model; returns the exit code."""
    from dataclasses import replace

    from opdump.capturing.report import told_elsewhere
    from opdump.commands.progress import progress_lines
    from opdump.onnx import session
    from opdump.onnx.recording import outputs_for_numpy

    result, dump = EXIT_OK, None
    try:
        with session(model, replace(plan, warnings=()), **options) as dump:
            dump.when_ended = told_elsewhere
            feeds = _feeds(dump, files, shapes, seed)
            with progress_lines(dump):
                names = outputs_for_numpy(dump.outputs)
                for _ in range(repeat):
                    dump.run(names, feeds)
    except OpdumpError:
        _tell(dump, as_json=as_json)
        raise
    except KeyboardInterrupt:
        result = EXIT_INTERRUPTED
    except click.UsageError:
        raise
    except Exception as error:  # noqa: BLE001  the runtime's errors have no class of their own
        where = "cannot be loaded by ONNX Runtime" if dump is None else "its run failed"
        click.echo(f"opdump: error: {model}: {where}: {error}", err=True)
        result = EXIT_ERROR
    if result == EXIT_OK or (dump is not None and dump.operators):
        _tell(dump, as_json=as_json)
    if result == EXIT_OK and dump is not None and dump.report is not None and dump.report.failure:
        return EXIT_INCOMPLETE
    return result


def _feeds(
    dump: ModelDump, files: Mapping[str, Path], shapes: Mapping[str, Sequence[int]], seed: int | None
) -> dict[str, Any]:
    from opdump.onnx.recording import load_input, random_feed

    names = [value.name for value in dump.inputs]
    for option, given in (("--input", files), ("--shape", shapes)):
        for name in given:
            if name not in names:
                raise click.UsageError(
                    f"{option} {name}: the model has no such input; it has {', '.join(names) or 'none'}"
                )
    random = [name for name in names if name not in files]
    chosen = time.time_ns() % 2**32 if seed is None else seed
    if random:
        click.echo(f"opdump: random {', '.join(random)}; to repeat: --seed {chosen}", err=True)
    feeds = {}
    for number, value in enumerate(dump.inputs):
        if value.name in files:
            feeds[value.name] = load_input(value, files[value.name])
        else:
            feeds[value.name] = random_feed(value, shapes.get(value.name), (chosen, number))
    return feeds


def _tell(dump: ModelDump | None, *, as_json: bool) -> None:
    """Report what was dumped, if the model ran at all."""
    from opdump.reports.completeness import closing_lines, completeness_json, failure_line

    if dump is None or dump.report is None or dump.runs == 0:
        return
    report = dump.report
    print_warnings(report.warnings)
    if report.failure:
        click.echo(failure_line(report), err=True)
    if report.checked is not None and not as_json:
        from opdump.reports.findings import print_checked

        print_checked(report.checked, path=str(report.path), rank=None)
    difference = dump.largest_difference
    if as_json:
        click.echo(json.dumps({**json.loads(completeness_json(report)), "largest_difference": difference}), err=True)
        return
    if difference is not None:
        click.echo(
            f"opdump: outputs of the dumped run differ from those of a plain run by at most {difference:g}", err=True
        )
    mode = dump.plan.mode
    if report.captured == 0 and mode.verdict is not None and not report.failure:
        click.echo(f"opdump: {dump.name} ran and {mode.nothing_found}, so nothing was written", err=True)
        return
    click.echo("\n".join(closing_lines(report)), err=True)


def _pairs(texts: Sequence[str], option: str, example: str) -> dict[str, str]:
    """Parse `NAME=VALUE` texts to a dict by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise click.UsageError(f"{option} {text!r}: expected NAME=VALUE, as in {option} {example}")
        if name in found:
            raise click.UsageError(f"{option} {name}: given twice")
        found[name] = value
    return found


def _shape(name: str, text: str) -> tuple[int, ...]:
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.UsageError(f"--shape {name}={text}: expected numbers, as in --shape {name}=1,3,224,224")
    return tuple(int(part) for part in parts)
