"""Reads graph files of opdump and of devices, in text and in JSON."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from opdump.dtypes import BY_NAME, DATA_TYPES
from opdump.errors import CorruptDumpError, DumpPathError
from opdump.layouts.graph_files.ge.graph import (
    NO_TASK,
    ORIGIN_NAME,
    ORIGIN_SLOT,
    ORIGINAL_NAMES,
    UNKNOWN_RANK,
    GeGraph,
    GeOperator,
    GeOrigin,
    GeTensor,
    write_whole,
)
from opdump.sink import make_directory

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


# Parses protobuf's text format into a tree of fields, without a schema.
#
#     graph { name: "net" op { name: "x" type: "Data" } }
#
# is `{"graph": [{"name": ["net"], "op": [{"name": ["x"], "type": ["Data"]}]}]}`: a list for every field. Graph files of devices have
# unknown fields, and weights of many megabytes: only the requested fields are kept.
#
# Source: the description of the text format in protobuf's documentation.

_STRING: Final = r"""(?:"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')"""
_TOKEN: Final = re.compile(
    rf"""
      (?P<nothing>[ \t\r\n\f\v,;]+|\#[^\n]*)
    | (?P<name>-?[A-Za-z_][A-Za-z0-9_]*)                      # with the minus of -inf
    | (?P<number>[-+]?(?:0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?))
    | (?P<string>{_STRING})
    | (?P<extension>\[[A-Za-z_][A-Za-z0-9_./%-]*\](?=\s*[:{{<]))
    | (?P<mark>[:{{}}<>\[\]])
    """,
    re.VERBOSE,
)
# Nearly every line of a generated file: one match instead of three.
_LINE: Final = re.compile(
    r"""\s*([A-Za-z_][A-Za-z0-9_]*)(?:\ \{\n|:\ ("[^"\\\n]*"|-?[0-9]+|[A-Za-z_][A-Za-z0-9_]*)\n(?=\s*[A-Za-z_}]))""",
    re.VERBOSE,
)
_PASSED_OVER: Final = re.compile(rf"""[^{{}}<>"'\#]+|\#[^\n]*|{_STRING}|(?P<mark>[{{}}<>])""")
_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([\s\S]))")
_LETTERS: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ENDS: Final = {"{": "}", "<": ">"}
_DEEPEST: Final = 100

