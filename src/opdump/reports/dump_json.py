"""A dump as JSON. NaN and infinities, which JSON lacks, are the strings "nan", "inf" and "-inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from opdump.catalog import Catalog, Execution, Run
from opdump.records import OpRecord, StatisticValue, TensorRecord
from opdump.reports.computational_graph import GraphSearch, search_json
from opdump.reports.selection import file_of
from opdump.reports.statistics_shown import statistics_of


def overview_json(catalog: Catalog, executions: Iterable[Execution], search: GraphSearch | None = None) -> str:
    """Runs, ranks, steps and graphs of a dump, which of its models is the computational graph, and the operators asked for."""
    return _text(
        {
            "path": str(catalog.path),
            "ranks": list(catalog.ranks),
            "steps": list(catalog.steps),
            "graphs": list(catalog.graphs),
            "computational_graph": search_json(search),
            "runs": [_run(run) for run in catalog.runs],
            "operators": [_execution(execution) for execution in executions],
        }
    )


def executions_json(executions: Iterable[Execution]) -> str:
    """A list of operators with their tensors."""
    return _text([_execution(execution) for execution in executions])


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


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
    }


def _execution(execution: Execution) -> dict[str, Any]:
    return {**_operator(execution.op), "tensors": [_tensor(record) for record in execution.tensors]}


def _operator(op: OpRecord) -> dict[str, Any]:
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
        "arguments": _finite(dict(op.arguments)),
        "stack": [
            {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}
            for frame in op.stack
        ],
        "skip": op.skip,
    }


def _tensor(record: TensorRecord) -> dict[str, Any]:
    return {
        "io": record.io,
        "slot": record.slot,
        "argument": record.argument,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "format": record.format,
        "source": record.source,
        "data_size": record.data_size,
        "statistics": {name: _number(value) for name, value in statistics_of(record).items()},
        "file": file_of(record),
        "skip": record.skip,
    }


def _number(value: StatisticValue) -> StatisticValue:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _finite(value: Any) -> Any:
    """The same JSON value with every float that JSON lacks as a string."""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
