"""Reads a dump: the operators that ran, with their inputs and outputs, loaded on demand.

    catalog = opdump.open("/data/dump")
    for op in catalog.ops("Conv2D", step=2):                 # every execution of an operator, with its tensors
        print(op.op_name, op.line, {slot: output.statistics["max"] for slot, output in op.outputs.items()})
    for tensor in catalog:                                   # every tensor, in execution order
        print(tensor.name, tensor.numpy().mean())
    catalog.ops(source="train.py:175")                       # the operators that a line of the script became
    catalog.to_pandas(step=2)                                # one row a tensor

It reads dumps of opdump, of MindSpore's synchronous mode in either naming, and those that Ascend devices write (MindSpore's
asynchronous mode, acl), whole or in part. Elements and steps are read when they are asked for. Files are not trusted: see
docs/files.md for what a damaged or hostile one gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from opdump import amounts
from opdump.amounts import repr_of
from opdump.catalog.asked import Asked, first_of, grouped
from opdump.catalog.data_frames import pandas_frame, polars_frame
from opdump.catalog.execution import Execution
from opdump.catalog.source_place import SourcePlace
from opdump.doing import note
from opdump.errors import CorruptDumpError, NotInDumpError
from opdump.graph import Graph
from opdump.html_table import html_table
from opdump.index.columns import BatchColumns, FactsByProgram
from opdump.index.runs import Run, RunChoice
from opdump.layouts.base import ModelDirectories, Rank, StepContent, SupportsColumns, SupportsModels
from opdump.layouts.detect import read_ranks
from opdump.records import IO, SkipReason, TensorRecord

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from typing_extensions import Unpack

__all__ = ["Catalog", "Execution", "Run", "open_dump"]

_PARAMETER = "Parameter"
"""op_type of what is recorded without an operator; such a name may be given with it in front."""


class TensorKeywords(TypedDict, total=False):
    """What `Catalog.tensors` is asked for by keyword."""

    step: int | None
    rank: int | None
    graph: int | None
    op_type: str | None
    source: str | None
    io: IO | None
    include_skipped: bool


def open_dump(path: str | os.PathLike[str], *, run: RunChoice = "latest") -> Catalog:
    """Open a dump: its root directory, a `rank_N` of it, a net in that, or one iteration; of an Ascend device its root, a time,
    a device, a model, or one directory of data.

    Where several captures wrote into the directory, `run` chooses: "latest" takes for each step the last run that has it,
    a number that run alone (`Catalog.runs` lists them), "all" everything.

    Raises UnknownLayoutError where there is no dump, NotInDumpError where it has no such run, and CorruptDumpError where a
    link or a table leads out of it.
    """
    return Catalog(Path(path), read_ranks(Path(path), run=run))


class Catalog:
    """The records of a dump. Iterating gives every tensor, by rank, step and execution order."""

    def __init__(self, path: Path, trees: Iterable[Rank]) -> None:
        self.path = path
        self._trees = {tree.rank_id: tree for tree in trees}
        self._last: tuple[tuple[int, int], StepContent] | None = None
        self._lengths: dict[tuple[int, int], int] = {}
        """Tensors with data of the steps that were read, by rank and step."""

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
        """How many tensors iterating gives; steps that were not looked at before are read for it."""
        places = [(rank, step) for rank in self.ranks for step in self._trees[rank].steps]
        for place in places:
            if place not in self._lengths:
                self._content(*place)
        return sum(self._lengths[place] for place in places)

    def __bool__(self) -> bool:
        """Whether it has any tensor."""
        return next(self.tensors(), None) is not None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the dump, ascending."""
        return tuple(sorted(self._trees))

    @property
    def runs(self) -> tuple[Run, ...]:
        """The captures that wrote into the directory, by rank and time; for MindSpore's, as their time stamps show."""
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
        """The directories of each rank whose directories tell models apart, a device's; those of the chosen run."""
        trees = (self._trees[rank] for rank in self.ranks)
        return tuple(tree.model_directories() for tree in trees if isinstance(tree, SupportsModels))

    @property
    def problems(self) -> tuple[CorruptDumpError, ...]:
        """What could not be read so far; it grows as steps are read."""
        return tuple(problem for rank in self.ranks for problem in self._trees[rank].problems)

    def steps_of(self, rank: int) -> tuple[int, ...]:
        """The steps that a rank recorded, ascending."""
        return self._tree(rank).steps

    def graph(self, graph_id: int = 0, rank: int | None = None) -> Graph | None:
        """The graph of that number from .pb or .ir; None where the dump has neither. The lowest rank unless one is named."""
        return self._tree(rank).graph(graph_id)

    def history(self, graph_id: int = 0, rank: int | None = None) -> tuple[int, ...]:
        """The steps that the execution history of a graph lists; a second run repeats them."""
        return self._tree(rank).history(graph_id)

    def execution_order(self, graph_id: int = 0, rank: int | None = None) -> tuple[str, ...]:
        """The full names of a graph's operators in the order of its execution order file."""
        return self._tree(rank).execution_order(graph_id)

    def constants(self, rank: int | None = None) -> tuple[TensorRecord, ...]:
        """The constants (tensors that no operator made), which belong to no step; those of every rank unless one is named."""
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
        """Every execution of an operator with its tensors (`.inputs`, `.outputs`), in execution order.

        name     what `opdump show --op` takes: a full name or the end of it, a module or scope, a type by any framework's name,
                 a kernel, `name-regex(...)`, a parameter, who made a tensor (`{op_name}:{slot}`)
        op_type  the type as it was recorded, and no other
        source   `FILE:LINE` or `FILE`: the operators that this line of the program became, those with it anywhere on their
                 stack; the file may be given by its last components (`train.py`, `net/model.py`)

        Operators and tensors that left no data on purpose (`skip`) are hidden unless they are asked for, or `name` means
        nothing else. Operators without a kernel stand in the first step that ran them; `counted` has the later ones.

        Raises NotInDumpError, with the nearest names, where the dump has no operator that `name` means, and ConfigError for a
        `name-regex(...)` that cannot be used.
        """
        filters = _Filters(graph, op_type, None if source is None else SourcePlace(source))
        if name is None:
            return self._executions(step, rank, Asked(include_skipped, filters.take if filters != _Filters() else None))
        choices = _choices(name, include_skipped, filters)
        first, names = self._first_of(choices, step, rank)
        if first < len(choices):
            return self._executions(step, rank, choices[first])
        if filters != _Filters():
            unfiltered = _choices(name, include_skipped, _Filters())
            first, names = self._first_of(unfiltered, step, rank)
            if first < len(unfiltered):
                return iter(())
        raise self._not_found(name, step, rank, names)

    executions = ops
    """The older name of `ops`."""

    def _first_of(self, choices: Sequence[Asked], step: int | None, rank: int | None) -> tuple[int, list[str]]:
        """The first choice that some operator fits; their number where none does, and then the names of all operators, in the order in
        which they first ran. Steps are looked at until it is the very first.
        """

        def looked_at(executions: Sequence[Execution]) -> tuple[int, Sequence[str]]:
            found = first_of(choices, executions)
            return found, () if found < len(choices) else [execution.op.op_name for execution in executions]

        of_columns = FactsByProgram(lambda columns: looked_at(list(grouped(*columns.records()))))
        best = len(choices)
        names: dict[str, None] = {}
        last: Sequence[str] = ()
        for number, one in self._places(step, rank):
            columns = self.columns(one, number)
            first, ran = looked_at(list(self._recorded(number, one))) if columns is None else of_columns.of(columns)
            best = min(best, first)
            if best == 0:
                break
            if ran is not last:
                names.update(dict.fromkeys(ran))
                last = ran
        return best, list(names)

    def _executions(self, step: int | None, rank: int | None, asked: Asked) -> Iterator[Execution]:
        chosen = FactsByProgram(lambda columns: asked.places(grouped(*columns.records())))
        for number, one in self._places(step, rank):
            columns = None if asked.is_meant is None else self.columns(one, number)
            executions = (
                self._recorded(number, one)
                if columns is None
                else (Execution(op, tuple(tensors)) for op, tensors in map(columns.operator, chosen.of(columns)))
            )
            yield from filter(None, map(asked.of, executions))

    def _recorded(self, rank: int, step: int) -> Iterator[Execution]:
        content = self._content(rank, step)
        return grouped(content.ops, content.tensors)

    def columns(self, step: int, rank: int | None = None, *, inspected: bool = False) -> BatchColumns | None:
        """A step in columns; None where it is to be read as records: `inspected`, also where the records tell what is wrong with elements."""
        tree = self._tree(rank)
        return tree.columns(step, inspected=inspected) if isinstance(tree, SupportsColumns) else None

    def counted(self, step: int, rank: int | None = None) -> Mapping[SkipReason, int]:
        """How many operators without data ran in a step that an earlier one lists, by reason; on the lowest rank unless one
        is named.
        """
        return self._content(self._tree(rank).rank_id, step).counted

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
        """The tensors of `ops`; `io`: inputs alone, or outputs alone."""
        found = self.ops(
            name, step=step, rank=rank, graph=graph, op_type=op_type, source=source, include_skipped=include_skipped
        )
        return (record for execution in found for record in execution.tensors if io is None or record.io == io)

    def to_pandas(self, name: str | None = None, **which: Unpack[TensorKeywords]) -> pd.DataFrame:
        """The tensors that `tensors` gives for these arguments, as a DataFrame of pandas: one row for each, with its operator, module,
        line, dtype, shape and every statistic. docs/python.md lists the columns. No elements are read.

        Raises PackageMissingError where pandas is not installed (`pip install 'opdump[pandas]'`), else as `ops` does.
        """
        return pandas_frame(self.tensors(name, **which))

    def to_polars(self, name: str | None = None, **which: Unpack[TensorKeywords]) -> pl.DataFrame:
        """The same as a DataFrame of polars."""
        return polars_frame(self.tensors(name, **which))

    def find(
        self,
        kernels: str | Iterable[str] = (),
        *,
        step: int | None = None,
        rank: int | None = None,
        io: IO | None = None,
        include_skipped: bool = False,
    ) -> Iterator[TensorRecord]:
        """The tensors of the operators that `kernels` matches, in the three forms of the config: a full name, a type, or
        `name-regex(...)`. Without kernels, of all.

        Raises ConfigError for a pattern that cannot be used.
        """
        from opdump.plan import KernelPattern

        texts = (kernels,) if isinstance(kernels, str) else tuple(kernels)
        patterns = [KernelPattern.parse(text) for text in texts]
        for record in self.tensors(step=step, rank=rank, io=io, include_skipped=include_skipped):
            op = record.op
            if (
                not patterns
                or any(pattern.matches(op.op_name, op.op_type) for pattern in patterns)
                or (op.op_type == _PARAMETER and f"{_PARAMETER}.{op.op_name}" in texts)
            ):
                yield record

    def op(
        self, name: str, step: int | None = None, rank: int | None = None, *, occurrence: int | None = None
    ) -> Execution:
        """The first execution of the operator of that name: its full name, or the last component of it.

        Raises NotInDumpError with the nearest names where there is none.
        """

        def is_named(execution: Execution) -> bool:
            op = execution.op
            return (occurrence is None or op.occurrence == occurrence) and (
                op.op_name == name or (op.op_type == _PARAMETER and f"{_PARAMETER}.{op.op_name}" == name)
            )

        def ends_so(execution: Execution) -> bool:
            op = execution.op
            return (occurrence is None or op.occurrence == occurrence) and op.op_name.rpartition("/")[2] == name

        choices = [Asked(include_skipped=True, is_meant=is_meant) for is_meant in (is_named, ends_so)]
        first, names = self._first_of(choices, step, rank)
        if first < len(choices):
            return next(self._executions(step, rank, choices[first]))
        raise self._not_found(name, step, rank, names)

    def at_source(
        self, place: str, *, step: int | None = None, rank: int | None = None, include_skipped: bool = False
    ) -> Iterator[Execution]:
        """The older name of `ops(source=...)`."""
        return self.ops(source=place, step=step, rank=rank, include_skipped=include_skipped)

    def _not_found(self, name: str, step: int | None, rank: int | None, names: list[str]) -> NotInDumpError:
        """The error for a name that no operator has; `names` are those of all that were looked at."""
        view = self._without_kernel(name, rank)
        if view is not None and step is not None:
            return NotInDumpError(
                f"{self.path}: {view} runs no kernel and leaves no data; the first step that ran it lists it, step {step} only "
                "counts it: ask without a step"
            )
        return NotInDumpError(f"{self.path}: holds no operator {name!r}{_where(step, rank)}{_nearest(name, names)}")

    def _without_kernel(self, name: str, rank: int | None) -> str | None:
        """The full name of the operator of that name (full, or its last component) that runs no kernel; None if none does."""
        for number in self.graphs:
            graph = self.graph(number, rank)
            for node in graph.nodes if graph is not None else ():
                if not node.runs_kernel and name in (node.op_name, node.op_name.rpartition("/")[2]):
                    return node.op_name
        return None

    def _places(self, step: int | None, rank: int | None) -> Iterator[tuple[int, int]]:
        """The ranks and steps that are meant."""
        for number in self.ranks if rank is None else (self._tree(rank).rank_id,):
            for one in self._trees[number].steps if step is None else (step,):
                yield number, one

    def _content(self, rank: int, step: int) -> StepContent:
        # The one that was read last is often asked for again.
        if self._last is None or self._last[0] != (rank, step):
            note("reading step", step, "of rank", rank, "in", self.path)
            content = self._trees[rank].step(step)
            self._last = ((rank, step), content)
            self._lengths[rank, step] = sum(not record.skip and not record.op.skip for record in content.tensors)
        return self._last[1]

    def _tree(self, rank: int | None) -> Rank:
        number = self.ranks[0] if rank is None else rank
        if number not in self._trees:
            raise NotInDumpError(f"{self.path}: holds no rank {number}; it holds {', '.join(map(str, self.ranks))}")
        return self._trees[number]


