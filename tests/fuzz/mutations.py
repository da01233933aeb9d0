"""The input for a number: a seed of the reader, mutated one to four times, as bytes, texts or messages. The same number makes the same input."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from opdump.dump_file.reading import varint

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]
"""Maps bytes, a random source and the reader's other seeds to new bytes."""

LONGEST: Final = 1 << 17
"""The largest size that a mutation may produce."""
_BOUNDS: Final = tuple(
    sorted(
        {
            bound + near
            for bits in (0, 7, 8, 15, 16, 31, 32, 53, 60, 63, 64)
            for bound in (1 << bits,)
            for near in (-1, 0, 1)
        }
    )
)
_SIZES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


def number_at_a_bound(random: Random) -> int:
    """Usually a power of two of a common field width, or a neighbour of one; otherwise a small or an arbitrary number."""
    kind = random.randrange(4)
    if kind < 2:
        return random.choice(_BOUNDS)
    return random.randrange(300) if kind == 2 else random.getrandbits(64)


def a_range(data: bytes, random: Random, longest: int = 64) -> tuple[int, int]:
    """Start and end of a part of the data, usually a short one."""
    begin = random.randrange(len(data) + 1)
    longest = len(data) if random.randrange(8) == 0 else longest
    return begin, min(len(data), begin + random.randint(1, max(1, longest)))


def flip_a_bit(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def set_a_byte(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    value = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return data[:place] + bytes([value]) + data[place + 1 :]


def set_a_number(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Write a number of 8 to 64 bits, usually at a multiple of its size: lengths, counts, offsets."""
    size = random.choice((*_SIZES,))
    if len(data) < size:
        return data
    place = random.randrange(len(data) - size + 1)
    if random.randrange(3):
        place -= place % size
    order = random.choice("<<<>")
    value = number_at_a_bound(random)
    if random.randrange(3) == 0:  # a number that is right somewhere else, or nearly right
        value = len(data) - place + random.randint(-9, 9)
    number = struct.pack(order + _SIZES[size], value % (1 << 8 * size))
    return data[:place] + number + data[place + size :]


def cut_off(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def remove(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    begin, end = a_range(data, random)
    return data[:begin] + data[end:]


def duplicate(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    begin, end = a_range(data, random)
    times = random.choice((1, 1, 1, 2, 30, 1000))
    times = min(times, max(1, LONGEST // max(1, end - begin)))
    return data[:end] + data[begin:end] * times + data[end:]


def insert(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    fresh = random.choice(
        (bytes(random.randrange(9)), random.randbytes(random.randrange(1, 17)), b"\xff" * 8, b"\x80" * 11)
    )
    return data[:place] + fresh + data[place:]


def move(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    begin, end = a_range(data, random)
    rest = data[:begin] + data[end:]
    place = random.randrange(len(rest) + 1)
    return rest[:place] + data[begin:end] + rest[place:]


def splice(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Join the start of one file with the end of another, or insert a part of another file."""
    other = random.choice(seeds)
    if random.randrange(2):
        return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
    begin, end = a_range(other, random)
    place = random.randrange(len(data) + 1)
    return data[:place] + other[begin:end] + data[place + random.choice((0, end - begin)) :]


BYTES: Final[tuple[Mutation, ...]] = (
    flip_a_bit,
    set_a_byte,
    set_a_number,
    cut_off,
    remove,
    duplicate,
    insert,
    move,
    splice,
)


_NUMBER: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_MARKS: Final = re.compile(rb"[\[\](){}<>\"',:;=|@%#-]")
_ODD_NUMBERS: Final = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1e999",
        b"-1e999",
        b"1e-999",
        b"nan",
        b"inf",
        b"-inf",
        b"NaN",
        b"0x10",
        b"1_0",
        b"+1",
        b" 1",
    ),
    *(b"9" * 25, b"9" * 400, b"9" * 5000, b"1." + b"0" * 400, b"0" * 30, b"1.5", b".", b"-", b"", b"1-", b"1-0"),
    *("\N{ARABIC-INDIC DIGIT THREE}".encode(), "\N{SUPERSCRIPT TWO}".encode(), b"1e5000", b"9223372036854775808"),
)
_ODD_TEXTS: Final = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\xef\xbb\xbf", "\u2028".encode(), "\x85".encode()),
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b"\\",
        b'"',
        b'""',
        b"'",
        b",",
        b",,",
        b"%",
        b"%s",
        b"/",
        b"../",
        b"*",
        b"(",
        b"[" * 9,
    ),
    *(b"[" * 3000, b"(" * 3000, b'{"a":' * 3000, b"{" * 3000, b"x" * 5000, b"," * 5000, b"\n" * 3000, b"- " * 300),
    *("\N{GRINNING FACE}".encode(), "\N{KELVIN SIGN}".encode(), "\N{LATIN SMALL LETTER DOTLESS I}".encode()),
)
_ODD_VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        -0.0,
        1e308,
        2**31,
        2**32,
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        "",
        "0",
        "all",
        "*",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        {"": None},
        "\0",
        "\ud800",
        "x" * 3000,
        [0] * 2000,
        "-",
        "1-",
        "3-1",
        "0|1-2",
        "../..",
        "/",
    ),
)
_DEEPEST: Final = 40


