"""Random programs with random edits: never benign if the results differ by more than 100 roundings, and never divergent if nothing differs."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

import opdump

PROGRAMS = 40
MODES = ("eager", "function", "compiled")
SIZE = 6
UNARY = {
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "softplus": tf.nn.softplus,
    "exp": lambda x: tf.exp(-tf.abs(x)),
    "square": tf.square,
}
BINARY = {"add": tf.add, "multiply": tf.multiply, "subtract": tf.subtract, "maximum": tf.maximum}


@dataclass(frozen=True)
class Operation:
    """One line of a program: the operator, its inputs among earlier values, its number, axis and flag."""

    kind: str
    name: str
    reads: tuple[int, int]
    number: float
    axis: int
    flag: bool

    def __call__(self, values, weight):
        one, other = (values[place] for place in self.reads)
        match self.kind:
            case "unary":
                return UNARY[self.name](one)
            case "binary":
                return BINARY[self.name](one, other)
            case "scaled":
                return one * self.number
            case "shifted":
                return one + self.number
            case "product":
                return tf.matmul(one, weight, transpose_b=self.flag)
            case "softmax":
                return tf.nn.softmax(one, axis=self.axis)
            case "normalised":
                centred = one - tf.reduce_mean(one, axis=self.axis, keepdims=True)
                return centred * tf.math.rsqrt(
                    tf.reduce_mean(tf.square(centred), self.axis, keepdims=True) + self.number**2
                )
            case "gelu":
                return tf.nn.gelu(one, approximate=self.flag)
            case _:
                return tf.cumsum(one, axis=self.axis, exclusive=self.flag) * 0.25


KINDS = ("unary", "binary", "scaled", "shifted", "product", "softmax", "normalised", "gelu", "summed")


def drawn(random, place) -> Operation:
    kind = str(random.choice(KINDS))
    names = list(BINARY if kind == "binary" else UNARY)
    reads = (int(random.integers(max(0, place - 1), place + 1)), int(random.integers(0, place + 1)))
    return Operation(
        kind, str(random.choice(names)), reads, float(random.uniform(0.5, 2.0)), int(random.integers(0, 2)), False
    )


def edited(random, program) -> list[Operation]:
    """The program with a different number, axis, flag or operator, or with two operators swapped."""
    place = int(random.integers(len(program)))
    found, old = [*program], program[place]
    match int(random.integers(5)):
        case 0:
            found[place] = replace(old, number=old.number * float(random.choice([1.0 + 1e-4, 1.01, 1.5, -1.0])))
        case 1:
            found[place] = replace(old, axis=1 - old.axis)
        case 2:
            found[place] = replace(old, flag=not old.flag)
        case 3:
            found[place] = replace(drawn(random, place), reads=old.reads)
        case _:
            other = (place + 1) % len(program)
            found[place], found[other] = (
                replace(found[each], reads=found[at].reads) for each, at in ((other, place), (place, other))
            )
    return found


def run(program, mode, path: Path, saved_data) -> npt.NDArray[Any]:
    """Run a program under capture and return its result."""
    data = np.random.default_rng(0)
    x, weight = (data.normal(size=(SIZE, SIZE)).astype(np.float32) for _ in range(2))

    def function(x, weight):
        values = [x]
        for operation in program:
            values.append(operation(values, weight))
        return values[-1]

    called = {
        "eager": function,
        "function": tf.function(function),
        "compiled": tf.function(function, jit_compile=True),
    }[mode]
    with opdump.capture(path=str(path), saved_data=saved_data):
        return np.asarray(called(tf.constant(x), tf.constant(weight * 0.4)).numpy(), np.float64)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_program_that_gives_something_else_is_never_benign(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    program = [drawn(random, place) for place in range(int(random.integers(3, 9)))]
    first, second = MODES[seed % 3], MODES[int(random.integers(3))]
    saved_data = "statistic" if seed % 2 else "full"
    other = program if seed % 8 == 0 else edited(random, program)
    one, two = (
        run(each, mode, tmp_path / name, saved_data)
        for each, mode, name in ((program, first, "a"), (other, second, "b"))
    )
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    size = np.sqrt(np.mean(np.square(one)))
    apart = np.sqrt(np.mean(np.square(one - two))) / size if size else float(np.any(two))
    if apart > 100 * 2.0**-23:
        assert result.verdict in ("divergent", "incomparable"), (apart, first, second, program, other)
    elif other is program:
        assert result.verdict in ("benign", "identical"), (result.headline, first, second, program)
