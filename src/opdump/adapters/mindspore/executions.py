"""Reads the files of MindSpore's own dump for the graph executions that have ended, and removes them.

    LeNet/0/0/Conv2D.Default_...-op0.0.0.1795650438520449.input.0.DefaultFormat.Float32.npy

Executions of a graph have the same files with different time stamps. The operators, lines and makers are derived once for each such
list of names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator, live_tensor
from opdump.adapters.host import BY_DTYPE, HostTensor
from opdump.errors import CorruptDumpError
from opdump.graph import PARAMETER_PREFIX, Graph, GraphNode, GraphOutput
from opdump.index.values import FilePayload
from opdump.layouts.mindspore_sync.files import (
    MAPPING_NAME,
    PARAMETER,
    FoundFile,
    PlaceFiles,
    TensorDirectory,
    dtype_of_token,
    find_places,
    list_files,
)
from opdump.layouts.mindspore_sync.from_files import (
    TrueNames,
    names_throughout,
    program_stack,
    records_of_place,
    renamed,
)
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.recorder import LiveTensor, Recorder
from opdump.records import IO, Memory, OpRecord, TensorRecord
from opdump.sink.directory import WriterThreads
from opdump.sink.npy import read_raw_npy

KERNELS: Final = "mindspore"
"""The namespace of kernels in records."""


def kernel_of(op_type: str) -> str:
    """The kernel of an operator of this type in records."""
    return f"{KERNELS}::{op_type}"


Excluded = Callable[[OpRecord, IO], frozenset[int]]


@dataclass(frozen=True, slots=True)
class Program:
    """The common part of all executions with the same files: operators in execution order, with the positions of their tensors."""

    operators: tuple[BlockOperator, ...]
    ops: tuple[OpRecord, ...]
    """The record of each operator in the first execution."""


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution of a graph. `tensors` are those of all operators; `"unreadable"` replaces one that cannot be read."""

    place: TensorDirectory
    program: Program
    tensors: Sequence[HostTensor | str]

    def place_arguments(self, places: Mapping[str, Memory | None]) -> None:
        """Set the memory locations of the arguments that the program passed, by their names in the graph."""
        for each in self.program.operators:
            for slot in each.inputs:
                memory, tensor = places.get(slot.source), self.tensors[slot.tensor]
                if memory and isinstance(tensor, HostTensor) and len(memory.strides) == len(tensor.shape):
                    tensor.memory = memory


