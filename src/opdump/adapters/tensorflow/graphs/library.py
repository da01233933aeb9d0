"""Nodes of a graph by themselves: whether one may run an additional time, and its attributes as JSON values."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

# Finds the operators that may run an additional time: those known to compute only from their inputs, without side effects.
#
# TensorFlow's registry records whether a type of operator is stateful, which is not sufficient. Host callbacks may be declared as
# stateless (`tf.numpy_function(..., stateful=False)`), and so may operators of other libraries; some types of TensorFlow itself write into
# their inputs, or to the disk. An operator therefore counts as pure if its type is TensorFlow's own and no rule below excludes it.

Library = Callable[[str], Any]
"""The definition of a function by its name."""

_WITH_EFFECTS: Final = frozenset(
    {
        # These run the program's Python.
        *("PyFunc", "PyFuncStateless", "EagerPyFunc"),
        # These write into the memory of their inputs.
        *("InplaceAdd", "InplaceSub", "InplaceUpdate", "ParallelConcat"),
        # These have effects outside the graph: files, debuggers, errors.
        *("ReadFile", "MatchingFiles", "Copy", "CopyHost", "DebugIdentity", "DebugNanCount", "DebugNumericSummary"),
        *("DebugIdentityV2", "DebugNumericSummaryV2", "DebugIdentityV3", "Abort"),
        # These run a data set, and thereby functions of the program.
        *("GetElementAtIndex", "ComputeBatchSize", "WindowOp", "GetOptions"),
        # A text argument names the array that these change.
        *("TensorArrayWriteV2", "TensorArrayReadV2", "TensorArraySizeV2", "TensorArrayScatterV2", "TensorArrayGatherV2"),
        *("TensorArraySplitV2", "TensorArrayConcatV2", "TensorArrayCloseV2", "TensorArrayUnpackV2", "TensorArrayPackV2"),
    }
)  # fmt: skip
_SHARED: Final = frozenset({"container", "shared_name"})
"""An attribute with such a name shows that the operator shares something with others."""


def definitions_of(graph: Any) -> dict[str, Any]:
    """The definitions of a graph's functions, by name."""
    library = graph.as_graph_def(from_version=graph.version).library  # this version selects no operators
    return {function.signature.name: function for function in library.function}


def is_pure(node: Any, library: Library) -> bool:
    """Whether a repeated run of a node with the same inputs has the same results and no effects, including the functions that it runs."""
    return _is_pure(node, library, set())


def _is_pure(node: Any, library: Library, seen: set[str]) -> bool:
    op_def = op_def_registry.get(node.op)
    if op_def is not None and not _is_pure_type(op_def):
        return False
    stands_in = [node.op] if op_def is None else []  # a function in place of a type
    for name in (*functions_of(node), *stands_in):
        if name in seen:
            continue
        seen.add(name)
        definition = definition_in(name, library)
        if definition is None or not all(_is_pure(inner, library, seen) for inner in definition.node_def):
            return False
    return True


def _is_pure_type(op_def: Any) -> bool:
    return not (
        op_def.is_stateful
        or op_def.name in _WITH_EFFECTS
        or "Dataset" in op_def.name
        or not hasattr(tf.raw_ops, op_def.name)
        or any(argument.is_ref for argument in (*op_def.input_arg, *op_def.output_arg))
        or any(attribute.name in _SHARED for attribute in op_def.attr)
    )


def functions_of(node: Any) -> list[str]:
    """The functions that a node's attributes name."""
    names = [value.func.name for value in node.attr.values() if value.func.name]
    return names + [each.name for value in node.attr.values() for each in value.list.func]


def definition_in(name: str, library: Library) -> Any | None:
    """The definition of a function; None if the library does not have it."""
    try:
        return library(name)
    except (KeyError, ValueError, tf.errors.OpError):
        return None


def producer(reference: str) -> str:
    """The node behind a reference; the name of the argument if it refers to one."""
    return reference.removeprefix("^").partition(":")[0]


# Converts the attributes of TensorFlow operators, and their device if it is not the first CPU, to JSON values.

_LONGEST = 64
"""Maximum number of list elements that are kept."""


def arguments_of(node: Any) -> dict[str, Any]:
    """The attributes of a NodeDef by name: numbers, texts, dtypes by name, shapes as lists. Tensors, functions and internals are omitted."""
    values = {name: _value(node.attr[name]) for name in sorted(node.attr) if not name.startswith("_")}
    return {name: value for name, value in values.items() if value is not None} | device_of(node.device)


