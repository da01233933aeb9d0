"""One step of a run as a data flow: operators in execution order, each input with its maker."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from opdump.catalog.catalog import Catalog
from opdump.catalog.query import Execution
from opdump.comparison.differences import digest_of, has_elements, has_same_contents
from opdump.comparison.loops import with_executions
from opdump.comparison.nodes import Node, Place, reachable, scope_of, storages_of
from opdump.comparison.step_statistics import Columns, Floats, Places, StepRows, columns_of, columns_of_summaries
from opdump.errors import CorruptDumpError
from opdump.graph import CONSTANT_PREFIX, PARAMETER_PREFIX, PYNATIVE
from opdump.plan.unmatched_names import nearest
from opdump.records import CALL, Memory, OpRecord, Payload, Phase, TensorRecord, graph_shapes
from opdump.step_table import StepTable

# MindSpore's compiled code passes numbers to operators as tensors, and PyNative mode as arguments. In compiled code the third input of a
# BiasAdd is a tensor (`input.2 int64 () data-1`); here it becomes the argument {"2": 0}.

_LONGEST: Final = 16
_UPDATES: Final = re.compile(r"(?:Sparse)?Apply|Assign|Fused.*(?:Adam|Momentum)|Adam|SGD$|LARS|ScatterUpdate")
"""Types of operators that update the parameters that they read."""


def as_read(op: OpRecord, inputs: dict[int, TensorRecord]) -> tuple[OpRecord, dict[int, TensorRecord]]:
    """Move constant numbers from the inputs of an operator to its arguments, by slot. The other inputs keep their slots.

    A number without elements and statistics is left out. So is a parameter that the operator updates, because the dump has its new value. If the dump
    has elements, the first one stays without them: its value is known if an earlier operator reads it.
    """
    inputs = _without_updated(op, inputs)
    numbers = {slot: record for slot, record in inputs.items() if _is_number(record)}
    if not numbers:
        return op, inputs
    values = {
        record.argument or str(slot): value for slot, record in numbers.items() if (value := _value(record)) is not None
    }
    return (
        replace(op, arguments={**op.arguments, **values}),
        {slot: record for slot, record in inputs.items() if slot not in numbers},
    )


def shape_given(op: OpRecord, given: tuple[int, ...]) -> tuple[int, ...] | None:
    """The output shape of a view in compiled code for an input of shape `given`; None for other operators. MindSpore dumps the shape of the
    memory instead.
    """
    axes = next((op.arguments[name] for name in ("1", "axis", "shape") if name in op.arguments), None)
    shape: tuple[int, ...] | None = None
    match op.op_type, axes:
        case "Reshape", list():
            shape = _reshaped(given, axes)
        case "Flatten", _ if given:
            shape = (given[0], math.prod(given[1:]))
        case "ExpandDims", int():
            place = axes % (len(given) + 1)
            shape = (*given[:place], 1, *given[place:])
        case "Squeeze", _:
            shape = _squeezed(given, [axes] if isinstance(axes, int) else axes)
    return shape if shape is not None and math.prod(shape) == math.prod(given) else None


def _reshaped(given: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
    """The shape with these sizes. A negative size is what the others leave."""
    known = math.prod(size for size in sizes if size >= 0)
    return tuple(size if size >= 0 else math.prod(given) // max(1, known) for size in sizes)


def _squeezed(given: tuple[int, ...], axes: Sequence[int] | None) -> tuple[int, ...]:
    """The shape without these axes, or without all axes of one element."""
    left = {axis % max(1, len(given)) for axis in axes or [axis for axis, size in enumerate(given) if size == 1]}
    return tuple(size for axis, size in enumerate(given) if axis not in left)


def updated_parameter(op: OpRecord, inputs: Mapping[int, TensorRecord], outputs: Mapping[int, TensorRecord]) -> str:
    """The parameter that an operator of compiled code updates and returns as its first output; empty if there is none."""
    if not _UPDATES.match(op.op_type) or 0 not in inputs or 0 not in outputs or inputs[0].shape != outputs[0].shape:
        return ""
    return inputs[0].source if inputs[0].source.startswith(PARAMETER_PREFIX) else ""


def _without_updated(op: OpRecord, inputs: dict[int, TensorRecord]) -> dict[int, TensorRecord]:
    """The inputs without the values of parameters that the operator updates."""
    if not _UPDATES.match(op.op_type) or 0 not in inputs:
        return inputs
    first = inputs[0]
    left = {
        slot: record
        for slot, record in inputs.items()
        if not (record.source.startswith(PARAMETER_PREFIX) and record.shape == first.shape)
    }
    is_kept = 0 not in left and has_elements(first)
    return {0: replace(first, payload=None, statistics={}), **left} if is_kept else left


def _in_graph_shapes(op: OpRecord, records: Mapping[int, TensorRecord]) -> dict[int, TensorRecord]:
    """The tensors in the shapes that the operator reads and writes, which the dump notes if the memory has another shape."""
    found = dict(records)
    for record in records.values():
        shape = graph_shapes(op, record.io).get(record.slot)
        if shape is not None and record.memory is None and math.prod(shape) == math.prod(record.shape):
            payload = None if record.payload is None else _Reshaped(record.payload, shape)
            found[record.slot] = replace(record, shape=shape, payload=record.payload if record.sample else payload)
    return found


@dataclass(frozen=True, slots=True)
class _Reshaped:
    """Elements in another shape."""

    payload: Payload
    shape: tuple[int, ...]

    def to_host(self) -> NDArray[Any]:
        """Return the elements."""
        return self.payload.to_host().reshape(self.shape)


def _is_number(record: TensorRecord) -> bool:
    if not record.source.startswith(CONSTANT_PREFIX) or len(record.shape) > 1:
        return False
    return record.shape == () or ("int" in record.dtype and record.shape[0] <= _LONGEST)


def _value(record: TensorRecord) -> Any:
    if record.payload is not None:
        try:
            return record.payload.to_host().tolist()
        except CorruptDumpError:
            return None  # reading the record later reports the error
    value = record.statistics.get("max")
    if record.shape != () or value is None:
        return None
    return bool(value) if record.dtype == "bool" else value


_SIZES: Final = frozenset(
    [
        "axes",
        "axis",
        "begin",
        "block_shape",
        "concat_dim",
        "crops",
        "depth",
        "dim",
        "dimension",
        "dims",
        "element_shape",
        "end",
        "fft_length",
        "filter_sizes",
        "input_sizes",
        "k",
        "ksize",
        "max_output_size",
        "multiples",
        "num",
        "num_lower",
        "num_segments",
        "num_upper",
        "orig_input_shape",
        "output_shape",
        "paddings",
        "perm",
        "reduction_indices",
        "s0",
        "s1",
        "shape",
        "size",
        "size_splits",
        "split_dim",
        "strides",
    ]
)
"""Inputs of TensorFlow's operators that decide shapes, axes and positions."""


