"""`DigestBatch` equals hashlib and xxHash: compiled, for every instruction set and number of threads, and in Python."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump import kernels
from opdump.kernels import digests as twin
from opdump.kernels.append_file import xxh3_128

ALL = ("md5", "hash", "xxh3")
LENGTHS = [*range(300), 1023, 1024, 1025, 4095, 4096, 65_527, 65_528, 65_536, 1_000_003]
SLICE = twin.SHA1_SLICE
OF_XXHASH = json.loads((Path(__file__).parents[1] / "data" / "xxh3.json").read_text())["digests"]
PUBLISHED = {
    b"abc": "06b05ab6733a618578af5f94892f3950",
    b"abcdef": "389197a55db2b2e4da35a6714d34f8a2",
    b"0123456789abcdef": "ccba8085a0434e9e0befb4873dbe58f8",
    b"The quick brown fox jumps over the lazy dog": "ddd650205ca3e7fa24a1cc2e3a8a7651",
    b"y" * 200: "833cf59a501ae2a8661514be62296c9c",
    b"z" * 1000: "66a9b2d587876ce7cd3a574700eddf41",
}
"""128-bit XXH3 digests by libxxhash 0.8.3."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = kernels.threads()
    kernels.set_threads(request.param)
    yield request.param
    kernels.set_threads(before)


def messages(lengths: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(0, 256, length, np.uint8) for length in lengths]


def digests(batch: kernels.DigestBatch, given: Sequence[np.ndarray]) -> list[dict[str, str]]:
    numbers = [batch.add(each.ctypes.data, each.nbytes, each.itemsize) for each in given]
    return [batch.digests(number) for number in numbers]


def wanted_md5(given: Sequence[np.ndarray]) -> list[dict[str, str]]:
    return [{"md5": hashlib.md5(each.tobytes(), usedforsecurity=False).hexdigest()} for each in given]


def wanted_sha1(given: Sequence[np.ndarray]) -> list[dict[str, str]]:
    return [{"hash": _sha1(each)} for each in given]


def _sha1(elements: np.ndarray) -> str:
    if elements.size <= SLICE:
        return hashlib.sha1(elements.tobytes(), usedforsecurity=False).hexdigest()
    slices = [elements[start : start + SLICE].tobytes() for start in range(0, elements.size, SLICE)]
    joined = "".join(hashlib.sha1(each, usedforsecurity=False).hexdigest() for each in slices)
    return hashlib.sha1(joined.encode(), usedforsecurity=False).hexdigest()


def bytes_of_xxhash(count: int) -> np.ndarray:
    """The bytes that xxHash's sanity tests hash."""
    found, state = bytearray(), 2654435761
    for _ in range(count):
        found.append(state >> 56)
        state = state * 11400714785074694797 % 2**64
    return np.frombuffer(bytes(found), np.uint8)


@pytest.mark.parametrize("capacity", [0, 10_000, 1 << 28])
def test_md5_is_that_of_hashlib(instruction_set: str, threads: int, capacity: int) -> None:
    lengths = [*LENGTHS, *np.random.default_rng(1).integers(0, 20_000, 200).tolist()]
    given = messages(lengths)
    assert digests(kernels.DigestBatch(["md5"], capacity), given) == wanted_md5(given)


@pytest.mark.parametrize("with_instructions", [True, False])
@pytest.mark.parametrize("capacity", [0, 10_000, 1 << 28])
def test_sha1_is_that_of_hashlib(instruction_set: str, threads: int, capacity: int, with_instructions: bool) -> None:
    lengths = [*np.random.default_rng(1).integers(0, 20_000, 200).tolist(), *(n for n in LENGTHS if n <= SLICE)]
    given = messages(lengths)
    assert digests(kernels.DigestBatch(["hash"], capacity, with_instructions), given) == wanted_sha1(given)


@pytest.mark.parametrize("with_instructions", [True, False])
@pytest.mark.parametrize("capacity", [0, 1 << 28])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
def test_sha1_of_many_elements_is_that_of_the_digests_of_slices(
    instruction_set: str, threads: int, capacity: int, dtype: str, with_instructions: bool
) -> None:
    around = [SLICE, SLICE + 1, 2 * SLICE - 1, 2 * SLICE, 16 * SLICE - 1, 16 * SLICE, 16 * SLICE + 1, 35 * SLICE + 70]
    item = np.dtype(dtype).itemsize
    given = [each.view(dtype) for each in messages([count * item for count in around])]
    assert digests(kernels.DigestBatch(["hash"], capacity, with_instructions), given) == wanted_sha1(given)


def test_xxh3_is_that_of_xxhash(instruction_set: str) -> None:
    whole = bytes_of_xxhash(70_000)
    given = [whole[: int(length)] for length in OF_XXHASH]
    assert [each["xxh3"] for each in digests(kernels.DigestBatch(["xxh3"]), given)] == list(OF_XXHASH.values())
    known = [np.frombuffer(each, np.uint8) for each in PUBLISHED]
    assert [each["xxh3"] for each in digests(kernels.DigestBatch(["xxh3"]), known)] == list(PUBLISHED.values())


