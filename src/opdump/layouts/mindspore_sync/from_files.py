"""Makes records only from file names and statistic.csv: for dumps of other tools, and for files that are not in an index."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from opdump.errors import CorruptDumpError
from opdump.graph import PARAMETER_PREFIX, Graph, GraphInput, GraphNode
from opdump.index.values import FilePayload, bytes_of, inside, is_sample, is_stored_as
from opdump.layouts.mindspore_sync.files import (
    PARAMETER,
    FileName,
    FoundFile,
    PlaceFiles,
    TensorDirectory,
    dtype_of_token,
    read_table,
    sanitise,
)
from opdump.layouts.mindspore_sync.statistic_csv import StatisticRow, decode_statistic_csv
from opdump.records import Frame, OpRecord, Payload, Phase, TensorRecord

TensorKey = tuple[str, int, str, int]
"""op_type, timestamp, io, slot: the key that a tensor's file, its row in statistic.csv and its record share."""


class StoredFacts(Protocol):
    """The metadata of stored elements, from the header before them."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class PayloadWithHeader(Payload, Protocol):
    """Elements whose metadata is available before they are read."""

    def header(self) -> StoredFacts: ...


OpenFile: TypeAlias = Callable[[Path, str, str], PayloadWithHeader]
"""Opens the elements below a root at a path, with this element type."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor that has a file, a row of statistics, or both."""

    name: FileName
    relative: str | None
    row: StatisticRow | None

    @property
    def key(self) -> TensorKey:
        name = self.name
        return (name.op_type, name.timestamp, name.io, name.slot)


@dataclass(frozen=True, slots=True)
class PlaceRecords:
    """The records of a place, operators in the order of their time stamps; and the read errors."""

    ops: tuple[OpRecord, ...]
    tensors: tuple[TensorRecord, ...]
    problems: tuple[CorruptDumpError, ...]


def keyed(records: Iterable[TensorRecord]) -> Iterator[tuple[TensorKey, TensorRecord]]:
    """Each record with its key."""
    types: dict[str, str] = {}  # a step has few of these, and very many records
    for record in records:
        op = record.op
        op_type = types.get(op.op_type)
        if op_type is None:
            op_type = types[op.op_type] = sanitise(op.op_type)
        yield (op_type, op.timestamp, record.io, record.slot), record


def records_of_place(
    root: Path,
    rank_id: int,
    place: TensorDirectory,
    files: PlaceFiles,
    names: TrueNames,
    known: Mapping[TensorKey, TensorRecord],
    open_file: OpenFile = FilePayload,
) -> PlaceRecords:
    """The records of the files of a place, except those that are already `known`.

    An operator that ran several times in a step has one `occurrence` each: its files are separated by time stamp if the tensors
    of one execution share it, as in opdump's files, and otherwise where the inputs start again.

    A tensor whose file cannot be read is included, with the shape of its row in statistic.csv or else `()`; the error is added to
    `problems`, and its payload raises it.
    """
    problems: list[CorruptDumpError] = []
    of_place = (place.net_name, place.graph_id)
    listed = [each for each in known.values() if each.statistics and (each.op.net_name, each.op.graph_id) == of_place]
    rows = _unknown_rows(root, files.statistics, len(listed), problems)
    executions = _executions(_found(files.tensors, rows, known))
    arguments = dict(_arguments(root, files.arguments, problems)) if executions else {}
    ops: list[OpRecord] = []
    tensors: list[TensorRecord] = []
    counts: dict[tuple[str, str], int] = {}
    described: dict[str, tuple[Sequence[Frame], Mapping[str, Any]]] = {}
    """The lines and the arguments of operators, by name."""
    for group in executions:
        first, true_name = group[0].name, _true_name(group[0], names)
        node = names.node(true_name) if first.op_type != PARAMETER else None
        if node is not None and true_name not in described:
            described[true_name] = (program_stack(node.stack), {**node.attributes, **names.constants(node)})
        stack, attributes = described.get(true_name, ((), {}))
        counts[first.op_type, true_name] = occurrence = counts.get((first.op_type, true_name), -1) + 1
        op = OpRecord(
            op_type=first.op_type,
            op_name=true_name,
            timestamp=first.timestamp,
            step=place.step or 0,
            net_name=place.net_name,
            graph_id=place.graph_id,
            rank_id=rank_id,
            task_id=first.task_id,
            stream_id=first.stream_id,
            order=len(ops),
            occurrence=occurrence,
            phase=phase_of(true_name, stack) if node is None else node.phase,
            stack=stack,
            arguments=arguments.get((first.op_type, first.op_name)) or attributes,
        )
        ops.append(op)
        tensors.extend(_with_source(_record(root, op, found, problems, open_file), node, names) for found in group)
    return PlaceRecords(tuple(ops), tuple(tensors), tuple(problems))