def with_sizes(
    op: OpRecord, inputs: dict[int, TensorRecord], outputs: Mapping[int, TensorRecord]
) -> tuple[OpRecord, dict[int, TensorRecord]]:
    """Move shapes, axes and positions from the inputs of an operator of TensorFlow to its arguments, by name: what one program computes is a
    constant in another. A reshape to the shape [-1, 3] has the shape of its output.
    """
    sizes = {slot: record for slot, record in inputs.items() if _is_size(record) and has_elements(record)}
    values = {slot: value for slot, record in sizes.items() if (value := _value(record)) is not None}
    if not values:
        return op, inputs
    arguments = {sizes[slot].argument: value for slot, value in values.items()}
    if op.op_type == "Reshape" and 0 in outputs:
        arguments["shape"] = [*outputs[0].shape]
    return (
        replace(op, arguments={**op.arguments, **arguments}),
        {slot: record for slot, record in inputs.items() if slot not in values},
    )


def _is_size(record: TensorRecord) -> bool:
    return record.argument in _SIZES and "int" in record.dtype and math.prod(record.shape) <= _LONGEST


_HANDS_OUT: Final = frozenset(
    {"tf::IteratorGetNext", "tf::IteratorGetNextSync", "tf::OptionalFromValue", "tf::OptionalGetValue"}
)
"""Operators that return elements of a data set. Its own operators are not observed, so the elements are inputs of the program."""

_INPUT: Final = re.compile(r"inputs\d+")
_TENSORFLOW: Final = "tf::"
"""The prefix of the kernels of TensorFlow's operators, which name a variable as the source of its value, whatever wrote it."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A step of a rank: the operators that ran a kernel and were recorded, in execution order."""

    step: int
    rank: int
    nodes: Sequence[Node]
    finals: Mapping[str, TensorRecord] = field(default_factory=dict)
    """The parameters at the end of the step, by name."""

    @property
    def pattern(self) -> Sequence[Node]:
        """The nodes, for what all repetitions of a step share: types, phases and makers. Creates no node of a repeated step."""
        return self.nodes

    @cached_property
    def rows(self) -> StepRows:
        """The inputs and outputs as rows of `columns`."""
        return StepRows(self.nodes, tuple(self.finals.values()))

    @cached_property
    def columns(self) -> Columns:
        """The statistics of all outputs, followed by those of all inputs."""
        outputs = (record for node in self.nodes for record in node.outputs.values())
        inputs = (record for node in self.nodes for record in node.inputs.values())
        return columns_of((*outputs, *inputs))

    def at(self, place: Place) -> TensorRecord:
        """The tensor at a place."""
        node, slot = self.nodes[place[0]], place[1]
        return node.outputs[slot] if slot >= 0 else node.inputs[~slot]

    def phase_of(self, place: Place) -> Phase:
        """The phase in which an output is computed; for what the call of a compiled function returns, in the function."""
        node = self.nodes[place[0]]
        maker = node.makers.get(place[1]) if node.op.kernel == CALL else None
        return (node if maker is None else self.nodes[maker[0]]).op.phase

    def computing(self, index: int) -> Node:
        """The operator that computes the output of a node: the node itself, or the one whose output it only moves or casts."""
        node = self.nodes[index]
        while node.operator_class in ("moves", "casts") and 0 in node.makers:
            node = self.nodes[node.makers[0][0]]
        return node

    def users(self) -> Mapping[Place, list[Place]]:
        """The readers of each output: the (node, slot) of an output -> the (node, slot) of each input."""
        return self.rows.users

    def with_ancestors(self, nodes: Iterable[int], ends: Container[Place] = ()) -> set[int]:
        """The nodes and those that they depend on. Dependencies are not followed through the outputs `ends`."""
        return reachable(
            nodes, lambda index: (maker[0] for maker in self.nodes[index].makers.values() if maker not in ends)
        )

    @cached_property
    def unreturned(self) -> set[int]:
        """The operators of compiled functions on which no result of their function depends: nothing after the function can see their outputs."""
        # An uncompiled loop is a call, too, but of graph 0, which has the operators outside as well.
        calls = [node for node in self.nodes if node.op.kernel == CALL and node.op.graph_id]
        graphs, returned = {call.op.graph_id for call in calls}, self.with_ancestors(call.index for call in calls)
        inside = (node for node in self.nodes if node.op.graph_id in graphs and not node.op.repeats_operators)
        return {node.index for node in inside if node.index not in returned}

    def readers(self, index: int) -> set[int]:
        """The nodes that read any output of a node."""
        users = self.users()
        return {reader for slot in self.nodes[index].outputs for reader, _ in users.get((index, slot), ())}