def arguments_of_call(attrs: Sequence[Any], op_def: Any) -> dict[str, Any]:
    """The attributes of an operator that ran eagerly: names and values alternate, dtypes are numbers. The result equals that for a NodeDef:
    omitted attributes have their default.
    """
    kinds = {attribute.name: attribute.type for attribute in op_def.attr}
    found = dict(_defaults(op_def.name))
    for name, value in zip(attrs[::2], attrs[1::2], strict=True):
        given = None if name.startswith("_") else _given(value, kinds.get(name, ""))
        if given is not None:
            found[name] = given
    return found


@cache
def _defaults(op_type: str) -> Mapping[str, Any]:
    """The attributes of a type that have a default, with the default."""
    op_def = op_def_registry.get(op_type)
    attributes = [] if op_def is None else [each for each in op_def.attr if each.HasField("default_value")]
    values = {each.name: _value(each.default_value) for each in attributes}
    return {name: value for name, value in values.items() if value is not None}


def _given(value: Any, kind: str) -> Any:
    """An argument of a call as JSON; None for a function or a tensor."""
    if isinstance(value, list | tuple):
        items = [_given(item, kind.removeprefix("list(").removesuffix(")")) for item in value[:_LONGEST]]
        return None if any(item is None for item in items) else items
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, tf.dtypes.DType):
        return value.name
    if isinstance(value, tf.TensorShape):
        return None if value.rank is None else [-1 if size is None else size for size in value]
    if isinstance(value, bool | int | float | str):
        return tf.dtypes.as_dtype(value).name if kind == "type" else value
    return None


def device_of(name: str) -> dict[str, Any]:
    """The device of an operator as `CPU:1`, from TensorFlow's name for it; empty for the first CPU, and if none is named."""
    device = name.lower().rpartition("device:")[2].upper()
    return {} if device in ("", "CPU:0", "CPU:*") or "device:" not in name.lower() else {"device": device}


def _value(attr: Any) -> Any:
    kind = attr.WhichOneof("value")
    if kind == "list":
        return _list(attr.list)
    return _CONVERSIONS[kind](getattr(attr, kind)) if kind in _CONVERSIONS else None


def _list(values: Any) -> list[Any]:
    for kind, convert in _CONVERSIONS.items():
        if items := getattr(values, kind):
            return [convert(item) for item in items[:_LONGEST]]
    return []


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _dtype(number: int) -> str:
    return str(tf.dtypes.as_dtype(number).name)


def _shape(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {"s": _text, "i": int, "f": float, "b": bool, "type": _dtype, "shape": _shape}
)
"""The conversions for the kinds of values in an AttrValue, and in its lists."""


# Finds the parts that XLA compiles, each of which is one operator with its inputs and outputs.
#
# XLA compiles functions that request it (`jit_compile=True`); and clusters of operators, anywhere in a graph, if the program lets XLA search
# for them (`tf.config.optimizer.set_jit`, `global_jit_level` of a session, `TF_XLA_FLAGS`) or marks operators for it (`jit_scope`).
# Observing values inside a cluster would change the clusters, and thereby the last bits of the answer. Source: TensorFlow's
# mark_for_compilation_pass.cc, xla_kernel_creator.cc, flags.cc.

LAUNCH: Final = "XlaLaunch"
"""TensorFlow's name for the operator that runs compiled code."""
_MUST_COMPILE: Final = "_XlaMustCompile"
_SCOPES: Final = ("_XlaCompile", "_xla_compile_id")
_LEVEL: Final = re.compile(r"--tf_xla_auto_jit=(?:single-gpu\()?(fusible|-?\d+)")
_ON_CPU: Final = re.compile(r"--tf_xla_cpu_global_jit(?:=(\w+))?")

OF_FUNCTION: Final = (
    "{} is compiled by XLA, so it is one operator in the dump, XlaLaunch, with its inputs and outputs; to record its operators, leave "
    "jit_compile=True out (Keras: model.compile(..., jit_compile=False))"
)
OF_CLUSTERS: Final = (
    "XLA compiles clusters of operators in {}, so it is one operator in the dump, XlaLaunch, with its inputs and outputs; to record its "
    "operators, leave out tf.config.optimizer.set_jit, jit_scope, and --tf_xla_auto_jit in TF_XLA_FLAGS"
)
OF_SESSION: Final = (
    "XLA compiles clusters of operators in {}: only the program's own fetches are dumped, and all other operators are listed as not observed; to record "
    "them, leave out global_jit_level in the session's config, jit_scope, and --tf_xla_auto_jit in TF_XLA_FLAGS"
)


