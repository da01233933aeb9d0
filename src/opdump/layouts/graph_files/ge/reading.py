"""Reads graph files of opdump and of devices, in text and in JSON."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from opdump.dtypes.data_types import BY_NAME, DATA_TYPES
from opdump.errors import CorruptDumpError
from opdump.layouts.graph_files.ge.encoding import NO_TASK, ORIGIN_NAME, ORIGIN_SLOT, ORIGINAL_NAMES, UNKNOWN_RANK
from opdump.layouts.graph_files.ge.graph import GeGraph, GeOperator, GeOrigin, GeTensor
from opdump.layouts.graph_files.ge.text_tree import Known, parse_text_tree

# ge_proto_00292_Build.txt; newer ge_proto_00000292_graph_11_Build.txt, with words before "graph" for single operators.
_NAME: Final = re.compile(r"ge_proto_[0-9]{1,19}_(?:[A-Za-z0-9_-]{1,200}_)?Build\.txt(?:\.json)?", re.ASCII)
_LARGEST: Final = 1 << 30
_HEAD: Final = 4096
_FIRST_NAME: Final = re.compile(rb'\s*graph\s*{\s*name:\s*"(?P<name>[^"\\\n]*)"\s')
_VALUES: Final[Known] = {name: {} for name in ("s", "i", "f", "b")}
_ATTRIBUTES: Final[Known] = {"key": {}, "value": {**_VALUES, "list": _VALUES}}
_TENSOR: Final[Known] = {"dtype": {}, "shape": {"dim": {}}, "layout": {}, "attr": _ATTRIBUTES}
_NAMES: Final[Known] = {"graph": {"name": {}, "op": {"name": {}, "type": {}}, "attr": _ATTRIBUTES}}
_OPERATOR: Final[Known] = {
    **{name: {} for name in ("name", "type", "input", "input_name", "is_input_const", "subgraph_name")},
    "attr": _ATTRIBUTES,
    "input_desc": _TENSOR,
    "output_desc": _TENSOR,
}
_ALL: Final[Known] = {"graph": {"name": {}, "input": {}, "output": {}, "op": _OPERATOR, "attr": _ATTRIBUTES}}
# Redundant with attributes; only the graph engine's own numbering needs them.
_TAKEN: Final = (ORIGINAL_NAMES, NO_TASK)


def is_graph_name(name: str) -> bool:
    """Whether a file of that name is a graph file of a whole model, in text or JSON."""
    return _NAME.fullmatch(name) is not None


def read_ge_graph(path: Path, *, names_only: bool = False) -> tuple[GeGraph, ...]:
    """The graphs of a model, the root first. A name that ends in `.json` is JSON, any other the text format.

    Unknown fields are ignored. `names_only` reads only names, types, and attributes of graphs, in a fraction of the time. Raises
    CorruptDumpError for a file that cannot be read: not a file of at most 1 GiB, damaged, cut off, without a graph.
    """
    text = _read(path)
    where = str(path)
    if path.suffix == ".json":
        tree = _json_tree(text, where)
    else:
        tree = parse_text_tree(text, _NAMES if names_only else _ALL, where)
    decoder = _Decoder(where, names_only=names_only)
    graphs = tuple(decoder.graph(graph, number) for number, graph in enumerate(_messages(tree, "graph", where)))
    if not graphs:
        raise CorruptDumpError(f"{where}: holds no graph; a file such as ge_proto_00001_Build.txt was expected")
    return graphs


def _read(path: Path) -> str:
    try:
        status = path.stat()  # before it is opened: opening a pipe may block for ever
        if not stat.S_ISREG(status.st_mode):
            raise CorruptDumpError(f"{path}: is not a regular file; expected a graph file")
        if status.st_size > _LARGEST:
            raise CorruptDumpError(
                f"{path}: holds {status.st_size} bytes, and a graph file has {_LARGEST} at most: write it without weights "
                "(DUMP_GE_GRAPH=2)"
            )
        with path.open("rb") as stream:
            return stream.read(status.st_size + 1).decode("utf-8", "replace")
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be read ({error.strerror}); expected a graph file") from error


def _json_tree(text: str, where: str) -> Any:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"{where}: is not JSON ({str(error)[:200]}); it is damaged or cut off") from error
    if not isinstance(tree, dict):
        raise CorruptDumpError(f"{where}: is {type(tree).__name__} in JSON; an object with a list 'graph' was expected")
    return tree


def root_name(path: Path) -> str | None:
    """The name of the first graph if a text file begins with it, as files of a graph engine do; otherwise None.

    A large file of another program is recognised at once.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as stream:
            found = _FIRST_NAME.match(stream.read(_HEAD))
    except OSError:
        return None  # reading it reports the problem
    return found["name"].decode("utf-8", "replace") if found is not None else None


