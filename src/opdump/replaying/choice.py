"""Which operator of a dump is meant to be run again, by a name or a line, and what the dump has of its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from numpy.typing import NDArray

from opdump.catalog.catalog import Catalog, Execution
from opdump.errors import CannotReplayError, NotInDumpError
from opdump.records import TensorRecord

Array = NDArray[Any]

_LINE: Final = re.compile(r".+\.\w+:\d+")
_LISTED: Final = 8


def chosen(catalog: Catalog, name: str, step: int | None, rank: int | None, occurrence: int) -> Execution:
    """The one operator that is meant: of the first step that has it, of the lowest rank unless one is named.

    Raises NotInDumpError, with the nearest names, for a name or a line that means none, and for one that means several.
    """
    number = catalog.ranks[0] if rank is None else rank
    found: dict[str, Execution] = {}
    first: Execution | None = None
    for execution in _meant(catalog, name, step, number):
        if first is not None and execution.op.step != first.op.step:
            break
        first = first or execution
        if execution.op.occurrence == occurrence:
            found.setdefault(execution.op.op_name, execution)
    if first is None:
        where = "" if step is None else f" in step {step}"
        if not _LINE.fullmatch(name):
            raise NotInDumpError(
                f"{catalog.path}: {name} is a recorded value, not an operator; name an operator that reads it"
            )
        raise NotInDumpError(f"{catalog.path}: no operator has the line {name}{where}")
    if name in found:
        return found[name]
    innermost = [each for each in found.values() if each.line and name.endswith(each.line)]
    choice = innermost if len(innermost) == 1 else list(found.values())
    if not choice:
        raise NotInDumpError(f"{catalog.path}: {name} ran fewer than {occurrence + 1} times in step {first.op.step}")
    if len(choice) > 1:
        listed = ", ".join(each.op_name for each in choice[:_LISTED]) + (", ..." if len(choice) > _LISTED else "")
        raise NotInDumpError(f"{catalog.path}: {name} means {len(choice)} operators; name one of them: {listed}")
    return choice[0]


def _meant(catalog: Catalog, name: str, step: int | None, rank: int) -> Iterator[Execution]:
    """The operators that a name means: those that ran a kernel, else the others."""
    if _LINE.fullmatch(name):
        every = list(catalog.ops(source=name, step=step, rank=rank, include_skipped=True))
    else:
        every = list(catalog.ops(name, step=step, rank=rank, include_skipped=True))
    every = [execution for execution in every if execution.op.op_type != "Parameter" or execution.op.kernel]
    return iter([execution for execution in every if not execution.op.skip] or every)


def values_of(execution: Execution) -> Mapping[int, Array]:
    """What the dump has of the inputs, by slot; memory that nobody had written is left out.

    Raises CannotReplayError where it has not all that the operator read.
    """
    op = execution.op
    if op.skip:
        raise CannotReplayError(f"{op.op_name} left no data: {op.skip}")
    found = {}
    for slot, record in execution.inputs.items():
        if record.skip == "allocation" or 0 in record.shape:
            continue
        if not _is_whole(record):
            raise CannotReplayError(f"its input {record.argument or slot} is not in the dump: {_why_missing(record)}")
        found[slot] = record.numpy()
    return found


def _is_whole(record: TensorRecord) -> bool:
    return record.payload is not None and not record.sample


def _why_missing(record: TensorRecord) -> str:
    if record.skip:
        return record.skip
    if record.sample:
        return f"a sample alone, the first {record.sample:,} elements; dump whole tensors, with `opdump run --full`"
    return "statistics alone; dump the elements too, with `opdump run --full`"
