from __future__ import annotations

import pytest

from opdump import amounts


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_995, "10.0 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (48_123_456, "48.1 MB"),
        (10**15, "1,000 TB"),
    ],
)
def test_bytes_read_with_three_digits(number: int, text: str) -> None:
    assert amounts.size(number) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), "no step"),
        ((3,), "step 3"),
        ((0, 1, 2), "steps 0-2"),
        ((5, 0, 1, 9, 8, 1), "steps 0-1, 5, 8-9"),
    ],
)
def test_steps_read_as_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert amounts.steps(numbers) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.004, "0.00 s"), (9.99, "9.99 s"), (12.4, "12 s"), (119.4, "119 s"), (725, "12 min 5 s")]
)
def test_seconds_read_in_their_natural_unit(number: float, text: str) -> None:
    assert amounts.seconds(number) == text


def test_one_of_a_thing_has_no_plural() -> None:
    assert (amounts.count(1, "file"), amounts.count(0, "file"), amounts.count(2412, "file")) == (
        "1 file",
        "0 files",
        "2,412 files",
    )
