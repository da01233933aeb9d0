"""Compares two dumps step by step, until one is found in which an operator introduced a difference.

result = opdump.compare("/data/before", "/data/after")
result.verdict, [each.b.line for each in result.introduced]
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from opdump import amounts
from opdump.adapters.replay import can_replay
from opdump.catalog.catalog import Catalog, open_dump
from opdump.comparison.across_frameworks import compare_across, of_different_frameworks
from opdump.comparison.alignment import Alignment, align
from opdump.comparison.by_statistics import judged_by_statistics, same_statistics
from opdump.comparison.differences import difference, epsilon_of, same_bits
from opdump.comparison.integrity import holds_elements
from opdump.comparison.result import Result, Verdict, introduced
from opdump.comparison.suspects import Suspect
from opdump.comparison.sweep import Comparison
from opdump.comparison.trace import Trace, has_elements, read_traces

Array = NDArray[Any]
Dump = str | os.PathLike[str] | Catalog


def compare(a: Dump, b: Dump, *, step: int | None = None, step_b: int | None = None, rank: int | None = None) -> Result:
    """Compare two runs of a program and name the operators that introduced a difference.

    a, b    dumps: paths that `opdump.open` reads, or catalogs
    step    this step alone, of both; `step_b` where B's is another. Without it all steps that both have, in order, up to the first
            in which a difference was introduced
    rank    the rank of both; the lowest without it

    NaN at the same place, and the same infinity, are no difference. Where the dumps have statistics alone, structure and
    arguments are compared, and statistics.

    Raises as `opdump.open` does, and NotInDumpError where a dump has no such rank.
    """
    one, other = _opened(a), _opened(b)
    steps = _steps(one, other, step, step_b, rank)
    names = str(one.path), str(other.path)
    if not steps:
        held = f"{names[0]} holds steps {list(one.steps)}, {names[1]} holds {list(other.steps)}"
        return Result(
            verdict="incomparable", a=names[0], b=names[1], notes=(f"the dumps have no step in common: {held}",)
        )
    before: Comparison | None = None
    matched = unmatched = inherited = 0
    identical = True
    alone: set[int] = set()
    not_run: set[str] = set()
    notes: list[str] = []
    suspects: Sequence[Suspect] = ()
    for here, trace_a, trace_b in _parts(one, other, steps, rank):
        if of_different_frameworks(trace_a, trace_b):
            outcome = compare_across(trace_a, trace_b)
            matched += outcome.matched
            unmatched += outcome.unmatched
            inherited += outcome.inherited
            not_run |= outcome.not_run
            notes += outcome.notes
            identical = False
            suspects = outcome.suspects
            if suspects:
                break
            continue
        alignment = align(trace_a, trace_b)
        matched += alignment.matched
        unmatched += len(trace_a.nodes) + len(trace_b.nodes) - 2 * alignment.matched
        if not any(holds_elements(node.outputs) for node in trace_a.nodes) or not any(
            holds_elements(node.outputs) for node in trace_b.nodes
        ):
            alone.add(here)
            suspects = judged_by_statistics(trace_a, trace_b, alignment, is_first=here == steps[0][0])
            identical = identical and not unmatched and same_statistics(trace_a, trace_b, alignment)
            if suspects:
                break
            continue
        before = Comparison(trace_a, trace_b, alignment, before)
        suspects = before.sweep()
        found = before.found
        unequal, apart = _differing(trace_a, trace_b, alignment)
        identical = identical and not unequal and not unmatched
        inherited += max(0, apart - len(suspects))
        notes += [f"step {here}: {name} holds the same elements in another order" for name in found.permuted]
        not_run |= found.not_run
        if suspects:
            break
    if not_run:
        named = ", ".join(sorted(not_run)[:5]) + (", ..." if len(not_run) > 5 else "")
        notes.append(
            f"{amounts.count(len(not_run), 'kernel')} could not be run again, so what they recorded was compared, more loosely: {named}"
            + ("" if can_replay() else "; PyTorch is not installed here, and runs operators again: pip install torch")
        )
    if alone:
        notes.append(
            f"{len(alone):,} of {len(steps):,} steps have statistics alone: structure, arguments and wiring were judged, and nothing was "
            "run again; dump both with --full to have elements"
        )
    if not matched:
        return Result(verdict="incomparable", a=names[0], b=names[1], notes=("no operator of A was found in B",))
    verdict: Verdict = "divergent" if suspects else "identical" if identical else "benign"
    return Result(
        verdict=verdict,
        a=names[0],
        b=names[1],
        matched=matched,
        unmatched=unmatched,
        introduced=[introduced(suspect) for suspect in suspects],
        inherited=inherited if suspects else 0,
        notes=notes,
        steps=[here for here, _ in steps],
    )


def _opened(dump: Dump) -> Catalog:
    return dump if isinstance(dump, Catalog) else open_dump(Path(dump))


def _steps(a: Catalog, b: Catalog, step: int | None, step_b: int | None, rank: int | None) -> list[tuple[int, int]]:
    if step is not None:
        return [(step, step if step_b is None else step_b)]
    held = set(b.steps if rank is None else b.steps_of(rank))
    return [(each, each) for each in (a.steps if rank is None else a.steps_of(rank)) if each in held]


def _parts(
    a: Catalog, b: Catalog, steps: Sequence[tuple[int, int]], rank: int | None
) -> Iterator[tuple[int, Trace, Trace]]:
    """The steps, in the parts that both dumps have of them."""
    for here, there in steps:
        parts_a, parts_b = read_traces(a, here, rank), read_traces(b, there, rank)
        for part_a, part_b in itertools.zip_longest(parts_a, parts_b):
            yield here, part_a or Trace(here, parts_a[0].rank, []), part_b or Trace(there, parts_b[0].rank, [])


def _differing(a: Trace, b: Trace, alignment: Alignment) -> tuple[int, int]:
    """Of the matched operators: how many give other bits, and how many give other numbers beyond rounding."""
    unequal = apart = 0
    for here, there in alignment.b_of.items():
        worst = 0.0
        differs = False
        for first, second in _pairs(a, b, here, there):
            if not same_bits(first[0], second[0]):
                differs = True
                epsilon = epsilon_of(first[1]) or 1.0
                worst = max(worst, difference(first[0], second[0]).relative / epsilon)
        unequal += differs
        apart += worst > 100
    return unequal, apart


def _pairs(a: Trace, b: Trace, here: int, there: int) -> Iterable[tuple[tuple[Array, str], tuple[Array, str]]]:
    outputs = b.nodes[there].outputs
    for slot, record in a.nodes[here].outputs.items():
        other = outputs.get(slot)
        if other is not None and has_elements(record) and has_elements(other):
            yield (record.numpy(), record.dtype), (other.numpy(), other.dtype)