Tree = dict[str, list[Any]]
Known = Mapping[str, "Known"]
"""The fields of a message to keep, nested for messages in messages: `{"graph": {"name": {}}}`."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_text_tree(text: str, known: Known, where: str) -> Tree:
    """The `known` fields, each with its values in order.

    Messages are trees, strings and names of enumerations `str`, numbers `int` or `float`. Invalid UTF-8 is replaced. Raises
    CorruptDumpError, with `where` and the line, for text in another format, and for a truncated text.
    """
    return _Parser(text, where).message("", known, 0)


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._position = 0

    def message(self, end: str, known: Known, depth: int) -> Tree:
        """Read the fields up to and including `end`; up to the end of the text if it is empty."""
        if depth > _DEEPEST:
            self._fail(f"messages are nested more than {_DEEPEST} deep", self._peek())
        fields: Tree = {}
        while True:
            line = _LINE.match(self._text, self._position)
            if line is not None:
                self._position = line.end()
                name, text = line.groups()
                below = known.get(name)
                if below is None:
                    if text is None:
                        self._pass_over("}")
                else:
                    value = self.message("}", below, depth + 1) if text is None else _plain(text)
                    fields.setdefault(name, []).append(value)
                continue
            token = self._next()
            if token.text == end and token.kind in ("mark", "end"):
                return fields
            if token.kind not in ("name", "extension", "number"):  # a number if the writer did not know the name
                self._fail(
                    f"found {_shown(token)}, expected the name of a field" + (f" or {end!r}" if end else ""), token
                )
            self._field(token.text, known.get(token.text), fields, depth)

    def _field(self, name: str, known: Known | None, fields: Tree, depth: int) -> None:
        behind = self._peek()
        if behind.kind == "mark" and behind.text == ":":
            self._next()
        elif behind.text not in _ENDS:
            self._fail(f"found {_shown(behind)} after {name!r}, expected ':' or '{{'", behind)
        values: list[Any] = []
        if self._peek().text != "[":
            values.append(self._value(known, depth))
        else:
            self._next()
            while self._peek().text != "]":
                values.append(self._value(known, depth))
            self._next()
        if known is not None:
            fields.setdefault(name, []).extend(values)

    def _value(self, known: Known | None, depth: int) -> Any:
        token = self._next()
        if token.kind == "mark" and token.text in _ENDS:
            if known is not None:
                return self.message(_ENDS[token.text], known, depth + 1)
            self._pass_over(_ENDS[token.text])
            return None
        if token.kind == "string":
            parts = [token.text]
            while self._peek().kind == "string":  # adjacent strings are one
                parts.append(self._next().text)
            return _text_of(parts) if known is not None else None
        if token.kind == "number":
            return _number_of(token.text)
        if token.kind == "name":
            return token.text
        return self._fail(f"found {_shown(token)}, expected a value", token)

    def _pass_over(self, end: str) -> None:
        """Skip to the end of a message."""
        ends = [end]
        while ends:
            found = _PASSED_OVER.match(self._text, self._position)
            if found is None:
                self._fail(f"the message does not end with {ends[-1]!r}", self._peek())
            mark = found["mark"]
            if mark in _ENDS:
                ends.append(_ENDS[mark])
            elif mark is not None and mark != ends.pop():
                self._fail(f"found {mark!r} where another message ends", self._peek())
            self._position = found.end()

    def _peek(self) -> _Token:
        position = self._position
        token = self._next()
        self._position = position
        return token

    def _next(self) -> _Token:
        while self._position < len(self._text):
            position = self._position
            found = _TOKEN.match(self._text, position)
            if found is None:
                self._fail("found text that is not in this format", _Token("other", self._text[position], position))
            self._position = found.end()
            if found.lastgroup is not None and found.lastgroup != "nothing":
                return _Token(found.lastgroup, found.group(), position)
        return _Token("end", "", len(self._text))

    def _fail(self, problem: str, token: _Token) -> NoReturn:
        line = self._text.count("\n", 0, token.position) + 1
        raise CorruptDumpError(f"{self._where}: line {line}: {problem}; it is damaged or not a graph file in text")


def _plain(text: str) -> Any:
    """A string without escapes, an integer, a name."""
    if text[0] == '"':
        return text[1:-1]
    return _number_of(text) if text[0] in "-0123456789" else text


def _shown(token: _Token) -> str:
    if token.kind == "end":
        return "the end of the file"
    return repr(token.text if len(token.text) <= 40 else f"{token.text[:37]}...")


def _number_of(text: str) -> int | float:
    digits = text.lstrip("+-").lower()
    sign = -1 if text.startswith("-") else 1
    if digits.startswith("0x"):
        return sign * int(digits, 16)
    if digits.isdecimal() and len(digits) <= 30:
        return sign * int(digits, 8 if digits.startswith("0") and digits.strip("01234567") == "" else 10)
    return sign * float(digits.rstrip("f"))


def _text_of(parts: list[str]) -> str:
    if not any("\\" in part for part in parts):
        return "".join(part[1:-1] for part in parts)
    raw = b"".join(part[1:-1].encode("utf-8", "replace") for part in parts)
    return _ESCAPE.sub(_unescaped, raw).decode("utf-8", "replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = int(short or long, 16)
    return (chr(code) if code < 0x110000 else "\ufffd").encode("utf-8", "replace")


# Notes in `.dump_metadata/ge_graphs.json` which graph file belongs to which model of a dump, wherever the file is.
#
#     {"graphs": [{"file": "/home/me/ge_proto_00002_Build.txt", "model_name": "ge_default_20201120163719_2", "model_id": 2,
#                  "rule": "IteratorV2", "update": "ApplyAdam"}]}
#
# Graph files are in the directory of the training script, and a dump is usually elsewhere.

NOTES_NAME: Final = "ge_graphs.json"
_LARGEST_NOTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class GraphNote:
    """A graph file, its model, and the reason that it is the computational graph (empty if it is not).

    `update` is the type of an operator that updates a variable; empty if there is none.
    """

    file: str
    model_name: str
    model_id: int
    rule: str
    update: str = ""


def note_graph(
    metadata_dir: Path, file: Path, model_name: str, model_id: int, rule: str | None, update: str = ""
) -> None:
    """Add a graph file to the notes in `{time}/{device_id}/.dump_metadata`, which is created.

    Only one process, and one thread at a time, may call it for a directory. Raises DumpPathError if it cannot be written, and
    CorruptDumpError if the existing notes are damaged.
    """
    make_directory(metadata_dir)
    notes = [*read_notes(metadata_dir), GraphNote(str(file.absolute()), model_name, model_id, rule or "", update)]
    path = metadata_dir / NOTES_NAME
    try:
        write_whole(path, json.dumps({"graphs": [asdict(note) for note in notes]}, indent=1))
    except OSError as error:
        raise DumpPathError(
            f"{path}: cannot be written ({error.strerror}): free space, or dump into another directory"
        ) from error


def read_notes(metadata_dir: Path) -> tuple[GraphNote, ...]:
    """The notes of a directory; none if there are none.

    The path in a note always has the name of a graph file. Raises CorruptDumpError if the notes cannot be read.
    """
    path = metadata_dir / NOTES_NAME
    if not path.is_file():
        return ()
    try:
        if path.stat().st_size > _LARGEST_NOTES:
            raise CorruptDumpError(
                f"{path}: holds more than {_LARGEST_NOTES} bytes; notes on graph files were expected"
            )
        found = json.loads(path.read_bytes())["graphs"]
        notes = tuple(_note(entry) for entry in found)
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise CorruptDumpError(
            f"{path}: has no notes on graph files ({str(error)[:100]}); remove it, and name the file with --graph"
        ) from error
    for note in notes:
        if not is_graph_name(os.path.basename(note.file)):
            raise CorruptDumpError(f"{path}: {note.file[:100]!r} is not the name of a graph file; remove {path}")
    return notes


def _note(entry: Any) -> GraphNote:
    """A note from its JSON. Raises KeyError and TypeError."""
    texts = entry["file"], entry["model_name"], entry["rule"], entry.get("update", "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(entry["model_id"], int):
        raise TypeError("a note has texts and a number")
    return GraphNote(texts[0], texts[1], entry["model_id"], *texts[2:])
