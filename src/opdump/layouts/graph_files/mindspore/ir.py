"""Writes and reads the `.ir` file of a graph, a text that leads from a source line to an operator's full name.

    subgraph @kernel_graph0() {
      %1(equiv_output) = Conv2D(%0, %para1_conv1.weight) primitive_attrs: {stride: (I64(1), I64(1))} cnode_attrs: {...}
          : (<Tensor[Float32], (2, 1, 28, 28)>, <Tensor[Float32], (4, 1, 5, 5)>) -> (<Tensor[Float32], (2, 4, 24, 24)>)
          : (<Float32xDefaultFormat[const vector][2, 1, 28, 28]>, ...) -> (...)
          : full_name_with_scope: (Default/network-LeNet/conv1-Conv2d/Conv2D-op1)
          # In file train.py(175)/        x = self.conv1(x)/

This is the form of MindSpore 2.3; 2.10 writes `# Fullname with scope: (...)`, `train.py:175/` and braces around
device shapes. The second line of types exists only if a kernel runs, as in MindSpore's files.
Lines of the program run from the outermost to the innermost call.

An input that is the second output of %3 is `%3[1]`; an input without a maker in the graph is written as a tensor without a value.
The file does not contain the function names of the stack and the root graph's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, Literal, cast, get_args

from opdump.errors import CorruptDumpError
from opdump.graph import (
    CONSTANT_PREFIX,
    PARAMETER_PREFIX,
    Graph,
    GraphInput,
    GraphNode,
    GraphOutput,
    GraphValue,
    graph_of_word,
    graph_word,
)
from opdump.layouts.graph_files.mindspore.spelling import (
    format_frame,
    format_stack,
    from_ir_name,
    ir_name,
    one_line,
    parse_frames,
    utf8_text,
)
from opdump.records import Phase, escaped

IrLayout = Literal["mindspore-2.3", "mindspore-2.10"]

_ENTRY: Final = re.compile(r"#\s*IR entry\s*:\s*@\S*?(\d{1,9}|pynative)\s*$")
_PARAMETER: Final = re.compile(r"%para(\d+)_(.*?):\s*(<.*)$")
_USED_PARAMETER: Final = re.compile(r"%para(\d+)_([^\s,()]+)")
_CONSTANT: Final = re.compile(r"(data-\d+):\s*(<.*)$")
_NODE: Final = re.compile(r"\s{0,4}(?:%(\d+)\([^)\n]*\) = ([^\s(]+)|(Return))\(")
_DEVICE_TYPES: Final = re.compile(r"\s*: \((?:\) -> \()?<\w+x\w+\[const vector\]")
_NOTHING: Final = ": () -> ()"
_FULL_NAME: Final = re.compile(r"\s*(?:: full_name_with_scope|# Fullname with scope): \((.*)\)\s*$")
_REFERENCE: Final = re.compile(r"%(\d+)(?:\[(\d+)\])?$")
_PARAMETER_REFERENCE: Final = re.compile(r"%para(\d+)_(.*)$", re.DOTALL)
_PRIMITIVE_PREFIX: Final = "PrimFunc_"
_OWN_ATTRIBUTE: Final = "cnode_attrs: {phase: "
"""What every node has in a file of opdump, and no node in one of MindSpore."""
_BATCH: Final = re.compile(r"inputs\d+$")
_NOT_PLAIN: Final = re.compile(r"[^\w.]")


def encode_ir(graph: Graph, *, layout: IrLayout = "mindspore-2.3") -> bytes:
    """The file of the graph in the spelling of the layout's generation, UTF-8."""
    return "\n".join([*_header(graph), *_body(graph, layout), "}", ""]).encode("utf-8", "backslashreplace")