def note_of_call(op_name: str, node: Any) -> str:
    """The note for a node that runs a compiled function."""
    function = node.attr["f"].func.name if "f" in node.attr else ""
    return OF_FUNCTION.format(f"{shown_name(function)} ({op_name})" if function else op_name)


def is_compiled(definition_or_node: Any) -> bool:
    """Whether XLA compiles a function, or the function of a node, as a whole."""
    attributes = definition_or_node.attr
    return _MUST_COMPILE in attributes and bool(attributes[_MUST_COMPILE].b)


def type_of(node: Any) -> str:
    """The type of a node's operator, which differs if XLA compiles it."""
    return LAUNCH if is_compiled(node) else str(node.op)


def has_marked_clusters(nodes: Iterable[Any]) -> bool:
    """Whether the program marked some of these nodes for XLA individually."""
    return any(name in node.attr and (node.attr[name].b or node.attr[name].s) for node in nodes for name in _SCOPES)


def clusters_functions() -> bool:
    """Whether XLA compiles clusters in any function that runs."""
    return _clusters(int(bool(tf.config.optimizer.get_jit())))


def clusters_sessions(config: Any) -> bool:
    """Whether XLA compiles clusters in the graph of a session with this ConfigProto; None for a session without one."""
    return _clusters(0 if config is None else config.graph_options.optimizer_options.global_jit_level)


def _clusters(requested: int) -> bool:
    flags = _flags(os.environ)
    levels = _LEVEL.findall(flags)
    level = 1 if levels and levels[-1] == "fusible" else int(levels[-1]) if levels else 0
    if (level or requested) <= 0:  # a flag has priority over the program's setting
        return False
    on_cpu = _ON_CPU.findall(flags)
    # Without that flag, XLA does not compile operators on CPUs.
    return bool((on_cpu and on_cpu[-1].lower() not in ("false", "0")) or tf.config.list_physical_devices("GPU"))


def _flags(environ: Mapping[str, str]) -> str:
    """The value of TF_XLA_FLAGS, or the contents of the file that it names."""
    text = environ.get("TF_XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        try:
            return Path(text).read_text(encoding="utf-8", errors="replace")
        except OSError:  # TensorFlow then has no flags either
            return ""
    return text


# The program's names of functions, for which the runtime has longer names.

_GRADIENT: Final = re.compile(r"^__inference___backward_(.*?)(?:_\d+)*$")
_TRACED: Final = re.compile(r"^__(?:inference|forward)_|(?:_\d+)+$")
_OF_GRAPH: Final = re.compile(r"^__(?:inference|forward|backward)_|_\d+$")


def plain_name(name: str) -> str:
    """`loss` for `__inference_loss_12`, `__forward_loss_34` and `__inference___backward_loss_12_34`."""
    gradient = _GRADIENT.match(name)
    plain = gradient[1] if gradient is not None else _TRACED.sub("", name)
    return re.sub(r"[^\w.-]+", "", plain) or "function"


def shown_name(name: str) -> str:
    """The same; for a gradient `gradients/loss`."""
    return f"gradients/{plain_name(name)}" if _GRADIENT.match(name) else plain_name(name)


def graph_name(name: str) -> str:
    """The name of the graph of a traced function: `step_2` for `__inference_step_2_12`."""
    return _OF_GRAPH.sub("", name)


# Reads a definition from the function library: its operators, their slots, the functions that they call.
#
# In a `FunctionDef`, the name of a tensor is `{argument}` if the caller provides it, and `{node}:{output argument}:{number}` if an operator
# makes it; `^{node}` means "after". Source: TensorFlow's function.proto and op_def.proto.

Definition = Any
"""A FunctionDef."""

# Type of operator -> attribute that names a function which it runs -> prefix of the path of the function's operators.
_BRANCHES: Final = {"then_branch": "then", "else_branch": "else"}
_LOOP: Final = {"cond": "cond", "body": "body"}
_CHOICES: Final = {"branches": "branch"}
_CALL: Final = {"f": ""}
BODIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        **dict.fromkeys(("If", "StatelessIf", "_If"), _BRANCHES),
        **dict.fromkeys(("While", "StatelessWhile", "_While"), _LOOP),
        **dict.fromkeys(("Case", "StatelessCase"), _CHOICES),
        **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), _CALL),
    }
)
BRANCHING: Final = frozenset({"If", "StatelessIf", "_If", "Case", "StatelessCase"})
LOOPS: Final = frozenset({"While", "StatelessWhile", "_While"})
CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