class Executions:
    """The executions in a rank's directory of MindSpore's dump. `problems` collects files that could not be read.

    `is_unique`: file names contain only the last component of an operator name, so this component must be unique in a graph.
    """

    def __init__(self, root: Path, rank_id: int, *, is_unique: bool = False) -> None:
        self._is_unique = is_unique
        self._names: dict[int, Mapping[str, str]] = {}
        self.problems: list[CorruptDumpError] = []
        self._root = root
        self._rank_id = rank_id
        self._tree: RankTree | None = None
        self._programs: dict[tuple[object, ...], Program] = {}
        self._retired: set[str] = set()
        """Directories that a thread is removing."""
        self._emptied: WriterThreads[str] = WriterThreads(_remove_empty, self._stays, threads=1, capacity=2**20)

    @property
    def tree(self) -> RankTree:
        """Graphs and execution orders; each is read once."""
        if self._tree is None:
            self._tree = RankTree(self._root, self._rank_id, places=(), with_index=False)
        return self._tree

    def graph_ids(self) -> tuple[int, ...]:
        """The numbers of the graphs compiled so far, ascending."""
        return self.tree.graph_ids

    def graph_files(self, graph_id: int) -> dict[str, bytes]:
        """The graph files that MindSpore wrote during compilation, by path in the rank's directory.

        If files have other operator names than the graph, they are encoded again with these names.
        """
        graph, names = self.tree.graph(graph_id), self.names_in_files(graph_id)
        if graph is not None and names:
            return _graph_files(
                replace(renamed(graph, names), by_mindspore=False), self.tree.execution_order(graph_id), names
            )
        stems = (
            f"graphs/ms_output_trace_code_graph_{graph_id}.",
            f"execution_order/ms_execution_order_graph_{graph_id}.",
        )
        return {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for stem in stems
            for path in sorted(self._root.glob(f"{stem}*"))
        }

    def names_in_files(self, graph_id: int) -> Mapping[str, str]:
        """The names of operators in files of the layout, by their names in the graph; empty if these are the same."""
        if not self._is_unique:
            return {}
        if graph_id not in self._names:
            graph = self.tree.graph(graph_id)
            self._names[graph_id] = {} if graph is None else names_throughout(graph)
        return self._names[graph_id]

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The iterations in which a graph was executed so far."""
        return self.tree.history(graph_id)

    def take(self) -> Iterator[Execution]:
        """The executions on disk. The files of each are removed when the next one is requested.

        The directory of an iteration is removed when a later iteration of the graph exists: MindSpore then no longer writes into it.
        """
        if not self._root.is_dir():
            return
        places = [place for place in find_places(self._root) if place.step is not None]
        self._retired &= {place.relative for place in places}
        places = [place for place in places if place.relative not in self._retired]
        latest = {(place.net_name, place.graph_id): place.step for place in places}  # places are sorted by step
        for place in places:
            files = list_files(self._root, place)
            if files.tensors:
                program = self._program(place, files)
                yield Execution(place, program, [self._tensor(file) for file in files.tensors])
                for file in files.tensors:
                    with suppress(FileNotFoundError):  # the recorder may have moved the file into the dump
                        os.unlink(f"{self._root}/{file.relative}")
            if place.step != latest[place.net_name, place.graph_id]:
                self._retired.add(place.relative)
                # In a thread, because removing a directory that had many files can take milliseconds.
                self._emptied.put(f"{self._root}/{place.relative}", 1)

    def close(self) -> None:
        """Wait until the finished directories have been removed."""
        self._emptied.stop()

    def _stays(self, directory: str | None, _error: BaseException) -> None:
        """A directory could not be removed: look at it again. What remains is removed when the process ends."""
        self._retired.discard(os.path.relpath(directory or self._root, self._root))

    def _program(self, place: TensorDirectory, files: PlaceFiles) -> Program:
        key = (place.net_name, place.graph_id, tuple(_without_stamps(files)))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._read_program(place, files)
        return program

    def _read_program(self, place: TensorDirectory, files: PlaceFiles) -> Program:
        found = records_of_place(self._root, self._rank_id, place, files, self.tree.true_names(place.graph_id), {})
        self.problems.extend(found.problems)
        places = {file.relative: number for number, file in enumerate(files.tensors)}
        slots: dict[tuple[int, IO], list[BlockSlot]] = {}
        shapes_of = {
            places[record.payload.relative]: record.shape
            for record in found.tensors
            if isinstance(record.payload, FilePayload)
        }
        for record in found.tensors:
            slots.setdefault((id(record.op), record.io), []).append(_slot(record, places))
        names = self.tree.true_names(place.graph_id)
        operators = []
        for op in found.ops:
            inputs, outputs = (slots.get((id(op), io), []) for io in ("input", "output"))
            shapes: dict[tuple[IO, int], tuple[int, ...]] = {
                **{("input", slot.slot): shapes_of[slot.tensor] for slot in inputs},
                **{("output", slot.slot): shapes_of[slot.tensor] for slot in outputs},
            }
            node = names.node(op.op_name) if op.op_type != PARAMETER else None
            inputs, arguments = (inputs, op.arguments) if node is None else _with_names(op, node, inputs, shapes)
            operators.append(BlockOperator(_named(replace(op, arguments=arguments)), inputs, outputs))
        return Program(tuple(operators), found.ops)

    def _tensor(self, file: FoundFile) -> HostTensor | str:
        path = f"{self._root}/{file.relative}"
        try:
            header, flat = read_raw_npy(path)
        except CorruptDumpError as error:
            self.problems.append(error)
            return "unreadable"
        dtype = header.dtype
        # Devices write bfloat16 as float32.
        if dtype == "float32" and dtype_of_token(file.name.dtype) == "bfloat16":
            dtype, flat = "bfloat16", (flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        # If the bytes in the file are those of the dump, the recorder may take the file itself.
        npy = "" if dtype == "bfloat16" or header.fortran_order else path
        return HostTensor(BY_DTYPE[dtype], header.shape, flat.ctypes.data, flat, stays=True, npy=npy)


_Origin = TypeVar("_Origin")


def given_in_graph(program: Program, given: Mapping[str, _Origin]) -> Mapping[str, _Origin]:
    """The origins of the arguments of a compiled function, by their names in its graph. `given` has them by the names in its definition.

    An argument that has the name of a parameter is `box_$` in the graph, in which `box` is the parameter. MindSpore names the gradients that an optimizer
    of `nn` gets after another variable (`success`): the only list that the graph reads under an unknown name is the only list that it does not read under
    its own.
    """
    sources = {slot.source for each in program.operators for slot in each.inputs}
    given = {_renamed_argument(name, sources): origin for name, origin in given.items()}
    read = {source.rpartition(":")[0] for source in sources}
    lists = {name.rpartition(":")[0] for name in given} - {""}
    unknown = [name for name in read - lists if name.startswith(PARAMETER_PREFIX)]
    unread = lists - read
    if len(unknown) != 1 or len(unread) != 1:
        return given
    (name,), (own,) = unknown, unread
    return {key.replace(own, name, 1) if key.rpartition(":")[0] == own else key: value for key, value in given.items()}


def _renamed_argument(name: str, sources: Collection[str]) -> str:
    """The name in a graph of an argument with this name in the definition: `Parameter.box`, or `Parameter.boxes:0` for a tensor of a list."""
    whole, colon, place = name.rpartition(":")
    renamed = f"{whole}_${colon}{place}" if colon else f"{name}_$"
    return renamed if renamed in sources else name


def block_of(
    program: Program,
    selected: Callable[[OpRecord], bool],
    excluded: Excluded,
    makers: Mapping[str, str] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
) -> Block:
    """The selected operators, without the excluded slots. `makers` are the makers of arguments, by the arguments' names in the graph;
    `names` the names of operators in files, if they differ.
    """

    def source_in_files(source: str) -> str:
        name, colon, slot = makers.get(source, source).rpartition(":")
        return f"{names.get(name, name)}{colon}{slot}"

    return Block(
        [
            BlockOperator(
                replace(each.operator, op_name=names.get(op.op_name, op.op_name)),
                [
                    slot._replace(source=source_in_files(slot.source))
                    for slot in each.inputs
                    if slot.slot not in excluded(op, "input")
                ],
                [slot for slot in each.outputs if slot.slot not in excluded(op, "output")],
            )
            for op, each in zip(program.ops, program.operators, strict=True)
            if selected(op)
        ]
    )


def _graph_files(graph: Graph, order: Sequence[str], names: Mapping[str, str]) -> dict[str, bytes]:
    from opdump.layouts.graph_files.mindspore import EXECUTION_ORDER_HEADER, encode_ir, encode_pb

    stem = f"graphs/ms_output_trace_code_graph_{graph.graph_id}"
    lines = [EXECUTION_ORDER_HEADER, *(names.get(name, name) for name in order)]
    return {
        f"{stem}.ir": encode_ir(graph, layout="mindspore-2.3"),
        f"{stem}.pb": encode_pb(graph),
        f"execution_order/ms_execution_order_graph_{graph.graph_id}.csv": "".join(
            f"{line}\n" for line in lines
        ).encode(),
    }


def _remove_empty(directory: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{directory}/{MAPPING_NAME}")
    os.rmdir(directory)  # fails if the directory is not empty


def rank_directories(root: Path) -> list[Path]:
    """The rank directories of a dump."""
    return sorted(path for path in root.glob("rank_*") if path.is_dir())


def has_files(root: Path) -> bool:
    """Whether a rank's directory has files of an execution, complete or not."""
    for place in find_places(root):
        if place.step is not None:
            with suppress(FileNotFoundError), os.scandir(root / place.relative) as entries:
                if any(entry.name != MAPPING_NAME for entry in entries):
                    return True
    return False


