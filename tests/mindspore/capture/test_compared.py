"""Comparisons of MindSpore runs: random programs with random edits, and how values are traced."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import opdump
from opdump.catalog.catalog import open_dump
from tests.mindspore.capture.recording import recorded, tensor

_ROUNDINGS: Final = 100 * 2.0**-23
WIDTH: Final = 6


class Scale(nn.Cell):
    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift

    def construct(self, x: Tensor) -> Tensor:
        return x * self.factor + self.shift


class Mix(nn.Cell):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(weight), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight)


class Turn(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x.transpose(1, 0), x) / 4


class Activation(nn.Cell):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = {"tanh": ops.tanh, "relu": ops.relu, "sigmoid": ops.sigmoid, "exp": ops.exp}[name]

    def construct(self, x: Tensor) -> Tensor:
        return self.function(x)


class Clamp(nn.Cell):
    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most

    def construct(self, x: Tensor) -> Tensor:
        return ops.clamp(x, -self.most, self.most)


class Norm(nn.Cell):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,), epsilon=epsilon)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Softmax(nn.Cell):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)


@dataclass(frozen=True)
class Part:
    """A Cell of a program; an edited program has a different one in its place."""

    kind: type[nn.Cell]
    given: tuple[Any, ...]
    edited: tuple[Any, ...]


def part(draw: random.Random) -> Part:
    weight = np.random.default_rng(draw.randrange(2**32)).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2
    other = weight.copy()
    other[draw.randrange(WIDTH), draw.randrange(WIDTH)] += 1
    functions = draw.sample(["tanh", "relu", "sigmoid", "exp"], 2)
    return draw.choice(
        [
            Part(Scale, (draw.uniform(0.2, 1.5), 0.5), (draw.uniform(0.2, 1.5), 0.5)),
            Part(Scale, (0.5, draw.uniform(-1, 1)), (0.5, draw.uniform(-1, 1))),
            Part(Mix, (weight,), (other,)),
            Part(Activation, (functions[0],), (functions[1],)),
            Part(Clamp, (2.0,), (draw.uniform(0.1, 1.0),)),
            Part(Norm, (1e-5,), (1e-2,)),
            Part(Softmax, (-1,), (0,)),
        ]
    )


class Program(nn.Cell):
    def __init__(self, parts: list[nn.Cell]) -> None:
        super().__init__()
        self.parts = nn.CellList([*parts, Turn()])

    def construct(self, x: Tensor) -> Tensor:
        for each in self.parts:
            x = each(x)
        return x


def programs(seed: int) -> tuple[Program, Program, bool]:
    """A program, the same program with or without an edit, and whether it has one."""
    draw = random.Random(seed)
    parts = [part(draw) for _ in range(draw.randrange(2, 6))]
    edit = draw.choice(["argument", "argument", "missing", "order", "none"])
    place = draw.randrange(len(parts))
    one = [each.kind(*each.given) for each in parts]
    if edit == "argument":
        other = [each.kind(*(each.edited if at == place else each.given)) for at, each in enumerate(parts)]
    else:
        other = [each.kind(*each.given) for each in parts]
        if edit == "missing":
            del other[place]
        elif edit == "order":
            other[place], other[-1] = other[-1], other[place]
    return Program(one), Program(other), edit != "none"


def judged(place: Path, first: Any, second: Any) -> tuple[str, float]:
    """The verdict for two functions, and the distance of their results."""
    results = []
    for name, function in (("a", first), ("b", second)):
        with opdump.capture(path=place / name, saved_data="full"):
            results.append(function().asnumpy())
    steps = [open_dump(place / name).steps[-1] for name in ("a", "b")]
    result = opdump.compare(place / "a", place / "b", step=steps[0], step_b=steps[1])
    one, other = results
    if one.shape != other.shape:
        return result.verdict, float("inf")
    return result.verdict, float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30))


@pytest.mark.parametrize("mode", ["pynative", "graph"])
@pytest.mark.parametrize("seed", range(10))
def test_no_program_whose_result_differs_is_called_benign(tmp_path: Path, seed: int, mode: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    one, other, is_edited = programs(seed + (100 if mode == "graph" else 0))
    x = tensor(WIDTH, WIDTH, seed=seed)
    status, apart = judged(tmp_path, lambda: one(x), lambda: other(x))
    if apart > _ROUNDINGS:
        assert status == "divergent"
    if not is_edited:
        assert status in ("identical", "benign")


class Looking(nn.Cell):
    """Returns the result of `last` for a tensor of shape (2, 6)."""

    def __init__(self, last: str) -> None:
        super().__init__()
        weight = Tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4))
        self.dense = nn.Dense(4, 6, weight_init=weight, bias_init="zeros")
        self.last = last

    def construct(self, x: Tensor) -> Tensor:
        y = ops.tanh(self.dense(x))
        if self.last == "reshape":
            return y.reshape(3, 4)
        if self.last == "ravel":
            return y.reshape(-1)
        if self.last == "transpose":
            return y.transpose(1, 0)
        if self.last == "expand":
            return ops.expand_dims(y, 0)
        return y


def in_modes(place: Path, one: str, other: str, modes: tuple[int, int]) -> str:
    x = tensor(2, 4)
    results = []
    for name, last, mode in (("a", one, modes[0]), ("b", other, modes[1])):
        ms.set_context(mode=mode)
        network = Looking(last)
        with opdump.capture(path=place / name, saved_data="full"):
            results.append(network(x).shape)
    steps = [open_dump(place / name).steps[-1] for name in ("a", "b")]
    assert (results[0] == results[1]) == (one == other)
    return opdump.compare(place / "a", place / "b", step=steps[0], step_b=steps[1]).verdict


@pytest.mark.parametrize("last", ["reshape", "transpose", "expand", "none"])
def test_a_result_that_is_a_view_is_the_same_in_both_modes(tmp_path: Path, last: str) -> None:
    assert in_modes(tmp_path, last, last, (ms.GRAPH_MODE, ms.PYNATIVE_MODE)) in ("identical", "benign")


@pytest.mark.parametrize(
    ("one", "other", "modes"),
    [
        ("reshape", "ravel", (ms.GRAPH_MODE, ms.PYNATIVE_MODE)),
        ("none", "expand", (ms.PYNATIVE_MODE, ms.GRAPH_MODE)),
        ("none", "transpose", (ms.GRAPH_MODE, ms.PYNATIVE_MODE)),
        ("reshape", "ravel", (ms.GRAPH_MODE, ms.GRAPH_MODE)),
        ("reshape", "expand", (ms.PYNATIVE_MODE, ms.PYNATIVE_MODE)),
    ],
)
def test_results_of_other_shapes_are_divergent_in_every_mode(
    tmp_path: Path, one: str, other: str, modes: tuple[int, int]
) -> None:
    assert in_modes(tmp_path, one, other, modes) == "divergent"


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_is_written_outside_of_every_operator_is_no_rounding(tmp_path: Path, seed: int) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    draw = random.Random(seed)
    program, x, at = Program([]), tensor(WIDTH, WIDTH), draw.randrange(WIDTH * WIDTH)

    def with_value(value: float) -> Tensor:
        buffer = ops.ones((WIDTH, WIDTH), ms.float32)
        ctypes.c_float.from_address(buffer.data_ptr() + 4 * at).value = value
        return program(x * buffer)

    status, apart = judged(tmp_path, lambda: with_value(2.0), lambda: with_value(3.0 + seed))
    assert apart > _ROUNDINGS
    assert status == "divergent"


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 3), nn.Dense(3, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(ops.relu(self.first(x))).transpose(1, 0).reshape(-1).sum()


def test_a_compiled_optimizer_reads_what_the_gradients_made() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    gradient = ms.value_and_grad(network, None, network.trainable_params())
    with recorded() as recording:
        _, gradients = gradient(tensor(2, 4))
        places = recording.clock._recording.origins_of({"gradients": gradients})  # type: ignore[union-attr]
        optimizer(gradients)
    assert places is not None
    made = {f"{op.op_name}:0" for op in recording.ops(phase="backward")}
    assert list(places) == [f"Parameter.gradients:{number}" for number in range(4)]
    assert {origin.source for origin in places.values()} <= made


def test_a_view_is_read_in_the_memory_of_what_it_is_a_view_of() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with recorded() as recording:
        made = ops.tanh(tensor(2, 3))
        ops.relu(made.transpose(1, 0)[1:])
        ops.exp(made)
    (output,) = recording.tensors(recording.op("Tanh"), "output")
    (turned,) = recording.tensors(recording.op("ReLU"), "input")
    (whole,) = recording.tensors(recording.op("Exp"), "input")
    assert output.memory is not None
    assert turned.memory is not None
    assert whole.memory == output.memory
    assert turned.memory.storage == output.memory.storage
    assert (turned.memory.offset, turned.memory.strides) == (1, (1, 3))
    assert turned.source == whole.source == f"{output.op.op_name}:0"
