"""Mutations that keep the format of a file: protobuf messages, dump files that contain one, nano files, npy headers,
SQLite pages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from opdump.dump_file.reading import varint
from tests.fuzz.bytes_mutations import BYTES, LONGEST, Mutation, number_at_a_bound, set_a_number
from tests.fuzz.text_mutations import TEXT

_NO_FIELD: Final = ValueError("no protobuf message")
_PAGE: Final = 4096


@dataclass(slots=True)
class _Field:
    number: int
    kind: int
    value: int | bytes | list[_Field]
    """A number; the bytes of a text or of a fixed-width number; the fields of a message."""


def change_a_field(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Change one field of a protobuf message, at any depth, and update the lengths around it."""
    try:
        tree = _parsed(data)
    except ValueError:
        return data
    places = _places(tree)
    if not places:
        return data
    fields, at = random.choice(places)
    field, kind = fields[at], random.randrange(7)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields[at:at] = [field] * min(random.choice((1, 1, 2, 50, 20_000)), LONGEST // (len(_encoded([field])) + 1))
    elif kind == 2:
        others, place = random.choice(places)
        fields.insert(at, _copied(others[place]))  # not the field itself, which may contain the target
    elif kind == 3:
        field.number = random.choice((1, 2, 3, field.number + 1, 536870911, random.randrange(1, 40)))
    elif isinstance(field.value, int):
        field.value = number_at_a_bound(random)
    else:
        content = field.value if isinstance(field.value, bytes) else _encoded(field.value)
        field.value = random.choice((*BYTES, *TEXT))(content, random, seeds)
    return _encoded(tree)


def change_a_length(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Replace a variable-length number in the bytes, without updating anything else."""
    if not data:
        return data
    begin = random.randrange(len(data))
    end = begin
    while end < len(data) and data[end] & 128:
        end += 1
    return data[:begin] + varint(number_at_a_bound(random)) + data[end + 1 :]


def _in_header(mutation: Mutation) -> Mutation:
    """Apply a mutation to the header of a dump file, and update its length."""

    def change(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
        length = int.from_bytes(data[:8], "little")
        if not 0 < length <= len(data) - 8:
            return data
        header = mutation(data[8 : 8 + length], random, seeds)
        return struct.pack("<Q", len(header)) + header + data[8 + length :]

    return change


def change_a_npy_header(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Mutate a header of version 1.0 or 2.0, and update its length."""
    wide = data[6:7] == b"\x02"
    start, form = (12, "<I") if wide else (10, "<H")
    if len(data) < start:
        return data
    (length,) = struct.unpack_from(form, data, 8)
    header = random.choice(TEXT)(data[start : start + length], random, seeds)
    header = header[: (1 << (32 if wide else 16)) - 1]
    return data[:8] + struct.pack(form, len(header)) + header + data[start + length :]


def change_a_page(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Change the header of a SQLite page, a cell pointer, or the start of a cell."""
    pages = len(data) // _PAGE
    if not pages:
        return data
    page = random.randrange(pages) * _PAGE
    start = page + (100 if page == 0 else 0)
    cells = int.from_bytes(data[start + 3 : start + 5], "big")
    place = start + random.randrange(12)
    if cells and random.randrange(3):
        place = start + 8 + 2 * random.randrange(min(cells, 200))
        if random.randrange(2):
            place = page + int.from_bytes(data[place : place + 2], "big") + random.randrange(12)
    size = random.choice((1, 1, 2, 4))
    fresh = (number_at_a_bound(random) % (1 << 8 * size)).to_bytes(size, "big")
    return data[:place] + fresh + data[place + size :] if place + size <= len(data) else data


def _parsed(data: bytes, depth: int = 0) -> list[_Field]:
    """The fields of a message and of nested messages, as far as the bytes can be parsed as one."""
    fields, position = [], 0
    while position < len(data):
        key, position = _number(data, position)
        number, kind = key >> 3, key & 7
        value: int | bytes | list[_Field]
        if not 0 < number < 1 << 29:
            raise _NO_FIELD
        if kind == 0:
            value, position = _number(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, position = data[position : position + size], position + size
        elif kind == 2:
            size, position = _number(data, position)
            if position + size > len(data):
                raise _NO_FIELD
            value, position = data[position : position + size], position + size
            value = _message_or_text(value, depth)
        else:
            raise _NO_FIELD
        fields.append(_Field(number, kind, value))
    return fields


def _message_or_text(value: bytes, depth: int) -> bytes | list[_Field]:
    if depth > 12 or len(value) < 2:
        return value
    try:
        return _parsed(value, depth + 1)
    except ValueError:
        return value


def _number(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise _NO_FIELD


def _encoded(fields: Sequence[_Field]) -> bytes:
    out = bytearray()
    for field in fields:
        out += varint(field.number << 3 | field.kind)
        if isinstance(field.value, int):
            out += varint(field.value)
        elif field.kind == 2:
            content = field.value if isinstance(field.value, bytes) else _encoded(field.value)
            out += varint(len(content)) + content
        elif isinstance(field.value, bytes):
            out += field.value
    return bytes(out)


def _copied(field: _Field) -> _Field:
    return _Field(field.number, field.kind, _encoded(field.value) if isinstance(field.value, list) else field.value)


def _places(fields: list[_Field]) -> list[tuple[list[_Field], int]]:
    found = [(fields, at) for at in range(len(fields))]
    for field in fields:
        if isinstance(field.value, list):
            found += _places(field.value)
    return found


MESSAGE: Final[tuple[Mutation, ...]] = (*(change_a_field,) * 6, change_a_length, change_a_length)
DUMP_FILE: Final[tuple[Mutation, ...]] = (
    *(_in_header(change_a_field),) * 6,
    *(_in_header(change_a_length),) * 2,
    *(_in_header(set_a_number),) * 3,  # fields of nano files have fixed widths
    change_a_length,
)
NPY: Final[tuple[Mutation, ...]] = (change_a_npy_header,) * 8
DATABASE: Final[tuple[Mutation, ...]] = (change_a_page,) * 12