def replace_a_number(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    odd = random.choice(_ODD_NUMBERS) if random.randrange(2) else str(number_at_a_bound(random)).encode()
    return _replaced(_NUMBER, data, odd, random)


def replace_a_word(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Replace a word by one from the seeds, or by something unusual."""
    words = _WORD.findall(random.choice(seeds))
    fresh = random.choice(words) if words and random.randrange(3) else random.choice(_ODD_TEXTS)
    return _replaced(_WORD, data, fresh, random)


def replace_a_mark(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    fresh = random.choice(
        (b"", b"(", b")", b"[", b"]", b"{", b"}", b"<", b">", b'"', b"'", b",", b":", b"=", b"::", b"-")
    )
    return _replaced(_MARKS, data, fresh, random)


def insert_a_text(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(_ODD_TEXTS) + data[place:]


def change_lines(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Remove, duplicate, move, import or multiply a line."""
    lines = data.split(b"\n")
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(5)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(other, lines[place])
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 3:
        lines.insert(place, random.choice(random.choice(seeds).split(b"\n")))
    else:
        lines[place:place] = [lines[place]] * min(random.choice((10, 300, 3000)), LONGEST // (len(lines[place]) + 1))
    return b"\n".join(lines)


def change_a_cell(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Change a cell in a line of a table: replace, remove, add or corrupt it."""
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    cells = lines[place].split(b",")
    at = random.randrange(len(cells))
    kind = random.randrange(4)
    if kind == 0:
        del cells[at]
    elif kind == 1:
        cells.insert(at, random.choice(cells))
    elif kind == 2:
        cells[at] = random.choice(_ODD_NUMBERS)
    else:
        cells[at] = random.choice(_ODD_TEXTS)
    lines[place] = b",".join(cells)
    return b"\n".join(lines)


def change_a_value(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    """Replace, remove, wrap, copy or rename a JSON value; other text is returned unchanged."""
    try:
        tree = json.loads(data)
        places = list(_marks_of(tree))
        if not places:
            return data
        holder, key = random.choice(places)
        kind = random.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            value = holder[key]
            for _ in range(random.choice((1, 1, 2, 1000))):
                value = [value] if random.randrange(2) else {"a": value}
            holder[key] = value
        elif kind == 2:
            other, place = random.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        elif kind == 3 and isinstance(holder, dict):
            other, place = random.choice(places)
            holder[random.choice((str(place), f" {key}", str(key).upper(), f"{key}_"))] = holder[key]
        else:
            holder[key] = random.choice(_ODD_VALUES)
        return json.dumps(tree, indent=random.choice((None, 1))).encode()
    except (ValueError, RecursionError):
        return data


def _marks_of(tree: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every place in a tree: the container, and the key or index."""
    if depth > _DEEPEST or not isinstance(tree, dict | list):
        return []
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    found = [(tree, key) for key in keys]
    for key in keys:
        found += _marks_of(tree[key], depth + 1)
    return found


def _replaced(pattern: re.Pattern[bytes], data: bytes, fresh: bytes, random: Random) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data
    match = random.choice(found)
    return data[: match.start()] + fresh + data[match.end() :]


TEXT: Final[tuple[Mutation, ...]] = (
    replace_a_number,
    replace_a_number,
    replace_a_word,
    replace_a_mark,
    insert_a_text,
    change_lines,
)
TABLE: Final[tuple[Mutation, ...]] = (*TEXT, change_a_cell, change_a_cell, change_a_cell)
JSON: Final[tuple[Mutation, ...]] = (*TEXT, *(change_a_value,) * 6)


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


Kind = Literal["bytes", "text", "table", "json", "message", "dump file", "npy", "database"]
"""The format of a file; mutations of plain bytes apply to every kind."""

_OF_KIND: Final[Mapping[Kind, tuple[Mutation, ...]]] = {
    "bytes": BYTES,
    "text": (*BYTES, *TEXT, *TEXT),
    "table": (*BYTES, *TABLE, *TABLE),
    "json": (*BYTES, *JSON),
    "message": (*BYTES, *MESSAGE),
    "dump file": (*BYTES, *DUMP_FILE),
    "npy": (*BYTES, *NPY),
    "database": (*BYTES, *DATABASE),
}


def input_of(seeds: Sequence[bytes], kind: Kind, name: str, seed: int, number: int) -> tuple[int, bytes]:
    """The index of the seed behind input `number` of the reader `name`, and the input."""
    random = Random(f"{name} {seed} {number}")
    which = random.randrange(len(seeds))
    data = seeds[which]
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        data = random.choice(_OF_KIND[kind])(data, random, seeds)
    return which, data[: max(LONGEST, len(seeds[which]))]