HANDLES: Final = frozenset({tf.resource.as_datatype_enum, tf.variant.as_datatype_enum})
"""Element types of variables, iterators and similar objects, which have no values."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a slot of an operator. `key` is its name, `dtype` the number of its element type; `source` the maker of an input, if known."""

    slot: int
    argument: str
    key: str
    dtype: int
    source: str = ""
    variable: str = ""
    """For the value of a variable of a session, its name."""

    @property
    def is_handle(self) -> bool:
        return self.dtype in HANDLES

    @property
    def dtype_name(self) -> str:
        return str(tf.dtypes.as_dtype(self.dtype).name)


def are_handles(slots: Collection[Slot]) -> bool:
    """Whether there are slots, and all of them are variables, iterators and the like, without data."""
    return bool(slots) and all(slot.is_handle for slot in slots)


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that a node runs; `label` is for paths."""

    label: str
    function: str


def callees_of(node: Any) -> tuple[Callee, ...]:
    """The functions that a node runs itself. Those of data sets run elsewhere and are not included."""
    found = []
    for attribute, label in BODIES.get(node.op, {}).items():
        value = node.attr[attribute]
        if value.WhichOneof("value") == "func":
            found.append(Callee(label, value.func.name))
        else:
            found += [Callee(f"{label}_{place}", each.name) for place, each in enumerate(value.list.func)]
    if op_def_registry.get(node.op) is None:  # a function in place of a type
        found.append(Callee("", node.op))
    return tuple(found)


def is_call(op_type: str) -> bool:
    """Whether an operator of this type runs one function, once."""
    return op_type in CALLS or op_def_registry.get(op_type) is None


def hidden_callees(node: Any) -> bool:
    """Whether a node names functions that run unobserved: in the threads of a data set, on another machine."""
    return not callees_of(node) and bool(functions_of(node))


def reached(name: str, library: Library, *, into_compiled: bool = True) -> Iterable[Definition]:
    """The definition of a function, and those of all functions that it runs, each once; `into_compiled` includes those that XLA compiles."""
    definition = functools.cache(lambda each: definition_in(each, library))

    def called(current: str) -> Iterator[str]:
        found = definition(current)
        for node in () if found is None else found.node_def:
            if into_compiled or not is_compiled(node):
                yield from (callee.function for callee in callees_of(node))

    return (found for each in reachable([name], called) if (found := definition(each)) is not None)


def outputs_of(node: Any, library: Library) -> tuple[Slot, ...] | None:
    """The slots of a node's outputs; None if unknown."""
    op_def = _op_def(node, library)
    if op_def is None:
        return None
    slots: list[Slot] = []
    for argument, dtypes, is_list in _arguments(op_def.output_arg, op_def, node):
        for number, dtype in enumerate(dtypes):
            name = f"{argument}_{number}" if is_list else argument
            slots.append(Slot(len(slots), name, f"{node.name}:{argument}:{number}", dtype))
    return tuple(slots)


def input_names(node: Any, library: Library, count: int) -> list[str]:
    """The argument names of a node with this number of inputs; empty if unknown."""
    op_def = _op_def(node, library)
    names = [] if op_def is None else argument_names(op_def.input_arg, op_def, node)
    return names if len(names) == count else [""] * count


def argument_names(arguments: Sequence[Any], op_def: Any, node: Any) -> list[str]:
    """The names of some of a type's arguments, one for each tensor of a node; those of a list are numbered."""
    return [
        f"{argument}_{number}" if is_list else argument
        for argument, dtypes, is_list in _arguments(arguments, op_def, node)
        for number in range(len(dtypes))
    ]


