"""The names under which a configuration can select an operator."""

from __future__ import annotations

import pytest

from opdump.adapters.torch.naming import OperatorNames
from opdump.layouts.ascend.writer import api_name


def test_the_names_of_an_operator_of_a_module() -> None:
    name = "Default/network-ResNet/layer1-Sequential/0-Block/conv1-Conv2d/convolution-op7"
    assert OperatorNames().of(name) == {
        name,
        "convolution-op7",
        "Default/network-ResNet",
        "Default/network-ResNet/layer1-Sequential",
        "Default/network-ResNet/layer1-Sequential/0-Block",
        "Default/network-ResNet/layer1-Sequential/0-Block/conv1-Conv2d",
        *("layer1", "layer1.0", "layer1.0.conv1"),
    }


def test_a_gradient_also_has_the_names_of_its_module() -> None:
    names = OperatorNames().of("Gradients/Default/network-Net/fc-Linear/mm-op3")
    assert {"fc", "Default/network-Net/fc-Linear", "Gradients/Default/network-Net/fc-Linear", "mm-op3"} <= names


def test_short_scopes_have_no_class_names() -> None:
    assert {"fc", "block.1"} <= OperatorNames().of("Default/network/fc/addmm-op0") | OperatorNames().of(
        "Default/network/block/1/relu-op2"
    )


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("aten::add.Tensor", "aclnnAdd"),
        ("aten::add_.Tensor", "aclnnInplaceAdd"),
        ("aten::_softmax", "aclnnSoftmax"),
        ("aten::native_layer_norm_backward", "aclnnNativeLayerNormBackward"),
        ("aten::_foreach_mul_.Scalar", "aclnnInplaceForeachMul"),
        ("aten::__and__.Tensor", "aclnnAnd"),
        ("mine::fused op", "aclnnFusedop"),
    ],
)
def test_a_kernel_has_the_name_of_an_interface(kernel: str, name: str) -> None:
    assert api_name(kernel) == name
