"""Compares two dumps: judges each rank, and measures the distance of all matched outputs.

result = opdump.compare("/data/before", "/data/after")
result.verdict, [each.b.line for each in result.introduced]
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from opdump.catalog.catalog import Catalog, open_dump
from opdump.comparison.judgement import Chain, Judgement, Steps, distinct, judge, notes_of
from opdump.comparison.memory import training_steps
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
from opdump.comparison.trace import are_unrelated_programs
from opdump.errors import NotInDumpError
from opdump.index.values import dumps_unchanged
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

    NaN at the same place and equal infinities are not differences. If the dumps have only statistics, structure, arguments and statistics are
    compared.

    Raises the errors of `opdump.open`, NotInDumpError if a dump lacks the rank or step, and ConfigError with the line if the match.yaml is invalid.
    """
    one, other = _opened(a), _opened(b)
    names = str(one.path), str(other.path)
    step_b = step if step_b is None else step_b
    if step is not None and step_b is not None:
        _check_step(one, step)
        _check_step(other, step_b)
    unlike = unlike_layouts(one, other, rank)
    if unlike is not None:
        return Result(verdict="incomparable", a=names[0], b=names[1], why=unlike.reason, notes=unlike.notes)
    steps = _common_steps(one, other, step, step_b, rank)
    if not steps:
        return Result(verdict="incomparable", a=names[0], b=names[1], notes=(_nothing_common(one, other),))
    tell = progress or _untold
    given = None if match is None else _given(Path(match), one, other)
    if executor is None or len(steps) == 1 or isinstance(a, Catalog) or isinstance(b, Catalog):
        judged = _judged(one, other, steps, given, tell, may_join=step is None)
    else:
        found = executor.map(
            _judge_rank, *zip(*((names, steps[each], each, given, step is None) for each in steps), strict=True)
        )
        judged = _counted(found, len(steps), tell)
    return _result(names, dict(zip(steps, judged, strict=True)), executor, tell)


def _result(names: tuple[str, str], judged: dict[int, Judgement], executor: Executor | None, tell: Progress) -> Result:
    found = list(judged.values())
    pairs, missing = _table(found, executor, tell)
    differing, by_statistics, inherited = _counts(pairs)
    matched, unmatched, most = _sizes(found)
    are_unrelated = are_unrelated_programs(matched, most) and not _have_common_results(found)
    suspects = [] if are_unrelated else _suspects_of(found)
    are_identical = not (unmatched or differing or any(each.of_frameworks for each in found))
    nearest = distinct(each.nearest for each in found) if are_unrelated else []
    return Result(
        verdict=_verdict(suspects, are_unrelated=are_unrelated, are_identical=are_identical),
        a=names[0],
        b=names[1],
        matched=matched,
        unmatched=unmatched,
        introduced=tuple(introduced(suspect, of_ranks=len(found) > 1) for suspect in suspects),
        inherited=0 if are_unrelated else inherited,
        notes=[*nearest, *notes_of(found)],
        steps=sorted(distinct(each.steps for each in found)),
        ranks=list(judged),
        pairs=Chain(pairs),
        differing=differing,
        by_statistics=by_statistics,
        matches=Chain(list(itertools.chain.from_iterable(each.matches for each in found))),
        window=_window_of(suspects, found),
        missing_metrics=missing,
        why=_why(found) if are_unrelated and not matched else "",
    )


def _have_common_results(found: Sequence[Judgement]) -> bool:
    """Whether two results stand for each other. This relates two programs even if one runs everything in a single fused operator."""
    return any(suspect.kind == "result" for each in found if each.of_frameworks for suspect in each.suspects)


def _sizes(found: Sequence[Judgement]) -> tuple[int, int, int]:
    """The number of matched operators, the number of unmatched operators, and the maximum possible number of matches."""
    matched = sum(each.matched for each in found if not each.why)
    return matched, sum(each.unmatched for each in found), sum(each.most for each in found)


def _why(found: Sequence[Judgement]) -> str:
    """Why a rank was not judged: the reason of the first one that has a reason."""
    return next((each.why for each in found if each.why), "")


