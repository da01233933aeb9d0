"""Reads a dump: the operators that ran, with their inputs and outputs, loaded on demand.

    catalog = opdump.open("/data/dump")
    for op in catalog.ops("Conv2D", step=2):                 # every execution of an operator, with its tensors
        print(op.op_name, op.line, {slot: output.statistics["max"] for slot, output in op.outputs.items()})
    for tensor in catalog:                                   # every tensor, in execution order
        print(tensor.name, tensor.numpy().mean())
    catalog.ops(source="train.py:175")                       # the operators of a line of the script
    catalog.to_pandas(step=2)                                # one row per tensor

It reads dumps of opdump, of MindSpore's synchronous mode in both naming schemes, and of Ascend devices (MindSpore's asynchronous mode, acl),
completely or in part. Steps and elements are read on demand. Files are not trusted: docs/files.md describes how damaged and malicious files are
handled.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from opdump import amounts
from opdump.amounts import html_table, repr_of
from opdump.catalog.query import Asked, Execution, SourcePlace, choices_of, executions_of, first_of, nearest_to
from opdump.doing import note
from opdump.errors import CorruptDumpError, NotInDumpError, PackageMissingError
from opdump.graph import Graph
from opdump.index.runs import Run, RunChoice
from opdump.kernels import Summary
from opdump.layouts.base import ModelDirectories, Rank, SupportsInspectedSteps, SupportsModels
from opdump.layouts.detect import read_ranks
from opdump.records import IO, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import OWN
from opdump.step_table import FactsByTemplate, StepTable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from typing_extensions import Unpack

__all__ = ["Catalog", "Execution", "Run", "open_dump"]

_PARAMETER = "Parameter"
"""op_type of a value recorded without an operator. Its name may be typed with this prefix."""


class TensorKeywords(TypedDict, total=False):
    """The keyword arguments of `Catalog.tensors`."""

    step: int | None
    rank: int | None
    graph: int | None
    op_type: str | None
    source: str | None
    io: IO | None
    include_skipped: bool


def open_dump(path: str | os.PathLike[str], *, run: RunChoice = "latest") -> Catalog:
    """Open a dump: its root directory, a `rank_N` in it, a net in that, or one iteration; for an Ascend device, its root, a time, a device, a model,
    or one directory of data.

    If several captures wrote into the directory, `run` selects: "latest" takes each step from the last run that has it, a number selects only
    that run (`Catalog.runs` lists them), and "all" selects everything.

    Raises UnknownLayoutError if there is no dump, NotInDumpError if there is no such run, and CorruptDumpError if a link or a table leads out
    of the dump.
    """
    return Catalog(Path(path), read_ranks(Path(path), run=run))


class Catalog:
    """The records of a dump. Iterating yields every tensor, by rank, step and execution order."""

    def __init__(self, path: Path, trees: Iterable[Rank]) -> None:
        self.path = path
        self._trees = {tree.rank_id: tree for tree in trees}
        self._last: tuple[tuple[int, int], StepTable[TensorRecord]] | None = None
        self._lengths: dict[tuple[int, int], int] = {}
        """Number of tensors with data in the steps that were counted, by rank and step."""

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, self.ranks[:3])) + (", ..." if len(self.ranks) > 3 else "")
        runs = amounts.count(len(self.runs), "run") if len(self.runs) > len(self.ranks) else ""
        return repr_of("Catalog", str(self.path), amounts.steps(self.steps), f"rank {ranks}", runs)

    def _repr_html_(self) -> str:
        runs = [run.facts for run in self.runs]
        headings = [name for name, _ in runs[0]] if runs else []
        return html_table(
            headings, [[value for _, value in run] for run in runs], caption=f"{self.path}, {amounts.steps(self.steps)}"
        )

    def __iter__(self) -> Iterator[TensorRecord]:
        return self.tensors()

    def __len__(self) -> int:
        """Return the number of tensors that iterating yields. Steps that were not counted before are read."""
        length = FactsByTemplate(lambda table: sum(not each.skip and not each.op.skip for each in table.tensors))
        places = [(rank, step) for rank in self.ranks for step in self._trees[rank].steps]
        for rank, step in places:
            if (rank, step) not in self._lengths:
                self._lengths[rank, step] = length.of(self.table(step, rank))
        return sum(self._lengths[place] for place in places)

    def __bool__(self) -> bool:
        """Return whether the dump has any tensor."""
        return next(self.tensors(), None) is not None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the dump, ascending."""
        return tuple(sorted(self._trees))

    @property
    def runs(self) -> tuple[Run, ...]:
        """The captures that wrote into the directory, by rank and time. Those of MindSpore are derived from time stamps."""
        return tuple(run for rank in self.ranks for run in self._trees[rank].runs)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that any rank recorded, ascending."""
        return tuple(sorted({step for tree in self._trees.values() for step in tree.steps}))

    @property
    def graphs(self) -> tuple[int, ...]:
        """The graphs of any rank, ascending."""
        return tuple(sorted({graph for tree in self._trees.values() for graph in tree.graph_ids}))

    @property
    def model_directories(self) -> tuple[ModelDirectories, ...]:
        """The directories of each rank that has one directory per model, as devices do; those of the selected run."""
        trees = (self._trees[rank] for rank in self.ranks)
        return tuple(tree.model_directories() for tree in trees if isinstance(tree, SupportsModels))

    @property
    def problems(self) -> tuple[CorruptDumpError, ...]:
        """What could not be read so far. More may be added when further steps are read."""
        return tuple(problem for rank in self.ranks for problem in self._trees[rank].problems)

    def steps_of(self, rank: int) -> tuple[int, ...]:
        """Return the steps that a rank recorded, ascending."""
        return self._tree(rank).steps

    def graph(self, graph_id: int = 0, rank: int | None = None) -> Graph | None:
        """Return a graph from .pb or .ir, or None if the dump has neither. The default is the lowest rank."""
        return self._tree(rank).graph(graph_id)

    def history(self, graph_id: int = 0, rank: int | None = None) -> tuple[int, ...]:
        """Return the steps in the execution history of a graph. A second run repeats them."""
        return self._tree(rank).history(graph_id)

    def execution_order(self, graph_id: int = 0, rank: int | None = None) -> tuple[str, ...]:
        """Return the full names of a graph's operators in the order of its execution order file."""
        return self._tree(rank).execution_order(graph_id)

    def constants(self, rank: int | None = None) -> tuple[TensorRecord, ...]:
        """Return the constants (tensors that no operator produced), which belong to no step. The default is all ranks."""
        ranks = self.ranks if rank is None else (self._tree(rank).rank_id,)
        return tuple(record for number in ranks for record in self._trees[number].constants())

    def ops(
        self,
        name: str | None = None,
        *,
        step: int | None = None,
        rank: int | None = None,
        graph: int | None = None,
        op_type: str | None = None,
        source: str | None = None,
        include_skipped: bool = False,
    ) -> Iterator[Execution]:
        """Return every execution of an operator with its tensors (`.inputs`, `.outputs`), in execution order.

        name     as for `opdump show --op`: docs/how-to.md has its forms
        op_type  exactly the recorded type
        source   `FILE:LINE` or `FILE`: the operators with this line anywhere on their stack; the file may be given by its last components
                 (`train.py`, `net/model.py`)

        Operators and tensors that left no data on purpose (`skip`) are hidden, unless `include_skipped` is set or `name` matches nothing else.
        Operators without a kernel are listed in the first step that ran them; `counted` counts the later ones.

        Raises NotInDumpError, with the nearest names, if no operator matches `name`, and ConfigError for a `name-regex(...)` that cannot
        be used.
        """
        asked = self.query(
            name, step=step, rank=rank, graph=graph, op_type=op_type, source=source, include_skipped=include_skipped
        )
        return self._executions(step, rank, asked)

    executions = ops
    """The older name of `ops`."""

    def query(self, name: str | None = None, **which: Unpack[TensorKeywords]) -> Asked:
        """Return the query for the operators that `ops` returns for these arguments, and raise the same errors. `io` selects no operator."""
        step, rank, include_skipped = which.get("step"), which.get("rank"), which.get("include_skipped", False)
        graph, op_type, source = which.get("graph"), which.get("op_type"), which.get("source")
        asked = Asked(include_skipped) if name is None else self._meant(name, step, rank, include_skipped)
        if (graph, op_type, source) != (None, None, None):
            place, meant = None if source is None else SourcePlace(source), asked.is_meant
            asked = Asked(
                asked.include_skipped,
                lambda execution: (
                    graph in (None, execution.op.graph_id)
                    and op_type in (None, execution.op.op_type)
                    and (place is None or place.is_on(execution.op.stack))
                    and (meant is None or meant(execution))
                ),
            )
        return asked

    def _meant(self, name: str, step: int | None, rank: int | None, include_skipped: bool) -> Asked:
        """Return the meaning of a name. Raises NotInDumpError, with the nearest names, if it has none."""
        choices = choices_of(name, include_skipped)
        first, names = self._first_of(choices, step, rank)
        if first == len(choices):
            raise self._not_found(name, step, rank, names)
        return choices[first]

    def _first_of(self, choices: Sequence[Asked], step: int | None, rank: int | None) -> tuple[int, list[str]]:
        """Return the index of the first choice that matches an operator. If none does, return the number of choices and the names of all operators,
        in the order in which they first ran. Steps are read until a choice matches that suffices.
        """

        def looked_at(executions: Sequence[Execution]) -> tuple[int, Sequence[str]]:
            found = first_of(choices, executions)
            return found, () if found < len(choices) else [execution.op.op_name for execution in executions]

        of_table = FactsByTemplate(lambda table: looked_at(list(executions_of(table))))
        best = len(choices)
        names: dict[str, None] = {}
        last: Sequence[str] = ()
        for number, one in self._places(step, rank):
            first, ran = of_table.of(self.table(one, number))
            best = min(best, first)
            if best < len(choices) and choices[best].suffices:
                break
            if ran is not last:
                names.update(dict.fromkeys(ran))
                last = ran
        return best, list(names)

    def _executions(self, step: int | None, rank: int | None, asked: Asked) -> Iterator[Execution]:
        chosen = FactsByTemplate(lambda table: asked.places(executions_of(table)))
        for number, one in self._places(step, rank):
            table = self.table(one, number)
            if asked.is_meant is None or table.template is None:
                executions = executions_of(table)
            else:
                executions = (Execution(op, tuple(tensors)) for op, tensors in map(table.execution, chosen.of(table)))
            yield from filter(None, map(asked.of, executions))

    def table(self, step: int, rank: int | None = None) -> StepTable[TensorRecord]:
        """Return all operators and tensors of a step. The default is the lowest rank. The last table is cached."""
        tree = self._tree(rank)
        if self._last is None or self._last[0] != (tree.rank_id, step):
            note("reading step", step, "of rank", tree.rank_id, "in", self.path)
            self._last = ((tree.rank_id, step), tree.step(step))
        return self._last[1]

    def has_intact_elements(self, table: StepTable[TensorRecord], rank: int | None = None) -> bool:
        """Return whether all files of elements of a step are known to be undamaged, as far as that is visible without reading them."""
        if table.template is None:
            return False
        tree = self._tree(rank)
        return not table.files or (isinstance(tree, SupportsInspectedSteps) and tree.has_intact_elements(table))

    def counted(self, step: int, rank: int | None = None) -> Mapping[SkipReason, int]:
        """Return the number of operators without data that ran in a step and are listed in an earlier one, by reason. The default is the lowest
        rank.
        """
        return self.table(step, rank).counted

    def tensors(
        self,
        name: str | None = None,
        *,
        step: int | None = None,
        rank: int | None = None,
        graph: int | None = None,
        op_type: str | None = None,
        source: str | None = None,
        io: IO | None = None,
        include_skipped: bool = False,
    ) -> Iterator[TensorRecord]:
        """Return the tensors of `ops`. `io`: only inputs, or only outputs."""
        found = self.ops(
            name, step=step, rank=rank, graph=graph, op_type=op_type, source=source, include_skipped=include_skipped
        )
        return (record for execution in found for record in execution.tensors if io is None or record.io == io)

    def to_pandas(self, name: str | None = None, **which: Unpack[TensorKeywords]) -> pd.DataFrame:
        """Return the result of `tensors` for these arguments as a DataFrame of pandas: one row per tensor, with its operator, module, line, dtype,
        shape and every statistic. docs/python.md lists the columns. No elements are read.

        Raises PackageMissingError if pandas is not installed (`pip install 'opdump[pandas]'`), and the errors of `ops`.
        """
        return pandas_frame(self.tensors(name, **which))

    def to_polars(self, name: str | None = None, **which: Unpack[TensorKeywords]) -> pl.DataFrame:
        """Return the same as a DataFrame of polars."""
        step, rank = which.get("step"), which.get("rank")
        frames = PolarsFrames(self.query(name, **which), which.get("io"))
        return joined_frames(frames.frame(self.table(one, number)) for number, one in self._places(step, rank))

    def find(
        self,
        kernels: str | Iterable[str] = (),
        *,
        step: int | None = None,
        rank: int | None = None,
        io: IO | None = None,
        include_skipped: bool = False,
    ) -> Iterator[TensorRecord]:
        """Return the tensors of all operators that any of these names means, as in `ops`; without names, all. A name that matches no operator is ignored.

        Raises ConfigError for a `name-regex(...)` that cannot be used.
        """
        names = (kernels,) if isinstance(kernels, str) else tuple(kernels)
        asked = [] if names else [Asked(include_skipped)]
        for name in names:
            choices = choices_of(name, include_skipped)
            asked += choices[slice(first := self._first_of(choices, step, rank)[0], first + 1)]
        either = Asked(
            any(each.include_skipped for each in asked),
            lambda execution: any(each.of(execution) is not None for each in asked),
        )
        for execution in self._executions(step, rank, either):
            yield from (record for record in execution.tensors if io is None or record.io == io)

    def op(
        self, name: str, step: int | None = None, rank: int | None = None, *, occurrence: int | None = None
    ) -> Execution:
        """Return the first execution that the name means, as in `ops`; with `occurrence`, the first with this number in its step, counted from 0.

        Raises NotInDumpError, with the nearest names, if there is none.
        """
        meant = self._meant(name, step, rank, include_skipped=False)
        for execution in self._executions(step, rank, Asked(include_skipped=True, is_meant=meant.is_meant)):
            if meant.of(execution) is not None and occurrence in (None, execution.op.occurrence):
                return execution
        raise NotInDumpError(
            f"{self.path}: {name} ran fewer than {(occurrence or 0) + 1} times{_where(step, rank) or ' in each step'}"
        )

    def at_source(
        self, place: str, *, step: int | None = None, rank: int | None = None, include_skipped: bool = False
    ) -> Iterator[Execution]:
        """The older name of `ops(source=...)`."""
        return self.ops(source=place, step=step, rank=rank, include_skipped=include_skipped)

    def _not_found(self, name: str, step: int | None, rank: int | None, names: list[str]) -> NotInDumpError:
        """Return the error for a name that no operator has. `names` are the names of all operators that were examined."""
        view = self._without_kernel(name, rank)
        if view is not None and step is not None:
            return NotInDumpError(
                f"{self.path}: {view} runs no kernel and leaves no data; it is listed in the first step that ran it, and only "
                f"counted in step {step}: leave out the step"
            )
        return NotInDumpError(f"{self.path}: holds no operator {name!r}{_where(step, rank)}{nearest_to(name, names)}")

    def _without_kernel(self, name: str, rank: int | None) -> str | None:
        """Return the full name of an operator without a kernel that has this full name or last component; None if there is none."""
        for number in self.graphs:
            graph = self.graph(number, rank)
            for node in graph.nodes if graph is not None else ():
                if not node.runs_kernel and name in (node.op_name, node.op_name.rpartition("/")[2]):
                    return node.op_name
        return None

    def _places(self, step: int | None, rank: int | None) -> Iterator[tuple[int, int]]:
        """Yield the selected ranks and steps."""
        for number in self.ranks if rank is None else (self._tree(rank).rank_id,):
            for one in self._trees[number].steps if step is None else (step,):
                yield number, one

    def _tree(self, rank: int | None) -> Rank:
        number = self.ranks[0] if rank is None else rank
        if number not in self._trees:
            raise NotInDumpError(f"{self.path}: holds no rank {number}; it holds {', '.join(map(str, self.ranks))}")
        return self._trees[number]


