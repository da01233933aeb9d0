"""Runs one operator of a dump again, with its recorded inputs and arguments, and measures how far the recorded outputs are from the result.

result = opdump.replay("/data/dump", "first-Linear/addmm-op3")
result.verdict, [output.distances[-1].roundings for output in result.outputs]
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import AS_RECORDED, Replayed, Replayer, required_replayer
from opdump.catalog.catalog import Catalog, Execution, open_dump
from opdump.catalog.query import has_finding, several
from opdump.comparison.accuracy import allowed_error, error_of
from opdump.comparison.differences import epsilon_of
from opdump.errors import CannotReplayError, DumpPathError, NotInDumpError
from opdump.kernels import compare_pair
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import OpRecord, TensorRecord

# The result, as objects and as JSON (docs/json/replay.json).


@dataclass(frozen=True, slots=True)
class Distance:
    """The difference between the recorded output and the result of the replay in floats of `dtype`."""

    dtype: str
    max_absolute: float
    max_relative: float
    ulps: int | None
    """The maximum number of representable values between the two, rounded up to a power of two minus one; None for types of fewer than 16
    bits and complex ones."""
    roundings: float
    """The largest difference in units of rounding: the distance from 1 to the next number of the output's type, times the largest element or
    sum of absolute summands. For exact types, the number of elements that differ."""

    def to_json(self) -> dict[str, Any]:
        return {name: _json(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ReplayedOutput:
    """One output of the operator."""

    slot: int
    argument: str
    dtype: str
    shape: tuple[int, ...]
    distances: Sequence[Distance] = ()
    """First for the requested type, last for float64 or the widest type that the kernel supports. Empty if nothing was compared."""
    allowed: float = 0.0
    """Maximum difference, in units of rounding, for the output's type or a narrower one that the operator reads."""
    beyond: int = 0
    """Number of elements that are infinite because the float64 result exceeds the range of the type."""
    agrees: bool | None = None
    """None if nothing was compared."""
    reason: str = ""
    """Why nothing was compared."""

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "argument": self.argument,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "distances": [distance.to_json() for distance in self.distances],
            "allowed": self.allowed,
            "beyond": self.beyond,
            "agrees": self.agrees,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of `opdump.replay`."""

    dump: str
    op: OpRecord
    outputs: Sequence[ReplayedOutput]
    files: Sequence[str] = ()
    """The files that `emit` wrote."""

    @property
    def verdict(self) -> Literal["agrees", "differs"]:
        """Whether every compared output matches the result of its inputs."""
        return "differs" if any(output.agrees is False for output in self.outputs) else "agrees"

    def to_json(self) -> Mapping[str, Any]:
        """The result as JSON values, in the schema of docs/json/replay.json."""
        op = self.op
        return {
            "verdict": self.verdict,
            "dump": self.dump,
            "op": {
                "name": op.op_name,
                "kernel": op.kernel,
                "step": op.step,
                "rank": op.rank_id,
                "occurrence": op.occurrence,
                "phase": op.phase,
                "line": op.line,
            },
            "outputs": [output.to_json() for output in self.outputs],
            "files": list(self.files),
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# Runs the operator.

Array = NDArray[Any]
_ENDS_IN_INFINITY: Final = frozenset({"float16", "float32", "bfloat16"})


def replay(
    dump: str | os.PathLike[str] | Catalog,
    op: str,
    *,
    step: int | None = None,
    rank: int | None = None,
    occurrence: int = 0,
    dtype: str = AS_RECORDED,
    emit: str | os.PathLike[str] | None = None,
) -> Replay:
    """Run one operator of a dump again, on the CPU, with its recorded inputs.

    dump        a path that `opdump.open` reads, or a catalog
    op          its name in any form of `opdump show --op`; exactly one operator must match
    step, rank  default: the first step in which the operator has NaN or infinities, else the first that has it; the lowest rank
    occurrence  the execution within the step, counted from 0
    dtype       the type in which floats are computed: "float64", "float32", "bfloat16", "float16"; "recorded" for the recorded types
    emit        path of a program to write, which runs the operator without opdump; large inputs go to an npz file beside it

    Recorded outputs are always also compared with float64.

    Raises the errors of `opdump.open`; NotInDumpError, with the nearest names, if no operator or more than one matches; CannotReplayError,
    with the reason, if the operator cannot be run again.
    """
    catalog = dump if isinstance(dump, Catalog) else open_dump(Path(dump))
    execution = chosen(catalog, op, step, rank, occurrence)
    values = values_of(execution)
    if not execution.outputs:
        raise CannotReplayError(f"{execution.op.op_name} has no recorded output")
    replayer = required_replayer(execution.op)
    asked = replayer.run(execution.op, execution.inputs, values, dtype=dtype)
    reference = replayer.run(execution.op, execution.inputs, values)
    summands = _summands(replayer, execution, values)
    outputs = [
        _judged(execution, record, asked, reference, summands)
        if not (reason := _why_not(record, reference))
        else ReplayedOutput(slot, record.argument, record.dtype, record.shape, reason=reason)
        for slot, record in execution.outputs.items()
    ]
    files = () if emit is None else _emit(Path(emit), replayer, execution, values, catalog.path)
    if all(output.agrees is None for output in outputs) and not files:
        why = "; ".join(f"output.{output.slot}: {output.reason}" for output in outputs)
        raise CannotReplayError(f"{execution.op.op_name} has no output to compare with: {why}")
    return Replay(str(catalog.path), execution.op, outputs, files)


def _summands(replayer: Replayer, execution: Execution, values: Mapping[int, Array]) -> Mapping[int, Array]:
    """The results for the absolute inputs, which are sums of absolute summands if the operator sums."""
    try:
        absolute = {slot: np.abs(value) for slot, value in values.items() if value.dtype != np.bool_}
        return replayer.run(execution.op, execution.inputs, {**values, **absolute}).outputs
    except CannotReplayError:
        return {}


def _why_not(record: TensorRecord, reference: Replayed) -> str:
    """Why an output is not compared; empty if it is."""
    if record.slot in unspecified_outputs(record.op.kernel):
        return "its content is unspecified"
    if record.skip:
        return f"not in the dump: {record.skip}"
    if 0 in record.shape:
        return "no elements"
    if record.payload is None or record.sample:
        return "its elements are not in the dump"
    if record.slot not in reference.outputs:
        return "the replay did not produce it"
    if reference.outputs[record.slot].shape != record.shape:
        return f"the replay produced another shape, {reference.outputs[record.slot].shape}"
    return ""


def _judged(
    execution: Execution, record: TensorRecord, asked: Replayed, reference: Replayed, summands: Mapping[int, Array]
) -> ReplayedOutput:
    given, slot = record.numpy(), record.slot
    runs = [asked] if asked.dtype == reference.dtype else [asked, reference]
    beyond = _beyond(given, reference.outputs[slot], record.dtype)
    within = np.where(beyond, 0, given)
    epsilon = epsilon_of(record.dtype)
    distances = []
    for run in runs:
        again = run.outputs[slot]
        error = error_of(np.where(beyond, 0, again), within, summands.get(slot))
        metrics = compare_pair(again, given)
        roundings = error / epsilon if epsilon else float(metrics.different)
        ulps = _ulps(given, again, record.dtype)
        distances.append(Distance(run.dtype, metrics.max_absolute, metrics.max_relative, ulps, roundings))
    allowed = allowed_error(execution, record) / epsilon if epsilon else 0.0
    # Values of exact types may depend on rounding, as an argmax does, so a match in the recorded types is accepted too.
    closest = distances[-1].roundings if epsilon else min(distance.roundings for distance in distances)
    return ReplayedOutput(
        slot,
        record.argument,
        record.dtype,
        record.shape,
        distances,
        allowed,
        int(beyond.sum()),
        agrees=closest <= allowed,
    )


def _beyond(given: Array, exact: Array, dtype: str) -> NDArray[np.bool_]:
    """Elements that are infinite because the float64 result exceeds the range of the type."""
    if dtype not in _ENDS_IN_INFINITY:
        return np.zeros(given.shape, np.bool_)
    with np.errstate(over="ignore"):
        narrow = exact.astype(np.float16 if dtype == "float16" else np.float32)
    found: NDArray[np.bool_] = np.isinf(given) & (narrow == given) & np.isfinite(exact)
    return found


def _ulps(given: Array, again: Array, dtype: str) -> int | None:
    """The maximum number of values of the output's type between the two: 0, 1, 3, 7, ..."""
    kinds = (_bits_of_bfloat16, "bfloat16") if dtype == "bfloat16" else (None, None)
    if kinds[0] is not None:
        given, again = kinds[0](given), kinds[0](again)
    elif given.dtype.name == dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            again = again.astype(dtype)
    else:
        return None
    found = compare_pair(again, given, dtype_a=kinds[1], dtype_b=kinds[1]).ulps
    return None if found is None else (1 << max(len(found) - 1, 0)) - 1