def _without_stamps(files: PlaceFiles) -> Iterator[Any]:
    for file in files.tensors:
        name = file.name
        yield name.op_type, name.op_name, name.io, name.slot, name.dtype


def _slot(record: TensorRecord, places: dict[str, int]) -> BlockSlot:
    assert isinstance(record.payload, FilePayload), "the record was made from a file"
    return BlockSlot(record.slot, "", record.source, places[record.payload.relative])


def _named(op: OpRecord) -> NamedOperator:
    kernel = "" if op.op_type == PARAMETER else kernel_of(op.op_type)
    return NamedOperator(op.op_type, op.op_name, op.task_id, op.arguments, op.stack, kernel, phase=op.phase)


_SAYS_NOTHING: Final = frozenset({"IsFeatureMapInputList", "IsFeatureMapOutput", "input_names", "output_names"})
"""Attributes that MindSpore sets during compilation and that decide no result."""


def _with_names(
    op: OpRecord, node: GraphNode, inputs: Sequence[BlockSlot], shapes: Mapping[tuple[IO, int], tuple[int, ...]]
) -> tuple[list[BlockSlot], dict[str, Any]]:
    """The inputs and the arguments of an operator with the names of the primitive's arguments. `shapes` are those in the files.

    The argument `graph_shapes` has the shapes in which the operator reads and writes tensors, if these differ: files have the shapes of the
    memory.
    """
    from opdump.adapters.mindspore.replay import argument_names, places_of

    attributes = op.arguments
    names = argument_names(op.op_type) or tuple(map(str, attributes.get("input_names") or ()))
    places = places_of(attributes, len(node.inputs))

    def name_of(slot: int) -> str:
        place, in_list = places[slot] if slot < len(places) else (slot, -1)
        name = names[place] if place < len(names) else ""
        return f"{name}[{in_list}]" if name and in_list >= 0 else name

    arguments = {
        (name_of(int(name)) or name) if name.isdecimal() else name: value
        for name, value in attributes.items()
        if name not in _SAYS_NOTHING
    }
    of_graph = _graph_shapes(node, shapes)
    if of_graph:
        arguments["graph_shapes"] = of_graph
    arguments |= _of_outputs(op.op_type, node.outputs)
    return [slot._replace(argument=name_of(slot.slot)) for slot in inputs], arguments


