"""Mutations of bytes, regardless of their format: bit flips, boundary numbers, cuts, copies, parts of another file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

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