def _bits_of_bfloat16(values: Array) -> Array:
    import ml_dtypes

    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def _emit(
    path: Path, replayer: Replayer, execution: Execution, values: Mapping[int, Array], dump: Path
) -> tuple[str, ...]:
    op = execution.op
    title = f"{op.kernel}, run again as {op.op_name} of {dump}, {op.place}, {op.line or 'no line'}"
    held = {
        slot: record for slot, record in execution.outputs.items() if record.payload is not None and not record.sample
    }
    script = replayer.script(op, execution.inputs, values, held, title.replace('"', "'").replace("\\", "/"))
    files = [str(path)]
    try:
        path.write_text(script.text, encoding="utf-8", errors="backslashreplace")
        if script.arrays:
            beside = path.with_name(path.name.removesuffix(".py") + ".npz")
            np.savez(beside, allow_pickle=False, **script.arrays)
            files.append(str(beside))
    except OSError as error:
        raise DumpPathError(
            f"cannot write {path}: {error.strerror or error}; name a file in a writable directory"
        ) from error
    return tuple(files)


# Finds the operator for a name, and its inputs in the dump.


def chosen(catalog: Catalog, name: str, step: int | None, rank: int | None, occurrence: int) -> Execution:
    """The matching operator: in the first step in which it has NaN or infinities, else in the first step that has it; of the lowest rank
    unless one is given.

    Raises NotInDumpError, with the nearest names, if nothing matches, or more than one operator does.
    """
    number = catalog.ranks[0] if rank is None else rank
    best = _of_best_step(catalog.ops(name, step=step, rank=number, include_skipped=True))
    if not best:
        raise NotInDumpError(
            f"{catalog.path}: {name} is a recorded value, not an operator; name an operator that reads it"
        )
    found = {each.op.op_name: each for each in best if each.op.occurrence == occurrence}
    if not found:
        raise NotInDumpError(f"{catalog.path}: {name} ran fewer than {occurrence + 1} times in step {best[0].op.step}")
    innermost = [each for each in found.values() if each.op.line and name.endswith(each.op.line)]
    choice = innermost if len(innermost) == 1 else list(found.values())
    if len(choice) > 1:
        raise NotInDumpError(f"{catalog.path}: in step {best[0].op.step}, {several(name, choice)}")
    return choice[0]


