"""The grammar of `iteration`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.errors import ConfigError
from opdump.plan import StepSet


def test_items_are_numbers_and_inclusive_ranges() -> None:
    steps = StepSet.parse("0|5-8|100-120")
    assert [step for step in range(130) if step in steps] == [0, 5, 6, 7, 8, *range(100, 121)]
    assert steps.last == 120
    assert str(steps) == "0|5-8|100-120"


def test_all_has_every_step_and_no_last_one() -> None:
    assert StepSet.parse("all") == StepSet.all()
    assert 10**30 in StepSet.all()
    assert -1 not in StepSet.all()
    assert StepSet.all().last is None
    assert str(StepSet.all()) == "all"


def test_a_huge_range_is_not_expanded() -> None:
    steps = StepSet.parse("0-4000000000|18446744073709551615")
    assert 3_999_999_999 in steps
    assert 4_000_000_001 not in steps
    assert steps.last == 2**64 - 1
    assert steps.ranges == ((0, 4_000_000_000), (2**64 - 1, 2**64 - 1))


def test_empty_items_are_skipped() -> None:
    assert StepSet.parse("|1||4|") == StepSet.of(1, 4)


def test_order_overlap_and_leading_zeros_do_not_matter() -> None:
    assert StepSet.parse("7|3-5|0004|6|7") == StepSet.parse("3-7")
    assert 0 in StepSet.parse("0" * 5000)


def test_values_that_are_not_numbers_are_not_steps() -> None:
    assert "1" not in StepSet.parse("1")
    assert 1.0 not in StepSet.parse("1")


@pytest.mark.parametrize("text", ["", "ALL", "All", "0 | 1", "0,1", "1e3", "+1", "0x1", "٣", "all|1", "0\n", "0–1"])
def test_other_characters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"only supports digits, '-' and '\|'"):
        StepSet.parse(text)


@pytest.mark.parametrize("text", ["1-", "-3", "2-3-4", "-", "0--1", "5|1-", "--"])
def test_an_item_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="matches no step; expected a number"):
        StepSet.parse(text)


def test_a_range_that_runs_backwards_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match='write "1-3"'):
        StepSet.parse("0|3-1")


@pytest.mark.parametrize("text", ["18446744073709551616", "0-99999999999999999999|1", "9" * 5000])
def test_a_number_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        StepSet.parse(text)


@pytest.mark.parametrize("text", ["|", "||||"])
def test_no_item_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no step"):
        StepSet.parse(text)


@pytest.mark.parametrize("steps", [(), (1, -1)])
def test_steps_in_code_must_be_there_and_not_negative(steps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected one or more"):
        StepSet.of(*steps)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), min_size=1, max_size=6))
def test_a_set_holds_the_union_of_its_items_and_prints_itself(items: list[tuple[int, int]]) -> None:
    text = "|".join(f"{first}-{first + more}" if more else str(first) for first, more in items)
    wanted = {step for first, more in items for step in range(first, first + more + 1)}
    steps = StepSet.parse(text)
    assert {step for step in range(60) if step in steps} == wanted
    assert steps.last == max(wanted)
    assert StepSet.parse(str(steps)) == steps