def _header(graph: Graph) -> Iterator[str]:
    name = f"kernel_graph{graph_word(graph.graph_id)}"
    yield f"# IR entry: @{name}"
    yield "# Total subgraphs: 1"
    yield ""
    yield f"# Total params: {len(graph.parameters)}"
    yield "# Params:"
    for index, parameter in enumerate(graph.parameters, start=1):
        label, shape = _parameter_label(index, parameter), format_shape(parameter.shape)
        if _BATCH.match(parameter.name):
            yield f"{label}: {format_type(parameter.dtype, parameter.shape)}  :  IsWeight: false"
            continue
        key = json.dumps(escaped(parameter.name))
        yield f"{label}: <Ref[Tensor[{ir_name(parameter.dtype)}]], {shape}, ref_key={key}>  :  IsWeight: true"
    if graph.constants:
        yield ""
        yield f"# Total constants: {len(graph.constants)}"
        for constant in graph.constants:
            yield f"{constant.name}: {format_type(constant.dtype, constant.shape)}"
    yield ""
    yield "Node counting information:"
    yield f"Total number of nodes: {len(graph.nodes)}"
    yield f"Total number of kernels: {len(graph.kernels)}"
    yield ""
    yield f"subgraph instance: {name}"
    yield ""
    yield f"subgraph @{name}() {{"


def _parameter_label(index: int, parameter: GraphValue) -> str:
    """`%para1_fc.weight`, without characters that would end an argument; the ref_key of the declaration has the whole name."""
    return f"%para{index}_{_NOT_PLAIN.sub('_', parameter.name)}"


def _body(graph: Graph, layout: IrLayout) -> Iterator[str]:
    references: dict[str, str] = {}
    for index, parameter in enumerate(graph.parameters, start=1):
        references[PARAMETER_PREFIX + parameter.name] = _parameter_label(index, parameter)
    for constant in graph.constants:
        references[constant.name] = constant.name
    for index, node in enumerate(graph.nodes):
        for slot in range(max(len(node.outputs), 1)):
            references[f"{node.op_name}:{slot}"] = f"%{index}[{slot}]" if slot else f"%{index}"
    quoted = cache(partial(format_frame, form="parenthesis" if layout == "mindspore-2.3" else "colon"))
    for index, node in enumerate(graph.nodes):
        yield from _node_lines(index, node, references, layout)
        yield from reversed([*format_stack(node.stack, quoted)])


def _node_lines(index: int, node: GraphNode, references: Mapping[str, str], layout: IrLayout) -> Iterator[str]:
    arguments = ", ".join(_argument(graph_input, references) for graph_input in node.inputs)
    head = f"  %{index}(equiv_{index}) = {one_line(node.op_type)}({arguments})"
    if node.attributes:
        head += f" primitive_attrs: {format_attributes(node.attributes, typed=layout == 'mindspore-2.10')}"
    yield f"{head} {_OWN_ATTRIBUTE}{json.dumps(node.phase)}}}"
    host = ", ".join(format_type(graph_input.dtype, graph_input.shape) for graph_input in node.inputs)
    yield f"      : ({host}) -> ({format_outputs(node.outputs)})"
    if node.runs_kernel:
        device = ", ".join(_device_type(graph_input.dtype, graph_input.shape, layout) for graph_input in node.inputs)
        made = ", ".join(_device_type(*output, layout) for output in node.outputs)
        yield f"      : ({device}) -> ({made})"
    name = one_line(node.op_name)
    yield (
        f"      : full_name_with_scope: ({name})"
        if layout == "mindspore-2.3"
        else f"      # Fullname with scope: ({name})"
    )


def _argument(graph_input: GraphInput, references: Mapping[str, str]) -> str:
    if graph_input.source in references:
        return references[graph_input.source]
    if graph_input.source:
        return "@" + json.dumps(escaped(graph_input.source))
    shape = ", ".join(map(str, graph_input.shape))
    return f"Tensor(shape=[{shape}], dtype={ir_name(graph_input.dtype)})"


def _device_type(dtype: str, shape: tuple[int, ...], layout: IrLayout) -> str:
    start, end = "[]" if layout == "mindspore-2.3" else "{}"
    return f"<{ir_name(dtype)}xDefaultFormat[const vector]{start}{', '.join(map(str, shape))}{end}>"