def _of_best_step(executions: Iterable[Execution]) -> list[Execution]:
    """Those of the first step with a finding, else of the first step in which one ran, else of the first; without recorded values."""
    best: list[Execution] = []
    for _, group in groupby(executions, lambda each: each.op.step):
        here = [each for each in group if each.op.op_type != "Parameter" or each.op.kernel]
        ran = [each for each in here if not each.op.skip]
        if any(map(has_finding, ran)):
            return ran
        if not best or (ran and best[0].op.skip):
            best = ran or here
    return best


def values_of(execution: Execution) -> Mapping[int, Array]:
    """The inputs in the dump, by slot, without memory that had not been written.

    Raises CannotReplayError if an input is missing.
    """
    op = execution.op
    if op.skip:
        raise CannotReplayError(f"{op.op_name} left no data: {op.skip}")
    found = {}
    for slot, record in execution.inputs.items():
        if record.skip == "allocation" or 0 in record.shape:
            continue
        if record.payload is None or record.sample:
            raise CannotReplayError(f"its input {record.argument or slot} is not in the dump: {_why_missing(record)}")
        found[slot] = record.numpy()
    return found


def _why_missing(record: TensorRecord) -> str:
    if record.skip:
        return record.skip
    if record.sample:
        return f"the dump has only a sample, the first {record.sample:,} elements; record whole tensors, with `opdump run --full`"
    return "the dump has only statistics; record values too, with `opdump run --full`"
