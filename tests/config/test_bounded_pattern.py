"""An expression of a config matches in bounded time, with the meaning of Python's `re`."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys

import pytest

from opdump.errors import ConfigError
from opdump.plan import KernelPattern
from opdump.plan.bounded_pattern import BoundedPattern, translated

HARD = {
    "repetitions within each other": ("(a+)+$", "a" * 60 + "b"),
    "without an end": ("(a*)*", "a" * 60 + "b"),
    "three within each other": ("((a+)+)+", "a" * 60 + "b"),
    "a choice of the same": ("(a|a)*", "a" * 60 + "b"),
    "a choice of beginnings": ("(a|aa|aaa)+", "a" * 60 + "b"),
    "anything, again and again": ("(.*)*x", "a" * 200),
    "many repetitions": ("a*" * 30 + "b", "a" * 200),
    "many choices": ("(a|a)" * 60 + "x", "a" * 60),
    "what may be missing": ("a?" * 60 + "a" * 60, "a" * 59 + "b"),
    "counts": ("(a{1,30}){1,30}b", "a" * 200),
    "lazy repetitions": ("(a+?)+?b", "a" * 60),
    "words": (r"(\w+\s?)+", "a" * 60 + "!"),
    "scopes": ("Default/(.*-.*/)*(.*-.*)*op", "Default/" + "net-Net/" * 30),
    "a look ahead": ("((?=(a+)+b)a|a)*c", "a" * 60),
    "a long name": ("(a+)+", "a" * 50_000 + "b"),
}
_PROGRAM = """
import json, resource, sys
from opdump.plan import KernelPattern
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for expression, text in json.load(sys.stdin):
    print(expression, KernelPattern.parse(f"name-regex({expression})").matches(text, "Add"), flush=True)
"""


def test_an_expression_that_tries_every_way_ends() -> None:
    # The child gets a minute of CPU time; with `re`, each of these takes days.
    pairs = json.dumps(list(HARD.values()))
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=False, input=pairs, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == [f"{expression} False" for expression, _ in HARD.values()]


@pytest.mark.parametrize(
    "expression", ["(a+)+", "(?:ab|a)(?:bc|c)*", "(a|b)*?c{2,3}", r"\b(a|b|_)+\b", "^(a|^b)+$", "(?!ab)(a|b)+"]
)
def test_an_expression_that_is_followed_by_states_finds_names(expression: str) -> None:
    python, tokens = translated(expression)
    pattern, judge = BoundedPattern(tokens), re.compile(python, re.ASCII)
    chance = random.Random(expression)
    names = ["".join(chance.choices("abc_ -", k=chance.randrange(7))) for _ in range(500)]
    assert [pattern.matches(name) for name in names] == [judge.fullmatch(name) is not None for name in names]


def test_any_expression_means_what_re_says() -> None:
    chance = random.Random(13)
    compared = found = 0
    while compared < 1_500:
        expression = _expression(chance, 3)
        python, tokens = translated(expression)
        judge, pattern = re.compile(python, re.ASCII), BoundedPattern(tokens)
        for _ in range(6):
            # Names are not empty: Python's `re`, unlike others, does not match \\B in an empty string.
            name = "".join(chance.choices("ab/\n", k=chance.randrange(1, 6)))
            assert pattern.matches(name) == (judge.fullmatch(name) is not None), (expression, name)
            found += pattern.matches(name)
        compared += 1
    assert found > 500


def _expression(chance: random.Random, depth: int) -> str:
    def atom() -> str:
        if depth and chance.random() < 0.4:
            head = chance.choice(("(", "(?:", "(", "(?=", "(?!"))
            inner = _expression(chance, depth - 1)
            # Python refuses to repeat a group of only assertions; ECMAScript never repeats a lookahead.
            return f"{head}{inner})" if head in ("(?=", "(?!") else f"{head}{inner}){repetition()}"
        if chance.random() < 0.15:
            return chance.choice(("^", "$", r"\b", r"\B"))
        return chance.choice(("a", "b", ".", "[ab]", "[^a]", r"\w", "/", "[^]")) + repetition()

    def repetition() -> str:
        return chance.choice(("", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{0}"))

    branches = ["".join(atom() for _ in range(chance.randrange(3))) for _ in range(chance.choice((1, 1, 2)))]
    return "|".join(branches)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (r"(a+)+\1", "back reference"),
        (r"(a|b)(a|b)(a|b)\1", "back reference"),
        ("((a{1000}){1000}){1000}", "smaller counts"),
        ("((){1000}){1000}", "smaller counts"),
        ("(" * 150 + "a+" + ")" * 150 + "+b", "are nested"),
    ],
)
def test_what_has_no_bound_is_refused_when_it_is_read(expression: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"could take unlimited time to match: .*{why}"):
        KernelPattern.parse(f"name-regex({expression})")


def test_a_short_back_reference_is_kept() -> None:
    assert KernelPattern.parse(r"name-regex((conv)[12]-\1d)").matches("conv1-convd", "Conv")


def test_a_pattern_reaches_another_process() -> None:
    for text in ("name-regex((a+)+)", "name-regex(a+)"):
        assert pickle.loads(pickle.dumps(KernelPattern.parse(text))).matches("aaa", "Add")