def decode_ir(data: bytes, *, where: str = ".ir file") -> Graph:
    """The graph of an `.ir` file of opdump, of MindSpore 2.3 (as in its documents), or of MindSpore 2.7 to 2.10 (tested).

    For a MindSpore file, `by_mindspore` is true, constants in the argument lists have no name and become inputs of unknown
    source, and `Return` is not a node. Raises CorruptDumpError if the text has no subgraph, ends inside one, or has a node
    without a full name.
    """
    header, blocks = _sections(utf8_text(data, where).split("\n"), where)
    entry = next(filter(None, map(_ENTRY.match, header)), None)
    graph_id = (graph_of_word(entry[1]) if entry else None) or 0
    labels = dict(_USED_PARAMETER.findall("\n".join(line for _, block in blocks for line in block)))
    parameters = {
        match[1]: _declared(partial(_parameter, labels.get(match[1]) or match[2], match[3]), where, match[0])
        for match in filter(None, map(_PARAMETER.match, header))
    }
    return Graph(
        graph_id=graph_id,
        root_name=graph_word(graph_id),
        nodes=_nodes(blocks, parameters, where),
        parameters=tuple(parameters.values()),
        constants=tuple(
            _declared(partial(_value, match[1], match[2]), where, match[0])
            for match in filter(None, map(_CONSTANT.match, header))
        ),
        by_mindspore=bool(blocks) and not any(_OWN_ATTRIBUTE in line for _, block in blocks for line in block),
    )


