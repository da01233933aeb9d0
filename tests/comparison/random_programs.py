"""Small random programs and random edits of them, independent of a framework: each framework has its own interpreter.

A program reads tensors of one shape and computes new ones of that shape, statement by statement. A tensor that no
statement reads is a result. An edit changes one thing: a value, an argument, an operator, the order of elements, memory
that is written from outside, or a statement that is left out or added.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SIDE: Final = 4
"""Every tensor is a square with this many rows."""
UNARY: Final = (
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "exp",
    "abs",
    "softmax",
    "norm",
    "scale",
    "shift",
    "clamp",
    "roll",
    "transpose",
    "mean",
    "masked",
)
BINARY: Final = ("add", "sub", "mul", "matmul", "maximum")
NUMBERS: Final = {"scale": 0.5, "shift": 0.25, "clamp": 0.75, "roll": 1.0, "norm": 1e-5, "gelu": 0.0, "masked": 0.0}
"""The argument of an operator that has one: a factor, a summand, a bound, a distance, an epsilon; whether it is the approximation; what is added before
the mask.
"""
EditKind = Literal["value", "argument", "operator", "order", "memory", "left out", "added", "input"]
EDITS: Final[tuple[EditKind, ...]] = ("value", "argument", "operator", "order", "memory", "left out", "added", "input")


@dataclass(frozen=True, slots=True)
class Statement:
    """One operator on tensors given by number: the data come first, then the output of each statement."""

    op: str
    inputs: tuple[int, ...]
    number: float = 0.0


@dataclass(frozen=True, slots=True)
class Write:
    """A write from outside the framework: to one element of a tensor that is read later, after the statement of that index."""

    after: int
    tensor: int
    element: int
    value: float


@dataclass(frozen=True)
class Program:
    """Data, statements, and writes from outside."""

    data: Sequence[Array]
    statements: Sequence[Statement]
    writes: Sequence[Write] = ()
    trains: bool = False
    """Whether all data except the first are parameters, which an optimizer step updates by the gradient of the squared
    results.
    """
    seed: int = field(default=0, compare=False)

    @property
    def results(self) -> list[int]:
        """The numbers of the tensors that no statement reads."""
        read = {number for statement in self.statements for number in statement.inputs}
        return [number for number in range(len(self.data), len(self.data) + len(self.statements)) if number not in read]

    def __str__(self) -> str:
        count = len(self.data)
        lines = [
            f"t{count + place} = {each.op}({', '.join(f't{number}' for number in each.inputs)}; {each.number})"
            for place, each in enumerate(self.statements)
        ]
        return "\n".join(
            [f"seed {self.seed}: {count} tensors", *lines, *map(str, self.writes), f"trains: {self.trains}"]
        )


def random_program(seed: int, *, trains: bool = False) -> Program:
    """A program of four to nine statements."""
    source = random.Random(seed)
    numbers = np.random.default_rng(seed)
    data = [numbers.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(source.randint(2, 3))]
    statements: list[Statement] = []
    for place in range(source.randint(4, 9)):
        count = len(data) + place
        # Mostly reads the latest tensor, so that statements depend on each other.
        recent = count - 1 if place and source.random() < 0.8 else source.randrange(count)
        if source.random() < 0.4:
            statements.append(Statement(source.choice(BINARY), (recent, source.randrange(count))))
        else:
            op = source.choice(UNARY)
            statements.append(Statement(op, (recent,), NUMBERS.get(op, 0.0)))
    return Program(data, statements, trains=trains, seed=seed)


def edited(program: Program, kind: EditKind, seed: int) -> Program:
    """The program with an edit; unchanged if no edit of that kind is possible."""
    source = random.Random(seed)
    statements = list(program.statements)
    count = len(program.data)
    if kind in ("value", "order"):
        data = [each.copy() for each in program.data]
        place = source.randrange(count)
        if kind == "value":
            data[place].flat[source.randrange(SIDE * SIDE)] += source.choice([1e-4, 0.01, 1.0, -3.0])
        else:
            data[place] = source.choice([data[place].T, data[place][::-1], data[place][:, ::-1]]).copy()
        return replace(program, data=data)
    if kind == "memory":
        after = source.randrange(len(statements))
        read = {number for statement in statements[after + 1 :] for number in statement.inputs}
        read.update(program.results if program.trains else ())  # by the loss
        tensors = [number for number in range(count + after) if number in read]
        if not tensors:
            return program
        value = source.choice([0.125, 2.0, -1.5])
        return replace(program, writes=[Write(after, source.choice(tensors), source.randrange(SIDE * SIDE), value)])
    place = source.randrange(len(statements))
    old = statements[place]
    if kind == "argument":
        places = [number for number, each in enumerate(statements) if each.op in NUMBERS]
        if not places:
            return program
        place = source.choice(places)
        old = statements[place]
        others = {"roll": [-1.0, 2.0], "norm": [1e-3, 1e-1], "gelu": [1.0], "masked": [0.01, 1.0]}
        changes = others.get(old.op, [old.number * 1.001, old.number * 1.5, -old.number])
        statements[place] = replace(old, number=source.choice(changes))
    elif kind == "operator":
        op = source.choice([each for each in (UNARY if len(old.inputs) == 1 else BINARY) if each != old.op])
        statements[place] = Statement(op, old.inputs, NUMBERS.get(op, 0.0))
    elif kind == "input":
        number = source.randrange(count + place)
        statements[place] = replace(old, inputs=(*old.inputs[:-1], number))
    elif kind == "left out":
        # Readers of its output read its input instead.
        mine = count + place
        moved = [
            replace(
                each,
                inputs=tuple(old.inputs[0] if number == mine else number - (number > mine) for number in each.inputs),
            )
            for each in statements[place + 1 :]
        ]
        statements = [*statements[:place], *moved]
    elif kind == "added":
        mine = count + place
        more = Statement(source.choice(["scale", "shift", "tanh", "transpose"]), (mine,), source.choice([1.001, 0.5]))
        moved = [
            replace(each, inputs=tuple(number + (number >= mine) for number in each.inputs))
            for each in statements[place + 1 :]
        ]
        statements = [*statements[: place + 1], more, *moved]
    return replace(program, statements=statements)