def only(trace: Trace, selects: Callable[[str, str], bool]) -> Trace:
    """The trace as if only operators and parameters for which `selects(name, type)` is true had been recorded."""
    nodes = _renumbered([node for node in trace.nodes if selects(node.op.op_name, node.op.op_type)])
    return replace(
        trace,
        nodes=nodes,
        finals={name: record for name, record in trace.finals.items() if selects(name, "Parameter")},
    )


def lack_evidence(a: Trace, b: Trace) -> bool:
    """Whether TensorFlow ran the programs in different modes, so that few operators have the same name, and the dumps lack elements, or the updates
    of variables in one run: a session does not show what an operator of an optimizer writes.
    """
    names = [{node.op.op_name for node in trace.nodes if node.op.kernel.startswith(_TENSORFLOW)} for trace in (a, b)]
    if not all(names) or len(names[0] & names[1]) >= _SAME_MODE * min(map(len, names)):
        return False
    return any(
        _hides_updates(trace) or not any(has_elements(each) for node in trace.nodes for each in node.outputs.values())
        for trace in (a, b)
    )


_SAME_MODE: Final = 0.5
"""Two programs ran in the same mode if at least this share of the smaller one's operators has the same names."""


def _hides_updates(trace: Trace) -> bool:
    return any(
        node.op.phase == "optimizer" and not node.outputs and any(record.memory for record in node.inputs.values())
        for node in trace.nodes
    )


def without_evidence(trace: Trace) -> Trace:
    """The trace of a TensorFlow program with operators that cannot be run again, and without the values of variables at their handles."""
    return replace(trace, nodes=[_without_evidence(node) for node in trace.nodes])


def _without_evidence(node: Node) -> Node:
    handles = {slot for slot, record in node.inputs.items() if record.memory is not None}
    return replace(
        node,
        op=replace(node.op, kernel=node.op.kernel.removeprefix(_TENSORFLOW)),
        inputs={slot: record for slot, record in node.inputs.items() if slot not in handles},
        outputs={slot: record for slot, record in node.outputs.items() if record.memory is None},
        makers={slot: maker for slot, maker in node.makers.items() if slot not in handles},
    )


def _renumbered(nodes: Sequence[Node]) -> list[Node]:
    """Renumber a subset of nodes from 0, and drop makers outside of it."""
    places = {node.index: place for place, node in enumerate(nodes)}
    return [
        replace(
            node,
            index=places[node.index],
            makers={slot: (places[maker], output) for slot, (maker, output) in node.makers.items() if maker in places},
        )
        for node in nodes
    ]


def read_traces(catalog: Catalog, step: int, rank: int | None = None) -> list[Trace]:
    """Read a step of a rank (by default the lowest) as one or more traces, each with its own storage numbers.

    Operators that ran after the last step are recorded in it as well, with storages numbered from 0 again. They are a separate trace.
    """
    number = catalog.ranks[0] if rank is None else rank
    nodes, finals = _read(catalog, step, number)
    starts = [
        index
        for index, (before, after) in enumerate(itertools.pairwise(nodes), 1)
        if after.op.order < before.op.order or (index in finals and _counts_anew(nodes[:index], nodes[index:]))
    ]
    parts = []
    for start, end in itertools.pairwise([0, *starts, len(nodes)]):
        part = _renumbered(nodes[start:end]) if starts else nodes
        at_end: dict[str, TensorRecord] = {}
        for place, records in finals.items():
            if start < place <= end or place == end == 0:
                at_end.update(records)
        parts.append(Trace(step, number, _without_doubtful_names(part), at_end))
    return parts


def _read(catalog: Catalog, step: int, rank: int) -> tuple[list[Node], dict[int, dict[str, TensorRecord]]]:
    """The nodes of a step, and by number of preceding nodes, the recorded parameters."""
    found = _StepReader(has_compiled=any(run.framework == "mindspore" for run in catalog.runs))
    for execution in catalog.ops(step=step, rank=rank, include_skipped=True):
        found.add(execution)
    _add_last_views(found.nodes, found.views)
    found.nodes = with_executions(found.nodes)
    return _with_places(found.nodes, found.updates) if found.has_compiled else found.nodes, found.finals


