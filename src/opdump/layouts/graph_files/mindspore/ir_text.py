"""Parses and prints pieces of `.ir` text: brackets, attribute values, types.

{kernel_size: (5, 5), mode: I64(1), pad_mode: "valid"}      attributes
(<Tensor[Float32], (2, 3)>, <Int64, NoShape>)               types on the host
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from opdump.graph import GraphOutput
from opdump.layouts.graph_files.mindspore.dtypes import from_ir_name, ir_name

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
    if text in ("true", "false"):
        return text == "true"
    if text == "None":
        return None
    if text[:1] == '"':
        try:
            return json.loads(text, strict=False)
        except ValueError:
            return text.strip('"')
    if text[:1] in ("(", "[", "{") and len(text) > 1 and closing(text, 0) == len(text) - 1 and depth < _DEEPEST:
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