def _where(step: int | None, rank: int | None) -> str:
    return (f" in step {step}" if step is not None else "") + (f" of rank {rank}" if rank is not None else "")


# Creates tables of tensors with pandas or polars: one row per tensor, with its operator and every statistic. Both packages are optional.
#
# | column | type | |
# |---|---|---|
# | rank, step | int | |
# | order, occurrence | int | position in the step; number of the execution with this name in the step |
# | operator, type, kernel, phase | text | the full name of the operator; its type; the framework's name of it |
# | module | text | the operator's scope: the full name without its last component |
# | file, line, code | text, int, text | the innermost line of the program; missing if unknown |
# | io, slot, argument | text, int, text | `input` or `output`, position, name in the operator's schema |
# | dtype, shape, elements | text, tuple (list of int in polars), int | of the whole tensor, before any widening |
# | made_by | text | for an input: its producer |
# | max, min, avg, l2norm | float | each statistic that any of the tensors has, named as in the config; missing for a tensor without it |
# | nan count, ... | int (float in pandas where some are missing) | |
# | md5, hash, xxh3 | text | |
#
# A statistic that is NaN is NaN in polars, and a missing one is null; in pandas both are NaN.

FACTS: Final = (
    *("rank", "step", "order", "occurrence", "operator", "type", "kernel", "phase", "module", "file", "line", "code"),
    *("io", "slot", "argument", "dtype", "shape", "elements", "made_by"),
)
"""The columns that every table has."""
_LARGEST: Final = 2**63 - 1


