"""FFTS+ tasks in automatic mode: each thread has a slice of the tensors, and the file's attribute tells which.

The shapes in the header are then replaced by those of the slice of the thread that the file's name ends with:
`Relu.op.9.3.1700000000000000.4.<context>.<thread>.<device>`. Source: section 5 of the dump specification, and files that the
original converted.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from opdump.dump_file import DumpFile, DumpTensor

_NAME: Final = re.compile(r".*\.\d+\.\d+\.(?P<thread>\d+)\.\d+")
_AUTOMATIC: Final = 1


def slices_of(name: str, file: DumpFile) -> DumpFile:
    """The file with the shapes of its thread's slices; the file as it is where it has none."""
    match = _NAME.fullmatch(name) if name.count(".") >= 7 else None
    if match is None or not file.attributes:
        return file
    try:
        described = json.loads(file.attributes[0][1])
    except ValueError:
        return file
    if not isinstance(described, dict) or described.get("threadMode") != _AUTOMATIC:
        return file
    thread = int(match["thread"])
    return replace(
        file,
        inputs=_sliced(file.inputs, described.get("input_tensor_slice"), thread),
        outputs=_sliced(file.outputs, described.get("output_tensor_slice"), thread),
    )


def _sliced(tensors: tuple[DumpTensor, ...], slices: Any, thread: int) -> tuple[DumpTensor, ...]:
    try:
        parts = slices[thread]
        shapes = [tuple(int(bounds["higher"]) - int(bounds["lower"]) for bounds in part) for part in parts]
    except (TypeError, LookupError, ValueError):
        return tensors
    return tuple(
        replace(tensor, shape=shapes[slot]) if slot < len(shapes) and min(shapes[slot], default=0) >= 0 else tensor
        for slot, tensor in enumerate(tensors)
    )
