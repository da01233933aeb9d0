"""Runs one operator of a dump again, from its recorded inputs and arguments, and says how far its recorded outputs are from that.

result = opdump.replay("/data/dump", "first-Linear/addmm-op3")
result.verdict, [output.distances[-1].roundings for output in result.outputs]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import AS_RECORDED, Replayed, Replayer, SupportsScripts, required_replayer
from opdump.catalog.catalog import Catalog, Execution, open_dump
from opdump.comparison.differences import epsilon_of
from opdump.comparison.kernel_accuracy import allowed_error, error_of
from opdump.errors import CannotReplayError, DumpPathError
from opdump.kernels import compare_pair
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import TensorRecord
from opdump.replaying.choice import chosen, values_of
from opdump.replaying.result import Distance, Replay, ReplayedOutput

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
    """Run one operator of a dump again, on the CPU, from what it read.

    dump        a path that `opdump.open` reads, or a catalog
    op          its name, as `opdump show` prints it or the end of that, or a line, `net.py:45`, that became one operator
    step, rank  the first step that has it, and the lowest rank, without them
    occurrence  which of its executions in the step, from 0
    dtype       the type that floats are computed in: "float64", "float32", "bfloat16", "float16"; "recorded" for the types that they had
    emit        write a program there that runs the operator again without opdump; its inputs lie beside it in an npz file, or in it

    Whatever `dtype` is, recorded outputs are held against float64 as well.

    Raises as `opdump.open` does; NotInDumpError, with the nearest names, where no or more than one operator is meant; CannotReplayError,
    which says why, where the operator cannot be run again.
    """
    catalog = dump if isinstance(dump, Catalog) else open_dump(Path(dump))
    execution = chosen(catalog, op, step, rank, occurrence)
    values = values_of(execution)
    if not execution.outputs:
        raise CannotReplayError(f"{execution.op.op_name} has no output that the dump could have")
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
    """What the absolute inputs give: sums of absolute summands, where the operator sums."""
    try:
        absolute = {slot: np.abs(value) for slot, value in values.items() if value.dtype != np.bool_}
        return replayer.run(execution.op, execution.inputs, {**values, **absolute}).outputs
    except CannotReplayError:
        return {}


def _why_not(record: TensorRecord, reference: Replayed) -> str:
    """Why an output is not compared; empty where it is."""
    if record.slot in unspecified_outputs(record.op.kernel):
        return "nothing says what it holds"
    if record.skip:
        return f"not in the dump: {record.skip}"
    if 0 in record.shape:
        return "no elements"
    if record.payload is None or record.sample:
        return "its elements are not in the dump"
    if record.slot not in reference.outputs:
        return "the operator gave none when it was run again"
    if reference.outputs[record.slot].shape != record.shape:
        return f"the operator gave another shape when it was run again, {reference.outputs[record.slot].shape}"
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
    # Numbers of exact types may hang on rounding, as an argmax does: there what the same types give is right, too.
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
    """Elements that are infinite since the type cannot hold what float64 gives."""
    if dtype not in _ENDS_IN_INFINITY:
        return np.zeros(given.shape, np.bool_)
    with np.errstate(over="ignore"):
        narrow = exact.astype(np.float16 if dtype == "float16" else np.float32)
    found: NDArray[np.bool_] = np.isinf(given) & (narrow == given) & np.isfinite(exact)
    return found


def _ulps(given: Array, again: Array, dtype: str) -> int | None:
    """How many numbers of the output's type are between the two, at most: 0, 1, 3, 7, ..."""
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
    if not isinstance(replayer, SupportsScripts):
        raise CannotReplayError(f"no program can be written that runs {execution.op.kernel} again")
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
            f"cannot write {path}: {error.strerror or error}; name a file in a directory that can be written"
        ) from error
    return tuple(files)
