"""`dump_step` of TensorFlow: the grammar, and the adapter's messages for invalid values."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opdump.configs.tensorflow.plan import LARGEST_STEP, TensorflowConfigError, parse_dump_step
from opdump.plan import StepSet

STYLE = "dump_step string style is error, correct example:'0|5|10|50-100'"
BACKWARDS = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"
TOO_MANY = "dump_step only support dump <= 100 sets of data"


def _wanted(text: str) -> set[int] | str:
    """The steps of a text of small numbers, or the mistake in it: a second implementation of the rule."""
    if text.count("|") > 99:
        return TOO_MANY
    steps: set[int] = set()
    for item in text.split("|"):
        if not re.fullmatch(r"[0-9]+|[0-9]+-[0-9]+", item):
            return STYLE
        ends = [int(end) for end in item.split("-")]
        if len(ends) == 2 and ends[0] >= ends[1]:
            return BACKWARDS
        steps |= set(range(ends[0], ends[-1] + 1))
    return steps


ITEMS = st.one_of(
    st.integers(0, 40).map(str),
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
    st.text("0123456789-| +٣", max_size=4),
)


@given(st.lists(ITEMS, min_size=1, max_size=8).map("|".join).filter(bool))
@example("0|5|10-20")
@example("007|0-03")
@example("5|5|1-9|3-4")
@example("|")
@example("5-")
@example("-5")
@example("0|")
@example("1-2-3")
@example("|".join(["1"] * 100))
@example("|".join(["1"] * 101))
@example("|".join(["x"] * 101))
def test_the_grammar_is_that_of_the_graph_engine(text: str) -> None:
    wanted = _wanted(text)
    if isinstance(wanted, str):
        with pytest.raises(TensorflowConfigError, match=re.escape(wanted)):
            parse_dump_step(text, "here")
        return
    steps = parse_dump_step(text, "here")
    highest = max(wanted) + 2
    assert {step for step in range(highest) if step in steps} == wanted
    assert steps.last == max(wanted)


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("a", STYLE, "the item 'a' is neither a number"),
        ("0,5", STYLE, "the item '0,5'"),
        ("0| 5", STYLE, "the item ' 5'"),
        ("0||5", STYLE, "the item ''"),
        ("0|", STYLE, "the item ''"),
        ("5-", STYLE, "the item '5-'"),
        ("-5", STYLE, "the item '-5'"),
        ("+5", STYLE, "the item '+5'"),
        ("1-2-3", STYLE, "the item '1-2-3'"),
        ("all", STYLE, "the item 'all'"),
        ("2147483648", STYLE, "beyond the largest step, 2147483647"),
        ("0-2147483648", STYLE, "beyond the largest step, 2147483647"),
        ("9" * 5000, STYLE, "... is beyond the largest step"),
        ("5-5", BACKWARDS, "write 5)"),
        ("10|9-5", BACKWARDS, "write 5-9)"),
        ("|".join(["0"] * 101), TOO_MANY, "found 101 items; merge neighbours"),
    ],
)
def test_a_wrong_text_gives_the_words_of_the_adapter_and_the_reason(text: str, words: str, reason: str) -> None:
    with pytest.raises(TensorflowConfigError) as raised:
        parse_dump_step(text, "npu_dump.json")
    message = str(raised.value)
    assert message.startswith("npu_dump.json: dump_step: found ")
    assert words in message
    assert reason in message
    assert len(message) < 400


def test_no_text_is_every_step_and_the_largest_step_is_one() -> None:
    assert parse_dump_step("", "here") == StepSet.all()
    assert LARGEST_STEP in parse_dump_step("0-2147483647", "here")
    assert LARGEST_STEP + 1 not in parse_dump_step("0-2147483647", "here")
    assert parse_dump_step("|".join(["0-9"] * 100), "here") == StepSet(((0, 9),))