def in_execution_order(parts: Iterable[PlaceRecords]) -> PlaceRecords:
    """The records of several graphs of one step combined, numbered by their time stamps."""
    parts = list(parts)
    ops = sorted((op for part in parts for op in part.ops), key=lambda op: op.timestamp)
    numbered = {id(op): replace(op, order=position) for position, op in enumerate(ops)}
    tensors = [replace(record, op=numbered[id(record.op)]) for part in parts for record in part.tensors]
    tensors.sort(key=lambda record: record.op.order)
    problems = tuple(problem for part in parts for problem in part.problems)
    return PlaceRecords(tuple(numbered[id(op)] for op in ops), tuple(tensors), problems)


def _true_name(found: _Found, names: TrueNames) -> str:
    row, name = found.row, found.name
    # Since 2.7 statistic.csv has the full name.
    written = row.op_name if row is not None and row.op_name != name.op_name else ""
    return written or names.true_name(name.op_type, name.op_name)


def phase_of(op_name: str, stack: Sequence[Frame] = ()) -> Phase:
    """The phase of an operator of MindSpore."""
    if op_name.startswith(("Gradients/", "Gradients_")):
        return "backward"
    return "optimizer" if is_of_optimizer(stack) else "forward"


def _with_source(record: TensorRecord, node: GraphNode | None, names: TrueNames) -> TensorRecord:
    """The record with its source, by the graph; without one if the graph has no such input, or one of another size."""
    if node is None or record.io != "input":
        return record
    given = names.source(node, record.slot)
    if given is None or not given.source or (given.dtype and not _agrees(given.shape, record.shape)):
        return record
    return replace(record, source=given.source)


