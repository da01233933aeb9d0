"""How graph files spell element types and lines of the user's program, and the files of execution orders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from opdump.call_stacks import Frame, left_out, shortened
from opdump.errors import CorruptDumpError
from opdump.graph import Graph
from opdump.records import escaped

# Element types in the spelling of the graph files: `Float32` in `.ir`, 11 in `.pb`, `float32` here.
#
# Numbers: `debugger.DataType` of the debugger's `debug_graph.proto` (bfloat16 and int4 as MindSpore 2.10 writes them). That list
# has no complex and no 8-bit float type; such types get number 0 and keep their name in another field.

_TABLE: Final = (
    ("bool", "Bool", 1),
    ("int8", "Int8", 2),
    ("int16", "Int16", 3),
    ("int32", "Int32", 4),
    ("int64", "Int64", 5),
    ("uint8", "UInt8", 6),
    ("uint16", "UInt16", 7),
    ("uint32", "UInt32", 8),
    ("uint64", "UInt64", 9),
    ("float16", "Float16", 10),
    ("float32", "Float32", 11),
    ("float64", "Float64", 12),
    ("string", "String", 13),
    ("bfloat16", "BFloat16", 46),
    ("int4", "Int4", 48),
    ("complex64", "Complex64", 0),
    ("complex128", "Complex128", 0),
)
_IR_NAMES: Final = {dtype: name for dtype, name, _ in _TABLE}
_PB_NUMBERS: Final = {dtype: number for dtype, _, number in _TABLE if number}
_PB_DTYPES: Final = {number: dtype for dtype, _, number in _TABLE if number} | {
    31: "tuple",
    32: "list",
    36: "int32",
    37: "uint32",
    38: "float32",
    43: "umonad",
    44: "iomonad",
}
_UNDEFINED: Final = "Undefined"


def ir_name(dtype: str) -> str:
    """`float32` -> `Float32`; other types are unchanged, and an unknown one (empty) becomes `Undefined`."""
    return _IR_NAMES.get(dtype, dtype) or _UNDEFINED


def from_ir_name(name: str) -> str:
    """`Float32` -> `float32`; `Undefined` and `Unknown` -> empty."""
    return "" if name in (_UNDEFINED, "Unknown") else name.lower()


def pb_number(dtype: str) -> int:
    """Number of the type in `debugger.DataType`; 0 if it is not in the list."""
    return _PB_NUMBERS.get(dtype, 0)


def from_pb_number(number: int) -> str:
    """The type of that number; empty if it is 0 or unknown."""
    return _PB_DTYPES.get(number, "")


# Prints and parses lines of the user's program in graph files.
#
#     # In file train.py(175)/        x = self.conv3(x)/              .ir of MindSpore 2.3
#     # In file train.py:175/        x = self.conv3(x)/               .pb, and .ir of MindSpore 2.10 without columns
#     # In file train.py:175, 12~25/        x = self.conv3(x)/        .ir and .pb of MindSpore 2.10
#     # In file train.py:21~25, 4~47/    def construct(self, x):/     a range of lines
#     #  - In file train.py:175/        x = self.conv3(x)/            one of several candidates
#
# The `.pb` is written in the one form of these that the DumpParser of MindSpore Insight splits into file, line and code; it
# needs at least one character of code.
#
# Of a stack of more than 36 lines the file of a graph has the innermost 8 and the outermost 4, and between them a line as
# "# ... 888 lines of the stack are left out": with all of them a graph of a recursion would be as large as the square of its depth.

SourceForm = Literal["parenthesis", "colon"]

_INDENT: Final = "      "
_SOURCE_LINE: Final = re.compile(
    r"\s*#\s*(?:-\s*)?In file (?P<file>.+?)"
    r"(?:\((?P<line_in_parentheses>\d+)(?:~\d+)?\)|:(?P<line>\d+)(?:~\d+)?(?:, \d+~\d+)?)"
    r"/(?P<code>.*?)/?\s*(?:<~~.*)?$"
)
_LEFT_OUT: Final = re.compile(r"\s*#\s*(?P<told>\.\.\. \d+ lines of the stack are left out)\s*$")
_LINE_BREAKS: Final = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def utf8_text(data: bytes, where: str) -> str:
    """The text of a file. Raises CorruptDumpError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDumpError(
            f"{where}: expected UTF-8 text, found byte {data[error.start]:#04x} at {error.start}"
        ) from error


