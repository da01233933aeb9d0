"""Compare the contents of a dump with those of an undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import opdump
from opdump.errors import OpdumpError, UnknownLayoutError

Key = tuple[str, str, int, str, int]
"""Type, name and occurrence of an operator; input or output; slot."""
Value = tuple[str, tuple[int, ...], bytes | None, tuple[tuple[str, Any], ...]]
"""Element type, shape, elements, statistics."""
Contents = Mapping[int, Mapping[Key, Value]]
"""Records by step."""


@dataclass(slots=True)
class Found:
    """The findings of a damaged dump. `wrong`: violations."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def contents_of(catalog: opdump.Catalog, steps: Iterable[int] | None = None, *, rank: int | None = None) -> Contents:
    """Every record of these steps with its contents. Reading errors pass through; AssertionError for a duplicate
    record.
    """
    found: dict[int, dict[Key, Value]] = {}
    for step in catalog.steps if steps is None else steps:
        records = found[step] = {}
        for record in catalog.tensors(step=step, rank=rank):
            op = record.op
            key = (op.op_type, op.op_name, op.occurrence, record.io, record.slot)
            assert key not in records, f"step {step} has {key} twice"
            elements = None if record.payload is None else record.payload.to_host().tobytes()
            records[key] = (record.dtype, record.shape, elements, tuple(sorted(record.statistics.items())))
    return found


def check_damaged(root: Path, whole: Contents, ran: int, found: Found) -> None:
    """Check a dump whose run was cut off after `ran` steps: what it contains is true, and missing parts are reported."""
    try:
        catalog = opdump.open(root)
    except UnknownLayoutError:
        found.counts["nothing written yet"] += 1
        if ran >= 2:
            found.wrong.append(f"{root}: is not a dump after {ran} steps")
        if left := [str(path) for path in root.rglob("*.npy")]:
            found.wrong.append(f"{root}: contains {left[:3]}, but is not a dump")
        return
    except OpdumpError as error:
        found.wrong.append(f"{root}: {type(error).__name__}: {error}")
        return
    finished = set()
    for step in catalog.steps:
        try:
            records = contents_of(catalog, [step])[step]
        except (OpdumpError, AssertionError) as error:
            found.wrong.append(f"{root}: step {step}: {type(error).__name__}: {error}")
            continue
        problems = [str(problem) for problem in catalog.problems]
        is_told = any(f"step {step} was not finished" in problem for problem in problems)
        _compare(f"{root}: step {step}", records, whole.get(step, {}), is_told, problems, found)
        if is_told:
            found.counts["steps cut off, reported"] += 1
        else:
            finished.add(step)
            found.counts["steps complete"] += 1
    # The step before the last one that ran was written before that one ended.
    if lost := set(range(ran - 1)) - finished:
        found.wrong.append(
            f"{root}: {ran} steps ran, and these are not complete: {sorted(lost)}; reported: {list(map(str, catalog.problems))}"
        )


def _compare(
    where: str, records: Mapping[Key, Value], whole: Mapping[Key, Value], is_told: bool, told: list[str], found: Found
) -> None:
    anywhere = {(key[0], key[3], key[4], value[2]) for key, value in whole.items()}
    for key, (dtype, shape, elements, statistics) in records.items():
        expected = whole.get(key)
        if expected is None:
            # Named by its file, which may shorten the operator's name, or by a table row whose file was not written
            # yet.
            if is_told and elements is None:
                found.counts["files missing, reported"] += 1
            elif not is_told or (key[0], key[3], key[4], elements) not in anywhere:
                found.wrong.append(f"{where}: {key} is in no other run")
            continue
        if elements is None and expected[2] is not None:
            found.counts["files missing, reported"] += 1
            if not is_told and not any("not on disk" in problem for problem in told):
                found.wrong.append(f"{where}: {key} has lost its file, which is not reported")
        elif elements != expected[2]:
            found.wrong.append(f"{where}: {key} has different elements")
        if (dtype, shape) != expected[:2] or (statistics != expected[3] and not is_told):
            found.wrong.append(f"{where}: {key} has another type, shape or statistics")
    if not is_told and (lost := whole.keys() - records.keys()):
        found.wrong.append(f"{where}: lacks {len(lost)} records, such as {min(lost)}, which is not reported")


def check_whole(root: Path, whole: Contents, found: Found) -> None:
    """Check that the last run in a directory ended well and equals the undisturbed run."""
    try:
        catalog = opdump.open(root)
        if contents_of(catalog) != whole:
            found.wrong.append(f"{root}: the next run differs; reported: {list(map(str, catalog.problems))}")
        if not catalog.runs[-1].complete:
            found.wrong.append(f"{root}: the next run counts as cut off")
    except (OpdumpError, AssertionError) as error:
        found.wrong.append(f"{root}: after the next run: {type(error).__name__}: {error}")
    if left := list(root.rglob("*.part")):
        found.wrong.append(f"{root}: the next run left {left[:3]}")


def steps_noted(journal: Path) -> list[str]:
    """The lines of a training's journal; empty if it did not begin."""
    return journal.read_text().splitlines() if journal.exists() else []