def _sections(lines: list[str], where: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The lines before the subgraphs, and the lines of each node with the number of its first line."""
    header: list[str] = []
    blocks: list[tuple[int, list[str]]] = []
    inside = complete = False
    for number, line in enumerate(lines, start=1):
        if line.startswith("subgraph @"):
            inside, complete = True, False
        elif inside and line.rstrip() == "}":
            inside, complete = False, True
        elif not inside:
            header.append(line)
        elif _NODE.match(line):
            blocks.append((number, [line]))
        elif blocks:
            blocks[-1][1].append(line)
    if inside or not complete:
        found = "only the beginning" if inside else "neither"
        raise CorruptDumpError(
            f"{where}: expected 'subgraph @name() {{' and a closing '}}' on lines of their own, found {found}"
        )
    return header, blocks


def _declared(make: Callable[[], GraphValue], where: str, line: str) -> GraphValue:
    try:
        return make()
    except ValueError as error:
        raise CorruptDumpError(f"{where}: {line[:80]!r}: {error}") from error


def _first_type(text: str) -> str:
    end = closing(text, 0)
    if end < 0:
        raise ValueError(f"the type of {text[:80]!r} is not closed")
    return text[: end + 1]


def _parameter(label: str, text: str) -> GraphValue:
    kind = _first_type(text)
    for part in split(kind[1:-1])[2:]:
        if part.startswith("ref_key="):
            # MindSpore's labels omit characters, its keys do not; opdump quotes the key.
            key = part.removeprefix("ref_key=")
            return _value(json.loads(key) if key.startswith('"') else key, kind)
    return _value(label, kind)


def _value(name: str, text: str) -> GraphValue:
    leaf = (parse_type(_first_type(text)) or (GraphOutput("", ()),))[0]
    return GraphValue(name, leaf.dtype, leaf.shape)


def _nodes(
    blocks: list[tuple[int, list[str]]], parameters: Mapping[str, GraphValue], where: str
) -> tuple[GraphNode, ...]:
    names: dict[str, str] = {}
    parsed: list[tuple[int, str, re.Match[str], list[str]]] = []
    for number, lines in blocks:
        match = _NODE.match(lines[0])
        name = next((found[1] for found in map(_FULL_NAME.match, lines) if found), "")
        if match is None or not name:
            raise CorruptDumpError(f"{where}, line {number}: node {lines[0].strip()[:80]!r} has no full name")
        if match[3]:
            continue
        names[match[1]] = name
        parsed.append((number, name, match, lines))
    return tuple(_node_or_error(block, names, parameters, where) for block in parsed)


def _node_or_error(
    block: tuple[int, str, re.Match[str], list[str]],
    names: Mapping[str, str],
    parameters: Mapping[str, GraphValue],
    where: str,
) -> GraphNode:
    number, name, match, lines = block
    try:
        return _node(name, match, lines, names, parameters)
    except ValueError as error:
        raise CorruptDumpError(f"{where}, line {number}: {name}: {error}") from error


def _node(
    name: str, match: re.Match[str], lines: list[str], names: Mapping[str, str], parameters: Mapping[str, GraphValue]
) -> GraphNode:
    end = next(
        (i for i, line in enumerate(lines) if i and line.lstrip().startswith((": (", ": full", "# "))), len(lines)
    )
    head = "\n".join(lines[:end])
    start = match.end() - 1
    stop = closing(head, start)
    if stop < 0:
        raise ValueError("the list of its arguments is not closed")
    arguments = split(head[start + 1 : stop])
    host = next(
        (
            line.strip()[2:]
            for line in lines[end:]
            if line.lstrip().startswith(": (<") or line.lstrip().startswith(": () ->")
        ),
        "",
    )
    taken, made = _sides(host)
    types = [parse_type(part) for part in split(taken[1:-1])]
    primitive = _attribute_lists(head[stop + 1 :])
    phase = primitive["cnode_attrs"].get("phase")
    return GraphNode(
        op_name=name,
        op_type=match[2].removeprefix(_PRIMITIVE_PREFIX),
        phase=_phase(phase, name),
        inputs=tuple(
            _input(argument, types[index] if index < len(types) else (), names, parameters)
            for index, argument in enumerate(arguments)
        ),
        outputs=tuple(leaf for part in split(made[1:-1]) for leaf in parse_type(part)),
        attributes=primitive["primitive_attrs"],
        stack=parse_frames(reversed(lines[end:])),
        runs_kernel=any(map(_DEVICE_TYPES.match, lines[end:]))
        or sum(line.strip() == _NOTHING for line in lines[end:]) == 2,
    )


def _sides(text: str) -> tuple[str, str]:
    """The two sides of `(types) -> (types)`; `Return` and the like have only one."""
    stop = closing(text, 0) if text else -1
    if text and stop < 0:
        raise ValueError(f"the types {text[:80]!r} are not closed")
    rest = text[stop + 1 :].strip()
    made = rest.removeprefix("->").strip()
    if rest and (not made.startswith("(") or not made.endswith(")")):
        raise ValueError(f"expected '-> (types)', found {rest[:80]!r}")
    return text[: stop + 1], made


def _attribute_lists(text: str) -> dict[str, dict[str, Any]]:
    lists: dict[str, dict[str, Any]] = {"primitive_attrs": {}, "cnode_attrs": {}}
    for name, attributes in lists.items():
        position = text.find(f"{name}: {{")
        if position >= 0:
            start = text.index("{", position)
            stop = closing(text, start)
            if stop < 0:
                raise ValueError(f"{name} do not end")
            attributes.update(parse_attributes(text[start : stop + 1]))
    return lists


def _phase(written: Any, name: str) -> Phase:
    if written in get_args(Phase):
        return cast("Phase", written)
    return "backward" if name.startswith("Gradients/") else "forward"


def _input(
    argument: str, types: tuple[GraphOutput, ...], names: Mapping[str, str], parameters: Mapping[str, GraphValue]
) -> GraphInput:
    leaf = types[0] if len(types) == 1 else GraphOutput("tuple" if types else "", ())
    source = ""
    if match := _REFERENCE.match(argument):
        source = f"{names[match[1]]}:{match[2] or 0}" if match[1] in names else ""
    elif match := _PARAMETER_REFERENCE.match(argument):
        if match[1] in parameters:
            source = PARAMETER_PREFIX + parameters[match[1]].name
    elif argument.startswith(CONSTANT_PREFIX):
        source = argument
    elif argument.startswith('@"'):
        source = json.loads(argument[1:])
    return GraphInput(source, leaf.dtype, leaf.shape)


# Parses and prints pieces of `.ir` text: brackets, attribute values, types.
#
# {kernel_size: (5, 5), mode: I64(1), pad_mode: "valid"}      attributes
# (<Tensor[Float32], (2, 3)>, <Int64, NoShape>)               types on the host

_OPEN: Final = "([{<"
_CLOSE: Final = ")]}>"
_MARK: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[()\[\]{}<>,:]', re.DOTALL)
"""A quoted text, a bracket or a separator."""
_TYPED: Final = re.compile(r"(Bool|[IU](?:8|16|32|64)|B?F(?:16|32|64))\((.*)\)$", re.DOTALL)
_INTEGER: Final = re.compile(r"-?\d{1,400}$")
_NUMBER: Final = re.compile(r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|inf|nan)$")
_ELEMENT: Final = re.compile(r"(?:Ref\[)?Tensor\[(\w+)\]")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_]\w*$", re.ASCII)
_DEEPEST: Final = 50


def split(text: str, separator: str = ",") -> list[str]:
    """Parts between separators outside of brackets and double quotes, stripped; none for blank text."""
    parts, start, depth = [], 0, 0
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            depth -= 1
        elif mark == separator and depth <= 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, or -1 if there is none; quoted brackets do not count."""
    depth = 0
    for match in _MARK.finditer(text, start):
        if match[0] in _OPEN:
            depth += 1
        elif match[0] in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.start()
    return -1


def format_value(value: Any, *, typed: bool = False) -> str:
    """A JSON value in the syntax of an attribute list: `true`, `4`, `0.1`, `"same"`, `(1, 2)`, `{a: 1}`.

    `typed` marks numbers and booleans like MindSpore 2.10: `Bool(1)`, `I64(4)`, `F64(0.1)`.
    """
    if value is None:
        return "None"
    if isinstance(value, bool):
        return f"Bool({int(value)})" if typed else str(value).lower()
    if isinstance(value, int):
        return f"I64({value})" if typed else str(value)
    if isinstance(value, float):
        return f"F64({value!r})" if typed else repr(value)
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(format_value, value))})"
    if isinstance(value, Mapping):
        return format_attributes(value, typed=False)
    return json.dumps(value if isinstance(value, str) else str(value))


