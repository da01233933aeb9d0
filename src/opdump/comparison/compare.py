"""Compares two dumps: judges each rank, and measures the distance of all matched outputs.

result = opdump.compare("/data/before", "/data/after")
result.verdict, [each.b.line for each in result.introduced]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from opdump.adapters.replay import can_replay
from opdump.catalog.catalog import Catalog, open_dump
from opdump.comparison.judgement import Chain, Judgement, Steps, judge, notes_of
from opdump.comparison.nodes import Suspect
from opdump.comparison.pairs import (
    GivenMatches,
    Measured,
    Outputs,
    PairRow,
    RepeatedStep,
    State,
    measured,
    read_matches,
    units,
)
from opdump.comparison.rank_layouts import is_collective, unlike_layouts
from opdump.comparison.result import Neighbour, Result, Verdict, introduced
from opdump.comparison.trace import are_strangers
from opdump.errors import NotInDumpError
from opdump.index.payload import dumps_unchanged
from opdump.records import OpRecord

Dump = str | os.PathLike[str] | Catalog
Progress = Callable[[str, int, int], None]
"""Called with the current activity (`judging steps`, `comparing outputs`), the amount done, and the total."""


@dumps_unchanged()
def compare(
    a: Dump,
    b: Dump,
    *,
    step: int | None = None,
    step_b: int | None = None,
    rank: int | None = None,
    match: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Result:
    """Compare two runs of a program and name the operators that introduced a difference.

    a, b      dumps: paths that `opdump.open` reads, or catalogs
    step      compare only this step; `step_b` is its number in B if that differs. Default: all steps that both runs have, in order, up to the
              first in which a difference was introduced
    rank      compare only this rank; default: all ranks that both runs have
    match     a match.yaml whose pairs of operators are kept; `Result.save_matches` writes one
    executor  any executor of `concurrent.futures`; it judges ranks (if `a` and `b` are paths) and measures ranges of operators. Default: this
              process does all the work
    progress  a function to call with the progress

    NaN at the same place and equal infinities are no difference. If the dumps have only statistics, structure, arguments and statistics are
    compared.

    Raises the errors of `opdump.open`, NotInDumpError if a dump lacks the rank or step, and ConfigError with the line if the match.yaml is invalid.
    """
    one, other = _opened(a), _opened(b)
    names = str(one.path), str(other.path)
    if step is not None:
        _check_step(one, step)
        _check_step(other, step if step_b is None else step_b)
    unlike = unlike_layouts(one, other, rank)
    if unlike is not None:
        return Result(verdict="incomparable", a=names[0], b=names[1], why=unlike.reason, notes=unlike.notes)
    ranks = [rank] if rank is not None else [each for each in one.ranks if each in set(other.ranks)]
    steps = {each: _steps(one, other, step, step_b, each) for each in ranks}
    ranks = [each for each in ranks if steps[each]]
    if not ranks:
        return Result(verdict="incomparable", a=names[0], b=names[1], notes=(_nothing_common(one, other),))
    tell = progress or _untold
    given = None if match is None else _given(Path(match), one, other)
    if executor is None or len(ranks) == 1 or isinstance(a, Catalog) or isinstance(b, Catalog):
        judged = list(_judged(one, other, steps, ranks, given, tell, may_join=step is None))
    else:
        found = executor.map(
            _judge_rank, *zip(*((names, steps[each], each, given, step is None) for each in ranks), strict=True)
        )
        judged = list(_counted(found, len(ranks), tell))
    return _result(names, dict(zip(ranks, judged, strict=True)), executor, tell)


def _result(
    names: tuple[str, str],
    judged: dict[int, Judgement],
    executor: Executor | None,
    tell: Progress,
) -> Result:
    parts = [part for found in judged.values() for part in found.outputs]
    again = [part for part in parts if isinstance(part, RepeatedStep)]
    rows, missing = _measured([pair for part in parts if isinstance(part, list) for pair in part], executor, tell)
    waiting = iter(rows)
    pairs = [part for found in judged.values() for part in _states(found, waiting)]
    inherited = {_place(row.b) for part in pairs if isinstance(part, list) for row in part if row.state == "inherited"}
    judged_steps = sorted({step for found in judged.values() for step in found.steps})
    matched = sum(found.matched for found in judged.values() if found.is_judged)
    unmatched = sum(found.unmatched for found in judged.values())
    suspects = _suspects_of(judged)
    of_frameworks = any(found.of_frameworks for found in judged.values())
    differing = sum(not row.identical for row in rows) + sum(each.differing for each in again)
    by_statistics = sum(row.by_statistics is not None for row in rows) + sum(each.by_statistics for each in again)
    identical = not unmatched and not of_frameworks and not differing
    strangers = are_strangers(matched, sum(found.most for found in judged.values()))
    verdict: Verdict = (
        "incomparable" if strangers else "divergent" if suspects else "identical" if identical else "benign"
    )
    notes = notes_of(list(judged.values()), can_replay=can_replay)
    if strangers:
        notes = [*dict.fromkeys(note for found in judged.values() for note in found.nearest), *notes]
    return Result(
        verdict=verdict,
        a=names[0],
        b=names[1],
        matched=matched,
        unmatched=unmatched,
        introduced=() if strangers else [introduced(suspect, of_ranks=len(judged) > 1) for suspect in suspects],
        inherited=0 if strangers else len(inherited),
        notes=notes,
        steps=judged_steps,
        ranks=list(judged),
        pairs=Chain(pairs),
        differing=differing,
        by_statistics=by_statistics,
        matches=Chain([each for found in judged.values() for each in found.matches]),
        window=() if strangers else _window_of(suspects, judged),
        missing_metrics=missing,
    )


def _suspects_of(judged: dict[int, Judgement]) -> list[Suspect]:
    """The suspects of all ranks, by step. Within a step, collectives come last: they may pass on a difference of another rank."""
    suspects = [suspect for found in judged.values() for suspect in found.suspects]
    if len(judged) == 1:
        return suspects

    def place(suspect: Suspect) -> tuple[int, bool]:
        op = introduced(suspect).op
        return op.step, is_collective(op)

    return sorted(suspects, key=place)


def _window_of(suspects: Sequence[Suspect], judged: dict[int, Judgement]) -> Sequence[Neighbour]:
    """The operators around the first suspect."""
    of_first = (found.window for found in judged.values() if any(each is suspects[0] for each in found.suspects))
    return next(of_first, ()) if suspects else ()


def _untold(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


def _opened(dump: Dump) -> Catalog:
    return dump if isinstance(dump, Catalog) else open_dump(Path(dump))


def _steps(a: Catalog, b: Catalog, step: int | None, step_b: int | None, rank: int) -> Steps:
    held = set(b.steps_of(rank))
    if step is not None:
        there = step if step_b is None else step_b
        return [(step, there)] if step in a.steps_of(rank) and there in held else []
    return [(each, each) for each in a.steps_of(rank) if each in held]


def _given(path: Path, a: Catalog, b: Catalog) -> GivenMatches:
    given = read_matches(path)
    ranks = set(a.ranks) & set(b.ranks)
    given.check_places(
        {(rank, here, there) for rank in ranks for here in a.steps_of(rank) for there in b.steps_of(rank)}
    )
    return given


def _check_step(dump: Catalog, step: int) -> None:
    if step not in dump.steps:
        raise NotInDumpError(
            f"{dump.path}: holds no step {step}; it holds {', '.join(map(str, dump.steps[:20])) or 'none'}"
        )


def _nothing_common(a: Catalog, b: Catalog) -> str:
    what, one, other = ("step", a.steps, b.steps) if set(a.ranks) & set(b.ranks) else ("rank", a.ranks, b.ranks)
    return f"the dumps have no {what} in common: {a.path} has {what}s {list(one)}, {b.path} has {list(other)}"


def _judged(
    a: Catalog,
    b: Catalog,
    steps: dict[int, Steps],
    ranks: Sequence[int],
    given: GivenMatches | None,
    tell: Progress,
    *,
    may_join: bool,
) -> Iterator[Judgement]:
    done, total = 0, sum(len(steps[rank]) for rank in ranks)

    def step_done() -> None:
        nonlocal done
        done += 1
        tell("judging steps", done, total)

    tell("judging steps", 0, total)
    for rank in ranks:
        yield judge(a, b, steps[rank], rank, given, step_done, may_join=may_join)


@dumps_unchanged()
def _judge_rank(
    paths: tuple[str, str], steps: Steps, rank: int, given: GivenMatches | None, may_join: bool
) -> Judgement:
    """Judge a rank, in a process of an executor."""
    return judge(open_dump(Path(paths[0])), open_dump(Path(paths[1])), steps, rank, given, may_join=may_join)


def _counted(found: Iterator[Judgement], total: int, tell: Progress) -> Iterator[Judgement]:
    tell("judging ranks", 0, total)
    for done, each in enumerate(found, 1):
        tell("judging ranks", done, total)
        yield each


def _measured(
    outputs: Sequence[Outputs], executor: Executor | None, tell: Progress
) -> tuple[list[Measured], dict[str, str]]:
    """The measurements of each pair of outputs, and the metrics of installed packages that some pair lacks, with the reason."""
    rows: list[Measured] = []
    missing: dict[str, str] = {}
    cut = units(outputs)
    for unit, reasons in map(measured, cut) if executor is None else executor.map(measured, cut):
        rows += unit
        missing |= reasons
        tell("comparing outputs", len(rows), len(outputs))
    return rows, missing


def _states(found: Judgement, rows: Iterator[Measured]) -> Iterator[list[PairRow] | RepeatedStep]:
    """The pairs of a rank with their states, step by step. `rows` continues with the measurements of these pairs."""
    accused = [(suspect, node.op) for suspect in found.suspects if (node := suspect.b or suspect.a) is not None]
    outputs = {(_place(op), suspect.slot) for suspect, op in accused if suspect.io == "output"}
    readers = {_place(op) for suspect, op in accused if suspect.io == "input"}
    first = min((_place(op) for _, op in accused), default=None)

    def state_of(pair: Outputs, row: Measured, *, may_differ: bool) -> State:
        place = _place(pair.b.op)
        if row.identical:
            return "identical"
        if first is not None and may_differ and row.is_beyond_rounding and place >= first:
            is_source = pair.fails or place in readers or (place, pair.b.slot) in outputs
            return "introduced" if is_source else "inherited"
        return "noise"

    for number, part in enumerate(found.outputs):
        if isinstance(part, RepeatedStep):
            yield part
        else:
            may_differ = number >= found.diverging
            measured_pairs = ((pair, next(rows)) for pair in part)
            yield [PairRow(pair, state_of(pair, row, may_differ=may_differ), row) for pair, row in measured_pairs]


Place = tuple[int, int, int, str]


def _place(op: OpRecord) -> Place:
    """The position of an operator in a run, for sorting."""
    return op.rank_id, op.step, op.order, op.op_name
