"""Small PyTorch programs for a CPU, and the operators that overflow in each, in order, with their proven status.

    for program in OVERFLOWING:
        program.run()           # -> program.expected == (("mul", 0x20),)

CLEAN programs never overflow, whatever their values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  PyTorch's own convention

INF = float("inf")
HALF, BF16, INT8, INT16, INT32, INT64, UINT8 = (
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
)


@dataclass(frozen=True, slots=True)
class Program:
    """`expected`: the type of each operator that overflows, without a trailing underscore, and its status."""

    name: str
    run: Callable[[], object]
    expected: tuple[tuple[str, int], ...] = ()


def _t(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _self_attention(x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
    result: torch.Tensor = F.scaled_dot_product_attention(x, x, x, attn_mask=attn_mask, is_causal=is_causal)
    return result


def _nan_that_stays() -> torch.Tensor:
    x = _t(float("nan"), 1) * 2 + 1
    return x.exp()


def _half(*values: float) -> torch.Tensor:
    return _t(*values, dtype=HALF)


def _add_in_place() -> torch.Tensor:
    x = _half(60000, 1)
    x.add_(x)
    return x


def _clamp_hides() -> torch.Tensor:
    return (_half(300, 1) * _half(300, 1)).clamp(max=100)


def _two_overflows() -> torch.Tensor:
    return _half(60000).mul(2).clamp(max=60000) + 60000


def _backward_of_linear() -> torch.Tensor | None:
    weight = torch.full((2, 2), 200.0, dtype=HALF, requires_grad=True)
    out = F.linear(torch.full((2, 2), 20.0, dtype=HALF), weight)
    out.backward(torch.full((2, 2), 60000.0, dtype=HALF))
    return weight.grad


def _copy_to_half() -> torch.Tensor:
    x = torch.zeros(2, 3, dtype=HALF)
    x.copy_(_t(1, 1e6, -1e6))
    return x


def _accumulate_half() -> torch.Tensor:
    x = torch.zeros(3, dtype=HALF)
    x.index_put_((torch.tensor([1, 1]),), _half(60000, 60000), accumulate=True)
    return x


def _foreach() -> list[torch.Tensor]:
    x = [_half(INF), _half(60000)]
    torch._foreach_mul_(x, 2)
    return x


def _foreach_int() -> tuple[torch.Tensor, ...] | list[torch.Tensor]:
    return torch._foreach_add([_t(100, dtype=INT8), _t(1, dtype=INT8)], [_t(100, dtype=INT8), _t(1, dtype=INT8)])


OVERFLOWING = (
    Program("fp16 addition", lambda: _half(60000, 1) + _half(60000, 1), (("add", 0x20),)),
    Program("fp16 addition in place, of itself", _add_in_place, (("add", 0x20),)),
    Program("fp16 multiplication by a number", lambda: _half(60000) * 2, (("mul", 0x20),)),
    Program("a clamp that hides an inf", _clamp_hides, (("mul", 0x20),)),
    Program("two in a row, the second after a clamp", _two_overflows, (("mul", 0x20), ("add", 0x20))),
    Program("bf16 multiplication", lambda: _t(3e38, dtype=BF16) * _t(2, dtype=BF16), (("mul", 0x20),)),
    Program("fp32 multiplication", lambda: _t(3e38) * _t(-2), (("mul", 0x20),)),
    Program("fp64 power", lambda: _t(1e200, dtype=torch.float64) ** 2, (("pow", 0x20),)),
    Program("complex multiplication", lambda: torch.tensor([3e38 + 0j]) * torch.tensor([2 + 0j]), (("mul", 0x20),)),
    Program("exp", lambda: _t(1, 100).exp(), (("exp", 0x20),)),
    Program("exp in fp16", lambda: _half(12).exp(), (("exp", 0x20),)),
    Program("log of zero", lambda: _t(0, 1).log(), (("log", 0x20),)),
    Program("log of a negative number", lambda: _t(-1).log(), (("log", 0x20),)),
    Program("division by zero", lambda: _t(1, 2) / _t(0, 1), (("div", 0x20),)),
    Program("zero by zero", lambda: _t(0) / _t(0), (("div", 0x20),)),
    Program("integers divided by zero", lambda: _t(1, dtype=INT32) / _t(0, dtype=INT32), (("div", 0x20),)),
    Program("rsqrt of zero", lambda: _t(0).rsqrt(), (("rsqrt", 0x20),)),
    Program("square root of a negative number", lambda: _t(-4).sqrt(), (("sqrt", 0x20),)),
    Program("sum in fp16", lambda: torch.full((4,), 30000.0, dtype=HALF).sum(), (("sum", 0x20),)),
    Program(
        "dropout that scales",
        lambda: torch.native_dropout(_half(*[60000] * 64), 0.5, True),
        (("native_dropout", 0x20),),
    ),
    Program("fp32 to fp16", lambda: _t(1, 1e6).half(), (("_to_copy", 0x100),)),
    Program("fp32 to fp16, beside an inf", lambda: _t(INF, 1e6, float("nan")).half(), (("_to_copy", 0x100),)),
    Program("fp64 to fp16", lambda: _t(1e5, dtype=torch.float64).to(HALF), (("_to_copy", 0x100),)),
    Program("int32 to fp16", lambda: _t(70000, dtype=INT32).half(), (("_to_copy", 0x100),)),
    Program("bf16 to fp16", lambda: _t(1e6, dtype=BF16).half(), (("_to_copy", 0x100),)),
    Program("copied into fp16, repeated", _copy_to_half, (("copy", 0x100),)),
    Program("fp64 to fp32", lambda: _t(1e300, dtype=torch.float64).float(), (("_to_copy", 0x20),)),
    Program("fp32 to fp8", lambda: _t(1e6).to(torch.float8_e5m2), (("_to_copy", 0x20),)),
    Program("fp32 to bf16", lambda: _t(3.4e38).bfloat16(), (("_to_copy", 0x20),)),
    Program("negative float to uint8", lambda: _t(-1, 2).to(UINT8), (("_to_copy", 0x80),)),
    Program("negative half to uint8", lambda: _half(-3).to(UINT8), (("_to_copy", 0x80),)),
    Program("smallest int8 negated", lambda: -_t(-128, 1, dtype=INT8), (("neg", 0x8),)),
    Program("smallest int32 negated", lambda: -_t(-(2**31), dtype=INT32), (("neg", 0x8),)),
    Program("smallest int64 negated", lambda: torch.tensor([-(2**63)]).neg(), (("neg", 0x8),)),
    Program("absolute value of the smallest int16", lambda: _t(-32768, dtype=INT16).abs(), (("abs", 0x8),)),
    Program("int8 addition", lambda: _t(100, 1, dtype=INT8) + _t(100, 1, dtype=INT8), (("add", 0x10),)),
    Program("int8 addition of a number", lambda: _t(100, dtype=INT8) + 100, (("add", 0x10),)),
    Program("int32 addition in place", lambda: _t(2**31 - 1, dtype=INT32).add_(1), (("add", 0x10),)),
    Program("int64 addition at the very end", lambda: torch.tensor([2**63 - 1]) + 1, (("add", 0x10),)),
    Program("int8 subtraction", lambda: _t(-100, dtype=INT8) - _t(100, dtype=INT8), (("sub", 0x10),)),
    Program("uint8 below zero", lambda: _t(3, dtype=UINT8) - _t(5, dtype=UINT8), (("sub", 0x10),)),
    Program("a number minus int8", lambda: 100 - _t(-100, dtype=INT8), (("rsub", 0x10),)),
    Program("int16 multiplication", lambda: _t(300, dtype=INT16) * _t(300, dtype=INT16), (("mul", 0x10),)),
    Program("int64 multiplication", lambda: torch.tensor([2**32]) * torch.tensor([2**31]), (("mul", 0x10),)),
    Program("int32 power", lambda: _t(50000, dtype=INT32) ** 2, (("pow", 0x10),)),
    Program("int64 sum", lambda: torch.tensor([2**62, 2**62]).sum(), (("sum", 0x10),)),
    Program("int64 product", lambda: torch.tensor([2**32, 2**32]).prod(), (("prod", 0x10),)),
    Program("int64 running sum", lambda: torch.tensor([2**62, 2**62, -(2**62)]).cumsum(0), (("cumsum", 0x10),)),
    Program(
        "int8 matmul",
        lambda: torch.full((2, 8), 100, dtype=INT8) @ torch.full((8, 2), 100, dtype=INT8),
        (("mm", 0x10),),
    ),
    Program(
        "int32 matmul",
        lambda: torch.full((2, 2), 40000, dtype=INT32) @ torch.full((2, 2), 40000, dtype=INT32),
        (("mm", 0x10),),
    ),
    Program(
        "addcmul of int8",
        lambda: torch.addcmul(_t(1, dtype=INT8), _t(50, dtype=INT8), _t(3, dtype=INT8)),
        (("addcmul", 0x10),),
    ),
    Program(
        "matmul in fp16",
        lambda: torch.full((2, 8), 200.0, dtype=HALF) @ torch.full((8, 2), 200.0, dtype=HALF),
        (("mm", 0x400),),
    ),
    Program(
        "batched matmul in fp16",
        lambda: torch.full((2, 2, 8), 200.0, dtype=HALF) @ torch.full((2, 8, 2), 200.0, dtype=HALF),
        (("bmm", 0x400),),
    ),
    Program(
        "linear layer in fp16",
        lambda: F.linear(torch.full((2, 8), 200.0, dtype=HALF), torch.full((2, 8), 200.0, dtype=HALF), _half(0, 0)),
        (("addmm", 0x400),),
    ),
    Program("matmul in fp32", lambda: torch.full((1, 4), 1e38) @ torch.full((4, 1), 10.0), (("mm", 0x400),)),
    Program("gradient of a linear layer", _backward_of_linear, (("mm", 0x400),)),
    Program(
        "convolution in fp16",
        lambda: F.conv2d(torch.full((1, 1, 4, 4), 200.0, dtype=HALF), torch.full((1, 1, 3, 3), 200.0, dtype=HALF)),
        (("convolution", 0x400),),
    ),
    Program(
        "convolution in fp32",
        lambda: F.conv1d(torch.full((1, 1, 4), 3e38), torch.full((1, 1, 2), 2.0)),
        (("convolution", 0x400),),
    ),
    Program(
        "transposed convolution",
        lambda: F.conv_transpose1d(torch.full((1, 1, 4), 3e38), torch.full((1, 1, 2), 2.0)),
        (("convolution", 0x400),),
    ),
    Program(
        "attention",
        lambda: _self_attention(torch.full((1, 1, 4, 8), 3e38)),
        (("_scaled_dot_product_flash_attention_for_cpu", 0x400),),
    ),
    Program(
        "einsum",
        lambda: torch.einsum("ij,jk->ik", torch.full((2, 2), 3e38), torch.full((2, 2), 3.0)),
        (("bmm", 0x400),),
    ),
    Program(
        "fp16 softmax of scores that were masked too late",
        lambda: ((_half(60000, 1) * 2) + _half(0, -INF)).softmax(0),
        (("mul", 0x20),),
    ),
    Program("accumulated into the same place", _accumulate_half, (("index_put", 0x20),)),
    Program(
        "scattered additions",
        lambda: torch.zeros(2, dtype=HALF).scatter_add_(0, torch.tensor([0, 0]), _half(60000, 60000)),
        (("scatter_add", 0x20),),
    ),
    Program("one of a list of tensors, another of which is inf", _foreach, (("_foreach_mul", 0x20),)),
    Program("one of a list of int8 tensors", _foreach_int, (("_foreach_add", 0x10),)),
)


def _mask_by_addition() -> torch.Tensor:
    scores = torch.randn(4, 4)
    mask = torch.full((4, 4), -INF).triu(1)
    return (scores + mask).softmax(-1)


def _batch_norm_in_training() -> torch.Tensor:
    normalised: torch.Tensor = torch.nn.BatchNorm2d(3)(torch.randn(2, 3, 4, 4))
    return normalised


def _train_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    F.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 0])).backward()
    optimizer.step()


def _garbage_in_a_result() -> torch.Tensor:
    out = torch.empty(2, 2).fill_(float("nan"))
    torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=out)
    return torch.addmm(torch.full((2,), float("nan")), out, out, beta=0)


def _attention_with_bool_mask() -> torch.Tensor:
    q = torch.randn(1, 2, 4, 8)
    return _self_attention(q, attn_mask=torch.ones(4, 4).tril().bool())


def _attention_with_a_row_all_masked() -> torch.Tensor:
    q = torch.randn(1, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    return _self_attention(q, attn_mask=mask)


def _ctc() -> torch.Tensor:
    lengths = torch.tensor([6, 6]), torch.tensor([3, 2])
    return F.ctc_loss(torch.randn(6, 2, 4).log_softmax(-1), torch.tensor([[1, 2, 3], [1, 1, 0]]), *lengths)


def _grad_of_masked_softmax() -> torch.Tensor | None:
    x = torch.randn(3, 3, requires_grad=True)
    x.masked_fill(torch.ones(3, 3).triu(1).bool(), -INF).softmax(-1).sum().backward()
    return x.grad


CLEAN = (
    Program("masked_fill with -inf", lambda: torch.randn(4, 4).masked_fill(torch.ones(4, 4).bool(), -INF)),
    Program(
        "masked_fill_ with -inf, then softmax",
        lambda: torch.randn(4, 4).masked_fill_(torch.eye(4).bool(), -INF).softmax(-1),
    ),
    Program("a causal mask that is added", _mask_by_addition),
    Program("softmax over a row of -inf", lambda: torch.full((2, 3), -INF).softmax(-1)),
    Program("log_softmax over a row of -inf", lambda: torch.full((2, 3), -INF).log_softmax(-1)),
    Program("gradient of a masked softmax", _grad_of_masked_softmax),
    Program("where with -inf", lambda: torch.where(torch.eye(3).bool(), torch.randn(3, 3), -INF)),
    Program("full of inf", lambda: torch.full((3,), INF)),
    Program("fill_ with nan", lambda: torch.zeros(3).fill_(float("nan"))),
    Program("an inf that is added", lambda: torch.zeros(3) + INF),
    Program("multiplication by inf", lambda: torch.ones(3) * -INF),
    Program("clamp to inf", lambda: torch.randn(3).clamp(min=-INF, max=INF)),
    Program("constant padding with -inf", lambda: F.pad(torch.randn(2, 2), (1, 1), value=-INF)),
    Program("max pooling with padding", lambda: F.max_pool2d(torch.randn(1, 1, 4, 4), 3, 2, padding=1)),
    Program("causal attention", lambda: _self_attention(torch.randn(1, 2, 4, 8), is_causal=True)),
    Program("attention with a bool mask", _attention_with_bool_mask),
    Program("attention with a row all masked", _attention_with_a_row_all_masked),
    Program(
        "attention with a float mask",
        lambda: _self_attention(torch.randn(1, 2, 4, 8), attn_mask=torch.full((4, 4), -INF).triu(1)),
    ),
    Program("nan that stays nan", _nan_that_stays),
    Program("inf minus inf", lambda: _t(INF) - _t(INF)),
    Program("matmul with a nan", lambda: _t(float("nan"), 1).reshape(1, 2) @ torch.ones(2, 1)),
    Program("inf cast to fp16", lambda: _t(INF, -INF, float("nan"), 65504).half()),
    Program("largest fp16 cast up and down", lambda: _half(65504, -65504).float().half()),
    Program("sum of an empty tensor", lambda: torch.zeros(0).sum()),
    Program("mean of an empty tensor", lambda: torch.zeros(0).mean()),
    Program("logsumexp of an empty tensor", lambda: torch.zeros(0, 3).logsumexp(0)),
    Program("empty matmul", lambda: torch.zeros(2, 0) @ torch.zeros(0, 2)),
    Program("memory without values", lambda: torch.empty(4).copy_(torch.ones(4))),
    Program("results written over garbage", _garbage_in_a_result),
    Program("positive float to uint8", lambda: _t(0, 2.5, 255).to(UINT8)),
    Program("negative zero to uint8", lambda: _t(-0.0).to(UINT8)),
    Program("negative float to int8", lambda: _t(-5).to(INT8)),
    Program("negative float to bool", lambda: _t(-5).to(torch.bool)),
    Program("int8 at the ends of its range", lambda: _t(100, -100, dtype=INT8) + _t(27, -28, dtype=INT8)),
    Program("int64 at the ends of its range", lambda: torch.tensor([2**63 - 2, -(2**63)]) + torch.tensor([1, 0])),
    Program("int64 product at the ends of its range", lambda: torch.tensor([2**31, 3]) * torch.tensor([-(2**32), 5])),
    Program("int8 negated", lambda: -_t(-127, 127, dtype=INT8)),
    Program("next to the smallest int64 negated", lambda: -torch.tensor([-(2**63) + 1])),
    Program("int8 matmul that fits", lambda: torch.full((2, 4), 5, dtype=INT8) @ torch.full((4, 2), 6, dtype=INT8)),
    Program("sum of int8 in int64", lambda: torch.full((1000,), 127, dtype=INT8).sum()),
    Program("negative integer power", lambda: _t(2, 3, dtype=INT32) ** _t(-1 + 1, 2, dtype=INT32)),
    Program("uint8 that stays above zero", lambda: _t(5, dtype=UINT8) - _t(3, dtype=UINT8)),
    Program("comparison and counting", lambda: (torch.randn(5) > 0).sum() * 2),
    Program("gather and scatter of inf", lambda: torch.zeros(3).scatter(0, torch.tensor([1]), INF)),
    Program("embedding", lambda: F.embedding(torch.tensor([0, 1]), torch.randn(2, 4))),
    Program("random numbers", lambda: torch.randn(8).exponential_()),
    Program("batch normalisation in training", _batch_norm_in_training),
    Program("a step of training", _train_step),
    Program("convolution", lambda: F.conv2d(torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))),
    Program("type seen through a view", lambda: _t(-1, dtype=INT32).view(torch.float32)),
    Program("impossible paths of a CTC loss", _ctc),
    Program("fp32 to an fp8 that has no infinity and saturates", lambda: _t(1e6).to(torch.float8_e4m3fn)),
    Program("fp8 and back", lambda: _t(448, -0.5, INF).to(torch.float8_e5m2).float()),
    Program("complex numbers", lambda: torch.fft.fft(torch.randn(8))),
)