def _verdict(suspects: Sequence[Suspect], *, are_unrelated: bool, are_identical: bool) -> Verdict:
    if are_unrelated:
        return "incomparable"
    if suspects:
        return "divergent"
    return "identical" if are_identical else "benign"


def _table(
    judged: Sequence[Judgement], executor: Executor | None, tell: Progress
) -> tuple[list[list[PairRow] | RepeatedStep], dict[str, str]]:
    """The table of pairs, step by step, and the metrics that some pair lacks, with the reason."""
    parts = [part for found in judged for part in found.outputs]
    rows, missing = _measured([pair for part in parts if isinstance(part, list) for pair in part], executor, tell)
    waiting = iter(rows)
    return [part for found in judged for part in _states(found, waiting)], missing


def _counts(table: Sequence[list[PairRow] | RepeatedStep]) -> tuple[int, int, int]:
    """The numbers of pairs that are not identical, of pairs that were compared by statistics, and of operators that inherited a difference."""
    repeated = [part for part in table if isinstance(part, RepeatedStep)]
    rows = [row for part in table if isinstance(part, list) for row in part]
    differing = sum(not row.measured.identical for row in rows) + sum(part.differing for part in repeated)
    by_statistics = sum(row.measured.by_statistics is not None for row in rows)
    inherited = len({_place(row.b) for row in rows if row.state == "inherited"})
    return differing, by_statistics + sum(part.by_statistics for part in repeated), inherited


def _suspects_of(judged: Sequence[Judgement]) -> list[Suspect]:
    """The suspects of all ranks, by step. Within a step, collectives come last: they may pass on a difference of another rank."""
    suspects = [suspect for found in judged for suspect in found.suspects]
    if len(judged) == 1:
        return suspects

    def place(suspect: Suspect) -> tuple[int, bool]:
        op = introduced(suspect).op
        return op.step, is_collective(op)

    return sorted(suspects, key=place)


def _window_of(suspects: Sequence[Suspect], judged: Sequence[Judgement]) -> Sequence[Neighbour]:
    """The operators around the first suspect."""
    of_first = (found.window for found in judged if any(each is suspects[0] for each in found.suspects))
    return next(of_first, ()) if suspects else ()


def _untold(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


def _opened(dump: Dump) -> Catalog:
    return dump if isinstance(dump, Catalog) else open_dump(Path(dump))


def _common_steps(a: Catalog, b: Catalog, step: int | None, step_b: int | None, rank: int | None) -> dict[int, Steps]:
    """The pairs of steps to compare, by rank. Ranks without any are left out."""
    found: dict[int, Steps] = {}
    for each in [number for number in a.ranks if number in set(b.ranks)] if rank is None else [rank]:
        held_a, held_b = a.steps_of(each), set(b.steps_of(each))
        wanted = _corresponding(a, b, each) if step is None or step_b is None else [(step, step_b)]
        found[each] = [(here, there) for here, there in wanted if here in held_a and there in held_b]
    return {each: steps for each, steps in found.items() if steps}


def _corresponding(a: Catalog, b: Catalog, rank: int) -> Steps:
    """Steps with equal numbers. If the runs have different numbers of steps but train equally often, the steps that train, in order: one
    of the runs may evaluate before it trains.
    """
    held_a, held_b = a.steps_of(rank), b.steps_of(rank)
    if len(held_a) != len(held_b):
        trained_a, trained_b = training_steps(a, rank), training_steps(b, rank)
        if trained_a and len(trained_a) == len(trained_b):
            return list(zip(trained_a, trained_b, strict=True))
    return [(number, number) for number in held_a]


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
    a: Catalog, b: Catalog, steps: dict[int, Steps], given: GivenMatches | None, tell: Progress, *, may_join: bool
) -> Iterator[Judgement]:
    done, total = 0, sum(map(len, steps.values()))

    def step_done() -> None:
        nonlocal done
        done += 1
        tell("judging steps", done, total)

    tell("judging steps", 0, total)
    for rank, of_rank in steps.items():
        yield judge(a, b, of_rank, rank, given, step_done, may_join=may_join)


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
