"""The inputs of a program: the values that no recorded operator made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

import opdump
from opdump.catalog.catalog import open_dump
from tests.mindspore.capture.recording import tensor

X: Final = tensor(4, 6)
TABLE: Final = tensor(5, 6, seed=1)
IDS: Final = Tensor(np.array([[0, 3, 1], [4, 4, 2]], np.int32))


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


PROGRAMS: Final[dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]]] = {
    "perceptron": (Perceptron, (X,)),
    "views": (Views, (X,)),
    "norm": (Normal, (X,)),
    "running": (Running, (X,)),
    "embedding": (Embedding, (IDS,)),
    "recurrent": (Recurrent, (X,)),
    "masked": (Masked, (X,)),
    "counting": (Counting, (X,)),
    "same name": (SameName, (X, tensor(6, seed=5))),
    "sgd": (lambda: training(nn.SGD), (X, tensor(4, 1, seed=4))),
    "adam": (lambda: training(nn.Adam), (X, tensor(4, 1, seed=4))),
}

def inputs_of(path: Path) -> set[str]:
    dump = open_dump(path)
    (rank,) = dump.ranks
    found, made = set(), set()
    for step in dump.steps:
        made = set()
        for each in dump.ops(step=step, rank=rank, include_skipped=True):
            for t in each.tensors:
                if t.io == "input" and t.source.rpartition(":")[0] not in made:
                    found.add((each.op.op_type, t.slot, t.source, t.shape, t.skip))
            if not each.op.skip or each.op.skip == "view": made.add(each.op.op_name)
    return found


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_show(tmp_path: Path, name: str, mode: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    make, given = PROGRAMS[name]
    program = make()
    if mode == "graph" and not isinstance(program, nn.Cell):
        program = ms.jit(program)
    with opdump.capture(path=tmp_path / "d", saved_data="full"):
        program(*given)
    print(name, mode)
    for i in sorted(inputs_of(tmp_path / "d")): print("    ", i)
