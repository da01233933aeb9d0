"""One step of a run as a data flow: operators in execution order, each input with who made it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.catalog.catalog import Catalog
from opdump.comparison.graph_inputs import as_read, shape_given, updated_parameter
from opdump.comparison.nodes import Node, scope_of
from opdump.comparison.step_rows import StepRows
from opdump.comparison.value_columns import Columns, columns_of
from opdump.graph import PYNATIVE
from opdump.records import Memory, OpRecord, TensorRecord

_INPUT: Final = re.compile(r"inputs\d+")


@dataclass(frozen=True, eq=False)
class Trace:
    """A step of a rank: the operators that ran a kernel and left a record, in execution order."""

    step: int
    rank: int
    nodes: Sequence[Node]
    finals: Mapping[str, TensorRecord] = field(default_factory=dict)
    """What the parameters hold at the end of the step, by their names."""

    @cached_property
    def rows(self) -> StepRows:
        """Which row of `columns` is which input or output."""
        return StepRows(self.nodes, tuple(self.finals.values()))

    @cached_property
    def columns(self) -> Columns:
        """The statistics of all outputs, then of all inputs."""
        outputs = (record for node in self.nodes for record in node.outputs.values())
        inputs = (record for node in self.nodes for record in node.inputs.values())
        return columns_of((*outputs, *inputs))

    def users(self) -> Mapping[tuple[int, int], list[tuple[int, int]]]:
        """Who reads each output: (node, slot) -> (node, slot)s."""
        return self.rows.users

    def with_ancestors(self, nodes: Iterable[int], ends: Container[tuple[int, int]] = ()) -> set[int]:
        """These nodes, and those that they depend on by other outputs than `ends`."""
        found: set[int] = set()
        waiting = list(nodes)
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting += [maker[0] for maker in self.nodes[index].makers.values() if maker not in ends]
        return found


def only(trace: Trace, selects: Callable[[str, str], bool]) -> Trace:
    """The trace as if only the operators and parameters that `selects` takes, by name and type, had been recorded."""
    nodes = _renumbered([node for node in trace.nodes if selects(node.op.op_name, node.op.op_type)])
    return replace(
        trace,
        nodes=nodes,
        finals={name: record for name, record in trace.finals.items() if selects(name, "Parameter")},
    )


def _renumbered(nodes: Sequence[Node]) -> list[Node]:
    """These nodes of a trace as a trace of their own, in which only they are makers."""
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
    """The parts of a step, each with numbers of storages of its own: what ran after the end of a step was filed with it later, and its
    storages are counted anew. The lowest rank unless one is named.
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
    """The nodes of a step, and what parameters held after so many of them."""
    nodes: list[Node] = []
    finals: dict[int, dict[str, TensorRecord]] = {}
    last: dict[str, int] = {}
    """The latest node of each name: a loop runs the same operator several times."""
    updates: dict[int, str] = {}
    has_compiled = any(run.framework == "mindspore" for run in catalog.runs)
    views: dict[tuple[int, int], tuple[int, OpRecord]] = {}
    for execution in catalog.ops(step=step, rank=rank, include_skipped=True):
        if execution.op.skip == "view" and has_compiled:
            name, _, output = str(execution.op.arguments.get("source", "")).rpartition(":")
            if name in last and output.isdigit():
                views[last[name], int(output)] = len(nodes), execution.op
        if execution.op.skip or not execution.tensors:
            continue
        slots, outputs = execution.by_slot()
        op, inputs = execution.op, slots
        if has_compiled and op.graph_id != PYNATIVE:
            op, inputs = as_read(op, slots)
        if execution.op.op_type == "Parameter" and not execution.op.kernel:
            # Inputs of a network have such records too.
            if 0 in outputs and not is_input(execution.op.op_name):
                finals.setdefault(len(nodes), {})[execution.op.op_name] = outputs[0]
            continue
        makers = {}
        for slot, record in inputs.items():
            name, _, output = record.source.rpartition(":")
            if name in last and output.isdigit():
                makers[slot] = (last[name], int(output))
        facts = execution.op.arguments
        is_added = "executed_as" in facts and facts.get("source") == "rewriting"
        if inputs is not slots and (name := updated_parameter(op, slots, outputs)):
            updates[len(nodes)] = name
        if has_compiled and op.graph_id != PYNATIVE and 0 in inputs and 0 in outputs:
            maker = makers.get(0)
            read = inputs[0] if maker is None else nodes[maker[0]].outputs.get(maker[1], inputs[0])
            shape = shape_given(op, read.shape)
            outputs = outputs if shape is None else {**outputs, 0: replace(outputs[0], shape=shape)}
        node = Node(len(nodes), op, inputs, outputs, makers, is_rewritten="executed_as" in facts, is_added=is_added)
        last[execution.op.op_name] = node.index
        nodes.append(node)
    _add_last_views(nodes, views)
    return _with_places(nodes, updates) if has_compiled else nodes, finals


