"""A model compared with the same model optimised by ONNX Runtime: nothing is accused, except a fault in the optimised
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import opdump
from opdump.comparison.differences import find_layout
from tests.comparison.onnx_runs import compared, dumped
from tests.onnx.recording import FLOAT, model_of, numbers
from tests.onnx.torch_models import exported

LEVELS = ("basic", "extended", "all")


def network(
    *,
    scale: bool = True,
    mask: int = 1,
    epsilon: float = 1e-5,
    residual: bool = True,
    clip: float = 0.0,
    is_narrow: bool = False,
) -> onnx.ModelProto:
    """A layer norm, masked attention with a residual, and an optional clip. `is_narrow`: the scores go through float16."""
    make = helper.make_node
    nodes = [
        make("LayerNormalization", ["x", "g", "b"], ["n"], name="/norm/LayerNormalization", epsilon=epsilon),
        make("MatMul", ["n", "wq"], ["q"], name="/q/MatMul"),
        make("MatMul", ["n", "wk"], ["k"], name="/k/MatMul"),
        make("MatMul", ["n", "wv"], ["v"], name="/v/MatMul"),
        make("Transpose", ["k"], ["kt"], name="/Transpose", perm=[0, 2, 1]),
        make("MatMul", ["q", "kt"], ["s"], name="/scores/MatMul"),
        make("Div", ["s", "root" if scale else "one"], ["d"], name="/Div"),
        make("Cast", ["d"], ["h"], name="/narrow/Cast", to=onnx.TensorProto.FLOAT16),
        make("Cast", ["h"], ["w"], name="/wide/Cast", to=FLOAT),
        make("Where", ["mask", "fill", "w" if is_narrow else "d"], ["m"], name="/Where"),
        make("Softmax", ["m"], ["p"], name="/Softmax", axis=-1),
        make("MatMul", ["p", "v"], ["o"], name="/out/MatMul"),
        make("Add", ["o", "x" if residual else "nothing"], ["r"], name="/Add"),
        make("Clip", ["r", "low", "high"], ["c"], name="/Clip"),
        make("Relu", ["c"], ["y"], name="/Relu"),
    ]
    if not is_narrow:
        nodes = [node for node in nodes if node.op_type != "Cast"]
    weights: dict[str, Any] = {
        "g": 1 + numbers(8) / 4, "b": numbers(8, seed=1), "fill": np.array(-1e9, np.float32), "root": np.array(2.0, np.float32),
        "one": np.array(1.0, np.float32), "nothing": np.array(0, np.float32), "mask": np.triu(np.ones((5, 5), bool), mask),
        "low": np.array(-clip or -1e3, np.float32), "high": np.array(clip or 1e3, np.float32),
        **{f"w{name}": numbers(8, 8, seed=2 + place) for place, name in enumerate("qkv")},
    }  # fmt: skip
    return model_of(nodes, {"x": (FLOAT, [2, 5, 8])}, {"y": (FLOAT, None)}, weights, opset=17)


FEEDS = {"x": numbers(2, 5, 8, seed=9)}
FAULTS: dict[str, dict[str, Any]] = {
    "a missing division": {"scale": False},
    "a mask that begins later": {"mask": 2},
    "an epsilon": {"epsilon": 1e-1},
    "a lost residual": {"residual": False},
    "a clip": {"clip": 0.7},
}


def layer_norm(*, epsilon: float, fused: bool) -> onnx.ModelProto:
    """A model that is one layer norm, as a single operator or written out."""
    make = helper.make_node
    written = [
        make("ReduceMean", ["x"], ["m"], axes=[-1]),
        make("Sub", ["x", "m"], ["d"]),
        make("Mul", ["d", "d"], ["s"]),
        make("ReduceMean", ["s"], ["v"], axes=[-1]),
        make("Add", ["v", "e"], ["ve"]),
        make("Sqrt", ["ve"], ["r"]),
        make("Div", ["d", "r"], ["y"]),
    ]
    nodes = [make("LayerNormalization", ["x", "g"], ["y"], epsilon=epsilon)] if fused else written
    weights: dict[str, Any] = {"g": np.ones(8, np.float32)} if fused else {"e": np.array(epsilon, np.float32)}
    return model_of(nodes, {"x": (FLOAT, [2, 5, 8])}, {"y": (FLOAT, None)}, weights, opset=17)


def written_by_other_code(*, mask: int = 1, half: float = 0.5) -> onnx.ModelProto:
    """The same as `network`, with other operators, names and order."""
    make = helper.make_node
    nodes = [
        make("ReduceMean", ["x"], ["m"], "mean", axes=[-1]),
        make("Sub", ["x", "m"], ["c"], "centre"),
        make("Mul", ["c", "c"], ["cc"], "square"),
        make("ReduceMean", ["cc"], ["v"], "variance", axes=[-1]),
        make("Add", ["e", "v"], ["ve"], "above"),
        make("Pow", ["ve", "minus"], ["i"], "inverse"),
        make("Mul", ["c", "i"], ["cn"], "normed"),
        make("Mul", ["g", "cn"], ["gn"], "gained"),
        make("Add", ["b", "gn"], ["n"], "shifted"),
        *(make("MatMul", ["n", f"w{part}"], [f"p{part}"], f"part {part}") for part in "vkq"),
        make("Mul", ["pq", "half"], ["q"], "scaled"),
        make("Einsum", ["q", "pk"], ["s"], "scores", equation="bqd,bkd->bqk"),
        make("Add", ["s", "hidden"], ["h"], "seen"),
        make("Softmax", ["h"], ["p"], "shares", axis=-1),
        make("Einsum", ["p", "pv"], ["o"], "mixed", equation="bqk,bkd->bqd"),
        make("Sum", ["x", "o"], ["r"], "sum"),
        make("Max", ["r", "zero"], ["y"], "positive"),
    ]
    weights: dict[str, Any] = {
        "g": 1 + numbers(8) / 4, "b": numbers(8, seed=1), "e": np.array(1e-5, np.float32), "minus": np.array(-0.5, np.float32),
        "half": np.array(half, np.float32), "zero": np.array(0, np.float32), "hidden": np.triu(np.full((5, 5), -1e9, np.float32), mask),
        **{f"w{name}": numbers(8, 8, seed=2 + place) for place, name in enumerate("qkv")},
    }  # fmt: skip
    return model_of(nodes, {"x": (FLOAT, [2, 5, 8])}, {"y": (FLOAT, None)}, weights, opset=17)


@pytest.mark.parametrize(("changed", "name"), [({}, ""), ({"mask": 2}, "/Where"), ({"half": 1.0}, "/Div")])
def test_a_model_that_other_code_built_is_compared_by_its_values(
    tmp_path: Path, changed: dict[str, Any], name: str
) -> None:
    found = compared(tmp_path, network(), written_by_other_code(**changed), FEEDS)
    assert [each.a.op_name for each in found.introduced[:1] if each.a] == ([name] if changed else [])
    assert found.verdict == ("divergent" if changed else "benign")


@pytest.mark.parametrize(("epsilon", "verdict"), [(1e-5, "benign"), (1e-1, "divergent")])
def test_a_whole_model_in_one_operator_is_compared_by_its_result(tmp_path: Path, epsilon: float, verdict: str) -> None:
    written, fused = layer_norm(epsilon=1e-5, fused=False), layer_norm(epsilon=epsilon, fused=True)
    found = compared(tmp_path, written, fused, FEEDS, levels=("disable", "disable"), saved_data="full")
    accused = {side.op_type for each in found.introduced[:1] for side in (each.a, each.b) if side}
    assert (found.verdict, "LayerNormalization" in accused) == (verdict, verdict == "divergent")


@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("level", ["disable", "all"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_never_benign(tmp_path: Path, fault: str, level: str, saved: str) -> None:
    levels = ("disable", level)
    found = compared(tmp_path, network(), network(**FAULTS[fault]), FEEDS, levels=levels, saved_data=saved)
    assert found.verdict == "divergent"


@pytest.mark.parametrize("levels", [("disable", "all"), ("all", "disable")])
@pytest.mark.parametrize("narrow", ["a", "b"])
def test_a_value_that_one_program_rounds_to_a_narrow_type_is_named(
    tmp_path: Path, narrow: str, levels: tuple[str, str]
) -> None:
    before, after = network(is_narrow=narrow == "a"), network(is_narrow=narrow == "b")
    found = compared(tmp_path, before, after, FEEDS, levels=levels)
    assert found.verdict == "divergent"
    assert "Cast" in {side.op_type for side in (found.introduced[0].a, found.introduced[0].b) if side}


@pytest.mark.parametrize("saved", ["full", "statistic"])
def test_an_optimised_network_is_no_difference(tmp_path: Path, saved: str) -> None:
    dumped(network(), FEEDS, tmp_path / "plain", saved_data=saved)
    for level in LEVELS:
        dumped(network(), FEEDS, tmp_path / level, optimize=level, saved_data=saved)
        assert opdump.compare(tmp_path / "plain", tmp_path / level).verdict in ("identical", "benign")


def test_a_batch_norm_that_is_folded_into_its_convolution_is_no_difference(tmp_path: Path) -> None:
    content, feeds = exported("convnet")
    model = onnx.load_from_string(content)
    dumped(model, feeds, tmp_path / "plain")
    for level in LEVELS:
        dumped(model, feeds, tmp_path / level, optimize=level)
        found = opdump.compare(tmp_path / "plain", tmp_path / level)
        assert found.verdict in ("identical", "benign"), found.headline


def convolutions(*, dilation: int = 2, epsilon: float = 1e-5) -> onnx.ModelProto:
    """Two convolutions with batch norms, which the optimiser fuses into kernels that write channels in blocks."""
    make = helper.make_node
    facts = ["scale", "shift", "mean", "variance"]
    nodes = [
        make("Conv", ["x", "k1"], ["c1"], name="/first/Conv", pads=[1] * 4),
        make("BatchNormalization", ["c1", *facts], ["n1"], name="/first/Norm", epsilon=epsilon),
        make("Relu", ["n1"], ["r1"], name="/first/Relu"),
        make("Conv", ["r1", "k2"], ["c2"], name="/second/Conv", pads=[dilation] * 4, dilations=[dilation] * 2),
        make("BatchNormalization", ["c2", *facts], ["n2"], name="/second/Norm"),
        make("Relu", ["n2"], ["r2"], name="/second/Relu"),
        make("Sub", ["x", "r2"], ["d"], name="/Sub"),
        make("AveragePool", ["d"], ["y"], name="/Pool", kernel_shape=[2, 2]),
    ]
    weights: dict[str, Any] = {
        "k1": numbers(16, 16, 3, 3, seed=1), "k2": numbers(16, 16, 3, 3, seed=2), "scale": 1 + numbers(16, seed=3) / 4,
        "shift": numbers(16, seed=4), "mean": numbers(16, seed=5), "variance": 0.01 + numbers(16, seed=6) ** 2,
    }  # fmt: skip
    return model_of(nodes, {"x": (FLOAT, [2, 16, 8, 8])}, {"y": (FLOAT, None)}, weights, opset=17)


@pytest.mark.parametrize(("changed", "name"), [({"epsilon": 0.1}, "/first/"), ({"dilation": 1}, "/second/")])
def test_a_fault_in_a_convolution_that_the_optimiser_fuses_is_named(
    tmp_path: Path, changed: dict[str, Any], name: str
) -> None:
    feeds = {"x": numbers(2, 16, 8, 8, seed=9)}
    found = compared(tmp_path, convolutions(), convolutions(**changed), feeds, levels=("disable", "all"))
    first = found.introduced[0]
    assert first.a is not None
    assert first.b is not None
    assert first.a.op_name.startswith(name), found.headline
    assert first.b.op_type in ("Conv", "FusedConv"), found.headline


@pytest.fixture
def quiet() -> Iterator[None]:
    """Silence the warning that a model was not prepared for quantisation."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


