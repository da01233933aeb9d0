"""Lets the runtime optimise a function, and returns the result: the executed graphs on each device. The function does not run.

The runtime optimises a function in its first call: it inlines functions, rewrites and fuses operators, and places them. A copy of the function
is therefore called with an additional argument of the wrong type: the runtime first prepares the copy, and then rejects its arguments.
Source: TensorFlow's execute.cc (`AddOrExecuteNode`), process_function_library_runtime.cc (`InstantiateMultiDevice`).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import function_def_to_graph, smart_cond
from tensorflow.python.ops import script_ops, summary_ops_v2

from opdump.adapters.tensorflow.graphs.library import (
    Definition,
    ExecutedGraph,
    Key,
    Library,
    Slot,
    in_order,
    is_plumbing,
    outputs_of,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import ENTERS, EXITS, MERGES, NEXT, SWITCHES
from opdump.adapters.tensorflow.graphs.outcomes import Region, Tensor, region_of

_ARGUMENT: Final = "opdump_argument"
_RESULT: Final = "_opdump_result_"
_MARKED_RESULT: Final = re.compile(f"{_RESULT}[0-9]+_RetVal$")
_NUMBERS: Final = itertools.count()
_ATTEMPTS: Final = 5
"""Maximum number of attempts while other threads let functions be optimised, whose graphs are mixed with the requested ones."""
_COLLECTING: Final = threading.Lock()
"""Graphs are collected for the whole process."""


def with_argument(definition: Definition, name: str) -> Definition:
    """A copy of a function with an additional argument, a number, and unique names of results: both identify the graphs that the runtime makes of it."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = name
    number = next(_NUMBERS)
    copy.signature.input_arg.add(name=f"{_ARGUMENT}_{number}", type=tf.int32.as_datatype_enum)
    for result in copy.signature.output_arg:
        value = copy.ret.pop(result.name)
        result.name += f"{_RESULT}{number}"
        copy.ret[result.name] = value
    # It is one of several functions that the runtime may exchange for each other; the copy must not be.
    copy.attr.pop("api_implements", None)
    return copy


def standing_for(context: Any, dtype: int, device: str) -> Any:
    """A tensor for an argument of a function of which only type and device are known. The handle of a variable has no shape."""
    attributes: tuple[Any, ...]
    with context.device(device):
        if dtype == tf.resource.as_datatype_enum:
            attributes = ("container", "", "shared_name", "opdump", "dtype", tf.float32.as_datatype_enum, "shape", None)
            return execute.quick_execute("VarHandleOp", 1, [], attributes, context)[0]
        if dtype == tf.variant.as_datatype_enum:
            attributes = ("element_dtype", tf.float32.as_datatype_enum, "shape_type", tf.int32.as_datatype_enum)
            return execute.quick_execute("EmptyTensorList", 1, [tf.constant(-1), tf.constant(-1)], attributes, context)[
                0
            ]
        return tf.constant("" if dtype == tf.string.as_datatype_enum else 0, tf.as_dtype(dtype))


def constant_value(definition: Definition, key: Key) -> Any | None:
    """The value of a tensor in a function, if the runtime knows it before a call: from constants and known shapes."""
    graph = function_def_to_graph.function_def_to_graph(definition)
    return smart_cond.smart_constant_value(graph.get_tensor_by_name(key))


