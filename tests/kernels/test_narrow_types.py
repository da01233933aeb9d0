"""Narrow elements are summarised from their bits: every bit pattern, totals at their limits, NaN and Inf at any block
offset.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump import kernels
from opdump.kernels import reference
from tests.kernels.tensors import Array
from tests.kernels.test_summary import assert_same_bits, row_of_twin

BLOCK, CHUNK = reference.BLOCK, reference.CHUNK
HALVES = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits of infinity."""
NARROW = ("int8", "uint8", "int16", "uint16", "bool", *HALVES)


def agree(array: Array, dtype: str) -> None:
    assert_same_bits(kernels.summarise(array, dtype), row_of_twin(array, dtype))


def of_bits(bits: Array, dtype: str) -> Array:
    return bits.view("float16") if dtype == "float16" else bits


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits(instruction_set: str, dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[(bits & 0x7FFF) < HALVES[dtype]]
    shuffled = np.random.default_rng(1).permutation(finite)
    without_nan = np.random.default_rng(2).permutation(bits[(bits & 0x7FFF) <= HALVES[dtype]])
    for each in (bits, finite, shuffled, without_nan, np.tile(shuffled, 3)[:-5]):
        agree(of_bits(each, dtype), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sign", [0, 0x8000])
def test_numbers_of_one_sign_and_zeros_of_both(instruction_set: str, dtype: str, sign: int) -> None:
    bits = np.random.default_rng(3).integers(0, HALVES[dtype], CHUNK + 70).astype(np.uint16) | np.uint16(sign)
    zeros = np.full(100, sign, np.uint16)
    for each in (bits, zeros, np.concatenate([zeros, zeros ^ np.uint16(0x8000)]), np.concatenate([zeros, bits, zeros])):
        agree(of_bits(each, dtype), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 5 * BLOCK + 3, CHUNK - 1, CHUNK, CHUNK + BLOCK + 1])
def test_nan_and_inf_are_counted_wherever_they_begin(instruction_set: str, dtype: str, place: int) -> None:
    infinity = HALVES[dtype]
    finite = np.random.default_rng(4).integers(0, infinity, CHUNK + 2 * BLOCK + 9).astype(np.uint16)
    finite ^= np.random.default_rng(5).integers(0, 2, finite.size).astype(np.uint16) << np.uint16(15)
    for first in (infinity, infinity | 0x8000, infinity | 1, 0xFFFF):
        bits = finite.copy()
        bits[place] = first
        agree(of_bits(bits, dtype), dtype)
        bits[place::3] = infinity | 0x8000
        bits[place::7] = infinity
        agree(of_bits(bits, dtype), dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
@pytest.mark.parametrize("count", [1, BLOCK, CHUNK, CHUNK + 1, 2 * CHUNK + BLOCK + 3])
def test_totals_hold_the_largest_numbers(instruction_set: str, dtype: str, count: int) -> None:
    limits = [0, 1] if dtype == "bool" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    for each in limits:
        agree(np.full(count, each, dtype), dtype)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(NARROW),
    st.sampled_from(kernels.instruction_sets()),
    st.integers(1, 200) | st.integers(1, 3 * BLOCK),
    st.integers(0, 70),
    st.integers(0, 2**32 - 1),
    st.integers(0, 16),
)
def test_any_bits_at_any_place(
    dtype: str, instruction_set: str, count: int, start: int, seed: int, cleared: int
) -> None:
    """Clears some of the upper bits of 16-bit values: otherwise nearly every tensor would contain NaN."""
    storage = {"bool": "u1", "float16": "u2", "bfloat16": "u2"}.get(dtype, dtype)
    numbers = np.random.default_rng(seed).integers(0, 1 << 16, start + count).astype(np.uint16)
    numbers &= np.uint16(0xFFFF >> cleared)
    array = of_bits(numbers.astype(storage)[start:], dtype)
    widest = kernels.instruction_sets()[-1]
    kernels.use_instruction_set(instruction_set)
    try:
        agree(array.view("bool") if dtype == "bool" else array, dtype)
        agree((array.view("bool") if dtype == "bool" else array)[::-3], dtype)
    finally:
        kernels.use_instruction_set(widest)