@dataclass(slots=True)
class _Variables:
    """The variables of TensorFlow in a step. Their reads name only the variable, whatever wrote it.

    A write that no adapter sees (in a loop, in a thread of the runtime) is noticed by the next read: then the variable continues in a new storage.
    """

    _writers: dict[int, Place] = field(default_factory=dict)
    """The latest output in each storage."""
    _held: dict[int, TensorRecord] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    """By number of a variable, its storage, if that is not the number."""

    def read(self, inputs: Mapping[int, TensorRecord]) -> dict[int, TensorRecord]:
        """The inputs of a node in their storages."""
        return {slot: self._placed(record, is_read=True) for slot, record in inputs.items()}

    def written(self, index: int, outputs: Mapping[int, TensorRecord]) -> dict[int, TensorRecord]:
        """The outputs of a node in their storages."""
        found = {slot: self._placed(record, is_read=False) for slot, record in outputs.items()}
        for slot, record in found.items():
            if record.memory is not None:
                self._writers[record.memory.storage] = index, slot
        return found

    def writer(self, record: TensorRecord) -> Place | None:
        """The operator of the step that wrote the variable that an input reads."""
        is_state = record.memory is not None and names_a_state(leaf_name(record))
        return self._writers.get(record.memory.storage) if is_state and record.memory is not None else None

    def _placed(self, record: TensorRecord, *, is_read: bool) -> TensorRecord:
        if record.memory is None:
            return record
        number = record.memory.storage
        storage = self._moved.get(number, number)
        held = self._held.get(storage)
        if is_read and held is not None and not has_same_contents(held, record):
            storage = self._moved[number] = _FIRST_MOVED + len(self._moved) + storage
        self._held[storage] = record
        return replace(record, memory=replace(record.memory, storage=storage))


_FIRST_MOVED: Final = 1 << 20
"""Above the number of every variable."""


