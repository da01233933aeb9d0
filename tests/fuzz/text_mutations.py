"""Mutations of texts: numbers, words, lines, cells, brackets and JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.fuzz.bytes_mutations import LONGEST, Mutation, number_at_a_bound

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
        places = list(_places(tree))
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


def _places(tree: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every place in a tree: the container, and the key or index."""
    if depth > _DEEPEST or not isinstance(tree, dict | list):
        return []
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    found = [(tree, key) for key in keys]
    for key in keys:
        found += _places(tree[key], depth + 1)
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
