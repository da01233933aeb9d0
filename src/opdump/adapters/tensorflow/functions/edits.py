"""Makes a new function from an executed graph, with additional nodes.

All names of added nodes begin with `MINE`, so that the executed graph can be compared with the original one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.ops import script_ops

from opdump.adapters.tensorflow.functions.optimised import without_rewriting
from opdump.adapters.tensorflow.functions.placement import PlacedGraph
from opdump.adapters.tensorflow.graphs.executed import is_plumbing
from opdump.adapters.tensorflow.graphs.library import Definition
from opdump.adapters.tensorflow.graphs.regions import Region, Tensor
from opdump.adapters.tensorflow.operator_kinds import SWITCHES

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