Quantised = Callable[..., onnx.ModelProto]


@pytest.fixture
def quantised(tmp_path: Path, quiet: None) -> Quantised:
    from onnxruntime import quantization

    class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self.feeds = iter([FEEDS])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    def make(model: onnx.ModelProto, form: str, activations: str) -> onnx.ModelProto:
        plain, made = tmp_path / "plain.onnx", tmp_path / "quantised.onnx"
        onnx.save(model, plain)
        # Full 8-bit weights would saturate on processors without the matching instructions, which would be a
        # difference.
        if form == "dynamic":
            quantization.quantize_dynamic(plain, made, reduce_range=True)
        else:
            kinds = {
                "quant_format": getattr(quantization.QuantFormat, form),
                "activation_type": getattr(quantization.QuantType, activations),
                "weight_type": quantization.QuantType.QInt8,
            }
            quantization.quantize_static(plain, made, Calibration(), reduce_range=True, **kinds)
        return onnx.load(made)

    return make


@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_a_quantised_model_that_is_optimised_is_no_difference(
    tmp_path: Path, quantised: Quantised, form: str, activations: str
) -> None:
    model = quantised(network(), form, activations)
    for saved in ("full", "statistic"):
        dumped(model, FEEDS, tmp_path / f"plain-{saved}", saved_data=saved)
        for level in LEVELS:
            dumped(model, FEEDS, tmp_path / f"{level}-{saved}", optimize=level, saved_data=saved)
            found = opdump.compare(tmp_path / f"plain-{saved}", tmp_path / f"{level}-{saved}")
            assert found.verdict in ("identical", "benign"), (level, saved, found.headline)


