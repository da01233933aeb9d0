"""The input for a number: a seed of the reader, mutated one to four times. The same number makes the same input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Literal

from tests.fuzz.bytes_mutations import BYTES, LONGEST, Mutation
from tests.fuzz.message_mutations import DATABASE, DUMP_FILE, MESSAGE, NPY
from tests.fuzz.text_mutations import JSON, TABLE, TEXT

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
