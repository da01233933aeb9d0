"""The entry points of the hot path: pointers in, rows out."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from opdump import kernels
from opdump.kernels import DTYPE_CODES, SUMMARY_FIELDS, Summary, reference
from tests.kernels.tensors import ordinary

Table = type[reference.SummaryTable]
TABLES = pytest.mark.parametrize("table_type", [kernels.SummaryTable, reference.SummaryTable])


@TABLES
def test_a_table_numbers_its_rows_and_grows(table_type: Table) -> None:
    table = table_type(2)
    arrays = [ordinary("float32", count) for count in range(1, 40)]
    numbers = [table.add(array.ctypes.data, DTYPE_CODES["float32"], array.size) for array in arrays]
    assert numbers == list(range(39))
    assert len(table) == 39
    rows = table.rows()
    assert rows.shape == (39, len(SUMMARY_FIELDS))
    assert rows.dtype == np.float64
    for array, row in zip(arrays, rows, strict=True):
        assert Summary(*row.tolist()) == kernels.summarise(array)


@TABLES
def test_rows_are_a_copy_that_outlives_the_table(table_type: Table) -> None:
    table = table_type()
    array = np.arange(10, dtype=np.float32)
    table.add(array.ctypes.data, DTYPE_CODES["float32"], 10)
    rows = table.rows()
    table.clear()
    assert len(table) == 0
    assert table.rows().shape == (0, 11)
    del table
    assert rows[0, 9] == 45
    rows[0, 9] = 1


@TABLES
def test_a_table_takes_strides_in_elements(table_type: Table) -> None:
    table = table_type()
    array = np.arange(24, dtype=np.int16).reshape(4, 6)
    row = table.add_strided(array.ctypes.data, DTYPE_CODES["int16"], (4, 3), (6, 2))
    assert table.rows()[row].tolist() == list(kernels.summarise(array[:, ::2]))


@pytest.mark.parametrize("module", [kernels, reference])
def test_a_row_of_the_caller_is_filled_in_place(module: object) -> None:
    array = np.arange(24, dtype=np.float64).reshape(4, 6)
    rows = np.full((3, 11), -1.0)
    module.summarise_pointer(array.ctypes.data, DTYPE_CODES["float64"], 24, rows, 1)  # type: ignore[attr-defined]
    module.summarise_strided_pointer(  # type: ignore[attr-defined]
        array.ctypes.data, DTYPE_CODES["float64"], (2, 6), (12, 1), rows, 2
    )
    assert (rows[0] == -1).all()
    assert rows[1].tolist() == list(kernels.summarise(array))
    assert rows[2].tolist() == list(kernels.summarise(array[::2]))


@TABLES
def test_mistakes_of_a_caller_are_refused_before_memory_is_read(table_type: Table) -> None:
    table = table_type()
    with pytest.raises(ValueError, match="code 13 is not in DTYPE_CODES"):
        table.add(1, 13, 1)
    with pytest.raises(ValueError, match="found a null pointer and 5 elements"):
        table.add(0, 2, 5)
    with pytest.raises(ValueError, match="cannot have -1 elements"):
        table.add(1, 2, -1)
    with pytest.raises(ValueError, match="2 dimensions, the strides have 1"):
        table.add_strided(1, 2, (1, 2), (1,))
    with pytest.raises(ValueError, match="65 dimensions; at most 64"):
        table.add_strided(1, 2, (1,) * 65, (1,) * 65)
    assert len(table) == 0


@TABLES
def test_no_elements_need_no_address(table_type: Table) -> None:
    table = table_type()
    table.add(0, 2, 0)
    table.add_strided(0, 2, (3, 0), (1, 1))
    assert (table.rows()[:, 0] == 0).all()


def test_a_row_outside_the_caller_s_array_is_an_error() -> None:
    array = np.zeros(4, np.float32)
    with pytest.raises(IndexError):
        kernels.summarise_pointer(array.ctypes.data, 2, 4, np.zeros((3, 11)), 3)


def test_threads_may_share_a_table(threads_restored: None) -> None:
    kernels.set_threads(4)
    table = kernels.SummaryTable()
    arrays = [np.full(300_000, float(i), np.float32) for i in range(4)]

    def fill(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        for _ in range(25):
            table.add(array.ctypes.data, DTYPE_CODES["float32"], array.size)

    threads = [threading.Thread(target=fill, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(table.rows()[:, 7].tolist()) == sorted([0.0, 1.0, 2.0, 3.0] * 25)
    assert (table.rows()[:, 9] == table.rows()[:, 7] * 300_000).all()


@TABLES
@pytest.mark.parametrize("threads", [1, 3])
def test_many_tensors_are_added_at_once(table_type: Table, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("float32", "int8", "bool", "float64", "uint16")
    # Some large enough to be split among threads, some grouped, and some without elements.
    counts = [0, 1, 3 * 2**17, 40, 70_000, 5, 600_000, *range(100, 400)]
    arrays = [ordinary(names[place % len(names)], count) for place, count in enumerate(counts)]
    codes = [DTYPE_CODES[array.dtype.name] for array in arrays]
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        table = table_type()
        assert table.add(arrays[1].ctypes.data, codes[1], 1) == 0
        pointers = np.array([array.ctypes.data for array in arrays])
        assert table.add_all(pointers, np.array(codes), np.array(counts)) == 1
    finally:
        kernels.set_threads(before)
    expected = [kernels.summarise(array) for array in (arrays[1], *arrays)]
    assert [Summary(*row) for row in table.rows().tolist()] == expected
    nothing = np.array([], np.int64)
    assert table.add_all(nothing, nothing, nothing) == len(table) == len(arrays) + 1


@TABLES
@pytest.mark.parametrize(
    ("pointers", "codes", "counts"),
    [([0], [2], [1]), ([8], [99], [1]), ([8], [-1], [1]), ([8], [2], [-1]), ([8], [2], [])],
)
def test_tensors_that_cannot_be_read_are_refused_together(
    table_type: Table, pointers: list[int], codes: list[int], counts: list[int]
) -> None:
    good = np.ones(2, np.float32)
    table = table_type()
    given = [
        np.array([first, *rest], np.int64) for first, rest in ((good.ctypes.data, pointers), (2, codes), (2, counts))
    ]
    with pytest.raises(ValueError, match=r"pointer|dtype|elements|codes"):
        table.add_all(*given)
    assert len(table) == 0