def test_xxh3_in_python_is_that_of_xxhash() -> None:
    whole = bytes_of_xxhash(70_000).tobytes()
    assert {length: xxh3_128(whole[: int(length)]) for length in OF_XXHASH} == OF_XXHASH
    assert {each: xxh3_128(each) for each in PUBLISHED} == PUBLISHED


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 200) | st.integers(0, 70_000), max_size=40),
    st.sampled_from(kernels.instruction_sets()),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.integers(0, 100_000),
)
def test_the_compiled_batch_and_its_twin_are_one(
    counts: list[int], instruction_set: str, item: int, with_instructions: bool, capacity: int
) -> None:
    given = [each.view(f"u{item}") for each in messages([item * count for count in counts], seed=len(counts))]
    widest = kernels.instruction_sets()[-1]
    kernels.use_instruction_set(instruction_set)
    try:
        found = digests(kernels.DigestBatch(ALL, capacity, with_instructions), given)
    finally:
        kernels.use_instruction_set(widest)
    assert found == digests(twin.DigestBatch(ALL), given)


def test_a_batch_gives_the_digests_that_it_was_asked_for() -> None:
    (each,) = messages([1000])
    batch = kernels.DigestBatch(["xxh3", "md5"])
    assert list(batch.digests(batch.add(each.ctypes.data, each.size))) == ["xxh3", "md5"]
    none = kernels.DigestBatch([])
    assert none.digests(none.add(each.ctypes.data, each.size)) == {}


def test_a_digest_may_be_asked_for_before_more_is_added() -> None:
    batch, given = kernels.DigestBatch(["md5"]), messages([5, 1000, 64, 0, 55, 56])
    found = [batch.digests(batch.add(each.ctypes.data, each.size)) for each in given]
    assert found == wanted_md5(given)
    assert [batch.digests(number) for number in range(len(batch))] == found


def test_the_bytes_are_those_of_the_moment() -> None:
    batch, (each,) = kernels.DigestBatch(ALL), messages([400_000])
    before = digests(twin.DigestBatch(ALL), [each])
    number = batch.add(each.ctypes.data, each.size)
    each[:] = 0
    assert [batch.digests(number)] == before


def test_numbers_begin_anew_after_clear() -> None:
    batch, given = kernels.DigestBatch(ALL), messages([10, 20, 30])
    digests(batch, given)
    batch.add(given[0].ctypes.data, given[0].size)
    batch.clear()
    assert len(batch) == 0
    assert batch.add(given[1].ctypes.data, given[1].size) == 0
    assert batch.digests(0) == digests(twin.DigestBatch(ALL), given)[1]


def test_threads_may_share_a_batch() -> None:
    batch = kernels.DigestBatch(ALL, 50_000)
    found: dict[int, tuple[int, np.ndarray]] = {}

    def add(seed: int) -> None:
        for place, each in enumerate(messages([1000, 300_000, 64, 7] * 20, seed)):
            found[1000 * seed + place] = batch.add(each.ctypes.data, each.size), each

    working = [threading.Thread(target=add, args=(seed,)) for seed in range(1, 4)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    assert len({number for number, _ in found.values()}) == len(batch) == 240
    assert all(batch.digests(number) == digests(twin.DigestBatch(ALL), [each])[0] for number, each in found.values())


@pytest.mark.parametrize("kind", [kernels.DigestBatch, twin.DigestBatch])
def test_what_cannot_be_read_is_an_error(kind: type[kernels.DigestBatch]) -> None:
    batch = kind(ALL)
    of_nothing = {
        "md5": hashlib.md5(b"", usedforsecurity=False).hexdigest(),
        "hash": hashlib.sha1(b"", usedforsecurity=False).hexdigest(),
        "xxh3": OF_XXHASH["0"],
    }
    assert batch.digests(batch.add(0, 0)) == of_nothing
    with pytest.raises(ValueError, match="null"):
        batch.add(0, 1)
    with pytest.raises(ValueError, match="-1"):
        batch.add(1, -1)
    with pytest.raises(ValueError, match="7 bytes cannot be divided into elements of 4 bytes"):
        batch.add(1, 7, 4)
    with pytest.raises(ValueError, match="0 bytes"):
        batch.add(1, 7, 0)
    with pytest.raises(IndexError, match="found tensor 7; the batch has 1"):
        batch.digests(7)
    with pytest.raises(ValueError, match="found digest sha256, expected md5, hash or xxh3"):
        kind(["sha256"])


def test_the_twin_gives_the_same() -> None:
    given = messages(LENGTHS)
    assert digests(twin.DigestBatch(["md5"]), given) == wanted_md5(given)
    assert digests(twin.DigestBatch(["hash"]), given) == wanted_sha1(given)
