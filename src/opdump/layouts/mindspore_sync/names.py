r"""Parses and builds file names of the synchronous layout, of both generations.

    mindspore-2.3   Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.npy
    mindspore-2.10  MatMul.Default_fc-Dense_MatMul-op0.0.0.1795247154245448.input.1.DefaultFormat.Float32.npy

Sources: MindSpore's guide to dumps for the first, runs of MindSpore 2.7 and 2.10 for the second. The first names an operator by
the last component of its full name, the second by the whole name, with `/`, `\`, `.` and space replaced by `_`, and appends the
element type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from opdump.records import IO, escaped

Naming = Literal["mindspore-2.3", "mindspore-2.10"]

LONGEST_NAME = 255
"""Maximum bytes of a file name on Linux file systems; longer names go to mapping.csv."""

PARAMETER = "Parameter"
"""op_type of graph inputs, weights and constants."""

_REPLACED = str.maketrans(
    {
        **dict.fromkeys("/\\. ", "_"),  # as in MindSpore
        **dict.fromkeys(map(chr, range(32)), "_"),  # would break csv files, terminals or the file system
        **dict.fromkeys('",\x7f', "_"),
    }
)
_GRAMMAR = re.compile(
    r"(?P<op_type>[^./]+)\.(?P<op_name>[^/]+)\.(?P<task>[0-9]{1,19})\.(?P<stream>[0-9]{1,19})\.(?P<time>[0-9]{1,19})"
    r"\.(?P<io>input|output)\.(?P<slot>[0-9]{1,9})\.(?P<format>[^./]+)(?:\.(?P<dtype>[^./]+))?\.npy",
    re.ASCII,
)
_SPELLINGS = {"bfloat16": "BFloat16", **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)}}


@dataclass(frozen=True, slots=True)
class FileName:
    """The parsed name of a tensor's file. `op_name` is as in the file; `dtype` is the token, empty before 2.7."""

    op_type: str
    op_name: str
    task_id: int
    stream_id: int
    timestamp: int
    io: IO
    slot: int
    format: str
    dtype: str = ""

    def __str__(self) -> str:
        """The file name. Parsing it returns an equal object if the parts contain no character that `sanitise` replaces."""
        dtype = f".{self.dtype}" if self.dtype else ""
        return (
            f"{self.op_type}.{self.op_name}.{self.task_id}.{self.stream_id}.{self.timestamp}.{self.io}.{self.slot}."
            f"{self.format}{dtype}.npy"
        )


def parse_file_name(name: str) -> FileName | None:
    """The parts of a tensor's file name in either generation; None for another name."""
    match = _GRAMMAR.fullmatch(name)
    if match is None:
        return None
    return FileName(
        op_type=match["op_type"],
        op_name=match["op_name"],
        task_id=int(match["task"]),
        stream_id=int(match["stream"]),
        timestamp=int(match["time"]),
        io=cast(IO, match["io"]),
        slot=int(match["slot"]),
        format=match["format"],
        dtype=match["dtype"] or "",
    )


def sanitise(name: str) -> str:
    r"""`name` with `/`, `\`, `.` and space as `_` (MindSpore's rule), and so control characters, comma and quote (ours)."""
    return escaped(name).translate(_REPLACED) or "_"


def op_name_in_files(op_type: str, op_name: str, naming: Naming) -> str:
    """The name in files of an operator whose true name is `op_name`.

    A parameter's name is not a scope: it keeps all its components in either generation (`fc1.weight` -> `fc1_weight`).
    """
    if naming == "mindspore-2.3" and op_type != PARAMETER:
        op_name = op_name.rpartition("/")[2]
    return sanitise(op_name)


def dtype_token(dtype: str) -> str:
    """`float32` -> `Float32`, `bfloat16` -> `BFloat16`, `float8_e4m3fn` -> `Float8E4M3FN`."""
    spelling = _SPELLINGS.get(dtype)
    if spelling is not None:
        return spelling
    head, _, tail = dtype.partition("_")
    return sanitise(head.capitalize() + tail.upper().replace("_", ""))


def dtype_of_token(token: str) -> str:
    """`Float32` or `float32` -> `float32`: MindSpore capitalises on CPU but not on Ascend."""
    lower = token.lower()
    if lower.startswith("float8") and len(lower) > 6 and not lower.startswith("float8_"):
        return "float8_" + lower[6:]
    return lower
