"""Writes and reads the two execution-order files of a graph.

`ms_execution_order_graph_{g}.csv` names the kernels in the order in which they run:

    NodeExecutionOrder-FullNameWithScope
    Default/network-LeNet/conv1-Conv2d/convolution-op0

`ms_global_execution_order_graph_{g}.csv` has no header and one line for each executed step that was dumped. Names are written
unchanged, without quotes: one line is one name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opdump.errors import CorruptDumpError
from opdump.graph import Graph
from opdump.layouts.graph_files.mindspore.source_lines import one_line, utf8_text

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