@dataclass(slots=True)
class _StepReader:
    """Makes the nodes of a step from its records, in execution order."""

    has_compiled: bool
    """Whether the run may have code that MindSpore compiled."""
    nodes: list[Node] = field(default_factory=list)
    finals: dict[int, dict[str, TensorRecord]] = field(default_factory=dict)
    views: dict[Place, tuple[int, OpRecord]] = field(default_factory=dict)
    """The last view of each output, with the number of nodes before it."""
    updates: dict[int, str] = field(default_factory=dict)
    """The parameters that nodes of compiled code update."""
    _last: dict[tuple[str, int | None], int] = field(default_factory=dict)
    """The latest node of each name in each graph, and in any graph, because a loop runs an operator several times."""
    _results: dict[Hashable, Place] = field(default_factory=dict)
    """The results of compiled functions of JAX by their elements. A later call names them like its arguments."""
    _variables: _Variables = field(default_factory=_Variables)

    def add(self, execution: Execution) -> None:
        """Add an operator, a view, or a parameter at the end of the step."""
        op = execution.op
        if op.skip == "view" and self.has_compiled:
            base = self._output(str(op.arguments.get("source", "")), op.graph_id)
            if base is not None:
                self.views[base] = len(self.nodes), op
        if op.skip or not execution.tensors or op.kernel in _HANDS_OUT:
            return
        inputs, outputs = execution.by_slot()
        if op.op_type != "Parameter" or op.kernel:
            self._add_node(op, inputs, outputs)
        elif 0 in outputs and not is_input(op.op_name):  # the inputs of a network have such records, too
            self.finals.setdefault(len(self.nodes), {})[op.op_name] = outputs[0]

    def _add_node(self, op: OpRecord, inputs: dict[int, TensorRecord], outputs: dict[int, TensorRecord]) -> None:
        index = len(self.nodes)
        is_compiled = self.has_compiled and op.graph_id != PYNATIVE
        if is_compiled:
            if name := updated_parameter(op, inputs, outputs):
                self.updates[index] = name
            inputs, outputs = (_in_graph_shapes(op, records) for records in (inputs, outputs))
            op, inputs = as_read(op, inputs)
        has_variables = op.kernel.startswith(_TENSORFLOW)
        if has_variables:
            op, inputs = with_sizes(op, self._variables.read(inputs), outputs)
        inputs, makers = self._with_makers(op, inputs, outputs)
        if has_variables:
            outputs = self._variables.written(index, outputs)
        if is_compiled:
            outputs = self._in_given_shape(op, inputs, makers, outputs)
        is_rewritten, is_added = "executed_as" in op.arguments, op.arguments.get("source") == "rewriting"
        self.nodes.append(Node(index, op, inputs, outputs, makers, is_rewritten, is_rewritten and is_added))
        self._last[op.op_name, op.graph_id] = self._last[op.op_name, None] = index
        if op.repeats_operators:
            self._results |= {
                key: (index, slot) for slot, record in outputs.items() if (key := _identity(record)) is not None
            }

    def _with_makers(
        self, op: OpRecord, inputs: dict[int, TensorRecord], outputs: Mapping[int, TensorRecord]
    ) -> tuple[dict[int, TensorRecord], dict[int, Place]]:
        """The inputs of an operator, and the makers of those that are known."""
        if op.repeats_operators:
            repeated, makers = self._repeated(outputs)
            if repeated:
                return repeated, makers
        return inputs, {slot: maker for slot, record in inputs.items() if (maker := self._maker(record)) is not None}

    def _in_given_shape(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        makers: Mapping[int, Place],
        outputs: dict[int, TensorRecord],
    ) -> dict[int, TensorRecord]:
        """The outputs of compiled code, with the shape that a view gives to its input."""
        if 0 not in inputs or 0 not in outputs:
            return outputs
        maker = makers.get(0)
        read = inputs[0] if maker is None else self.nodes[maker[0]].outputs.get(maker[1], inputs[0])
        shape = shape_given(op, read.shape)
        return outputs if shape is None else {**outputs, 0: replace(outputs[0], shape=shape)}

    def _repeated(self, outputs: Mapping[int, TensorRecord]) -> tuple[dict[int, TensorRecord], dict[int, Place]]:
        """The outputs of operators that the outputs of a call repeat, as its inputs, with their makers."""
        inputs, makers = {}, {}
        for slot, record in outputs.items():
            maker = self._output(record.source, record.op.graph_id)
            made = None if maker is None else self.nodes[maker[0]].outputs.get(maker[1])
            if maker is not None and made is not None and made.shape == record.shape:
                makers[slot] = maker
                inputs[slot] = replace(made, io="input", slot=slot, source=record.source)
        return inputs, makers

    def _maker(self, record: TensorRecord) -> Place | None:
        """The maker of an input: the operator that it names, or the latest one that wrote the variable that it names."""
        maker = self._output(record.source, record.op.graph_id)
        if maker is None and self._results and record.memory is None and names_a_state(leaf_name(record)):
            return self._results.get(_identity(record))
        if maker is None and not record.source and record.memory is None:
            maker = self._latest_like(record)
        return self._variables.writer(record) if maker is None else maker

    def _latest_like(self, record: TensorRecord) -> Place | None:
        """The latest output with the elements of an input whose source is unknown, such as a result of a function of TensorFlow. None for values that
        are the same by chance: integers, and tensors of one number that a program may contain, such as 0.01.
        """
        least, most = record.statistics.get("min"), record.statistics.get("max")
        if not record.dtype.startswith(("float", "bfloat")) or not isinstance(most, float):
            return None
        if not math.isfinite(most) or (least == most and _digits(most) < _TELLING):
            return None
        for node in reversed(self.nodes):
            for slot, made in node.outputs.items():
                is_alike = (made.dtype, made.shape) == (record.dtype, record.shape)
                if is_alike and made.statistics.get("max") == most and has_same_contents(made, record):
                    return node.index, slot
        return None

    def _output(self, source: str, graph_id: int) -> Place | None:
        """The node and slot that a source such as `conv-op3:0` names, in this graph if an operator of it has the name."""
        name, _, slot = source.rpartition(":")
        if not slot.isdigit():
            return None
        index = self._last.get((name, graph_id), self._last.get((name, None)))
        return None if index is None else (index, int(slot))


_TELLING: Final = 6
"""A number of fewer significant digits may be written in a program."""


def _digits(number: float) -> int:
    """The significant digits of a number in float32."""
    return len(str(np.float32(number)).partition("e")[0].replace(".", "").strip("-0"))


def _identity(record: TensorRecord) -> Hashable:
    """Identifies a tensor by its elements; None if these were not recorded, or if there is only one."""
    if not has_elements(record) or math.prod(record.shape) <= 1:
        return None
    return record.dtype, record.shape, digest_of(record.numpy())


def _add_last_views(nodes: list[Node], views: Mapping[Place, tuple[int, OpRecord]]) -> None:
    """Add views that are results of a step without training: the last view of an output, if no operator reads the output later.

    `views` has the last view of each output, with the number of nodes before it.
    """
    if any(node.op.phase != "forward" for node in nodes):
        return
    latest: dict[Place, int] = {}
    for node in nodes:
        latest.update(dict.fromkeys(node.makers.values(), node.index))
    for (index, slot), (place, op) in sorted(views.items()):
        base = nodes[index].outputs.get(slot)
        seen = None if base is None or base.memory is None else _seen(op, base)
        if base is None or seen is None or latest.get((index, slot), -1) >= place:
            continue
        shape, memory = seen
        is_whole = math.prod(shape) == math.prod(base.shape)
        if not has_elements(base) and not is_whole:
            continue
        payload = None if base.payload is None or base.memory is None else _SeenPayload(base, shape, memory)
        shown = replace(op, skip="", order=nodes[-1].op.order)
        statistics = base.statistics if is_whole else {}
        record = replace(base, op=shown, slot=0, shape=shape, memory=memory, payload=payload, statistics=statistics)
        nodes.append(Node(len(nodes), shown, {0: replace(base, op=shown, io="input")}, {0: record}, {0: (index, slot)}))


