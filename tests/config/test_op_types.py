"""The table of operator names: its form, and which names are equivalent."""

from __future__ import annotations

from collections import Counter

import pytest

from opdump.op_types import ROWS, OperatorNames, bare_name, is_called, names_of, rows_of

FRAMEWORKS = ("torch", "mindspore", "tensorflow", "jax", "onnx", "ascend")


def share_a_row(one: str, other: str) -> bool:
    return not {row.concept for row in rows_of(one)}.isdisjoint(row.concept for row in rows_of(other))


def test_there_are_many_rows_and_each_concept_has_one() -> None:
    assert len(ROWS) > 250
    assert [concept for concept, rows in Counter(row.concept for row in ROWS).items() if rows > 1] == []


def test_a_row_without_a_second_framework_is_known() -> None:
    def frameworks(row: OperatorNames) -> int:
        return sum(bool(getattr(row, framework)) for framework in FRAMEWORKS)

    assert {row.concept for row in ROWS if frameworks(row) < 2} == {"WeightNorm"}


def test_a_cell_names_nothing_twice() -> None:
    for row in ROWS:
        for framework in FRAMEWORKS:
            names = getattr(row, framework)
            assert len(set(names)) == len(names), row


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Conv2D", "convolution"),
        ("conv2d", "aten::convolution"),
        ("MatMul", "addmm"),
        ("MatMulV2", "mm"),
        ("Gemm", "linear"),
        ("ReLU", "aten::relu_"),
        ("Relu", "ReLUV3"),
        ("ReluGrad", "threshold_backward"),
        ("MaxPool", "max_pool2d_with_indices"),
        ("BatchNormalization", "native_batch_norm"),
        ("LayerNormV3", "native_layer_norm"),
        ("FusedBatchNormV3", "BNTrainingUpdate"),
        ("Softmax", "_softmax"),
        ("AdamWeightDecay", "_fused_adamw"),
        ("ResourceApplyMomentum", "_fused_sgd"),
        ("Sum", "aten::sum.dim_IntList"),
        ("gather", "GatherElements"),
        ("lax::gather", "index_select"),
        ("lax::gather", "Embedding"),
        ("dot_general", "BatchMatMul"),
        ("lax::max", "relu"),
        ("lax::add", "BiasAdd"),
        ("scatter-add", "UnsortedSegmentSum"),
        ("lax::select_n", "threshold_backward"),
        ("lax::conv_general_dilated", "convolution_backward"),
        ("AssignAddVariableOp", "AssignAdd"),
    ],
)
def test_one_operator_has_many_names(one: str, other: str) -> None:
    assert share_a_row(one, other)
    assert share_a_row(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Conv2D", "Conv3D"),
        ("Conv2D", "convolution_backward"),
        ("ReLU", "threshold_backward"),
        ("relu", "gelu"),
        ("Softmax", "_log_softmax"),
        ("AddN", "sum"),
        ("where", "nonzero"),
        ("gather", "index_select"),
        ("select", "Select"),
        ("aten::max", "relu"),
        ("max", "relu"),
        ("add", "BiasAdd"),
        ("lax::max", "amax"),
        ("Unknown", "relu"),
        ("relu", "Unknown"),
    ],
)
def test_different_operators_stay_apart(one: str, other: str) -> None:
    assert not share_a_row(one, other)


def test_names_of_jax_that_are_other_operators_elsewhere_do_not_stand_for_these() -> None:
    assert "max" not in names_of("relu")
    assert {"dot_general", "lax::max"}.isdisjoint(names_of("max"))
    assert "dot_general" in names_of("matmul")
    assert {"relu", "Maximum"} <= names_of("lax::max")
    assert not is_called("relu", "max")
    assert not is_called("max_pool2d_with_indices_backward", "add")


def test_names_are_those_of_every_concept() -> None:
    assert {"MatMul", "BiasAdd", "Gemm", "mm"} <= names_of("addmm")
    assert {"Conv2D", "Conv3D", "Conv"} <= names_of("convolution")
    assert names_of("Nothing") == {"Nothing"}
    assert rows_of("Nothing") == ()
    assert not is_called("Nothing", "nothing")
    assert is_called("aten::convolution.default", "conv2d")


@pytest.mark.parametrize(
    ("wanted", "means", "not_those"),
    [
        ("relu", ["threshold_backward"], ["convolution", "addmm"]),
        ("max", ["max_pool2d_with_indices"], ["clamp_min"]),
        ("tanh", ["tanh_backward"], ["relu6"]),
        ("index", [], ["embedding", "take"]),
        ("scatter", [], ["slice_backward"]),
        ("l1_loss", [], ["huber_loss"]),
        ("linear", ["addmm", "mm"], ["relu"]),
        ("convolution", ["conv1d", "conv_transpose2d"], []),
        ("biasadd", ["addmm"], ["mm"]),
        ("matmul", ["dot_general"], ["conv_general_dilated"]),
        ("conv2d", ["conv_general_dilated"], ["dot_general"]),
        ("conv_general_dilated", ["convolution"], ["mm"]),
        ("where", ["select_n"], ["max"]),
        ("relu", ["ReluGrad", "ReLU6"], ["Conv2D", "conv_general_dilated", "select_n", "max"]),
        ("activation", [], ["MatMul", "BatchNorm"]),
        ("transpose", [], ["conv_general_dilated"]),
        ("conv2dbackpropfilter", ["convolution_backward"], ["conv_general_dilated"]),
    ],
)
def test_a_type_means_whole_names_of_the_same_framework_and_parts_of_names_of_others(
    wanted: str, means: list[str], not_those: list[str]
) -> None:
    assert [name for name in (*means, *not_those) if is_called(name, wanted)] == means


@pytest.mark.parametrize(
    ("name", "bare"),
    [("aten::add_.Tensor", "add"), ("ReLU", "ReLU"), ("__and__", "__and__"), ("_softmax", "_softmax"), ("_", "_")],
)
def test_a_bare_name_has_no_namespace_overload_or_in_place_mark(name: str, bare: str) -> None:
    assert bare_name(name) == bare