def test_a_weight_of_a_quantised_model_that_differs_is_named(tmp_path: Path, quantised: Quantised) -> None:
    model = quantised(network(), "QDQ", "QInt8")
    other = onnx.ModelProto.FromString(model.SerializeToString())
    weight = next(each for each in other.graph.initializer if each.name == "wv_quantized")
    weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), weight.name))
    found = compared(tmp_path, model, other, FEEDS)
    assert found.verdict == "divergent"


def square_attention(*, values: str = "v", parts: str = "qkv") -> onnx.ModelProto:
    """Attention in which tokens, heads and channels have sizes for which several layouts fit, with a projection after it. `parts` are the three
    products as queries, keys and values.
    """
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", f"w{name}"], [f"{part}0"], name=f"/{name}/MatMul")
        for name, part in zip("qkv", parts, strict=True)
    ]
    for name in "qkv":
        nodes.append(make("Reshape", [f"{name}0", "heads"], [f"{name}1"], name=f"/{name}/Reshape"))
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(make("Transpose", [f"{name}1"], [name], name=f"/{name}/Transpose", perm=perm))
    nodes += [
        make("MatMul", ["q", "k"], ["s"], name="/scores/MatMul"),
        make("Div", ["s", "root"], ["d"], name="/Div"),
        make("Softmax", ["d"], ["p"], name="/Softmax", axis=-1),
        make("MatMul", ["p", values], ["o"], name="/mixed/MatMul"),
        make("Transpose", ["o"], ["t"], name="/joined/Transpose", perm=[0, 2, 1, 3]),
        make("Reshape", ["t", "whole"], ["r"], name="/whole/Reshape"),
        make("MatMul", ["r", "wo"], ["u"], name="/out/MatMul"),
        make("Add", ["u", "bo"], ["ub"], name="/out/Add"),
        make("Add", ["ub", "x"], ["y"], name="/Add"),
    ]
    weights: dict[str, Any] = {
        "heads": np.array([2, 8, 2, 8]), "whole": np.array([2, 8, 16]), "root": np.array(2.8, np.float32), "bo": numbers(16, seed=7),
        **{f"w{name}": numbers(16, 16, seed=2 + place) for place, name in enumerate("qkvo")},
    }  # fmt: skip
    return model_of(nodes, {"x": (FLOAT, [2, 8, 16])}, {"y": (FLOAT, None)}, weights, opset=17)