def function_graphs(
    context: Any, definition: Definition, inputs: Sequence[Any], config: bytes, *, is_programs: bool = False
) -> Any | None:
    """The runtime's optimisation of a function with this definition, whose last argument is that of `with_argument`.

    A `RunMetadata.FunctionGraphs`: the graph before and after its optimisation, and the parts that devices execute. `config` is the
    ConfigProto for the optimisation. None if the runtime rejects the function. If the program collects graphs itself
    (`tf.summary.trace_on`), it gets those of a function of its own (`is_programs`).
    """
    name, argument = definition.signature.name, definition.signature.input_arg[-1].name
    executor = context.function_call_options.executor_type or ""
    arguments = [*inputs, tf.constant(0.0)]  # the last one has another type
    for attempt in range(_ATTEMPTS):
        attributes = ("executor_type", executor, "config_proto", _not_made_before(config, attempt))
        with _COLLECTING, _programs_own(context) as programs:
            metadata = _collected(context, name, len(definition.signature.output_arg), arguments, attributes)
            if is_programs and programs is not None:
                programs.MergeFrom(metadata)
        for graphs in metadata.function_graphs:
            found = [node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"]
            is_ours = argument in found and len(found) == len(definition.signature.input_arg)
            if is_ours and _is_of_one_function(graphs, definition):
                _with_plain_results(graphs)
                return graphs
    return None


def _not_made_before(config: bytes, attempt: int) -> bytes:
    """An equal ConfigProto for which the runtime has no result from an earlier attempt."""
    made = config_pb2.ConfigProto.FromString(config)
    made.placement_period += attempt  # for sessions in several processes; not used here
    return config if attempt == 0 else made.SerializeToString()


def _is_of_one_function(graphs: Any, definition: Definition) -> bool:
    """Whether the graphs after the optimisation belong to that function, not to one that another thread optimised at the same time."""
    given = {node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"}
    results = {f"{each.name}_RetVal" for each in definition.signature.output_arg}
    executed = [node for part in graphs.partition_graphs for node in part.node]
    for nodes in (graphs.post_optimization_graph.node, executed):
        # Arguments without readers may be missing, results never.
        if not given.issuperset(node.name for node in nodes if node.op == "_Arg"):
            return False
        if not results.issubset(node.name for node in nodes if node.op == "_Retval"):
            return False
    return True


def _with_plain_results(graphs: Any) -> None:
    """Give the results the names that they have in the program's function."""
    for graph in (graphs.pre_optimization_graph, graphs.post_optimization_graph, *graphs.partition_graphs):
        for node in graph.node:
            if node.op == "_Retval":
                node.name = _MARKED_RESULT.sub("_RetVal", node.name)


def _collected(
    context: Any, name: str, result_count: int, arguments: Sequence[Any], attributes: tuple[Any, ...]
) -> Any:
    """The graphs of all functions that were optimised during this call, which does not run."""

    def hand_on() -> None:  # the next run returns the collected graphs
        execute.quick_execute("Identity", 1, arguments[-1:], ("T", tf.float32.as_datatype_enum), context)

    hand_on()  # the runtime already has it, and collects nothing
    context.enable_graph_collection()
    try:
        execute.quick_execute(name, result_count, arguments, attributes, context)
    except tf.errors.OpError:
        pass  # as expected
    else:
        raise AssertionError(f"{name} ran with an argument of another type")
    finally:
        hand_on()
        metadata = context.export_run_metadata()
        context.disable_graph_collection()
    return metadata


@contextmanager
def _programs_own(context: Any) -> Iterator[Any | None]:
    """The graphs that the program itself collects (`tf.summary.trace_on`), kept until it requests them; None if it collects none."""
    trace = summary_ops_v2._current_trace_context
    if trace is None:
        yield None
        return
    collected = context.export_run_metadata()
    yield collected
    if trace.profiler:
        context.enable_run_metadata()
    elif trace.graph:
        context.enable_graph_collection()
    own = context.export_run_metadata

    def export_run_metadata() -> Any:
        context.export_run_metadata = own
        collected.MergeFrom(own())
        return collected

    context.export_run_metadata = export_run_metadata


def without_rewriting(config: bytes) -> bytes:
    """A ConfigProto with which functions are executed unchanged."""
    made = config_pb2.ConfigProto.FromString(config)
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    options = made.graph_options.optimizer_options
    options.opt_level = config_pb2.OptimizerOptions.L0
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return bytes(made.SerializeToString())


@contextmanager
def rewriting_off(context: Any) -> Iterator[None]:
    """While open, functions that this thread calls are executed unchanged."""
    usual = context.function_call_options
    config = config_pb2.ConfigProto.FromString(without_rewriting(usual.config_proto_serialized))
    context.function_call_options = eager_context.FunctionCallOptions(
        executor_type=usual.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        context.function_call_options = usual


# The place of nodes in an executed graph: their loops and branches, and the order in which they can be observed. Nodes can be added.


class PlacedGraph:
    """The nodes by name, their inputs, and their places."""

    def __init__(self, graph: ExecutedGraph, library: Library) -> None:
        self._library = library
        self.nodes: dict[str, Any] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self.after: dict[str, list[str]] = {}
        self.outputs: dict[str, tuple[Slot, ...]] = {}
        self.regions: dict[str, Region] = {}
        self.stages: dict[str, int] = {}
        for node in graph.nodes.values():
            self.add(node, [*map(tensor_of, graph.inputs(node))])

    def add(self, node: Any, inputs: list[Tensor]) -> None:
        self.nodes[node.name] = node
        self.inputs[node.name] = inputs
        self.after[node.name] = [text[1:] for text in node.input if text.startswith("^")]
        self.outputs[node.name] = outputs_of(node, self._library) or ()

    def dtype(self, tensor: Tensor) -> int:
        """The number of its element type."""
        if self.nodes[tensor[0]].op == "_Arg":
            return int(self.nodes[tensor[0]].attr["T"].type)
        return self.outputs[tensor[0]][tensor[1]].dtype

    def place(self, preferred: Sequence[str], fallible: Collection[str]) -> list[str]:
        """Find the region in which each node runs, and its stage in the whole; returns all nodes, each after those that run before it.

        The preferred order is kept as far as possible. A stage ends where another region begins, or at a node that may fail because of its values;
        the results of a loop are of a later stage than everything in it. A reader that waits for earlier stages therefore never waits for itself.
        """
        for name in self._ordered(preferred, {}):
            self.regions[name] = self._region(name)
        within: dict[tuple[str, ...], list[str]] = {}
        for name, region in self.regions.items():
            for depth in range(len(region.frame)):
                within.setdefault(region.frame[: depth + 1], []).append(name)
        loops = {
            name: within[self.regions[self.inputs[name][0][0]].frame]
            for name, node in self.nodes.items()
            if node.op in EXITS
        }
        order = self._ordered(preferred, loops)
        for name in order:
            stage = max((self.stages[each] for each in loops.get(name, ())), default=0)
            for maker in self._before(name):
                stage = max(stage, self.stages[maker] + (self.regions[maker] != self.regions[name]))
            op = self.nodes[name].op
            self.stages[name] = stage + (name in fallible or op in SWITCHES or op in ENTERS or op in EXITS)
        return order

    def _before(self, name: str) -> Iterator[str]:
        """The nodes that run before a node, without those of the previous iteration."""
        is_merge = self.nodes[name].op in MERGES
        for maker, _ in self.inputs[name]:
            if not (is_merge and self.nodes[maker].op in NEXT):
                yield maker
        yield from self.after[name]

    def _ordered(self, preferred: Sequence[str], also: Mapping[str, Sequence[str]]) -> list[str]:
        return in_order((*preferred, *self.nodes), lambda name: (*self._before(name), *also.get(name, ())))

    def region_of(self, tensor: Tensor) -> Region:
        """The region in which a tensor is available: after a Switch, in one of its branches."""
        region, node = self.regions[tensor[0]], self.nodes[tensor[0]]
        if node.op not in SWITCHES:
            return region
        return region.behind(self.inputs[tensor[0]][1], tensor[1])

    def is_of_loop(self, name: str) -> bool:
        """Whether a Merge begins the iterations of a loop."""
        return any(self.nodes[maker].op in NEXT for maker, _ in self.inputs[name])

    def _region(self, name: str) -> Region:
        node = self.nodes[name]
        is_merge = node.op in MERGES
        read = [self.region_of(each) for each in self.inputs[name] if not (is_merge and self.nodes[each[0]].op in NEXT)]
        entered = node.attr["frame_name"].s.decode() if node.op in ENTERS else ""
        return region_of(node.op, read, [self.regions[each] for each in self.after[name]], entered)


def tensor_of(key: Key) -> Tensor:
    """The node and the slot of a tensor."""
    name, _, slot = key.rpartition(":")
    return name, int(slot)


# Makes a new function from an executed graph, with additional nodes.
#
# All names of added nodes begin with `MINE`, so that the executed graph can be compared with the original one.

MINE: Final = "opdump_"
CALL_ATTRIBUTES: Final = ("f", "config_proto")
"""The attributes that differ in a node that calls a copy."""
_HOST: Final = "/device:CPU:0"


class Edits:
    """Adds nodes to an executed graph."""

    def __init__(self, graph: PlacedGraph) -> None:
        self.programs: dict[str, str] = {}
        """Added nodes that recompute an operator -> the program's names, for errors."""
        self._graph = graph
        self._count = 0
        hosts = (node.device for node in graph.nodes.values() if node.device.endswith(_HOST))
        self._host = next(hosts, _HOST)

    def _add(
        self,
        op: str,
        inputs: Iterable[Tensor],
        attributes: Mapping[str, AttrValue],
        after: Iterable[str] = (),
        device: str = "",
    ) -> str:
        waited = [f"^{name}" for name in after]
        name = f"{MINE}{op}_{self._count}"
        self._count += 1
        self._graph.add(NodeDef(op=op, name=name, device=device, attr=attributes, input=waited), [*inputs])
        return name

    def apart(self, program: Any, inputs: list[Tensor], after: Iterable[str], device: str) -> str:
        """An operator of the program that is computed apart."""
        attributes = {name: value for name, value in program.attr.items() if not name.startswith("_")}
        name = self._add(program.op, inputs, attributes, after, device or self._host)
        self.programs[name] = program.name
        return name

    def constant(self, node: Any, near: str) -> str:
        """The value of a constant, available where the node `near` runs; anywhere if that is empty."""
        return self.apart(node, [], [near] if near else [], self._graph.nodes[near].device if near else self._host)

    def probe(self, function: Callable[..., Any], read: list[Tensor], after: Iterable[str], device: str) -> str:
        """Pass tensors to Python."""
        types = AttrValue.ListValue(type=[self._graph.dtype(each) for each in read])
        attributes = {
            "token": AttrValue(s=script_ops._py_funcs.insert(function).encode()),
            "Tin": AttrValue(list=types),
            "Tout": AttrValue(list=AttrValue.ListValue()),
        }
        return self._add("PyFunc", read, attributes, after, device if "CPU" in device else self._host)

    def value_before(self, name: str, handle: Tensor, dtype: AttrValue, after: Iterable[str]) -> str:
        """The value of a variable before a node that reads or writes it runs."""
        waited = [*self._graph.after[name], *after]
        added = self._value(name, handle, dtype, waited)
        self._graph.after[name].append(added)
        return added

    def value_after(self, name: str, handle: Tensor, dtype: AttrValue) -> str:
        """The value of a variable after a node wrote it."""
        return self._value(name, handle, dtype, [name])

    def _value(self, name: str, handle: Tensor, dtype: AttrValue, after: Iterable[str]) -> str:
        return self._add("ReadVariableOp", [handle], {"dtype": dtype}, after, self._graph.nodes[name].device)

    def run_instead(self, name: str, function: str) -> None:
        """Let a call run a copy of its function, unchanged otherwise."""
        node = NodeDef()
        node.CopyFrom(self._graph.nodes[name])
        node.attr["f"].func.name = function
        node.attr["config_proto"].s = without_rewriting(node.attr["config_proto"].s)
        self._graph.nodes[name] = node

    def wait_for_tensor(self, name: str, slot: int, before: str) -> None:
        """Let a node read its input in a slot only after another node has run."""
        tensor = self._graph.inputs[name][slot]
        self._graph.inputs[name][slot] = self._handed_on(tensor, [before])

    def _handed_on(self, tensor: Tensor, after: Iterable[str]) -> Tensor:
        name = self._of_tensor("Identity", tensor, after)
        self._graph.regions[name] = self._graph.region_of(tensor)
        self._graph.stages[name] = self._graph.stages[tensor[0]]
        return name, 0

    def _of_tensor(self, op: str, tensor: Tensor, after: Iterable[str] = ()) -> str:
        """An operator with one input, next to the maker of that input."""
        attributes = {"T": AttrValue(type=self._graph.dtype(tensor))}
        return self._add(op, [tensor], attributes, after, self._graph.nodes[tensor[0]].device)

    def copied(self, tensor: Tensor, readers: Iterable[str]) -> Tensor:
        """A copy of a tensor, made before the other readers of the tensor get it."""
        copy = self._of_tensor("DeepCopy", tensor)
        instead = self._handed_on(tensor, [copy])
        for reader in readers:
            seen = (copy, 0) if reader.startswith(MINE) else instead
            self._graph.inputs[reader][:] = [seen if each == tensor else each for each in self._graph.inputs[reader]]
        return copy, 0


def order_regions(
    edits: Edits, graph: PlacedGraph, last: Mapping[Region, Sequence[tuple[int, str]]], fallible: Collection[str]
) -> None:
    """Let other regions begin and end after the probes before them; `last` are the probes of a region with their stages, in order.

    The same applies to `fallible` nodes.
    """

    def probe_before(region: Region, stage: float) -> str | None:
        return next((probe for at, probe in reversed(last.get(region, ())) if at < stage), None)

    for name in [each for each in graph.nodes if not each.startswith(MINE)]:
        op = graph.nodes[name].op
        if op in ("Enter", "NextIteration") or op in SWITCHES or name in fallible:
            region = graph.region_of(graph.inputs[name][0]) if op == "Enter" else graph.regions[name]
            before = probe_before(region, float("inf") if op == "NextIteration" else graph.stages[name])
            if before is not None:
                graph.after[name].append(before)
        elif op == "Merge" and not graph.is_of_loop(name):
            for slot, tensor in enumerate(graph.inputs[name]):
                before = probe_before(graph.region_of(tensor), graph.stages[name])
                if before is not None and graph.region_of(tensor) != graph.regions[name]:
                    edits.wait_for_tensor(name, slot, before)


def definition_of(graph: PlacedGraph, like: Definition, name: str) -> Definition:
    """A function with the arguments and results of another one that executes this graph."""
    definition = type(like)()
    definition.CopyFrom(like)
    definition.signature.name = name
    # It is one of several functions that the runtime may exchange for each other; the copy must not be.
    definition.attr.pop("api_implements", None)
    definition.signature.is_stateful = True
    definition.ClearField("node_def")
    definition.control_ret.clear()
    definition.signature.ClearField("control_output")
    arguments = {name for name, node in graph.nodes.items() if node.op == "_Arg"}

    def reference(tensor: Tensor) -> str:
        return tensor[0] if tensor[0] in arguments else graph.outputs[tensor[0]][tensor[1]].key

    results = {f"{argument.name}_RetVal": argument.name for argument in like.signature.output_arg}
    for own, node in graph.nodes.items():
        if node.op == "_Retval":
            definition.ret[results[own]] = reference(graph.inputs[own][0])
        elif not is_plumbing(node):
            made = definition.node_def.add()
            made.CopyFrom(node)
            del made.input[:]
            made.input.extend(map(reference, graph.inputs[own]))
            made.input.extend(f"^{each}" for each in dict.fromkeys(graph.after[own]) if each not in arguments)
    return definition


def with_fixed(definition: Definition, constants: Mapping[int, Any], outputs: Sequence[int]) -> Definition:
    """A function whose arguments with these numbers are constants, and which returns only these results."""
    made = type(definition)()
    made.CopyFrom(definition)
    arguments, results = list(definition.signature.input_arg), list(definition.signature.output_arg)
    kept = [number for number in range(len(arguments)) if number not in constants]
    fixed = {arguments[number].name: value for number, value in constants.items()}
    made.arg_attr.clear()
    made.resource_arg_unique_id.clear()
    for place, number in enumerate(kept):
        if number in definition.arg_attr:
            made.arg_attr[place].CopyFrom(definition.arg_attr[number])
        if number in definition.resource_arg_unique_id:
            made.resource_arg_unique_id[place] = definition.resource_arg_unique_id[number]
    del made.signature.input_arg[:], made.signature.output_arg[:]
    made.signature.input_arg.extend(arguments[number] for number in kept)
    made.signature.output_arg.extend(results[number] for number in outputs)

    def reference(text: str) -> str:
        return f"{text}:output:0" if text in fixed else text

    made.ret.clear()
    for number in outputs:
        made.ret[results[number].name] = reference(definition.ret[results[number].name])
    for node in made.node_def:
        node.input[:] = map(reference, node.input)
    for argument, value in fixed.items():
        constant = made.node_def.add(op="Const", name=argument)
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        constant.attr["dtype"].type = constant.attr["value"].tensor.dtype
    return made


def readers_of(graph: PlacedGraph, wanted: set[Tensor]) -> dict[Tensor, list[str]]:
    """The readers of some tensors."""
    found: dict[Tensor, list[str]] = {tensor: [] for tensor in wanted}
    for name, inputs in graph.inputs.items():
        for tensor in {*inputs} & wanted:
            found[tensor].append(name)
    return found