def format_attributes(attributes: Mapping[Any, Any], *, typed: bool) -> str:
    """`{kernel_size: (5, 5), mode: 1}`; a name with unusual characters is quoted."""
    return (
        f"{{{', '.join(f'{_key(str(key))}: {format_value(value, typed=typed)}' for key, value in attributes.items())}}}"
    )


def _key(name: str) -> str:
    return name if _PLAIN_KEY.match(name) else json.dumps(name)


_WORDS: Final = {"true": True, "false": False, "None": None}


def parse_value(text: str, depth: int = 0) -> Any:
    """The JSON value of an attribute in the syntax of any generation; other text stays text (`NC1HWC0`)."""
    text = text.strip()
    typed = _TYPED.match(text)
    if typed is not None and not typed[2].strip().startswith("("):
        inner = typed[2].strip()
        if typed[1] == "Bool":
            return inner in ("1", "true")
        value = _number(inner)
        return text if value is None else float(value) if "F" in typed[1] else value
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] == '"':
        try:
            return json.loads(text, strict=False)
        except ValueError:
            return text.strip('"')
    if text[:1] in ("(", "[", "{") and closing(text, 0) == len(text) - 1 and depth < _DEEPEST:
        if text[0] == "{":
            return parse_attributes(text, depth + 1)
        return [parse_value(part, depth + 1) for part in split(text[1:-1])]
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else None