def _of_outputs(op_type: str, outputs: Sequence[GraphOutput]) -> dict[str, Any]:
    """The arguments that MindSpore does not dump, and that the outputs have: the type of a cast, the number of segments, the sizes of a gradient."""
    if not outputs:
        return {}
    dtype, shape = outputs[0]
    match op_type:
        case "Cast":
            return {"dtype": dtype}
        case "UnsortedSegmentSum" if shape:
            return {"num_segments": shape[0]}
        case "Conv2DBackpropInput":
            return {"input_sizes": list(shape)}
        case "Conv2DBackpropFilter":
            return {"filter_sizes": list(shape)}
    return {}


def _graph_shapes(node: GraphNode, shapes: Mapping[tuple[IO, int], tuple[int, ...]]) -> dict[str, list[int]]:
    """The shapes of an operator's tensors in the graph that differ from those in the files."""
    of_graph: list[tuple[IO, int, tuple[int, ...]]] = [
        *(("input", slot, given.shape) for slot, given in enumerate(node.inputs) if given.dtype),
        *(("output", slot, made.shape) for slot, made in enumerate(node.outputs) if len(node.outputs) == 1),
    ]
    return {
        f"{io}.{slot}": list(shape)
        for io, slot, shape in of_graph
        if (found := shapes.get((io, slot), shape)) != shape
        and min(shape, default=0) >= 0
        and math.prod(found) == math.prod(shape)
    }