class _Decoder:
    """Builds graphs from trees. `_at` is the position, for errors."""

    def __init__(self, where: str, *, names_only: bool) -> None:
        self._where = where
        self._names_only = names_only

    def graph(self, tree: Any, number: int) -> GeGraph:
        at = f"{self._where}: graph {number}"
        operators = (self._operator(op, f"{at}, op {place}") for place, op in enumerate(_messages(tree, "op", at)))
        return GeGraph(
            name=_text(tree, "name", at),
            inputs=tuple(_texts(tree, "input", at)),
            outputs=tuple(_texts(tree, "output", at)),
            operators=tuple(operators),
            attributes=_attributes(tree, at),
        )

    def _operator(self, tree: Any, at: str) -> GeOperator:
        name, op_type = _text(tree, "name", at), _text(tree, "type", at)
        if self._names_only:
            return GeOperator(name=name, op_type=op_type)
        attributes = _attributes(tree, at)
        original = attributes.get(ORIGINAL_NAMES)
        outputs = _messages(tree, "output_desc", at)
        origins = tuple(_origin(each, at) for each in outputs)
        return GeOperator(
            name=name,
            op_type=op_type,
            inputs=tuple(_texts(tree, "input", at)),
            input_tensors=tuple(_tensor(each, at) for each in _messages(tree, "input_desc", at)),
            input_names=tuple(_texts(tree, "input_name", at)),
            constant_inputs=tuple(_flag(value, at) for value in _values(tree, "is_input_const", at)),
            outputs=tuple(_tensor(each, at) for each in outputs),
            origins=origins if any(origin is not None for origin in origins) else (),
            original_names=tuple(map(str, original)) if isinstance(original, list) else (),
            attributes={key: value for key, value in attributes.items() if key not in _TAKEN},
            subgraphs=tuple(_texts(tree, "subgraph_name", at)),
            runs=attributes.get(NO_TASK) is not True,
        )


def _tensor(tree: Any, at: str) -> GeTensor:
    shapes = _messages(tree, "shape", at)
    dims = tuple(_whole(dim, at) for shape in shapes[-1:] for dim in _values(shape, "dim", at))
    layout = _text(tree, "layout", at)
    return GeTensor(_dtype(tree, at), None if dims == (UNKNOWN_RANK,) else dims, layout or "ND")


def _dtype(tree: Any, at: str) -> str:
    found: Any = (_values(tree, "dtype", at) or [0])[-1]
    known_as_text = isinstance(found, str)
    kind = BY_NAME.get(found.removeprefix("DT_")) if known_as_text else DATA_TYPES.get(_whole(found, at))
    return "" if kind is None or kind.number == 0 else kind.dtype


def _origin(tree: Any, at: str) -> GeOrigin | None:
    attributes = _attributes(tree, at)
    name, slot = attributes.get(ORIGIN_NAME), attributes.get(ORIGIN_SLOT, 0)
    return GeOrigin(name, slot) if isinstance(name, str) and isinstance(slot, int) else None


def _attributes(tree: Any, at: str) -> dict[str, Any]:
    """The attributes of known kinds: texts, numbers, flags, and lists of them."""
    found = {}
    for entry in _messages(tree, "attr", at):
        for value in _messages(entry, "value", at)[-1:]:
            known, decoded = _attribute(value, at)
            if known:
                found[_text(entry, "key", at)] = decoded
    return found


def _attribute(tree: Any, at: str) -> tuple[bool, Any]:
    for name, decode in _SCALARS.items():
        values = _values(tree, name, at)
        if values:
            return True, decode(values[-1], at)
    for each in _messages(tree, "list", at)[-1:]:
        for name, decode in _SCALARS.items():
            values = _values(each, name, at)
            if values:
                return True, [decode(value, at) for value in values]
        return True, []
    return False, None


def _messages(tree: Any, name: str, at: str) -> list[Any]:
    values = _values(tree, name, at)
    for value in values:
        if not isinstance(value, dict):
            raise _wrong(at, name, value, "a message")
    return values


def _values(tree: Any, name: str, at: str) -> list[Any]:
    """The values of a field: in a text tree always a list, in JSON a list if the field is repeated."""
    if not isinstance(tree, dict):
        raise _wrong(at, name, tree, "a message")
    found = tree.get(name)
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


def _texts(tree: Any, name: str, at: str) -> Iterable[str]:
    return (_as_text(value, at, name) for value in _values(tree, name, at))


def _text(tree: Any, name: str, at: str) -> str:
    values = _values(tree, name, at)
    return _as_text(values[-1], at, name) if values else ""


def _as_text(value: Any, at: str, name: str = "s") -> str:
    if not isinstance(value, str):
        raise _wrong(at, name, value, "a text")
    return value


def _whole(value: Any, at: str) -> int:
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) <= 20:
        return int(value)  # protobuf's own JSON writes 64-bit numbers as text
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(at, "a number", value, "a whole number")
    return value


def _fraction(value: Any, at: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise _wrong(at, "f", value, "a number")
        return float(value)
    except (ValueError, OverflowError):
        raise _wrong(at, "f", value, "a number") from None


def _flag(value: Any, at: str) -> bool:
    if value in (True, "true", "True", "t"):
        return True
    if value in (False, "false", "False", "f"):
        return False
    raise _wrong(at, "b", value, "true or false")


_SCALARS: Final[Mapping[str, Callable[[Any, str], Any]]] = {"s": _as_text, "i": _whole, "f": _fraction, "b": _flag}


def _wrong(at: str, name: str, value: Any, expected: str) -> CorruptDumpError:
    shown = "a message" if isinstance(value, dict) else repr(value)[:60]
    if isinstance(value, float) and not math.isfinite(value):
        shown = str(value)
    return CorruptDumpError(f"{at}: {name}: found {shown}, expected {expected}; it is damaged or not a graph file")
