"""The kernels that move elements: compiled and twin, against each other and against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump import kernels
from opdump.kernels import reference

Array = NDArray[Any]
Copy = Callable[..., None]
COPIES = pytest.mark.parametrize(
    "copy", [kernels.copy_strided_pointer, reference.copy_strided_pointer], ids=["used", "twin"]
)
WIDENINGS = pytest.mark.parametrize("widen", [kernels.widen_codes, reference.widen_codes], ids=["used", "twin"])
DTYPES = ("u1", "u2", "u4", "u8", "c16")
# Shapes and the order of their axes in the source: blocks of channels, fractals, odd sizes, long and short rows.
CASES = [
    ((3, 2, 49, 16), (0, 1, 3, 2)),
    ((2, 3, 100, 8), (0, 1, 3, 2)),
    ((2, 3, 65, 32), (0, 1, 3, 2)),
    ((5, 7, 9, 4), (0, 2, 3, 1)),
    ((4, 40, 16, 16), (1, 2, 0, 3)),
    ((9, 33, 7, 16), (1, 2, 3, 0)),
    ((300, 301), (1, 0)),
    ((2, 9, 140, 16), (2, 0, 3, 1)),
    ((3, 5, 7, 2, 3, 4), (5, 1, 3, 0, 4, 2)),
    ((1, 1, 17), (2, 1, 0)),
    ((0, 3), (1, 0)),
    ((), ()),
    ((70_001,), (0,)),
    ((600_000,), (0,)),
]


def numbered(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(1).integers(0, 2**40, math.prod(shape)).astype(dtype).reshape(shape)


def copied(copy: Copy, source: Array, destination: Array) -> None:
    copy(
        source.ctypes.data,
        destination.ctypes.data,
        source.itemsize,
        source.shape,
        source.strides,
        destination.strides,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "order"), CASES)
@pytest.mark.parametrize("threads", [1, 3])
@COPIES
def test_elements_come_where_numpy_puts_them(
    copy: Copy, threads: int, shape: tuple[int, ...], order: tuple[int, ...], dtype: str, threads_restored: None
) -> None:
    kernels.set_threads(threads)
    source = numbered(shape, dtype).transpose(order)
    destination = np.zeros(source.shape, dtype)
    copied(copy, source, destination)
    np.testing.assert_array_equal(destination, source)
    # And the reverse: gather what was scattered.
    scattered = np.zeros(shape, dtype).transpose(order)
    copied(copy, destination, scattered)
    np.testing.assert_array_equal(scattered, source)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int, int]]]:
    rank = draw(st.integers(1, 5))
    shape = tuple(draw(st.integers(0, 20)) for _ in range(rank))
    return (
        shape,
        tuple(draw(st.permutations(range(rank)))),
        [(draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([1, -1]))) for _ in range(rank)],
    )


def view(array: Array, steps: list[tuple[int, int, int]], order: tuple[int, ...]) -> Array:
    cut = tuple(slice(first, None, step) for first, step, _ in steps)
    turned = tuple(slice(None, None, sign) for *_, sign in steps)
    found: Array = array[cut][turned].transpose(order)
    return found


SIDES = (1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_around_a_block_is_transposed_at_any_address(instruction_set: str, dtype: str) -> None:
    item = np.dtype(dtype).itemsize
    memory = np.zeros(140 * 140 * item + 64, np.uint8)
    for rows in SIDES:
        for columns in SIDES:
            source = numbered((columns, rows), dtype).T
            size = rows * columns * item
            for offset in (0, 1, 30, 63):
                memory[: offset + size + 1] = 77
                destination = memory[offset : offset + size].view(dtype).reshape(rows, columns)
                copied(kernels.copy_strided_pointer, source, destination)
                np.testing.assert_array_equal(destination, source)
                assert (memory[:offset] == 77).all()
                assert memory[offset + size] == 77


# Rows of the destination that begin at the same or at every offset in a cache line; rows of one part and of several; a
# short last part; rows after the last whole block.
STREAMED = [
    ("u1", 32, 3136, 170),
    ("u1", 33, 1025, 500),
    ("u1", 61, 1791, 160),
    ("u2", 17, 3025, 180),
    ("u2", 45, 800, 250),
    ("u4", 32, 333, 400),
    ("u8", 70, 129, 250),
    ("c16", 18, 65, 1000),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offset", [0, 16, 49])
@pytest.mark.parametrize(("dtype", "rows", "columns", "planes"), STREAMED)
def test_large_planes_of_many_rows_are_written_whole_and_nothing_beside_them(
    instruction_set: str,
    dtype: str,
    rows: int,
    columns: int,
    planes: int,
    offset: int,
    threads: int,
    threads_restored: None,
) -> None:
    kernels.set_threads(threads)
    source = numbered((planes, columns, rows), dtype).transpose(0, 2, 1)
    assert source.nbytes >= 16 * 1024 * 1024, "smaller arrays are not streamed"
    memory = np.full(source.nbytes + 128, 77, np.uint8)
    destination = memory[offset : offset + source.nbytes].view(dtype).reshape(source.shape)
    copied(kernels.copy_strided_pointer, source, destination)
    assert np.array_equal(destination, source)
    assert (memory[:offset] == 77).all()
    assert (memory[offset + source.nbytes :] == 77).all()


def test_large_planes_leave_the_gaps_between_their_rows_alone(instruction_set: str) -> None:
    source = numbered((170, 3136, 32), "u1").transpose(0, 2, 1)
    around = np.full((170, 32, 3136 + 5), 77, np.uint8)
    copied(kernels.copy_strided_pointer, source, around[:, :, 2:-3])
    assert np.array_equal(around[:, :, 2:-3], source)
    assert (around[:, :, :2] == 77).all()
    assert (around[:, :, -3:] == 77).all()


@settings(deadline=None, max_examples=200)
@given(views(), st.sampled_from(DTYPES))
def test_any_strides_leave_everything_else_alone(
    case: tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int, int]]], dtype: str
) -> None:
    shape, order, steps = case
    values = view(numbered(shape, dtype), steps, order)
    results = []
    for copy in (kernels.copy_strided_pointer, reference.copy_strided_pointer):
        around = np.full(shape, 77, dtype)
        copied(copy, values.copy(), view(around, steps, order))
        results.append(around)
        gathered = np.zeros(values.shape, dtype)
        copied(copy, values, gathered)
        np.testing.assert_array_equal(gathered, values)
    expected = np.full(shape, 77, dtype)
    view(expected, steps, order)[...] = values
    for result in results:
        np.testing.assert_array_equal(result, expected)


@COPIES
def test_nothing_beside_the_destination_is_written(copy: Copy) -> None:
    for dtype in DTYPES:
        for rows, columns in [(16, 49), (17, 33), (8, 8), (1, 5), (31, 64)]:
            source = numbered((columns, rows), dtype)
            around = np.full((rows + 2, columns + 6), 3, dtype)
            expected = around.copy()
            expected[1:-1, 3:-3] = source.T
            copied(copy, source.T, around[1:-1, 3:-3])
            np.testing.assert_array_equal(around, expected)


REFUSED: list[tuple[tuple[Any, ...], str]] = [
    ((64, 64, 3, (1,), (3,), (3,)), "elements of 3 bytes, expected 1, 2, 4, 8 or 16"),
    ((64, 64, 2, (1, 2), (3,), (3,)), "number of dimensions"),
    ((64, 64, 2, (-1,), (2,), (2,)), "found a negative dimension"),
    ((0, 64, 2, (4,), (2,), (2,)), "found a null pointer"),
    ((64, 0, 2, (4,), (2,), (2,)), "found a null pointer"),
    ((64, 64, 2, (1,) * 65, (2,) * 65, (2,) * 65), "65 dimensions; at most 64"),
    ((64, 64, 2, (2**40,), (2**40,), (2,)), "beyond the address space"),
    ((64, 64, 2, (2**40,), (2,), (-(2**40),)), "beyond the address space"),
    ((64, 64, 8, (2**40, 2**40), (0, 0), (0, 0)), "beyond the address space"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
@COPIES
def test_what_cannot_be_copied_is_refused_before_memory_is_touched(
    copy: Copy, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        copy(*arguments)


@COPIES
def test_no_elements_need_no_memory(copy: Copy) -> None:
    copy(0, 0, 2, (0, 3), (2, 2), (2, 2))


def test_arrays_that_do_not_match_are_refused() -> None:
    floats = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"float32 \(2, 3\) cannot be copied to float32 \(3, 2\)"):
        kernels.copy_elements(floats, np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="cannot be copied to int32"):
        kernels.copy_elements(floats, np.zeros((2, 3), np.int32))
    fixed = np.zeros((2, 3), np.float32)
    fixed.setflags(write=False)
    with pytest.raises(ValueError, match="cannot be written"):
        kernels.copy_elements(floats, fixed)


def test_elements_of_other_sizes_are_copied_all_the_same() -> None:
    for array in (np.array([b"abc", b"de"]), np.array([{"a": 1}, None], object), np.array([1, 2], np.longdouble)):
        destination = np.empty_like(array)
        kernels.copy_elements(array, destination)
        assert destination.tolist() == array.tolist()


@pytest.mark.parametrize("count", [0, 1, 255, 4099, 600_001])
@WIDENINGS
def test_every_code_is_looked_up(widen: Callable[..., None], count: int) -> None:
    codes = np.random.default_rng(2).integers(0, 256, count).astype(np.uint8)
    table = np.random.default_rng(3).standard_normal(256).astype(np.float32)
    table[7], table[8] = np.nan, -np.inf
    out = np.full(count + 1, 5, np.float32)
    widen(codes.ctypes.data, count, table.ctypes.data, out.ctypes.data)
    assert out[:count].tobytes() == table[codes].tobytes()
    assert out[count] == 5


@pytest.mark.parametrize("arguments", [(0, 1, 64, 64), (64, 1, 0, 64), (64, 1, 64, 0), (64, -1, 64, 64)])
@WIDENINGS
def test_a_null_pointer_and_a_negative_count_are_refused(
    widen: Callable[..., None], arguments: tuple[int, int, int, int]
) -> None:
    with pytest.raises(ValueError, match=r"found a null pointer|cannot have -1 elements"):
        widen(*arguments)


def test_codes_keep_their_shape_and_may_have_any_strides() -> None:
    table = (np.arange(256) / 3).astype(np.float32)
    codes = np.arange(24, dtype=np.uint8).reshape(2, 3, 4).transpose(2, 0, 1)[::-1]
    np.testing.assert_array_equal(kernels.widened(codes, table), table[codes], strict=True)
    assert kernels.widened(np.uint8(3).reshape(()), table).shape == ()
    with pytest.raises(ValueError, match="a code has one byte; found uint16"):
        kernels.widened(codes.astype(np.uint16), table)
    with pytest.raises(ValueError, match=r"found float32 \(255,\)"):
        kernels.widened(codes, table[1:])