# Finds the operator of a graph that failed. MindSpore dumps an operator after it has run, so the failed one has no files.
#
# Among the operators without files whose makers have all run, it is the one of the type that the error names (`For 'Gather', ...`),
# otherwise the first in the planned execution order.

_NAMED: Final = re.compile(r"For '([A-Za-z0-9_]+)'")


@dataclass(frozen=True, slots=True)
class FailedOperator:
    """An operator that failed; `sources` are the makers of its inputs by slot, as `name:slot` with the names in files."""

    operator: NamedOperator
    sources: tuple[tuple[int, str], ...]


def failed_operator(
    graph: Graph, names: TrueNames, order: Sequence[str], ran: Program, error: BaseException
) -> FailedOperator | None:
    """The operator that raised `error` after those that ran; None if no operator is left."""
    nodes = {node.op_name: node for node in graph.nodes}
    planned = [nodes[name] for name in order if name in nodes] or graph.nodes
    left = _next_kernels(planned, {op.op_name for op in ran.ops}, names)
    named = _NAMED.search(str(error))
    found = next((node for node in left if named and node.op_type == named[1]), left[0] if left else None)
    if found is None:
        return None
    operator = NamedOperator(
        found.op_type,
        found.op_name,
        arguments=found.attributes,
        stack=program_stack(found.stack),
        kernel=kernel_of(found.op_type),
        phase=found.phase,
    )
    return FailedOperator(operator, tuple(_sources(found, names)))


def inputs_of(failed: FailedOperator, execution: Execution) -> list[LiveTensor]:
    """The inputs of the operator that operators of the same execution made."""
    made = {
        f"{each.operator.op_name}:{slot.slot}": execution.tensors[slot.tensor]
        for each in execution.program.operators
        for slot in each.outputs
    }
    return [live_tensor(slot, "", made[source], source) for slot, source in failed.sources if source in made]


def _next_kernels(planned: Sequence[GraphNode], have_run: Collection[str], names: TrueNames) -> list[GraphNode]:
    """The operators that have not run, and whose makers have."""
    waiting = {node.op_name for node in planned if node.runs_kernel}.difference(have_run)
    return [
        node
        for node in planned
        if node.op_name in waiting
        and waiting.isdisjoint(source.rpartition(":")[0] for _, source in _sources(node, names))
    ]


def _sources(node: GraphNode, names: TrueNames) -> list[tuple[int, str]]:
    """The makers of a node's inputs by slot, as `name:slot` with the names in files."""
    given = [(slot, names.source(node, slot)) for slot in range(len(node.inputs))]
    return [(slot, each.source) for slot, each in given if each is not None and each.source]


# Files the graphs of MindSpore: its own graph files if the layout has them, otherwise graphs in the layout's form.


class GraphFiles:
    """The graphs of one rank of MindSpore's dump."""

    def __init__(self, recorder: Recorder, executions: Executions) -> None:
        self._recorder = recorder
        self._executions = executions
        self._filed: set[int] = set()
        self._ran: dict[int, int] = {}
        """The number of noted executions of each graph."""

    def file_new(self) -> list[tuple[int, int]]:
        """File the graphs that were compiled and the iterations that were executed since the last call.

        Returns the latter as (graph number, iteration).
        """
        ran: list[tuple[int, int]] = []
        executions, recorder = self._executions, self._recorder
        for graph_id in executions.graph_ids():
            if graph_id not in self._filed:
                self._filed.add(graph_id)
                graph = executions.tree.graph(graph_id)
                if graph is not None:
                    recorder.file_graph(graph, executions.graph_files(graph_id))
            history = executions.history(graph_id)
            for step in history[self._ran.get(graph_id, 0) :]:
                recorder.graphs_ran(step, [graph_id])
                ran.append((graph_id, step))
            self._ran[graph_id] = len(history)
        return ran