def pandas_frame(tensors: Iterable[TensorRecord]) -> pd.DataFrame:
    """Return the table as a DataFrame of pandas. Raises PackageMissingError if pandas is not installed."""
    package = _package("pandas")
    records = list(tensors)
    columns, statistics = _facts_of(records), [dict(record.statistics) for record in records]
    for name in _ordered(set().union(*statistics)):
        columns[name] = statistic_column(name, [values.get(name) for values in statistics])
    columns["line"] = package.array(columns["line"], dtype="Int64")
    frame: pd.DataFrame = package.DataFrame(columns)
    return frame


class PolarsFrames:
    """Builds the rows of steps as DataFrames of polars. Facts are computed once per template, and numbers come directly from the summaries."""

    def __init__(self, asked: Asked, io: IO | None = None) -> None:
        """`asked` selects operators, and `io` only their inputs or only their outputs. Raises PackageMissingError if polars is not installed."""
        self._polars = _package("polars")
        self._asked = asked
        self._io = io
        self._facts = FactsByTemplate(self._facts_of)

    def frame(self, table: StepTable[TensorRecord]) -> pl.DataFrame:
        """Return the rows of a step. Columns of statistics that no tensor has are missing."""
        tensors, facts = self._facts.of(table)
        if not len(tensors):
            return facts
        statistics = {each.name: each for each in self._of_summaries(table, tensors)}
        for each in self._others(table, tensors.tolist()):
            known = statistics.get(each.name)
            statistics[each.name] = (
                each if known is None else self._polars.select(self._polars.coalesce(each, known)).to_series()
            )
        step = self._polars.lit(table.step, dtype=self._polars.Int64).alias("step")
        return facts.with_columns(step, *(statistics[name] for name in _ordered(statistics)))

    def _facts_of(self, table: StepTable[TensorRecord]) -> tuple[NDArray[np.intp], pl.DataFrame]:
        """Return the index of the tensor of each row, and the columns without statistics."""
        places = {id(tensor): place for place, tensor in enumerate(table.tensors)}
        tensors = [
            (places[id(tensor)], tensor)
            for execution in executions_of(table)
            if self._asked.of(execution) is not None
            for tensor in execution.tensors
            if (self._asked.include_skipped or not tensor.skip) and self._io in (None, tensor.io)
        ]
        whole, text = self._polars.Int64, self._polars.String
        kinds = dict.fromkeys(FACTS, text)
        kinds |= dict.fromkeys(("rank", "step", "order", "occurrence", "line", "slot", "elements"), whole)
        kinds["shape"] = self._polars.List(whole)
        frame: pl.DataFrame = self._polars.DataFrame(_facts_of(tensor for _, tensor in tensors), schema=kinds)
        return np.array([place for place, _ in tensors], np.intp), frame

    def _of_summaries(self, table: StepTable[TensorRecord], tensors: NDArray[np.intp]) -> Iterator[pl.Series]:
        given = table.with_summary[tensors]
        if not given.any():
            return
        summaries = Summary(*np.where(given[:, None], table.summaries[tensors], 0.0).T)
        is_given = self._polars.Series(given)
        for name, each in OWN.items():
            of_summaries = each.of_summaries or each.of_summary
            if of_summaries is not None:
                values = np.ascontiguousarray(of_summaries(summaries))
                series = self._polars.Series(name, values.astype(np.int64) if each.kind is int else values)
                if not given.all():
                    chosen = self._polars.when(is_given).then(series).otherwise(None).alias(name)
                    series = self._polars.select(chosen).to_series()
                yield series

    def _others(self, table: StepTable[TensorRecord], tensors: Sequence[int]) -> Iterator[pl.Series]:
        """Yield the statistics that are not in the summaries, without those that no tensor has."""
        of_tensors = [table.others.get(tensor, {}) for tensor in tensors] if table.others else []
        for name in set().union(*of_tensors):
            values = [each.get(name) for each in of_tensors]
            yield self._polars.Series(name, statistic_column(name, values), dtype=polars_kind(name, values))


