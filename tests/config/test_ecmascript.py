"""Expressions keep their C++ meaning when translated for Python's `re`."""

from __future__ import annotations

import re

import pytest

from opdump.plan.bounded_pattern import to_python_pattern


def _matches(expression: str, text: str) -> bool:
    return re.compile(to_python_pattern(expression), re.ASCII).fullmatch(text) is not None


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("Default/.+", "Default/x"),
        ("op[[:digit:]]+", "op12"),
        ("[[:alpha:][:digit:]_]+", "a_1"),
        ("[^[:space:]]+", "abc"),
        ("[[:w:]]+", "a_1"),
        ("[[.a.]-c]", "b"),
        (r"\d{2,}", "12"),
        (r"a\.b", "a.b"),
        (r"\q", "q"),
        (r"\A\Z", "AZ"),
        (r"\x41B", "AB"),
        (r"\cJ", "\n"),
        (r"[\b]", "\b"),
        ("[a&&b||c~~d-]+", "a&b|c~d-"),
        ("[[a]+", "[a["),
        (r"[\]\-^]+", "]-^"),
        ("[^]+", "a\nb"),
        ("a**", "aaa"),
        ("(ab)*+", "abab"),
        ("a{2}{3}", "aaaaaa"),
        ("x*?y", "xxy"),
        (r"(a)(b)\2\1", "abba"),
        ("(?:a|b)(?=c)c", "ac"),
        ("(?!b)[ab]", "a"),
        ("^a$", "a"),
        ("", ""),
        ("|a", "a"),
        ("]}", "]}"),
        ("é+", "éé"),
        ("[é]+", "éé"),
    ],
)
def test_an_expression_matches(expression: str, text: str) -> None:
    assert _matches(expression, text)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a$", "a\n"),
        (".", "\n"),
        ("[]", "a"),
        ("[]", ""),
        (r"\d", "٣"),
        (r"\w", "é"),
        ("[[:upper:]]", "a"),
        ("Default", "Default/x"),
        ("a.c", "ac"),
    ],
)
def test_an_expression_does_not_match(expression: str, text: str) -> None:
    assert not _matches(expression, text)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(a", "not closed"),
        ("a)", "without a"),
        ("[a", "not closed"),
        ("[a-", "not closed"),
        ("[[:digit:]", "not closed"),
        ("[[:digit]", "not closed"),
        ("[\\", "not closed"),
        ("*a", "nothing to repeat"),
        ("(*a)", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("(?=a)*", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a{", "expected a count"),
        ("a{,2}", "expected a count"),
        ("(?i)a", "does not start a group"),
        ("(?P<n>a)", "does not start a group"),
        ("(?<=a)b", "does not start a group"),
        ("(?", "does not start a group"),
        ("[[:foo:]]", "not a character class"),
        ("[[.ab.]]", "not a single character"),
        (r"[\d-x]", "start a range"),
        (r"[a-\d]", "end a range"),
        (r"\x4", "hexadecimal"),
        (r"\uzzzz", "hexadecimal"),
        ("\\c", "a letter after"),
        ("a\\", "lone backslash"),
    ],
)
def test_what_cpp_refuses_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        to_python_pattern(expression)


@pytest.mark.parametrize("expression", ["[z-a]", "[d--]", "a{2,1}", r"(a)\2"])
def test_what_only_the_compiler_sees_is_refused_there(expression: str) -> None:
    with pytest.raises(re.error):
        re.compile(to_python_pattern(expression))
