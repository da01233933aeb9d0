"""Files of tensors that are cut off or overwritten, found by their headers and sizes: no element is read.

Statistics of an index are as good as ever where the file that they describe is not, so nobody would hear of it before the elements are
asked for.
"""

from __future__ import annotations

from opdump.errors import OpdumpError
from opdump.records import SupportsInspection, TensorRecord


def damage_of(record: TensorRecord) -> str:
    """Why the elements of a tensor cannot be read, as far as its file's header and size tell; empty where they can, or are not there."""
    payload = record.payload
    try:
        if payload is not None and isinstance(payload, SupportsInspection):
            payload.inspect()
    except OpdumpError as error:
        return str(error)
    return ""