def _op_def(node: Any, library: Library) -> Any:
    """The signature of a node's type, which may be a function."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        definition = definition_in(node.op, library)
        return None if definition is None else definition.signature
    return op_def


def _arguments(arguments: Sequence[Any], op_def: Any, node: Any) -> Iterable[tuple[str, Sequence[int], bool]]:
    for argument in arguments:
        if argument.type_list_attr:
            yield argument.name, list(_attribute(node, op_def, argument.type_list_attr).list.type), True
        else:
            dtype = argument.type or _attribute(node, op_def, argument.type_attr).type
            if argument.number_attr:
                yield argument.name, [dtype] * _attribute(node, op_def, argument.number_attr).i, True
            else:
                yield argument.name, [dtype], False


def _attribute(node: Any, op_def: Any, name: str) -> Any:
    if name in node.attr:
        return node.attr[name]
    return next(attribute.default_value for attribute in op_def.attr if attribute.name == name)


def needed_nodes(definition: Definition, read: Iterable[str]) -> frozenset[str]:
    """The nodes that the runtime keeps: those behind results that are read, and behind nodes that must run."""
    first = [producer(reference) for reference in read]
    first += [producer(definition.control_ret[name]) for name in definition.signature.control_output]
    inputs = {node.name: node.input for node in definition.node_def}
    found = reachable(first, lambda name: map(producer, inputs.get(name, ())))
    return frozenset(inputs.keys() & set(found))


# Traverses a graph, for any kind of nodes.

Node = TypeVar("Node", bound=Hashable)


def reachable(first: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """These nodes, and all reachable ones, each once."""
    waiting = list(first)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += following(node)


def in_order(nodes: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """These nodes and their predecessors, each after its predecessors: in the given order where possible, and without cycles."""
    found: dict[Node, None] = {}
    opened: set[Node] = set()
    for first in nodes:
        waiting = [first]
        while waiting:
            node = waiting[-1]
            missing = () if node in opened else [each for each in before(node) if each not in found]
            opened.add(node)
            if missing:
                waiting += missing
            else:
                found[node] = None
                waiting.pop()
    return list(found)


# A graph that the runtime executes: rewritten, fused, with the bodies of functions inlined.
#
# A node has the name of the program's operator that it is or replaces. A node from a function has the path of its caller
# (`loop/body/_1/MatMul`); others have names of the rewriting (`ArithmeticOptimizer/...`). Source: TensorFlow's lower_functional_ops.cc,
# inline_function_utils.cc, constant_folding.cc, remapper.cc.

_NUMBER: Final = re.compile(r"(?:/branch(\d+))?/_\d+(?=/)", re.ASCII)
"""Appears in the path of nodes from a function."""
_FOLDED: Final = re.compile(
    r"(?:ConstantFolding/)?(.+?)(?:/_\d+__cf__\d+|-(?:folded|matshapes|bcastargs)(?:-(\d+))?)$", re.ASCII
)
"""The constant that replaces an operator, or one of its outputs, after folding."""
_PLUMBING: Final = frozenset({"_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"})
"""The runtime's nodes that pass tensors in and out, and between devices."""
_WAITING: Final = re.compile(r"/_\d+$", re.ASCII)
"""Ends the name of nodes that make one device wait for another."""
_NOT_COMPARED: Final = frozenset({"_XlaHasReferenceVars"})
_FUSED: Final = "fused_ops"
_ACTIVATION: Final = "activation_mode"
_PREFIX: Final = re.compile(r"^_(?:MklNative|Mkl|Native)?(?:Fused)?|Ex$")

Key = str
"""A tensor: `{node}:{slot}`."""


