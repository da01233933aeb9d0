"""Tables that are filled with numbers: the same bytes, compiled and in Python."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opdump.kernels import TableText, append_file

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
