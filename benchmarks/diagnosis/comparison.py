"""Compares two dumps with `opdump.compare`, if it exists, and with two plain rules that any engineer could write.

    name      operators with the same name, occurrence and step are matched; a relative L2 above 1e-3 is a difference
    sequence  operators are aligned by the sequence of their types within a phase; a relative L2 above 1e-5 is a difference

The answer of a plain rule is the first operator that differs, followed by the next two.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Final, NamedTuple

import opdump
from benchmarks.diagnosis.run_ends import relative
from opdump.catalog.catalog import Execution
from opdump.records import OpRecord, TensorRecord

METHODS: Final = ("opdump", "name", "sequence")
_STATISTICS: Final = ("l2norm", "avg", "max", "min")
_ANSWERS: Final = 10


def has_compare() -> bool:
    """Whether this opdump can compare dumps."""
    return callable(getattr(opdump, "compare", None))


def methods() -> tuple[str, ...]:
    return METHODS if has_compare() else METHODS[1:]


def compare_dumps(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The answer of each requested method, with its time in seconds. The answer of a method that fails is its error."""
    answers = {}
    for method in task["methods"]:
        began = time.perf_counter()
        try:
            answer = _answer(method, task["a"], task["b"])
        except Exception:  # noqa: BLE001  # whatever fails, the other methods still run
            answer = {"verdict": "error", "error": traceback.format_exc()}
        answers[method] = {"seconds": time.perf_counter() - began, **answer}
    return answers


def _answer(method: str, a: str, b: str) -> dict[str, Any]:
    if method == "opdump":
        return opdump.compare(a, b).to_json()
    one, other = _read(a), _read(b)
    began = time.perf_counter()
    if method == "name":
        answer = _plain(_by_name(one.executions, other.executions), 1e-3)
    else:
        answer = _plain(_by_sequence(one.executions, other.executions), 1e-5)
    return {**answer, "seconds": one.seconds + other.seconds + time.perf_counter() - began}


class _Read(NamedTuple):
    executions: list[Execution]
    seconds: float


@lru_cache(maxsize=2)
def _read(path: str) -> _Read:
    """The operators of a dump. Both plain rules share the result; the time counts for each."""
    began = time.perf_counter()
    return _Read(list(opdump.open(path).ops()), time.perf_counter() - began)


def _plain(matches: Iterator[tuple[Execution, Execution]], limit: float) -> dict[str, Any]:
    answers = []
    matched = 0
    for one, other in matches:
        matched += 1
        worst = max(
            (
                (_difference(one.outputs[slot], other.outputs[slot]), slot)
                for slot in one.outputs
                if slot in other.outputs
            ),
            default=(0.0, 0),
        )
        if worst[0] > limit:
            answers.append(
                {
                    "kind": "value",
                    "io": "output",
                    "slot": worst[1],
                    "score": worst[0],
                    "a": described(one.op),
                    "b": described(other.op),
                }
            )
    return {
        "verdict": "divergent" if answers else "benign" if matched else "incomparable",
        "matched": matched,
        "introduced": answers[:_ANSWERS],
    }


def _by_name(a: list[Execution], b: list[Execution]) -> Iterator[tuple[Execution, Execution]]:
    known = {(one.op.step, one.op.op_name, one.op.occurrence): one for one in a}
    for other in b:
        one = known.get((other.op.step, other.op.op_name, other.op.occurrence))
        if one is not None:
            yield one, other


def _by_sequence(a: list[Execution], b: list[Execution]) -> Iterator[tuple[Execution, Execution]]:
    parts: dict[tuple[int, str], tuple[list[Execution], list[Execution]]] = {}
    for side, executions in enumerate((a, b)):
        for execution in executions:
            key = (execution.op.step, execution.op.phase)
            parts.setdefault(key, ([], []))[side].append(execution)
    matched: list[tuple[Execution, Execution]] = []
    for left, right in parts.values():
        matcher = SequenceMatcher(None, [one.op.op_type for one in left], [one.op.op_type for one in right], False)
        for block in matcher.get_matching_blocks():
            matched += zip(left[block.a : block.a + block.size], right[block.b : block.b + block.size], strict=True)
    return iter(sorted(matched, key=lambda pair: (pair[1].op.step, pair[1].op.order)))


def _difference(one: TensorRecord, other: TensorRecord) -> float:
    """Relative L2 of the values if both dumps have them, otherwise the largest difference of a statistic."""
    if one.shape != other.shape:
        return float("inf")
    if one.payload is not None and other.payload is not None and not (one.sample or other.sample):
        return relative(one.numpy(), other.numpy())
    size = max(_number(one, "l2norm"), _number(other, "l2norm"), 1e-30)
    return max((abs(_number(one, name) - _number(other, name)) / size for name in _STATISTICS), default=0.0)


def _number(tensor: TensorRecord, name: str) -> float:
    value = tensor.statistics.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def described(op: OpRecord) -> dict[str, Any]:
    """An operator in the form in which a comparison names it."""
    return {
        "name": op.op_name,
        "op_type": op.op_type,
        "phase": op.phase,
        "step": op.step,
        "order": op.order,
        "occurrence": op.occurrence,
        "source": [op.stack[0].file.rpartition("/")[2], op.stack[0].line] if op.stack else None,
    }