def _seen(op: OpRecord, base: TensorRecord) -> tuple[tuple[int, ...], Memory] | None:
    """The recorded shape and memory of a view; None if they are unknown or not within `base`."""
    seen = op.arguments.get("seen_as")
    if not isinstance(seen, Mapping) or base.memory is None:
        return None
    shape, strides, offset = seen.get("shape"), seen.get("strides"), seen.get("offset")
    if not isinstance(shape, list) or not isinstance(strides, list) or not isinstance(offset, int):
        return None
    if len(shape) != len(strides) or not all(isinstance(each, int) and each >= 0 for each in (*shape, *strides)):
        return None
    last = offset - base.memory.offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if 0 in shape or offset < base.memory.offset or last >= math.prod(base.shape):
        return None
    return tuple(shape), Memory(base.memory.storage, offset, tuple(strides))


@dataclass(frozen=True, slots=True)
class _SeenPayload:
    """The elements of a view of an output."""

    base: TensorRecord
    shape: tuple[int, ...]
    memory: Memory

    def to_host(self) -> NDArray[Any]:
        """Return a copy of the elements, in the shape of the view."""
        assert self.base.memory is not None
        flat = np.ascontiguousarray(self.base.numpy()).reshape(-1)[self.memory.offset - self.base.memory.offset :]
        steps = [step * flat.itemsize for step in self.memory.strides]
        seen: NDArray[Any] = np.lib.stride_tricks.as_strided(flat, self.shape, steps)
        copied: NDArray[Any] = seen.copy()
        return copied


_FEW: Final = 3


def _counts_anew(before: Sequence[Node], after: Sequence[Node]) -> bool:
    """Whether the storages of `after` are numbered from 0 again."""
    numbers = dict.fromkeys(_storages(after))
    first = list(itertools.islice(numbers, _FEW))
    return first == sorted(first) and first[:1] == [0] and max(first) <= max(_storages(before), default=-1)


def _storages(nodes: Sequence[Node]) -> Iterator[int]:
    for node in nodes:
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                yield record.memory.storage


def is_input(name: str) -> bool:
    """Whether a `Parameter` record with this name is an input of a network."""
    return _INPUT.fullmatch(name) is not None


def _with_places(nodes: Sequence[Node], updates: Mapping[int, str]) -> list[Node]:
    """Assign a storage to each parameter, because MindSpore's dumps identify parameters only by name.

    `updates` has the parameters that nodes of compiled code update, by node index. Their first output gets the parameter's storage.
    """
    storages: dict[str, int] = {}
    """By parameter name."""
    latest = -1
    for node in nodes:
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                latest = max(latest, record.memory.storage)
                if names_a_state(leaf_name(record)):
                    storages.setdefault(leaf_name(record), record.memory.storage)
    free = itertools.count(latest + 1)

    def placed(record: TensorRecord, name: str) -> TensorRecord:
        if record.memory is not None or not names_a_state(name):
            return record
        if name not in storages:
            storages[name] = next(free)
        steps = tuple(math.prod(record.shape[axis + 1 :]) for axis in range(len(record.shape)))
        return replace(record, memory=Memory(storages[name], 0, steps))

    found = []
    for node in nodes:
        inputs = {slot: placed(record, leaf_name(record)) for slot, record in node.inputs.items()}
        outputs = dict(node.outputs)
        if 0 in outputs:
            outputs[0] = placed(outputs[0], updates.get(node.index, ""))
        found.append(replace(node, inputs=inputs, outputs=outputs))
    return found


def _without_doubtful_names(nodes: list[Node]) -> list[Node]:
    """Remove names that several tensors share: parameters of modules outside of any network."""
    storages: dict[str, set[int]] = {}
    for node in nodes:
        for record in node.inputs.values():
            if record.memory is not None and leaf_name(record):
                storages.setdefault(record.source, set()).add(record.memory.storage)
    doubtful = {name for name, found in storages.items() if len(found) > 1}
    if not doubtful:
        return nodes
    return [
        replace(
            node,
            inputs={
                slot: replace(record, source="") if record.source in doubtful else record
                for slot, record in node.inputs.items()
            },
        )
        if any(record.source in doubtful for record in node.inputs.values())
        else node
        for node in nodes
    ]


def names_a_state(name: str) -> bool:
    """Whether a `leaf_name` belongs to a parameter or state, and not to an input of a network."""
    return name.startswith("Parameter.") and not is_input(name.removeprefix("Parameter."))


def shown_scope(op: OpRecord) -> str:
    """The scope for display, without the `Default` of an unnamed network."""
    return scope_of(op).removeprefix("Default").removeprefix("/")


def leaf_name(record: TensorRecord) -> str:
    """The name of an input without a maker: `Parameter.e.weight`, `data-0`; otherwise empty."""
    return record.source if record.source and not record.source.rpartition(":")[2].isdigit() else ""


# A step that repeats an earlier one. Its nodes are created on access, from the nodes of the earlier step and columns of numbers.


