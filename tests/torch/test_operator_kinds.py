"""Views, allocations and metadata operators launch no kernel; all other operators do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdump.adapters.torch.schemas import is_asynchronous, kind_of, true_name, writes_of

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
def test_an_operator_without_a_kernel_is_told_by_its_schema(operator: Any, kind: str) -> None:
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
