"""Reports as JSON, in the shapes of docs/json/: NaN and infinities are strings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from opdump.call_stacks import shortened
from opdump.catalog.catalog import Catalog, Execution, Run
from opdump.conversion.overflow import OverflowSearch
from opdump.index.runs import RunChoice
from opdump.records import OpRecord, TensorRecord
from opdump.reports.computational_graph import GraphSearch, search_json
from opdump.reports.findings import findings_json
from opdump.reports.formats import DumpReport, FindingsReport
from opdump.reports.overflows import overflows_json
from opdump.reports.shown_part import each_selected, file_of, finite_json, finite_number, statistics_of
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


# A dump, operator by operator.


def dump_json(
    catalog: Catalog,
    executions: Iterable[Execution],
    *,
    limit: int = 0,
    run: RunChoice = "latest",
    search: GraphSearch | None = None,
    watched: Sequence[Mapping[str, object]] | None = None,
    more: bool = False,
    damaged: list[str],
) -> Iterator[str]:
    """The lines that `opdump show --json` prints, in the shape of docs/json/show.json. Each operator is one line, so that a dump
    of any size can be printed.

    At most `limit` operators are printed, all of them for 0; `more` says whether some were left out already. Unreadable files are
    added to `damaged`.
    """
    left = iter(executions)
    head = {
        "path": str(catalog.path),
        "ranks": list(catalog.ranks),
        "steps": list(catalog.steps),
        "graphs": list(catalog.graphs),
        "computational_graph": search_json(search),
        "runs": [_run(each) for each in catalog.runs],
        "run": run,
        "watched": watched,
        "limit": limit or None,
    }
    yield "{"
    yield from (f"  {_text(name)}: {_text(value)}," for name, value in head.items())
    yield '  "operators": ['
    shown = itertools.islice(left, limit) if limit else left
    line = ""
    for execution in shown:
        if line:
            yield f"{line},"
        line = f"    {_text(_execution(execution, damaged))}"
    if line:
        yield line
    yield "  ],"
    yield f'  "more": {_text(more or (bool(limit) and next(left, None) is not None))},'
    yield f'  "problems": {_text(list(dict.fromkeys([*map(str, catalog.problems), *damaged])))}'
    yield "}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _run(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "rank_id": run.rank_id,
        "started": run.started,
        "ended": run.ended,
        "complete": run.complete,
        "framework": run.framework,
        "framework_version": run.framework_version,
        "device_target": run.device_target,
        "command": list(run.command),
        "totals": dict(run.totals),
        "degraded": [each.as_json() for each in run.degraded],
    }


def _execution(execution: Execution, damaged: list[str]) -> dict[str, Any]:
    return {**_operator(execution.op), "tensors": [_tensor(record, damaged) for record in execution.tensors]}


def _operator(op: OpRecord) -> dict[str, Any]:
    stack = shortened(op.stack)
    return {
        "op_type": op.op_type,
        "op_name": op.op_name,
        "kernel": op.kernel,
        "phase": op.phase,
        "rank_id": op.rank_id,
        "device_id": op.device_id,
        "task_id": op.task_id,
        "stream_id": op.stream_id,
        "net_name": op.net_name,
        "graph_id": op.graph_id,
        "step": op.step,
        "order": op.order,
        "occurrence": op.occurrence,
        "timestamp": op.timestamp,
        "forward_op": op.forward_op,
        "arguments": finite_json(dict(op.arguments)),
        "stack": [
            {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}
            for frame in stack.frames
        ],
        "stack_left_out": stack.left_out,
        "skip": op.skip,
    }


def _tensor(record: TensorRecord, damaged: list[str]) -> dict[str, Any]:
    return {
        "io": record.io,
        "slot": record.slot,
        "argument": record.argument,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "format": record.format,
        "source": record.source,
        "data_size": record.data_size,
        "statistics": {name: finite_number(value) for name, value in statistics_of(record, damaged).items()},
        "file": file_of(record),
        "skip": record.skip,
        "sample": record.sample,
    }