@dataclass(frozen=True, eq=False)
class Model:
    """A step that others repeat, with the positions of its operators and tensors in the index."""

    trace: Trace
    places: Sequence[int]
    """The position of each node's operator."""
    rows: Places
    """The row of each tensor's summary, in the order of `Trace.columns`."""
    finals: Mapping[str, tuple[int, int]]
    """For each parameter at the end of the step, the position of its record and the row of its summary."""

    @classmethod
    def of(cls, trace: Trace, table: StepTable[TensorRecord]) -> Model | None:
        """Create the model of a step. Return None if the trace contains anything that is not in its table."""
        if table.template is None:
            return None
        places = {time: place for place, time in enumerate(table.timestamps)}
        rows = {slot[:3]: row for row, slot in enumerate(table.template.slots)}
        of_nodes = [places.get(node.op.timestamp, -1) for node in trace.nodes]
        of_tensors = [
            *(rows.get((of_nodes[index], "output", slot), -1) for index, slot in trace.rows.outputs),
            *(rows.get((of_nodes[index], "input", slot), -1) for index, slot in trace.rows.inputs),
        ]
        finals = {}
        for name, record in trace.finals.items():
            place = places.get(record.op.timestamp, -1)
            finals[name] = place, rows.get((place, record.io, record.slot), -1)
        if -1 in of_nodes or -1 in of_tensors or any(-1 in found for found in finals.values()):
            return None
        return cls(trace, of_nodes, np.array(of_tensors, np.intp), finals)

    @cached_property
    def sizes(self) -> Floats:
        """The number of elements of each tensor, in the order of `Trace.columns`."""
        return self.trace.columns.sizes

    @cached_property
    def captured(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each tensor was captured."""
        records = [
            *(record for node in self.trace.nodes for record in node.outputs.values()),
            *(record for node in self.trace.nodes for record in node.inputs.values()),
        ]
        return np.array([not record.skip for record in records], bool)


@dataclass(frozen=True, eq=False)
class RepeatedTrace(Trace):
    """A step that repeats another."""

    model: Model = field(kw_only=True)
    table: StepTable[TensorRecord] = field(kw_only=True)

    @property
    def pattern(self) -> Sequence[Node]:
        return self.model.trace.pattern

    @cached_property
    def rows(self) -> StepRows:
        """The rows of the step that this one repeats."""
        return self.model.trace.rows

    @cached_property
    def columns(self) -> Columns:
        """The statistics of all outputs, followed by those of all inputs."""
        return columns_of_summaries(
            self.table.summaries[self.model.rows], self.model.sizes, captured=self.model.captured
        )


def repeated(model: Model, table: StepTable[TensorRecord]) -> RepeatedTrace:
    """Return the step that repeats `model` with the numbers of this table."""
    nodes, finals = _Nodes(model, table), _Finals(model, table)
    return RepeatedTrace(table.step, model.trace.rank, nodes, finals, model=model, table=table)


class _Nodes(Sequence[Node]):
    def __init__(self, model: Model, table: StepTable[TensorRecord]) -> None:
        self._model, self._table = model, table
        self._made: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._model.trace.nodes)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        node = self._made.get(place)
        if node is None:
            node = self._made[place] = self._make(self._model.trace.nodes[place])
        return node

    def _make(self, like: Node) -> Node:
        model, table = self._model, self._table
        op = _executed(like.op, model.places[like.index], table)
        of_output, of_input = model.trace.rows.of_output, model.trace.rows.of_input
        inputs = {
            slot: _recorded(record, op, int(model.rows[of_input[like.index, slot]]), table)
            for slot, record in like.inputs.items()
        }
        outputs = {
            slot: _recorded(record, op, int(model.rows[of_output[like.index, slot]]), table)
            for slot, record in like.outputs.items()
        }
        return replace(like, op=op, inputs=inputs, outputs=outputs)


class _Finals(Mapping[str, TensorRecord]):
    def __init__(self, model: Model, table: StepTable[TensorRecord]) -> None:
        self._model, self._table = model, table

    def __len__(self) -> int:
        return len(self._model.finals)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.finals)

    def __getitem__(self, name: str, /) -> TensorRecord:
        place, row = self._model.finals[name]
        record = self._model.trace.finals[name]
        return _recorded(record, _executed(record.op, place, self._table), row, self._table)


def _executed(op: OpRecord, place: int, table: StepTable[TensorRecord]) -> OpRecord:
    other = table.op(place)
    return replace(op, step=other.step, timestamp=other.timestamp, arguments=other.arguments)


def _recorded(record: TensorRecord, op: OpRecord, row: int, table: StepTable[TensorRecord]) -> TensorRecord:
    return replace(record, op=op, statistics=table.tensor(row, op).statistics)


# Infers makers in dumps that do not record them, such as device dumps. The maker of an input is the latest earlier output with the same bits
# in any shape. Single elements and constant tensors are ignored.

_Bits = tuple[str, bytes]


def tells_sources(trace: Trace) -> bool:
    """Whether the dump has the source of any input."""
    return any(record.source for node in trace.nodes for record in node.inputs.values())


def with_makers(trace: Trace) -> Trace:
    """Return the trace, with inferred makers if no input has a source."""
    if tells_sources(trace):
        return trace
    latest: dict[_Bits, Place] = {}
    nodes = []
    for node in trace.nodes:
        makers = {slot: latest[bits] for slot, bits in _bits_of(node.inputs).items() if bits in latest}
        nodes.append(replace(node, makers=makers))
        latest.update({bits: (node.index, slot) for slot, bits in _bits_of(node.outputs).items()})
    return replace(trace, nodes=nodes)


def _bits_of(records: Mapping[int, TensorRecord]) -> dict[int, _Bits]:
    found = {}
    for slot, record in records.items():
        if not has_elements(record):
            continue
        array = record.numpy()
        if array.size > 1 and not (array == array.flat[0]).all():
            found[slot] = record.dtype, digest_of(array)
    return found


# Finds the parameter that each optimizer operator updates. Type, shapes and position do not show it, because an optimizer runs the same
# operators for every parameter.


def owners(trace: Trace, parameters: AbstractSet[int]) -> dict[int, int]:
    """By optimizer node: the parameter storage that the node writes, or that is written with its outputs.

    An operator for several parameters, such as the norm of all gradients, has no owner.
    """
    users = trace.users()
    found: dict[int, set[int]] = {}
    for node in reversed(trace.nodes):
        if node.op.phase != "optimizer":
            continue
        owned = found[node.index] = set()
        for slot, record in node.outputs.items():
            if record.memory is not None and record.memory.storage in parameters:
                owned.add(record.memory.storage)
            for reader, _ in users.get((node.index, slot), ()):
                owned |= found.get(reader, set())
    return {index: owned.pop() for index, owned in found.items() if len(owned) == 1}


# Finds the last use of the values of a step, so that a comparison keeps only live values in memory.

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """By node index, the values that no later operator uses."""

    storages: Mapping[int, Sequence[int]]
    outputs: Mapping[int, Sequence[Place]]
    """Outputs with unknown memory, as (node, slot)."""


def lifetimes(trace: Trace, kept: Collection[int] = ()) -> Lifetimes:
    """Find the last use of each value. Storages of parameters and those in `kept` are needed after the step."""
    storages: dict[int, int] = {}
    outputs: dict[Place, int] = {}
    for node in trace.nodes:
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                storages[record.memory.storage] = node.index
        outputs |= {(node.index, slot): node.index for slot, record in node.outputs.items() if record.memory is None}
        outputs |= {maker: node.index for maker in node.makers.values() if maker in outputs}
    for storage in (*kept, *storages_of(trace.finals.values())):
        storages.pop(storage, None)
    return Lifetimes(_by_last_use(storages), _by_last_use(outputs))


def lasting(trace: Trace, *, is_last: bool) -> set[int]:
    """The storages that may outlive the step: those that existed before it, parameters, those that an optimizer updates, and those that no
    operator reads after the last write.

    No later step shows what outlives the last one (`is_last`), so storages of the same size as any of these are added: they may be new states.
    """
    made: set[int] = set()
    read: set[int] = set()
    sizes: dict[int, int] = {}
    found = storages_of(trace.finals.values())
    for node in trace.nodes:
        ins = storages_of(record for record in node.inputs.values() if not record.skip)
        outs = storages_of(node.outputs.values())
        found |= ins - made
        if node.op.phase == "optimizer":
            found |= ins & outs
        made |= outs
        read = (read | ins) - outs
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                storage = record.memory.storage
                sizes[storage] = max(sizes.get(storage, 0), math.prod(record.shape))
    found |= made - read
    if is_last:
        of_states = {sizes[storage] for storage in found if storage in sizes}
        found |= {storage for storage in made if sizes[storage] in of_states}
    return found


def _by_last_use(last: Mapping[Key, int]) -> dict[int, list[Key]]:
    found: dict[int, list[Key]] = {}
    for key, index in last.items():
        found.setdefault(index, []).append(key)
    return found


# Recognizes dumps of unrelated programs, and finds similar operator names in them.

_ONE_OF: Final = 10
"""If fewer than one in this many operators has a counterpart, the matches are chance."""
_SHOWN: Final = 3


def are_unrelated_programs(matched: int, most: int) -> bool:
    """Whether too few operators are matched for a comparison. `most` is the number that could have been."""
    return not matched or matched * _ONE_OF < most


def nearest_names(a: Trace, b: Trace) -> list[str]:
    """Notes on the first operators of A with similar names in B; if there are none, the operator types of both runs."""
    names = dict.fromkeys(node.op.op_name for node in b.nodes)
    notes: list[str] = []
    types: set[str] = set()
    for node in a.nodes:
        wanted = node.op.op_name.rpartition("/")[2].rpartition("-op")[0] or node.op.op_name
        near = [] if node.bare_type in types else nearest(wanted, names)
        types.add(node.bare_type)
        if near:
            notes.append(f"{node.op.op_name} of A has no counterpart in B; the nearest names are {', '.join(near)}")
        if len(notes) == _SHOWN:
            return notes
    return notes or [f"A runs {_types(a)}; B runs {_types(b)}"]


def _types(trace: Trace) -> str:
    types = sorted({node.bare_type for node in trace.nodes})
    more = ", ..." if len(types) > 2 * _SHOWN else ""
    return (", ".join(types[: 2 * _SHOWN]) or "nothing") + more
