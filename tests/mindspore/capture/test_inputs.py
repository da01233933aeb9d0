"""The inputs of a program: only what it was given, loaded or computed outside of every operator has no maker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import opdump
from opdump.catalog.catalog import open_dump
from opdump.records import TensorRecord
from tests.mindspore.capture.recording import tensor

X: Final = tensor(4, 6)
TABLE: Final = tensor(5, 6, seed=1)
IDS: Final = Tensor(np.array([[0, 3, 1], [4, 4, 2]], np.int32))


WANTED: Final = tensor(4, 1, seed=4)
TRAINED: Final = frozenset({"x", "wanted", "weight", "bias", "learning_rate", "global_step"})


def weight(*shape: int, name: str, seed: int = 2) -> Parameter:
    return Parameter(tensor(*shape, seed=seed), name=name)


class Perceptron(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(6, 5), nn.Dense(5, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(ops.relu(self.first(x)))


class Views(nn.Cell):
    """Parts of one product, transposed and joined again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = weight(6, 12, name="weight")

    def construct(self, x: Tensor) -> Tensor:
        left, right = ops.split(ops.matmul(x, self.weight), 6, axis=-1)
        scores = ops.matmul(left, ops.transpose(right, (1, 0)))
        return ops.concat((scores[:, 1:], ops.reshape(left, (4, 6))), 1)


class Normal(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((6,))

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.norm(x))


class Running(nn.Cell):
    """A batch norm, which changes its running mean in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.norm.set_train()

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.norm(ops.reshape(x, (2, 2, 2, 3))))


class Embedding(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(TABLE, name="table")

    def construct(self, ids: Tensor) -> Tensor:
        return ops.mean(ops.gather(self.table, ids, 0) * 2.0, 1)


class Recurrent(nn.Cell):
    """A loop whose state begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.given = weight(3, 3, name="kept"), weight(2, 3, name="given", seed=3)

    def construct(self, x: Tensor) -> Tensor:
        state = ops.zeros((4, 3), ms.float32)
        for place in range(3):
            state = ops.tanh(ops.matmul(state, self.kept) + ops.matmul(x[:, 2 * place : 2 * place + 2], self.given))
        return state


class Masked(nn.Cell):
    """A mask that is a tensor of the program, and not a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Tensor(np.triu(np.full((4, 4), -1e9, np.float32), 1))

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(ops.matmul(x, ops.transpose(x, (1, 0))) + self.mask, -1)


class Counting(nn.Cell):
    """A state that the program assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Parameter(ops.zeros((4, 6), ms.float32), name="sum", requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        ops.assign_add(self.sum, x)
        return self.sum * 0.5


class SameName(nn.Cell):
    """An argument with the name of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = weight(6, name="scale")

    def construct(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * self.scale + scale


def training(kind: Callable[..., nn.Cell]) -> Callable[..., Tensor]:
    network = nn.WithLossCell(nn.Dense(6, 1), nn.MSELoss())
    optimizer = kind(network.trainable_params(), 0.1)
    compute = ops.value_and_grad(network, None, optimizer.parameters)

    def step(x: Tensor, wanted: Tensor) -> Tensor:
        loss, gradients = compute(x, wanted)
        optimizer(gradients)
        return loss

    return step


def known(program: Any, given: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """The elements of the data of a program, by name."""
    return {
        name: value.asnumpy().ravel()
        for name, value in {**given, **({"mask": program.mask} if isinstance(program, Masked) else {})}.items()
    }


def inputs(path: Path, values: dict[str, np.ndarray[Any, Any]]) -> set[str]:
    """The inputs that no operator of a dump made: parameters and states by name, data by elements, `folded` for tensors that the compiler computed,
    and `number` for a number that the program made of Python's. Single numbers and integers in compiled code are arguments.
    """
    dump = open_dump(path)
    made = {each.op.op_name for step in dump.steps for each in dump.ops(step=step, rank=0)}
    records = (record for step in dump.steps for each in dump.ops(step=step, rank=0) for record in each.tensors)
    read = (each for each in records if each.io == "input" and each.source.rpartition(":")[0] not in made)
    return {name for each in read if (name := name_of(each, values))}


def name_of(record: TensorRecord, values: dict[str, np.ndarray[Any, Any]]) -> str:
    is_folded = record.source.startswith("data-")
    if is_folded and (record.shape == () or "float" not in record.dtype):
        return ""
    if record.source and not is_folded:
        return record.source.removeprefix("Parameter.")
    held = record.numpy().ravel()
    data = next((name for name, elements in values.items() if np.isin(held, elements).all()), "")
    return data or ("folded" if is_folded else "number" if held.size == 1 else "?")


ALSO: Final = {
    ("recurrent", "graph"): {"folded"},  # the zeros with which the loop begins
    ("sgd", "graph"): {"folded"},  # the gradient of the mean
    ("adam", "graph"): {"folded"},
    ("sgd", "pynative"): {"number"},  # the weight of the loss
    ("adam", "pynative"): {"number"},
}
PROGRAMS: Final[dict[str, tuple[Callable[[], Any], dict[str, Tensor], set[str]]]] = {
    "perceptron": (Perceptron, {"x": X}, {"x", "first.weight", "first.bias", "second.weight", "second.bias"}),
    "views": (Views, {"x": X}, {"x", "weight"}),
    "norm": (Normal, {"x": X}, {"x", "norm.gamma", "norm.beta"}),
    "running": (
        Running,
        {"x": X},
        {"x", "norm.gamma", "norm.beta", "norm.moving_mean", "norm.moving_variance"},
    ),
    "embedding": (Embedding, {"ids": IDS}, {"ids", "table"}),
    "recurrent": (Recurrent, {"x": X}, {"x", "kept", "given"}),
    "masked": (Masked, {"x": X}, {"x", "mask"}),
    "counting": (Counting, {"x": X}, {"x", "sum"}),
    "same name": (SameName, {"x": X, "scale_$": tensor(6, seed=5)}, {"x", "scale", "scale_$"}),
    "sgd": (
        lambda: training(nn.SGD),
        {"x": X, "wanted": WANTED},
        {"momentum", "accum.weight", "accum.bias", "stat.weight", "stat.bias"} | TRAINED,
    ),
    "adam": (
        lambda: training(nn.Adam),
        {"x": X, "wanted": WANTED},
        {"moment1.weight", "moment1.bias", "moment2.weight", "moment2.bias", "beta1_power", "beta2_power"} | TRAINED,
    ),
}


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_was_given_is_an_input_of_the_program(tmp_path: Path, name: str, mode: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    make, given, expected = PROGRAMS[name]
    program = make()
    run = ms.jit(program) if mode == "graph" and not isinstance(program, nn.Cell) else program
    with opdump.capture(path=tmp_path / "dump", saved_data="full"):
        run(*given.values())
    found = inputs(tmp_path / "dump", known(program, given))
    assert found == expected | ALSO.get((name, mode), set())
