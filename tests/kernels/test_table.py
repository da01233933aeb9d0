"""The entry points of the hot path: pointers in, rows out; and tables of text."""

from __future__ import annotations

import math
import struct
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opdump import kernels
from opdump.kernels import DTYPE_CODES, SUMMARY_FIELDS, Summary, TableText, append_file, reference
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


KINDS = list(dict.fromkeys((TableText, append_file.TableText)))
_BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("d", struct.pack("Q", bits))[0])
_HALVES = st.builds(
    lambda digits, places: (digits + 0.5) * 10.0**places, st.integers(99_999, 1_000_000), st.integers(-30, 30)
)
"""Halfway between two six-digit numbers: exactly, or as near as a double comes."""
_AROUND_TENS = st.builds(
    lambda power, towards: math.nextafter(10.0**power, towards),
    st.integers(-40, 40),
    st.sampled_from([-math.inf, math.inf]),
)
_DOUBLES = st.floats() | _BITS | _HALVES | _AROUND_TENS | st.integers(-(2**60), 2**60).map(float)
_SPECIAL = (
    0.0,
    -0.0,
    math.nan,
    -math.nan,
    math.inf,
    -math.inf,
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
)


def _same(template: str, columns: list[Any]) -> bytes:
    texts = [kind(template).fill(columns) for kind in KINDS]
    assert texts[0] == texts[-1]
    return texts[0]


@given(st.lists(_DOUBLES, max_size=50))
@example([*_SPECIAL, *(value * sign for value in (999999.5, 9999995.0, 1234565.0, 9.999995e-5) for sign in (1, -1))])
def test_numbers_have_six_digits(numbers: list[float]) -> None:
    column = np.array(numbers, np.float64)
    expected = "".join(f"{value:g}\n" for value in numbers)
    assert _same("%g\n" * len(numbers), [column]) == expected.encode()
    assert _same("%g\n" * len(numbers), [numbers]) == expected.encode()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70).map(float)))
@example([9.2e18, -9.3e18, 2.0**63, -0.5, -0.0, 1e300])
def test_counts_are_whole(numbers: list[float]) -> None:
    expected = "".join(f"{int(value)}\n" for value in numbers)
    assert _same("%d\n" * len(numbers), [np.array(numbers, np.float64)]) == expected.encode()
    assert _same("%d\n" * len(numbers), [numbers]) == expected.encode()


@given(st.lists(st.integers() | st.booleans() | st.floats() | st.text(st.characters()), max_size=20))
def test_anything_is_shown_as_python_shows_it(values: list[Any]) -> None:
    expected = "".join(f"{value}," for value in values)
    assert _same("%s," * len(values), [values]) == expected.encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
def test_a_row_has_a_value_of_each_column(kind: Any) -> None:
    summaries = np.arange(12.0).reshape(3, 4)
    table = kind('%%,%d,%g,"\ud800ö",%s\n' * 3)
    for _ in range(2):
        text = table.fill([[2**80, 7, True], summaries.T[1] / 8, ["a%d", 1.5, None]])
        assert text.decode() == (
            f'%,{2**80},0.125,"\\ud800ö",a%d\n%,7,0.625,"\\ud800ö",1.5\n%,1,1.125,"\\ud800ö",None\n'
        )
    assert kind("100%%").fill([]) == b"100%"
    assert kind("").fill([np.empty(0), []]) == b""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize(
    ("template", "columns", "error"),
    [
        ("%d", [np.array([math.nan])], ValueError),
        ("%d", [np.array([math.inf])], OverflowError),
        ("%d", [[math.nan]], ValueError),
        ("%d", [["1"]], TypeError),
        ("%g", [["1"]], TypeError),
        ("%d", [[1, 2]], TypeError),
        ("%d%d", [[1]], TypeError),
        ("%d%d%d", [[1, 2], [3]], ValueError),
    ],
)
def test_what_is_no_number_is_refused(kind: Any, template: str, columns: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        kind(template).fill(columns)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
def test_a_template_has_no_other_places(kind: Any) -> None:
    for template in ("%", "%5d", "%r"):
        with pytest.raises(ValueError, match="template"):
            kind(template)