def one_line(text: str) -> str:
    """The text as valid UTF-8 without line breaks."""
    return _LINE_BREAKS.sub(" ", escaped(text))


def format_frame(frame: Frame, form: SourceForm) -> str:
    """One line for one frame, in upstream's indentation; the function's name is not included.

    A frame without a file states how many lines are left out, as `parse_frames` read it.
    """
    if not frame.file:
        return f"{_INDENT}# {one_line(frame.code)}"
    place = f"({frame.line})" if form == "parenthesis" else f":{frame.line}"
    return f"{_INDENT}# In file {one_line(frame.file)}{place}/        {one_line(frame.code).strip()}/"


def format_stack(stack: Sequence[Frame], format_one: Callable[[Frame], str]) -> Iterator[str]:
    """One line for each frame to print, innermost first; if frames are left out, a line states how many."""
    told = shortened(stack)
    yield from map(format_one, told.inner)
    if told.left_out:
        yield f"{_INDENT}# {left_out(told.left_out)}"
    yield from map(format_one, told.outer)


def parse_frame(line: str) -> Frame | None:
    """The frame of a `# In file` line in any of the forms; a frame without a file for a line that states how many are left out;
    otherwise None.
    """
    missing = _LEFT_OUT.match(line)
    if missing is not None:
        return Frame("", 0, "", missing["told"])
    match = _SOURCE_LINE.match(line)
    if match is None:
        return None
    number = match["line_in_parentheses"] or match["line"]
    return Frame(match["file"], int(number), "", match["code"].strip())


def parse_frames(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Every frame among the lines, in order."""
    return tuple(frame for frame in map(parse_frame, lines) if frame is not None)


# Writes and reads the two execution-order files of a graph.
#
# `ms_execution_order_graph_{g}.csv` names the kernels in the order in which they run:
#
#     NodeExecutionOrder-FullNameWithScope
#     Default/network-LeNet/conv1-Conv2d/convolution-op0
#
# `ms_global_execution_order_graph_{g}.csv` has no header and one line for each executed step that was dumped. Names are written
# unchanged, without quotes: one line is one name.

EXECUTION_ORDER_HEADER: Final = "NodeExecutionOrder-FullNameWithScope"


def encode_execution_order(graph: Graph) -> bytes:
    """The file for the kernels of the graph; only the header if it has none."""
    return "".join(
        f"{name}\n" for name in (EXECUTION_ORDER_HEADER, *(one_line(n.op_name) for n in graph.kernels))
    ).encode("utf-8", "backslashreplace")


def decode_execution_order(data: bytes, *, where: str = "execution order") -> tuple[str, ...]:
    """Full names in execution order. Raises CorruptDumpError if the header is missing or the text is not UTF-8."""
    lines = utf8_text(data, where).splitlines()
    if not lines or lines[0].strip() != EXECUTION_ORDER_HEADER:
        found = repr(lines[0][:80]) if lines else "an empty file"
        raise CorruptDumpError(f"{where}: expected the header '{EXECUTION_ORDER_HEADER}' on line 1, found {found}")
    return tuple(line for line in lines[1:] if line.strip())


def encode_execution_history(steps: Iterable[int]) -> bytes:
    """The file for the executed steps, in order."""
    return "".join(f"{step}\n" for step in steps).encode()


def decode_execution_history(data: bytes, *, where: str = "execution history") -> tuple[int, ...]:
    """Executed steps, repeated if a second run appended to the file. Raises CorruptDumpError if a line is not a number."""
    steps = []
    for number, line in enumerate(utf8_text(data, where).splitlines(), start=1):
        field = line.split(",", 1)[0].strip()
        if not field:
            continue
        if not (field.isascii() and field.isdigit()) or len(field) > 20:
            raise CorruptDumpError(f"{where}: expected a step number on line {number}, found {field[:80]!r}")
        steps.append(int(field))
    return tuple(steps)