class ExecutedGraph:
    """The nodes of all devices, by name. Nodes whose names begin with `added` are opdump's, and are not compared."""

    def __init__(self, graphs: Iterable[Any], *, added: str = "") -> None:
        graphs = list(graphs)
        self._added = added
        self._several = len(graphs) > 1
        self.nodes: dict[str, Any] = {node.name: node for graph in graphs for node in graph.node}
        self._sent = {
            node.attr["tensor_name"].s: node.input[0]
            for node in self.nodes.values()
            if node.op in ("_Send", "_HostSend")
        }

    @cached_property
    def paths(self) -> dict[str, str]:
        """Node -> its name without the numbers of calls, for nodes from functions."""
        found = {name: _NUMBER.sub(_without_number, name) for name in self.nodes}
        return {name: path for name, path in found.items() if path != name}

    @cached_property
    def folded(self) -> dict[str, dict[int, Any]]:
        """Operator (a node without numbers of calls) -> slot -> its constant after folding, if the rewriting made a separate node."""
        found: dict[str, dict[int, Any]] = {}
        for name, node in self.nodes.items():
            named = _FOLDED.match(name) if node.op == "Const" else None
            if named is not None:
                found.setdefault(_NUMBER.sub(_without_number, named[1]), {})[int(named[2] or 0)] = node
        return found

    @cached_property
    def readers(self) -> dict[Key, list[str]]:
        """Tensor -> the nodes that read it."""
        found: dict[Key, list[str]] = {}
        for name, node in self.nodes.items():
            for key in self.inputs(node):
                found.setdefault(key, []).append(name)
        return found

    def inputs(self, node: Any) -> Sequence[Key]:
        """The inputs of a node; for an input from another device, the tensor that was sent there."""
        return self._read[node.name]

    @cached_property
    def _read(self) -> dict[str, list[Key]]:
        return {
            name: [self._sender(key_of(text)) for text in node.input if not text.startswith("^")]
            for name, node in self.nodes.items()
        }

    @cached_property
    def before(self) -> dict[str, set[str]]:
        """Node -> the nodes that it reads or waits for."""
        return {name: set(map(producer, node.input)) for name, node in self.nodes.items()}

    def _sender(self, key: Key) -> Key:
        received = self.nodes.get(key.rpartition(":")[0])
        if received is not None and received.op in ("_Recv", "_HostRecv"):
            sent = self._sent.get(received.attr["tensor_name"].s)
            return key if sent is None else key_of(sent)
        return key

    def differing(self, other: ExecutedGraph) -> set[str]:
        """The nodes that differ between the two, or exist in only one of them.

        Nodes that return results or pass tensors between devices do not count, nor do added ones.
        """
        mine, others = self._compared, other._compared
        return {name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)}

    @cached_property
    def _compared(self) -> dict[str, tuple[Any, ...]]:
        found = {}
        for name, node in self.nodes.items():
            if is_plumbing(node) or self._is_added(name):
                continue
            if self._several and node.op in ("Const", "Identity") and _WAITING.search(name):
                continue
            attributes = sorted(
                (key, value.SerializeToString(deterministic=True))
                for key, value in node.attr.items()
                if key not in _NOT_COMPARED
            )
            inputs = tuple(map(self._behind_added, self.inputs(node)))
            found[name] = (node.op, inputs, self._controls(node), node.device, attributes)
        return found

    def _controls(self, node: Any) -> frozenset[str]:
        """The nodes after which a node runs; none with several devices, which wait for each other."""
        found = [] if self._several else [text[1:] for text in node.input if text.startswith("^")]
        return frozenset(name for name in found if not self._is_added(name) and self.nodes[name].op != "_Arg")

    def _behind_added(self, key: Key) -> Key:
        name = key.rpartition(":")[0]
        while self._is_added(name):
            key = self.inputs(self.nodes[name])[0]
            name = key.rpartition(":")[0]
        return key

    def _is_added(self, name: str) -> bool:
        return bool(self._added) and name.startswith(self._added)


def _without_number(found: re.Match[str]) -> str:
    return f"/branch_{found[1]}" if found[1] is not None else ""


def key_of(reference: str) -> Key:
    """The tensor that a node's input names."""
    _, colon, number = reference.rpartition(":")
    return reference if colon and number.isdecimal() else f"{reference}:0"


def base_type(node: Any) -> str:
    """The type of a node without the part for its implementation: `MatMul` for `_MklNativeFusedMatMul`."""
    if op_def_registry.get(node.op) is not None and not node.op.startswith("_"):
        return type_of(node)
    return _PREFIX.sub("", node.op)


def fused_types(node: Any) -> list[str]:
    """The operators that were fused into a node after its own, in order."""
    return [each.decode() for each in node.attr[_FUSED].list.s] if _FUSED in node.attr else []


def fused_activation(node: Any) -> str:
    """The type of the activation that was fused into a batch norm; empty if there is none."""
    mode = node.attr[_ACTIVATION].s.decode() if is_own_kernel(node) and _ACTIVATION in node.attr else "Identity"
    return "" if mode == "Identity" else mode


def is_own_kernel(node: Any) -> bool:
    """Whether the type of a node is the runtime's own, which computes several operators, or one in another way."""
    return str(node.op).startswith("_")


def is_plumbing(node: Any) -> bool:
    """Whether a node only passes tensors in, out, or to another device."""
    return node.op in _PLUMBING


def output_count(node: Any) -> int:
    """The number of a node's outputs; 1 if unknown."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        return 1
    return len(argument_names(op_def.output_arg, op_def, node))