def joined_frames(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all frames. They may differ in their statistics, and in the types of those of a package."""
    package = _package("polars")
    empty = PolarsFrames(Asked(include_skipped=True)).frame(StepTable.of((), ()))
    joined: pl.DataFrame = package.concat([empty, *(each for each in frames if each.height)], how="diagonal_relaxed")
    return joined.select(*FACTS, *_ordered(set(joined.columns).difference(FACTS)))


def polars_kind(name: str, column: Iterable[StatisticValue | None]) -> Any:
    """Return the type of a column of polars with these values of a statistic."""
    package = _package("polars")
    return {float: package.Float64, int: package.Int64, str: package.String}[_kind_of(name, column)]


def statistic_column(name: str, values: Sequence[StatisticValue | None]) -> list[StatisticValue | None]:
    """Convert the values of a statistic to a single type, as a table requires."""
    kind = _kind_of(name, values)
    return [value if value is None else kind(value) for value in values] if kind is not int else [*values]


def _facts_of(tensors: Iterable[TensorRecord]) -> dict[str, list[Any]]:
    """Return the columns without statistics."""
    rows: list[tuple[Any, ...]] = []
    last, of_op = None, ()
    for record in tensors:
        op = record.op
        if op is not last:
            frame = op.stack[0] if op.stack else None
            place = (frame.file, frame.line, frame.code) if frame is not None else (None, None, None)
            scope = op.op_name.rpartition("/")[0]
            names = (op.op_name, op.op_type, op.kernel, op.phase, scope)
            last, of_op = op, (op.rank_id, op.step, op.order, op.occurrence, *names, *place)
        shape = record.shape
        elements = math.prod(shape)
        count = elements if elements <= _LARGEST else None  # a damaged dump may have such a shape
        rows.append((*of_op, record.io, record.slot, record.argument, record.dtype, shape, count, record.source))
    return dict(zip(FACTS, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in FACTS}


def _ordered(names: Collection[str]) -> list[str]:
    """Return the names of statistics in the order of their columns: those of packages come last."""
    return [*(name for name in OWN if name in names), *sorted(set(names).difference(OWN, FACTS))]


def _kind_of(name: str, column: Iterable[StatisticValue | None]) -> type[StatisticValue]:
    """Return the type of a statistic. That of an extension is derived from its values. A column with numbers beyond 64 bits has floats."""
    if name in OWN:
        return OWN[name].kind
    values = [value for value in column if value is not None]
    if any(isinstance(value, str) for value in values):
        return str
    return int if values and all(isinstance(value, int) and abs(value) <= _LARGEST for value in values) else float


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PackageMissingError(
            f"to_{name}() returns a table of {name}, which cannot be imported here ({error}); run: pip install 'opdump[{name}]'"
        ) from error