def test_an_operator_that_reads_another_operand_is_named_itself_and_not_what_follows_it(tmp_path: Path) -> None:
    right, wrong = square_attention(values="v"), square_attention(values="q")
    feeds = {"x": numbers(2, 8, 16, seed=9)}
    found = compared(tmp_path, right, wrong, feeds, levels=("disable", "all"), saved_data="full")
    assert found.verdict == "divergent"
    first = found.introduced[0]
    assert first.a is not None
    assert first.a.op_name.startswith("/mixed/MatMul")


def test_exchanged_queries_and_keys_are_named_and_not_the_reader_of_the_transposed_scores(tmp_path: Path) -> None:
    feeds = {"x": numbers(2, 8, 16, seed=9)}
    right, wrong = square_attention(), square_attention(parts="kqv")
    found = compared(tmp_path, right, wrong, feeds, levels=("disable", "all"), saved_data="full")
    first = found.introduced[0]
    assert first.b is not None
    assert first.b.op_name.startswith("/scores/"), found.headline


@pytest.mark.parametrize("block", [8, 16])
def test_channels_in_blocks_are_the_same_values(block: int) -> None:
    plain = numbers(2, 16, 3, 5)
    blocked = plain.reshape(2, 16 // block, block, 3, 5).transpose(0, 1, 3, 4, 2).reshape(plain.shape)
    for one, other in ((plain, blocked), (blocked, plain)):
        found = find_layout(one, other, within=1e-2)
        assert found is not None
        layout, apart = found
        assert apart == 0
        assert (layout.apply(other) == one).all()
        assert (layout.turned(other.shape).apply(one) == other).all()