def _add_last_views(nodes: list[Node], views: Mapping[tuple[int, int], tuple[int, OpRecord]]) -> None:
    """Adds views that are results of a step that trains nothing: the last ones of outputs that no operator reads after them. `views` are the last views by
    the outputs that they are of, with the number of nodes before them.
    """
    if any(node.op.phase != "forward" for node in nodes):
        return
    latest: dict[tuple[int, int], int] = {}
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
    """The shape of a view and where its elements lie, as the dump says it; None if they do not lie in the output that it is of."""
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
        """The elements in the shape of the view."""
        assert self.base.memory is not None
        flat = np.ascontiguousarray(self.base.numpy()).reshape(-1)[self.memory.offset - self.base.memory.offset :]
        steps = [step * flat.itemsize for step in self.memory.strides]
        seen: NDArray[Any] = np.lib.stride_tricks.as_strided(flat, self.shape, steps)
        copied: NDArray[Any] = seen.copy()
        return copied


_FEW: Final = 3


def _counts_anew(before: Sequence[Node], after: Sequence[Node]) -> bool:
    """Whether storages are numbered from 0 again."""
    numbers = dict.fromkeys(_storages(after))
    first = list(itertools.islice(numbers, _FEW))
    return first == sorted(first) and first[:1] == [0] and max(first) <= max(_storages(before), default=-1)


def _storages(nodes: Sequence[Node]) -> Iterator[int]:
    for node in nodes:
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                yield record.memory.storage


def is_input(name: str) -> bool:
    """Whether what is recorded beside parameters under that name is an input of a network."""
    return _INPUT.fullmatch(name) is not None


def _with_places(nodes: Sequence[Node], updates: Mapping[int, str]) -> list[Node]:
    """The nodes, each parameter in a storage of its own: MindSpore's dump has none, and knows parameters by their names.

    `updates` are parameters that nodes of compiled code write, by the index of the node: their first output lies there.
    """
    storages: dict[str, int] = {}
    """By the name of a parameter."""
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
    """The nodes, without the names that mean several tensors: parameters of modules that belong to no network."""
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


def has_elements(record: TensorRecord) -> bool:
    """Whether the dump has all elements of the tensor, and not a sample of them."""
    return record.payload is not None and not record.sample


def names_a_state(name: str) -> bool:
    """Whether the `leaf_name` of an input is that of a parameter or a state, and not of an input of a network."""
    return name.startswith("Parameter.") and not is_input(name.removeprefix("Parameter."))


def shown_scope(op: OpRecord) -> str:
    """The same for people, without the name of a network that was given none."""
    return scope_of(op).removeprefix("Default").removeprefix("/")


def leaf_name(record: TensorRecord) -> str:
    """What an input is called that no operator made: `Parameter.e.weight`; empty where it has no name."""
    return record.source if record.source and not record.source.rpartition(":")[2].isdigit() else ""