@dataclass(frozen=True, slots=True)
class _Filters:
    graph: int | None = None
    op_type: str | None = None
    place: SourcePlace | None = None

    def take(self, execution: Execution) -> bool:
        op = execution.op
        return (
            (self.graph is None or op.graph_id == self.graph)
            and (self.op_type is None or op.op_type == self.op_type)
            and (self.place is None or self.place.is_on(op.stack))
        )


def _choices(name: str, include_skipped: bool, filters: _Filters) -> list[Asked]:
    """What a name may mean, the likeliest first; what left no data is meant where nothing else is."""
    from opdump.catalog.operator_choice import OperatorChoice  # reads the table of all operators' names

    def of(meant: Callable[[Execution], bool], skipped: bool) -> Asked:
        return Asked(skipped, lambda execution: filters.take(execution) and meant(execution))

    readings = list(OperatorChoice.parse(name).readings())
    return [of(meant, skipped) for skipped in ((True,) if include_skipped else (False, True)) for meant in readings]


def _where(step: int | None, rank: int | None) -> str:
    return (f" in step {step}" if step is not None else "") + (f" of rank {rank}" if rank is not None else "")


def _nearest(name: str, names: list[str]) -> str:
    if not names:
        return "; no operator was recorded there"
    import difflib

    base = name.rpartition("/")[2]
    by_base = {full.rpartition("/")[2]: full for full in names}
    near = difflib.get_close_matches(name, names, 2) + [
        by_base[match] for match in difflib.get_close_matches(base, list(by_base), 3)
    ]
    return "; the nearest are " + ", ".join(dict.fromkeys(near)) if near else f"; it holds {len(names)} others"
