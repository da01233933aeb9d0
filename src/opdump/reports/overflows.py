"""Overflows on devices, as tables and as JSON (`opdump overflow`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from opdump import amounts
from opdump.conversion.overflow import Overflow, OverflowSearch, TensorValues
from opdump.reports.table import Column, Printer, printable


def print_overflows(search: OverflowSearch, *, wide: bool) -> None:
    """Print one row for each overflow, its tensors, and the files."""
    if not search.overflows:
        Printer().text(f"nothing overflowed ({amounts.count(search.files, 'overflow file')} found)")
        return
    printer = Printer(wide=wide)
    printer.table(
        [
            Column("#", right=True),
            Column("time", spare=4),
            Column("operator", gives_way=True),
            Column("type", spare=2),
            Column("unit", spare=3),
            Column("task", right=True, spare=5),
            Column("stream", right=True, spare=6),
            Column("context", right=True, spare=8),
            Column("thread", right=True, spare=7),
            Column("status", right=True),
            Column("what happened", gives_way=True),
        ],
        [
            (
                str(number),
                _time(each.microseconds),
                printable(each.operator) or "(not dumped)",
                printable(each.op_type),
                each.report.accelerator,
                str(each.report.task_id),
                str(each.report.stream_id),
                _number(each.report.context_id),
                _number(each.report.thread_id),
                " ".join(f"0x{word:x}" for word in each.report.statuses),
                "; ".join(each.report.words),
            )
            for number, each in enumerate(search.overflows, 1)
        ],
    )
    rows = [
        (str(number), *_tensor_cells(tensor))
        for number, each in enumerate(search.overflows, 1)
        for tensor in each.tensors
    ]
    if rows:
        printer.text()
        headings = (("#", True), ("tensor", False), ("dtype", False), ("shape", False))
        values = (("min", True), ("max", True), ("nan", True), ("inf", True), ("", False))
        printer.table([Column(text, right=right) for text, right in (*headings, *values)], rows)
    printer.text()
    printer.table(
        [Column("#", right=True), Column("overflow file and dump of the operator", gives_way=True)],
        [
            (str(number), printable(path))
            for number, each in enumerate(search.overflows, 1)
            for path in (each.path, each.dump)
            if path
        ],
    )
    printer.tell_left_out()


def _tensor_cells(tensor: TensorValues) -> tuple[str, ...]:
    shape = "x".join(map(str, tensor.shape)) or "()"
    if tensor.problem:
        return tensor.name, tensor.dtype, shape, "", "", "", "", printable(tensor.problem)
    numbers = (f"{tensor.min:.6g}", f"{tensor.max:.6g}", str(tensor.nan), str(tensor.inf))
    return tensor.name, tensor.dtype, shape, *numbers, ""


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _time(microseconds: int) -> str:
    """Local time, or the number itself if it is outside of the calendar."""
    try:
        moment = datetime.fromtimestamp(microseconds / 1e6, timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(microseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def overflows_json(search: OverflowSearch) -> str:
    """The same as JSON, with the files that could not be read."""
    content = {
        "files": search.files,
        "overflows": [_overflow_json(each) for each in search.overflows],
        "silent": search.silent,
        "failures": [asdict(each) for each in search.failures],
    }
    return json.dumps(content, indent=2)


def _overflow_json(each: Overflow) -> dict[str, Any]:
    report = each.report
    return {
        "path": each.path,
        "time": each.microseconds,
        "operator": each.operator,
        "op_type": each.op_type,
        "dump": each.dump,
        "accelerator": report.accelerator,
        **dict(report.fields),
        "status": list(report.statuses),
        "words": list(report.words),
        "tensors": [
            {**asdict(tensor), "min": _json_number(tensor.min), "max": _json_number(tensor.max)}
            for tensor in each.tensors
        ],
    }


def _json_number(value: float) -> float | str:
    finite = value - value == 0
    return value if finite else str(value)
