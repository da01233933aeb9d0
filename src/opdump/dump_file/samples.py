"""Marks tensors of a dump file as samples, the first elements of larger tensors, by attributes of the file.

    opdump.sample.output.0 = "4,250"        output 0 has some of the elements of a tensor of this shape

Devices do not write these attributes, and their readers ignore them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opdump.dump_file.dump_file import DumpFile
    from opdump.records import IO

_PREFIX: Final = "opdump.sample."
_MOST_DIGITS: Final = 19


def sample_attribute(io: IO, slot: int, shape: Iterable[int]) -> tuple[str, str]:
    """The attribute of a sample; `shape` is that of the whole tensor."""
    return f"{_PREFIX}{io}.{slot}", ",".join(map(str, shape))


def samples_of(file: DumpFile) -> dict[str, tuple[int, ...]]:
    """The shape of the whole tensor, by the name of each sample (`output:0`). Invalid attributes are ignored."""
    stated = {name: value for name, value in file.attributes if name.startswith(_PREFIX)}
    found: dict[str, tuple[int, ...]] = {}
    for tensor in file.tensors if stated else ():
        parts = stated.get(f"{_PREFIX}{tensor.io}.{tensor.slot}", "").split(",")
        if len(parts) > 64 or not all(part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS for part in parts):
            continue
        whole = tuple(map(int, parts))
        if len(tensor.shape) == 1 and tensor.shape[0] < math.prod(whole):
            found[tensor.name] = whole
    return found
