"""Random ONNX models with random edits, optimised or not.

No comparison is benign if the outputs differ by more than rounding, and none is divergent without an edit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import opdump
from tests.comparison.onnx_runs import dumped, off
from tests.onnx.recording import FLOAT, model_of

LEVELS = ("disable", "basic", "extended", "all")
ROUNDINGS = 100 * 2.0**-23
SHAPE = (2, 4, 6)
UNARY = ("Tanh", "Sigmoid", "Relu", "Erf", "Softplus", "Sin")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class Program:
    """A chain of operators, with an occasional branch, on one tensor of three axes."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self.last, self.shape = "x", SHAPE
        for _ in range(int(self.draw.integers(4, 9))):
            self._add()

    def _add(self) -> None:
        number = len(self.nodes)
        kinds = (
            self._unary,
            self._binary,
            self._softmax,
            self._norm,
            self._product,
            self._transpose,
            self._mask,
            self._residual,
        )
        node = kinds[int(self.draw.integers(len(kinds)))](f"w{number}", f"v{number}")
        node.name = f"/block{number}/{node.op_type}"
        self.nodes.append(node)
        self.last = node.output[0]

    def _weight(self, name: str, *shape: int) -> str:
        self.weights[name] = self.draw.standard_normal(shape).astype(np.float32)
        return name

    def _unary(self, _: str, made: str) -> onnx.NodeProto:
        return helper.make_node(str(self.draw.choice(UNARY)), [self.last], [made])

    def _binary(self, weight: str, made: str) -> onnx.NodeProto:
        return helper.make_node(
            str(self.draw.choice(BINARY)), [self.last, self._weight(weight, self.shape[-1])], [made]
        )

    def _softmax(self, _: str, made: str) -> onnx.NodeProto:
        return helper.make_node("Softmax", [self.last], [made], axis=int(self.draw.choice([-1, 1])))

    def _norm(self, weight: str, made: str) -> onnx.NodeProto:
        inputs = [self.last, self._weight(weight, self.shape[-1]), self._weight(f"{weight}b", self.shape[-1])]
        return helper.make_node("LayerNormalization", inputs, [made], axis=-1, epsilon=1e-5)

    def _product(self, weight: str, made: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [self.last, self._weight(weight, self.shape[-1], self.shape[-1])], [made])

    def _transpose(self, _: str, made: str) -> onnx.NodeProto:
        self.shape = (self.shape[0], self.shape[2], self.shape[1])
        return helper.make_node("Transpose", [self.last], [made], perm=[0, 2, 1])

    def _mask(self, weight: str, made: str) -> onnx.NodeProto:
        self.weights[weight] = self.draw.random(self.shape[1:]) < 0.7
        self.weights[f"{weight}f"] = np.array(-1e9 if self.draw.random() < 0.5 else 0.5, np.float32)
        return helper.make_node("Where", [weight, self.last, f"{weight}f"], [made])

    def _residual(self, _: str, made: str) -> onnx.NodeProto:
        others = [node.output[0] for node in self.nodes if self._shape_of(node) == self.shape]
        return helper.make_node("Add", [self.last, str(self.draw.choice(others)) if others else self.last], [made])

    def _shape_of(self, node: onnx.NodeProto) -> tuple[int, ...]:
        place = self.nodes.index(node)
        turned = sum(each.op_type == "Transpose" for each in self.nodes[place + 1 :]) % 2
        return (self.shape[0], self.shape[2], self.shape[1]) if turned else self.shape

    def model(self, edit: Callable[[list[onnx.NodeProto], dict[str, Any]], object] | None = None) -> onnx.ModelProto:
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        weights = {name: value.copy() for name, value in self.weights.items()}
        if edit is not None:
            edit(nodes, weights)
        nodes.append(helper.make_node("Mul", [self.last, "half"], ["y"], name="/end/Mul"))
        return model_of(
            nodes, {"x": (FLOAT, SHAPE)}, {"y": (FLOAT, None)}, {**weights, "half": np.array(0.5, np.float32)}, opset=17
        )

    def edit(self, nodes: list[onnx.NodeProto], weights: dict[str, Any]) -> None:
        """Change one thing of the model: an operator, an attribute or a value; or leave an operator out."""
        node = nodes[int(self.draw.integers(len(nodes)))]
        if self.draw.random() < 0.2:
            own = next(place for place, each in enumerate(nodes) if each is node)
            if node.op_type != "Transpose":
                kept = node.input[1] if node.op_type == "Where" else node.input[0]
                nodes[own] = helper.make_node("Identity", [kept], list(node.output), name=node.name)
                return
        if node.op_type in UNARY:
            node.op_type = str(self.draw.choice([each for each in UNARY if each != node.op_type]))
        elif node.op_type == "Softmax":
            node.attribute[0].i = 2 if node.attribute[0].i == 1 else 1
        elif node.op_type == "LayerNormalization" and self.draw.random() < 0.5:
            next(each for each in node.attribute if each.name == "epsilon").f = 1e-2
        elif node.op_type in BINARY and self.draw.random() < 0.5:
            node.op_type = str(self.draw.choice([each for each in BINARY if each != node.op_type]))
        else:
            self._change_value([name for name in node.input if name in weights], weights)

    def _change_value(self, names: list[str], weights: dict[str, Any]) -> None:
        if names:
            value = weights[str(self.draw.choice(names))].reshape(-1)
            place = int(self.draw.integers(value.size))
            value[place] = not value[place] if value.dtype == np.bool_ else value[place] * 1.5 + 0.1


@pytest.mark.parametrize("first", range(0, 40, 5))
def test_what_a_comparison_says_of_random_models_holds(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 5):
        program = Program(seed)
        feeds = {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}
        level = LEVELS[seed % len(LEVELS)]
        saved = "full" if seed % 3 else "statistic"
        before = dumped(program.model(), feeds, tmp_path / f"a{seed}", saved_data=saved)
        dumped(program.model(), feeds, tmp_path / f"b{seed}", optimize=level, saved_data=saved)
        after = dumped(program.model(program.edit), feeds, tmp_path / f"c{seed}", optimize=level, saved_data=saved)
        same = opdump.compare(tmp_path / f"a{seed}", tmp_path / f"b{seed}")
        assert same.verdict in ("identical", "benign"), (seed, level, saved, same.headline)
        found = opdump.compare(tmp_path / f"a{seed}", tmp_path / f"c{seed}")
        if off(before, after) > ROUNDINGS:
            assert found.verdict not in ("identical", "benign"), (
                seed,
                level,
                saved,
                off(before, after),
                found.headline,
            )


def test_the_random_models_differ_in_most_edits() -> None:
    weights = {seed: {name: value.tobytes() for name, value in Program(seed).weights.items()} for seed in range(40)}
    assert len({str(each) for each in weights.values()}) > 30
    program = Program(1)
    plain, edited = program.model(), program.model(program.edit)
    assert plain != edited
    assert {each.name for each in plain.graph.initializer} == {each.name for each in edited.graph.initializer}
    assert all(numpy_helper.to_array(each).size for each in plain.graph.initializer)