def parse_attributes(text: str, depth: int = 0) -> dict[str, Any]:
    """The attributes of `{name: value, ...}`; parts without a colon are left out."""
    attributes: dict[str, Any] = {}
    for part in split(text.strip()[1:-1]):
        name, *values = split(part, ":")
        if values:
            key = parse_value(name) if name.startswith('"') else name
            attributes[str(key)] = parse_value(part[part.index(":", len(name)) + 1 :], depth)
    return attributes


def format_shape(shape: tuple[int, ...]) -> str:
    """`(2, 3)`, `(2)`, `()`: without Python's comma after a single number."""
    return f"({', '.join(map(str, shape))})"


def format_type(dtype: str, shape: tuple[int, ...]) -> str:
    """`<Tensor[Float32], (2, 3)>`."""
    return f"<Tensor[{ir_name(dtype)}], {format_shape(shape)}>"


def format_outputs(outputs: tuple[GraphOutput, ...]) -> str:
    """The type of an operator's result: a tensor, a tuple of tensors, or nothing."""
    if len(outputs) < 2:
        return "".join(format_type(*output) for output in outputs)
    elements = ",".join(f"Tensor[{ir_name(output.dtype)}]" for output in outputs)
    return f"<Tuple[{elements}], TupleShape({', '.join(format_shape(output.shape) for output in outputs)})>"


def parse_type(text: str) -> tuple[GraphOutput, ...]:
    """Tensors of one `<...>` type: one for a tensor or scalar, and all flattened elements of a tuple.

    Raises ValueError if the text is not such a type. Shapes without dimensions (`NoShape`) are empty.
    """
    if not (text.startswith("<") and text.endswith(">")):
        raise ValueError(f"expected <type, shape>, found {text[:80]!r}")
    kind, *rest = split(text[1:-1])
    shape = rest[0] if rest else "NoShape"
    if not kind.startswith("Tuple[") and not kind.startswith("List["):
        element = _ELEMENT.match(kind)
        return (GraphOutput(from_ir_name(element[1] if element else kind), _shape(shape)),)
    elements = _elements(kind)
    shapes = _leaf_shapes(shape)
    return tuple(
        GraphOutput(dtype, shapes[index] if len(shapes) == len(elements) else ())
        for index, dtype in enumerate(elements)
    )


def _elements(kind: str, depth: int = 0) -> list[str]:
    """Element types of `Tuple[Tensor[Float32]*2,Int64]`, flat."""
    if depth > _DEEPEST:
        raise ValueError("types nested too deeply")
    end = closing(kind, kind.index("["))
    repeat = int(kind[end + 2 :]) if kind[end + 1 : end + 2] == "*" and kind[end + 2 :].isdigit() else 1
    if repeat > 1_000_000:
        raise ValueError(f"a tuple of {repeat} elements")
    if not kind.startswith(("Tuple[", "List[")):
        element = _ELEMENT.match(kind)
        return [from_ir_name(element[1] if element else kind)] * repeat
    inner: list[str] = []
    for part in split(kind[kind.index("[") + 1 : end]):
        if "[" in part:
            inner += _elements(part, depth + 1)
        else:
            name, _, count = part.partition("*")
            inner += [from_ir_name(name)] * (min(int(count), 1_000_000) if count.isdigit() else 1)
    return inner * repeat


def _leaf_shapes(text: str, depth: int = 0) -> list[tuple[int, ...]]:
    start = text.find("(")
    if start < 0 or depth > _DEEPEST:
        return [()]
    if not text.startswith("TupleShape") and not text.startswith("ListShape"):
        return [_shape(text)]
    end = closing(text, start)
    return [leaf for part in split(text[start + 1 : end]) for leaf in _leaf_shapes(part, depth + 1)]


def _shape(text: str) -> tuple[int, ...]:
    sizes = split(text.strip()[1:-1]) if text.startswith("(") else []
    return tuple(int(size) for size in sizes if _INTEGER.match(size))