def _agrees(expected: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the numbers of elements are equal: the graph may have another shape because a view, which leaves no file, lies
    between.
    """
    return min(expected, default=0) < 0 or math.prod(expected) == math.prod(shape)


def _unknown_rows(
    root: Path, statistics: str | None, known: int, problems: list[CorruptDumpError]
) -> list[StatisticRow]:
    """The rows of statistic.csv; none if it has as many rows as there are known ones, and need not be decoded."""
    if statistics is not None:
        try:
            path = inside(root, statistics)
            table = read_table(path)
            if table.count(b"\n") - 1 != known:
                return decode_statistic_csv(table, where=str(path))
        except CorruptDumpError as error:
            problems.append(error)
    return []


def _found(
    files: Sequence[FoundFile], rows: Sequence[StatisticRow], known: Mapping[TensorKey, TensorRecord]
) -> list[_Found]:
    by_key: dict[TensorKey, StatisticRow] = {(sanitise(r.op_type), r.timestamp, r.io, r.slot): r for r in rows}
    found = []
    for file in files:
        name = file.name
        row = by_key.pop((name.op_type, name.timestamp, name.io, name.slot), None)
        found.append(_Found(name, file.relative, row))
    for row in by_key.values():
        name = FileName(
            op_type=sanitise(row.op_type),
            op_name=sanitise(row.op_name),
            task_id=row.task_id,
            stream_id=row.stream_id,
            timestamp=row.timestamp,
            io=row.io,
            slot=row.slot,
            format="DefaultFormat",
        )
        found.append(_Found(name, None, row))
    # A file that MindSpore wrote has a time stamp of its own instead of its operator's: it is identified by its path.
    known_files = {record.payload.relative for record in known.values() if isinstance(record.payload, FilePayload)}
    new = [each for each in found if each.key not in known and each.relative not in known_files]
    return sorted(new, key=lambda each: (each.name.timestamp, each.name.io, each.name.slot))


def _executions(found: Sequence[_Found]) -> list[list[_Found]]:
    stamps: dict[int, int] = {}
    for item in found:
        stamps[item.name.timestamp] = stamps.get(item.name.timestamp, 0) + 1
    shared = any(count > 1 for count in stamps.values())
    current: dict[tuple[str, str], list[_Found]] = {}
    executions: list[list[_Found]] = []
    for item in found:
        key = (item.name.op_type, item.name.op_name)
        group = current.get(key)
        if group is None or _begins_anew(group[-1].name, item.name, shared):
            group = current[key] = []
            executions.append(group)
        group.append(item)
    return executions


def _begins_anew(last: FileName, name: FileName, shared: bool) -> bool:
    if shared and last.timestamp != name.timestamp:
        return True
    # Within one execution inputs come by slot, then outputs by slot.
    return (name.io, name.slot) <= (last.io, last.slot)


def _record(
    root: Path, op: OpRecord, found: _Found, problems: list[CorruptDumpError], open_file: OpenFile
) -> TensorRecord:
    row, name = found.row, found.name
    shape = row.shape if row is not None else ()
    dtype = row.dtype if row is not None else dtype_of_token(name.dtype)
    payload: PayloadWithHeader | None = None
    sample = 0
    if found.relative is not None:
        payload = open_file(root, found.relative, dtype)
        try:
            header = payload.header()
        except CorruptDumpError as error:
            problems.append(error)
        else:
            if row is not None and is_sample(header.shape, shape):
                sample = header.shape[0]
            else:
                shape = header.shape
            if not is_stored_as(dtype, header.dtype):
                dtype = header.dtype
        payload = open_file(root, found.relative, dtype)
    return TensorRecord(
        op=op,
        io=name.io,
        slot=name.slot,
        dtype=dtype or "unknown",
        shape=shape,
        format=name.format,
        payload=payload,
        statistics=dict(row.statistics) if row is not None else {},
        data_size=row.data_size if row is not None else bytes_of(dtype, math.prod(shape)),
        sample=sample,
    )


def _arguments(
    root: Path, files: Iterable[tuple[str, str]], problems: list[CorruptDumpError]
) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for full, relative in files:
        op_type, _, name = full.removesuffix(".json").partition(".")
        try:
            yield (op_type, name), _json_object(inside(root, relative))
        except CorruptDumpError as error:
            problems.append(error)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_table(path))
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"{path}: is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptDumpError(f"{path}: holds {str(value)[:80]!r}; the arguments of an operator are a JSON object")
    return value


# Selects the program's own lines from those that MindSpore records for an operator.
#
#     lenet.py:23                          x = self.pool(self.relu(self.conv2(x)))     in construct
#     .../mindspore/nn/layer/conv.py:373   output = self.conv2d(x, self.weight)        MindSpore's own, left out
#
# MindSpore records two lines for each call, the function (`def construct(self, x):`) and the line in it, and its own lines among
# the program's. The result is like a Python stack: one frame per call, with the name of the function.

_OWN_FILE: Final = re.compile(r"(?:^|/)(?:(?:site|dist)-packages|mindspore/python)/mindspore/")
_OPTIMIZER: Final = re.compile(r"/mindspore/(?:nn|mint|experimental)/optim/")
_DEFINITION: Final = re.compile(r"(?:async )?def ([^\W\d]\w*)\s*\(")


def program_stack(noted: Sequence[Frame]) -> Sequence[Frame]:
    """The frames of the program, innermost first; those of MindSpore if there are no others (an optimizer's operators).

    `noted` is innermost first, too. A function without a line of its own is a separate frame.
    """
    frames: list[Frame] = []
    for frame in noted:
        name = _DEFINITION.match(frame.code)
        inner = frames[-1] if frames else None
        if name and inner and not inner.function and inner.file == frame.file and frame.line < inner.line:
            frames[-1] = Frame(inner.file, inner.line, name[1], inner.code)
        elif name:
            frames.append(Frame(frame.file, frame.line, name[1], frame.code))
        else:
            frames.append(frame)
    programs = tuple(frame for frame in frames if not _OWN_FILE.search(frame.file))
    return programs or tuple(frames)


def is_of_optimizer(stack: Sequence[Frame]) -> bool:
    """Whether an operator has lines of an optimizer of MindSpore."""
    return any(_OPTIMIZER.search(frame.file) for frame in stack)


def with_phases(graph: Graph) -> Graph:
    """A graph of MindSpore with the phases of its operators.

    The names tell only part of the backward: what MindSpore expands in it is in `Expand/`, like what it expands in the forward, and has the line of the
    forward. What a program does with gradients (clipping) counts as part of the optimizer.
    """
    phases: dict[str, Phase] = {}
    from_gradients: set[str] = set()
    forward_lines: set[Frame] = set()
    for node in graph.nodes:
        stack = program_stack(node.stack)
        phase = phase_of(node.op_name, node.stack)
        if phase == "forward" and not from_gradients.isdisjoint(_makers(node)):
            phase = "backward" if _is_expanded(node) and not forward_lines.isdisjoint(stack[:1]) else "optimizer"
        elif phase == "forward":
            forward_lines.update(stack[:1])
        if phase != "forward" and not is_of_optimizer(node.stack) and node.op_type != _UPDATE:
            from_gradients.add(node.op_name)
        phases[node.op_name] = phase
    readers: dict[str, set[Phase]] = {}
    for node in reversed(graph.nodes):
        if _is_expanded(node) and readers.get(node.op_name) == {"backward"}:
            phases[node.op_name] = "backward"
        for maker in _makers(node):
            readers.setdefault(maker, set()).add(phases[node.op_name])
    return replace(graph, nodes=tuple(replace(node, phase=phases[node.op_name]) for node in graph.nodes))


def _makers(node: GraphNode) -> Iterator[str]:
    return (given.source.rpartition(":")[0] for given in node.inputs)


def _is_expanded(node: GraphNode) -> bool:
    return node.op_name.startswith("Expand/")


# Finds the true names for file names in dumps of other tools, which have no index.
#
# `Default_network-WithLossCell__backbone-LeNet_fc1-Dense_MatMul-op0` may be `Default/network-WithLossCell/_backbone-LeNet/...` or
# something else; the execution order and the graph decide. They are written when a graph is compiled, before MindSpore assigns the
# numbers that files have (`-op1` for `-op0`), so operators are renumbered in the same way. A name that cannot be resolved stays as
# it is in the file.

_TUPLE: Final = "MakeTuple"
_UPDATE: Final = "UpdateState"
"""Operators of MindSpore's graphs that say that a parameter has been written."""
_ITEM: Final = "TupleGetItem"
_HANDING_ON: Final = frozenset({"Load", "Depend", _TUPLE, _ITEM})
"""Operators of MindSpore's graphs that pass on their inputs and run nothing: a tuple passes on each of its inputs, an item one of
them, the others the first.
"""
_NUMBERED = re.compile(r"(?P<scope>.*)(?P<number>-op[0-9]+)", re.DOTALL)


class TrueNames:
    """Looks up the names of one graph: of its operators, of its parameters, and of both in its graph file."""

    def __init__(self, full_names: Iterable[str], parameters: Iterable[str], graph: Graph | None) -> None:
        nodes = graph.nodes if graph is not None else ()
        names = dict.fromkeys([*full_names, *(node.op_name for node in nodes)])
        self._by_full = _index((sanitise(name), name) for name in names)
        self._by_base = _index((sanitise(name.rpartition("/")[2]), name) for name in names)
        self._by_scope = _index((sanitise(scope), scope) for name in names if (scope := _split(name)[0]))
        values = (value.name for value in graph.parameters) if graph is not None else ()
        self._parameters = _index((sanitise(name), name) for name in (*parameters, *values))
        self._nodes = {node.op_name: node for node in nodes}
        constants = graph.constants if graph is not None else ()
        self._constants = {constant.name: constant.value for constant in constants if constant.value is not None}

    def true_name(self, op_type: str, name: str) -> str:
        """The full name of the operator with this `name` in files; `name` itself if it cannot be resolved."""
        if op_type == PARAMETER:
            return self._parameters.get(name) or name
        found = self._by_full.get(name) or self._by_base.get(name)
        if found:
            return found
        scope, number = _split(name)
        true_scope = self._by_scope.get(scope) if number else None
        return true_scope + number if true_scope else name

    def node(self, true_name: str) -> GraphNode | None:
        """The operator of that full name in the graph."""
        return self._nodes.get(true_name)

    def constants(self, node: GraphNode) -> dict[str, Any]:
        """The values that the graph contains among the inputs of an operator, by slot."""
        values = {str(slot): self._constants.get(given.source) for slot, given in enumerate(node.inputs)}
        return {slot: value for slot, value in values.items() if value is not None}

    def source(self, node: GraphNode, slot: int) -> GraphInput | None:
        """The source of an operator's input in the graph, with operators that only pass it on skipped; None if unknown.

        The source of an element of a parameter that is a tuple is `Parameter.{name}:{index}`.
        """
        elements: list[int] = []
        """The indices into the tuple and the tuples in it, outermost last."""
        for _ in range(len(self._nodes)):
            if slot >= len(node.inputs):
                return None
            given = node.inputs[slot]
            name, _, output = given.source.rpartition(":")
            maker = self._nodes.get(name)
            if maker is None or maker.op_type not in _HANDING_ON or maker.runs_kernel or not maker.inputs:
                return _element(given, maker, elements)
            node, slot = maker, 0
            if maker.op_type == _ITEM:
                index = self._constants.get(maker.inputs[-1].source)
                if not isinstance(index, int):
                    return None
                elements.append(index)
            elif maker.op_type == _TUPLE:
                slot = elements.pop() if elements else int(output) if output.isdecimal() else 0
                if slot < len(maker.inputs) and _is_argument(maker):
                    return GraphInput(f"{maker.inputs[slot].source}:{slot}")
        return None


def _is_argument(pack: GraphNode) -> bool:
    """Whether a tuple is an argument of a compiled function: the graph has its elements as parameters of one name."""
    name = pack.inputs[0].source
    return (
        len(pack.inputs) > 1 and name.startswith(PARAMETER_PREFIX) and all(each.source == name for each in pack.inputs)
    )


def numbered_as_run(graph: Graph, counts: Counter[str]) -> Graph:
    """The graph with the numbers that its operators have when they run.

    MindSpore renumbers operators after writing the file of a graph: by scope and type, in the order of the file, and continuing
    from one graph of a process to the next. `counts` are the numbers in earlier graphs, by scope and type; those of this one are
    added.
    """
    names: dict[str, str] = {}
    for node in graph.nodes:
        stem = _split(node.op_name)[0]
        if stem:
            names[node.op_name] = f"{stem}-op{counts[stem]}"
            counts[stem] += 1
    return graph if all(name == other for name, other in names.items()) else renamed(graph, names)


def names_throughout(graph: Graph) -> dict[str, str]:
    """Names that differ in their last component, as files of 2.3 need them: one number for each operator, in the order of the
    graph.
    """
    return {node.op_name: f"{_split(node.op_name)[0]}-op{number}" for number, node in enumerate(graph.nodes)}


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of its operators, including references to them as makers of inputs."""
    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                op_name=names.get(node.op_name, node.op_name),
                inputs=tuple(replace(given, source=_renamed(given.source, names)) for given in node.inputs),
            )
            for node in graph.nodes
        ),
    )


def _renamed(source: str, names: Mapping[str, str]) -> str:
    name, colon, slot = source.rpartition(":")
    return f"{names[name]}{colon}{slot}" if name in names else source


def _element(given: GraphInput, maker: GraphNode | None, elements: Sequence[int]) -> GraphInput | None:
    """The element of a tuple that an operator returns, or that a parameter is."""
    if not elements:
        return given
    if len(elements) > 1:
        return None
    (index,) = elements
    if maker is None:
        return GraphInput(f"{given.source}:{index}") if given.source.startswith(PARAMETER_PREFIX) else None
    return GraphInput(
        f"{maker.op_name}:{index}"
    )  # without a shape: files of MindSpore have none for elements of tuples


def _split(name: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(name)
    return (match["scope"], match["number"]) if match else (name, "")


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Keys to their single value; the empty string if a key has several."""
    index: dict[str, str] = {}
    for key, value in pairs:
        index[key] = value if index.get(key, value) == value else ""
    return index
