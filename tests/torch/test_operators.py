"""Kinds, names and unspecified outputs of PyTorch's operators."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from opdump.adapters.torch.naming import OperatorNames
from opdump.adapters.torch.schemas import is_asynchronous, kind_of, true_name, writes_of
from opdump.layouts.ascend.writer import api_name
from opdump.op_types import ROWS
from opdump.op_types.unspecified import UNSPECIFIED, unspecified_outputs
from tests.torch.releases import RELEASE

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        (aten.view.default, "view"),
        (aten.t.default, "view"),
        (aten.expand.default, "view"),
        (aten.detach.default, "view"),
        (aten.split.Tensor, "view"),
        (aten._unsafe_view.default, "view"),
        (aten.empty_like.default, "allocation"),
        (aten.new_empty_strided.default, "allocation"),
        (aten.resize_.default, "metadata"),
        (aten.set_.source_Tensor, "metadata"),
        (aten.squeeze_.dim, "metadata"),
        (aten.is_same_size.default, "metadata"),
        (torch.ops.profiler._record_function_enter_new.default, "metadata"),
        (aten.reshape.default, ""),
        (aten.clone.default, ""),
        (aten._to_copy.default, ""),
        (aten.zeros.default, ""),
        (aten._local_scalar_dense.default, ""),
        (aten.view_copy.default, ""),
        (torch.ops.higher_order.cond, ""),
    ],
)
def test_an_operator_without_a_kernel_is_recognised_by_its_schema(operator: Any, kind: str) -> None:
    assert kind_of(operator) == kind


def test_a_view_shares_memory_with_its_input_and_a_kernel_does_not() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    calls = {
        aten.t.default: (x,),
        aten.expand.default: (x, [4, 2, 3]),
        aten.select.int: (x, 0, 1),
        aten.unsqueeze.default: (x, 0),
        aten.clone.default: (x,),
        aten.neg.default: (x,),
        aten._to_copy.default: (x,),
    }
    for operator, arguments in calls.items():
        shares = operator(*arguments).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert shares == (kind_of(operator) == "view"), operator


def test_written_arguments_are_named_declared_or_not() -> None:
    assert writes_of(aten.add_.Tensor) == ("self",)
    assert writes_of(aten.add.out) == ("out",)
    assert writes_of(aten._foreach_add_.List) == ("self",)
    assert writes_of(aten.native_batch_norm.default) == ("running_mean", "running_var")
    assert writes_of(aten.add.Tensor) == ()
    assert writes_of(torch.ops.higher_order.cond) == ()


def test_true_names_keep_the_overload_and_the_library() -> None:
    assert true_name(aten.convolution.default) == ("convolution", "aten::convolution")
    assert true_name(aten.add.Tensor) == ("add", "aten::add.Tensor")
    assert true_name(torch.ops.quantized.cat.default) == ("cat", "quantized::cat")
    assert true_name(torch.ops.higher_order.cond) == ("cond", "higher_order::cond")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
def test_a_collective_returns_before_its_results_are_there() -> None:
    assert is_asynchronous(torch.ops.c10d.allreduce_.default)
    assert is_asynchronous(torch.ops._c10d_functional.all_reduce.default)
    assert not is_asynchronous(torch.ops._c10d_functional.wait_tensor.default)
    assert not is_asynchronous(aten.add.Tensor)


# Registered by torch.distributed and torchvision, which may be missing.
ELSEWHERE = {
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "_allgather_base",
    "allgather",
    "allreduce",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "deform_conv2d",
    "_reduce_scatter_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
}
# Removed in PyTorch 2.14 or 2.15.
GONE = {"cholesky", "qr"}

# Missing in PyTorch 2.6; all exist in 2.10.
YOUNG = {"_fused_rms_norm", "_fused_rms_norm_backward", "_grouped_mm", "_scaled_grouped_mm"}


def test_every_torch_name_is_an_operator_of_aten() -> None:
    schemas = torch._C._jit_get_all_schemas()
    known = {schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith("aten::")}
    named = {name for row in ROWS for name in row.torch} - ELSEWHERE - GONE - (YOUNG if RELEASE < (2, 10) else set())
    assert sorted(name for name in named if name not in known and f"{name}_" not in known) == []


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


ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("unwritten_memory.py")


def test_unspecified_outputs_are_looked_up_by_the_kernel_names_of_records() -> None:
    assert unspecified_outputs("aten::mkldnn_rnn_layer") == {3}
    assert unspecified_outputs("aten::_ctc_loss.Tensor") == {1}
    assert unspecified_outputs("aten::_thnn_fused_lstm_cell") == frozenset()
    assert unspecified_outputs("mine::mkldnn_rnn_layer") == frozenset()
    assert unspecified_outputs("") == frozenset()
    assert unspecified_outputs("mindspore::Adam") == unspecified_outputs("Adam") == {0, 1, 2}
    assert unspecified_outputs("mindspore::BatchNorm") == {1, 2}
    assert unspecified_outputs("BatchNorm") == frozenset(), "a device writes the statistics of the batch there"


def test_no_framework_is_needed() -> None:
    code = (
        "import sys; from opdump.op_types.unspecified import unspecified_outputs as of; "
        "assert of('aten::_cudnn_rnn') == {3}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kernel", sorted(UNSPECIFIED))
def test_the_slots_are_those_of_tensors_that_the_schema_returns(kernel: str) -> None:
    packet = getattr(torch.ops.aten, kernel, None)
    if packet is None:
        pytest.skip(f"this PyTorch has no {kernel}")
    operator = getattr(packet, packet.overloads()[0])
    names = [value.name for value in operator._schema.returns if str(value.type) == "Tensor"]
    assert max(UNSPECIFIED[kernel]) < len(names)
    told = {names[slot] for slot in UNSPECIFIED[kernel]} - {""}
    assert told <= {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"}


def _checksums(byte: int) -> list[str]:
    tunables = f"glibc.malloc.tcache_count=0:glibc.malloc.perturb={byte}"
    environment = {**os.environ, "GLIBC_TUNABLES": tunables, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can fill memory")
def test_kernels_of_the_cpu_leave_no_other_memory_unwritten() -> None:
    one, other = _checksums(17), _checksums(90)
    assert len(one) == len(other) > 100
    differ = set()
    for line, its_twin in zip(one, other, strict=True):
        _, kernel, slot, _ = line.split()
        assert its_twin.split()[1:3] == [kernel, slot]
        if line != its_twin:
            differ.add((kernel, int(slot)))
    assert all(slot in unspecified_outputs(kernel) for kernel, slot in differ), differ
    assert ("aten::_ctc_loss", 1) in {(kernel.partition(".")[0], slot) for kernel, slot in differ}
    if any(" aten::mkldnn_rnn_layer " in line for line in one):
        assert ("aten::mkldnn_rnn_layer", 3) in differ
