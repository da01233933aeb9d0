"""Random programs under PyTorch against random edits as models under ONNX Runtime: if results differ, no comparison is
benign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import opdump
from tests.comparison.random_programs import EDITS, SIDE, Array, EditKind, Program, edited, random_program

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx
import onnx.helper
import onnx.numpy_helper
import torch
from torch.nn import functional

import opdump.onnx
from tests.comparison.test_random_programs import differ, dumped

KINDS: Final[tuple[EditKind, ...]] = tuple(kind for kind in EDITS if kind != "memory")


class Model:
    """The nodes and constants of a model under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, which is named."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            onnx.helper.make_node(op, list(inputs), [name], name=f"node_{op}_{len(self.nodes)}", **attributes)
        )
        return name

    def constant(self, value: object, dtype: str = "float32") -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def save(self, path: Path, inputs: list[str], outputs: list[str]) -> Path:
        """Save the file."""
        kind = onnx.TensorProto.FLOAT
        graph = onnx.helper.make_graph(
            self.nodes,
            "program",
            [onnx.helper.make_tensor_value_info(each, kind, [SIDE, SIDE]) for each in inputs],
            [onnx.helper.make_tensor_value_info(each, kind, None) for each in outputs],
            self.constants,
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(model, path)
        return path


def _rolled(model: Model, x: str, number: float) -> str:
    turned = int(number) % SIDE
    parts = [
        model.node(
            "Slice", x, model.constant([start], "int64"), model.constant([end], "int64"), model.constant([1], "int64")
        )
        for start, end in ((SIDE - turned, SIDE), (0, SIDE - turned))
    ]
    return model.node("Concat", *parts, axis=1)


def _norm(model: Model, x: str, number: float) -> str:
    return model.node(
        "LayerNormalization", x, model.constant(np.ones(SIDE)), model.constant(np.zeros(SIDE)), epsilon=number
    )


def _masked(model: Model, x: str, number: float) -> str:
    added = model.node("Add", x, model.node("Mul", x, model.constant(number)))
    mask = model.constant(np.tril(np.ones((SIDE, SIDE))), "bool")
    return model.node("Softmax", model.node("Where", mask, added, model.constant(-1e9)), axis=-1)


OPERATORS: Final[Mapping[str, Callable[..., str]]] = {
    "relu": lambda model, x, _: model.node("Relu", x),
    "gelu": lambda model, x, number: model.node("Gelu", x, approximate="tanh" if number else "none"),
    "silu": lambda model, x, _: model.node("Mul", x, model.node("Sigmoid", x)),
    "tanh": lambda model, x, _: model.node("Tanh", x),
    "sigmoid": lambda model, x, _: model.node("Sigmoid", x),
    "exp": lambda model, x, _: model.node("Exp", model.node("Neg", model.node("Abs", x))),
    "abs": lambda model, x, _: model.node("Abs", x),
    "softmax": lambda model, x, _: model.node("Softmax", x, axis=-1),
    "norm": _norm,
    "scale": lambda model, x, number: model.node("Mul", x, model.constant(number)),
    "shift": lambda model, x, number: model.node("Add", x, model.constant(number)),
    "clamp": lambda model, x, number: model.node("Clip", x, model.constant(min(-1.0, number)), model.constant(number)),
    "roll": _rolled,
    "transpose": lambda model, x, _: model.node("Transpose", x, perm=[1, 0]),
    "mean": lambda model, x, _: model.node(
        "Sub", x, model.node("ReduceMean", x, model.constant([-1], "int64"), keepdims=1)
    ),
    "masked": _masked,
    "add": lambda model, x, y, _: model.node("Add", x, y),
    "sub": lambda model, x, y, _: model.node("Sub", x, y),
    "mul": lambda model, x, y, _: model.node("Mul", x, y),
    "matmul": lambda model, x, y, _: model.node("MatMul", x, y),
    "maximum": lambda model, x, y, _: model.node("Max", x, y),
}


def modelled(program: Program, path: Path) -> list[Array]:
    """The results of a program, run as a model and dumped."""
    model = Model()
    names = [f"x{place}" for place in range(len(program.data))]
    data = dict(zip(names, program.data, strict=True))
    for statement in program.statements:
        names.append(OPERATORS[statement.op](model, *(names[number] for number in statement.inputs), statement.number))
    file = model.save(path.with_suffix(".onnx"), list(data), [names[number] for number in program.results])
    with opdump.onnx.session(str(file), path=str(path), saved_data="full") as session:
        return list(session.run(None, data))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(40))
def test_models_whose_results_differ_are_never_benign(tmp_path: Path, seed: int) -> None:
    program = random_program(seed)
    before = dumped(program, tmp_path / "torch", "full")
    kind = KINDS[seed % len(KINDS)]
    other = edited(program, kind, seed)
    after = modelled(other, tmp_path / "model")
    if differ(before, after, "full"):
        result = opdump.compare(tmp_path / "torch", tmp_path / "model")
        assert result.verdict not in ("benign", "identical"), f"{kind}: {result.headline}\n{program}\nedited: {other}"


@pytest.mark.parametrize(
    ("axes", "verdict"), [([0, 1, 3, 5, 2, 4], "benign"), ([0, 3, 5, 1, 2, 4], "divergent")], ids=["right", "wrong"]
)
def test_a_result_in_another_order_of_its_axes_is_another_result(tmp_path: Path, axes: list[int], verdict: str) -> None:
    torch.manual_seed(0)
    data = torch.randn(1, 2, SIDE, SIDE)
    with opdump.capture(path=str(tmp_path / "torch"), saved_data="full"):
        functional.pixel_unshuffle(torch.relu(data), 2)
    model = Model()
    parts = model.node("Reshape", model.node("Relu", "x"), model.constant([1, 2, 2, 2, 2, 2], "int64"))
    turned = model.node("Transpose", parts, perm=axes)
    result = model.node("Reshape", turned, model.constant([1, 8, 2, 2], "int64"))
    file = model.save(tmp_path / "model.onnx", ["x"], [result])
    loaded = onnx.load(file)
    loaded.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, SIDE, SIDE]))
    onnx.save(loaded, file)
    with opdump.onnx.session(str(file), path=str(tmp_path / "onnx"), saved_data="full") as session:
        session.run(None, {"x": data.numpy()})
    assert opdump.compare(tmp_path / "torch", tmp_path / "onnx").verdict == verdict
