"""Checks the suite itself: faults change something that lasts, clean pairs print the same numbers, expected answers exist.

A fault that changes no parameter, gradient, buffer or optimizer state by more than rounding is not a fault. A truth that no operator of
the dump matches names something that never ran.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import opdump
from benchmarks.diagnosis.comparison import described
from benchmarks.diagnosis.programs import Program
from benchmarks.diagnosis.run_ends import greatest_difference, printed_numbers
from benchmarks.diagnosis.running import Dumps
from benchmarks.diagnosis.suite import Pair
from benchmarks.diagnosis.worker import Worker

MATERIAL: Final = 1e-5


def complaints(worker: Worker, pair: Pair, dumps: Dumps) -> list[str]:
    """The defects of a pair; empty if it is sound."""
    try:
        found = _of_fault(worker, pair, dumps) if pair.truth else _of_clean(worker, pair, dumps)
    except RuntimeError as error:
        found = [str(error).splitlines()[-1]]
    dumps.done(pair)
    return [f"{pair.name}: {complaint}" for complaint in found]


def _of_fault(worker: Worker, pair: Pair, dumps: Dumps) -> list[str]:
    sound = replace(pair.b, edits=())
    changed = greatest_difference(_end(worker, sound, dumps), _end(worker, pair.b, dumps))
    ends = [printed_numbers(_log(worker, program, dumps)) for program in (sound, pair.b)]
    changed = max([changed, *map(_relative, *ends)]) if len(ends[0]) == len(ends[1]) else float("inf")
    found = [] if changed > MATERIAL else [f"changes nothing that lasts ({changed:.1e})"]
    paths = {
        "a": dumps.made(worker, pair.a, "statistics"),
        "b": dumps.made(worker, pair.b, "statistics"),
    }
    for place in pair.truth:
        operators = opdump.open(str(paths[place.side])).ops()
        if not any(place.has(described(execution.op)) for execution in operators):
            found.append(f"no operator matches {place}")
    return found


def _of_clean(worker: Worker, pair: Pair, dumps: Dumps) -> list[str]:
    ends = [printed_numbers(_log(worker, program, dumps)) for program in (pair.a, pair.b)]
    if not ends[0] or len(ends[0]) != len(ends[1]):
        return [f"prints {len(ends[0])} and {len(ends[1])} numbers"]
    worst = max(map(_relative, *ends))
    return [] if worst <= pair.rounding else [f"prints numbers that differ by {worst:.1e}"]


def _relative(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-3)


def _end(worker: Worker, program: Program, dumps: Dumps) -> Path:
    return Path(_ran(worker, program, dumps).with_suffix(".npz"))


def _log(worker: Worker, program: Program, dumps: Dumps) -> Path:
    return _ran(worker, program, dumps).with_suffix(".log")


def _ran(worker: Worker, program: Program, dumps: Dumps) -> Path:
    script = dumps.script(program)
    end = script.parent / "end"
    task: dict[str, Any] = {"script": str(script), "settings": list(program.settings)}
    with dumps.locked(str(end)):
        if not end.with_suffix(".npz").exists():
            worker.of(program.runs_in).ask("run_end", out=f"{end}.npz", log=f"{end}.log", **task)
    return end
