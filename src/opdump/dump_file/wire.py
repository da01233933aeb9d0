"""Finds the fields of a protobuf message without building the message.

A header is measured before protobuf turns it into objects: an empty entry takes two bytes on disk and a hundred in memory. Files
of version 1.0 have the bytes of their tensors inside the message; they are located here and stay in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LARGEST_NUMBER: Final = (1 << 29) - 1


class WireError(Exception):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """`tag` is the start of the field, `start` and `end` delimit its value."""

    number: int
    has_length: bool
    tag: int
    start: int
    end: int


def fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields between two positions, in the order of the file. Raises WireError for invalid bytes."""
    position = start
    while position < end:
        tag = position
        key, position = _varint(data, position, end)
        kind = key & 7
        value = position
        if kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind == _LENGTH:
            size, value = _varint(data, position, end)
            position = value + size
        elif kind == _EIGHT_BYTES:
            position += 8
        elif kind == _FOUR_BYTES:
            position += 4
        else:
            raise WireError(f"a field of kind {kind} at byte {tag}")
        if position > end or not 0 < key >> 3 <= _LARGEST_NUMBER:
            raise WireError(f"an invalid field at byte {tag}")
        yield Field(key >> 3, kind == _LENGTH, tag, value, position)


def varint(value: int) -> bytes:
    """A number in protobuf's encoding."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise WireError(f"a number that does not end at byte {position}")
