"""Reads overflow records in JSON, which converters derive from overflow files, and which MindSpore writes when it dumps npy.

{"DHA Atomic Add": {"model_id": 0, ...}, "L2 Atomic Add": {...}, "AI Core": {"model_id": 514, ..., "status": 32}}
{"magic": "0x5a5a5a5a", "version": 0, "acc_list": {"valid": 1, "acc_type": "AIC", ..., "data": {..., "status": 32}}}
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from opdump.dump_file.opdebug import ACCELERATORS, AcceleratorReport
from opdump.errors import CorruptDumpError

_LARGEST = 1 << 20
_OLD = ("DHA Atomic Add", "L2 Atomic Add", "AI Core")
_FIRST = ("model_id", "stream_id", "task_id")


def read_overflow_json(path: str) -> tuple[AcceleratorReport, ...]:
    """The reports of the file. Raises CorruptDumpError for any other content."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise CorruptDumpError(
                f"{path}: is not a file of at most {_LARGEST} bytes; an overflow record was expected"
            )
        text = os.pread(descriptor, status.st_size, 0)
    finally:
        os.close(descriptor)
    try:
        return _reports(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDumpError(
            f"{path}: is not an overflow record in JSON ({type(error).__name__}: {str(error)[:200]}); it was cut off, or another "
            "program wrote it"
        ) from error


def _reports(content: Any) -> tuple[AcceleratorReport, ...]:
    if "acc_list" in content:
        kind = content["acc_list"]["acc_type"]
        if kind not in ACCELERATORS:
            raise ValueError(f"accelerator {kind!r}; known are {', '.join(ACCELERATORS)}")
        return (_report(kind, content["acc_list"]["data"]),)
    return tuple(_report(name, content[name]) for name in _OLD if name in content or name == _OLD[-1])


def _report(accelerator: str, fields: dict[str, Any]) -> AcceleratorReport:
    status = fields["status"]
    statuses = tuple(_number(word) for word in (status if isinstance(status, list) else [status]))
    if not 1 <= len(statuses) <= 4:
        raise ValueError(f"{len(statuses)} status words")
    # A report has named fields for these three.
    first = tuple((name, _number(fields[name])) for name in _FIRST)
    others = tuple((name, _number(value)) for name, value in fields.items() if name not in (*_FIRST, "status"))
    return AcceleratorReport(accelerator, (*first, *others), statuses)


def _number(value: Any) -> int:
    number = int(value[:20], 0) if isinstance(value, str) else value
    if not isinstance(number, int) or not 0 <= number < 1 << 64:
        raise ValueError(f"{str(value)[:40]} is not a 64-bit number")
    return number
