"""Forward-mode derivatives of PyTorch's operator samples: dual numbers, with and without a backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.torch.op_db.samples import Run, _copy, seed

TANGENT, OVER_REVERSE = "tangents", "tangents of gradients"
TYPES = (torch.float32, torch.complex64)


@dataclass(frozen=True, slots=True)
class DualCase:
    """A sample whose floating-point tensors get tangents, and how to run it."""

    form: str
    function: Callable[..., Any]
    sample: Any

    def copied(self) -> DualCase:
        """The same case on separate memory."""
        return DualCase(self.form, self.function, self.sample.transform(_copy))

    def run(self) -> Run:
        tangents = torch.Generator().manual_seed(5)

        def dual(value: Any) -> Any:
            if not isinstance(value, Tensor) or not _differentiable(value):
                return value.detach() if isinstance(value, Tensor) else value
            tangent = torch.randn(value.shape, dtype=value.dtype, generator=tangents)
            return forward_ad.make_dual(value.detach().requires_grad_(self.form == OVER_REVERSE), tangent)

        with forward_ad.dual_level():
            sample = self.sample.transform(dual)
            seed()
            results = _tensors(self.function(sample.input, *sample.args, **sample.kwargs))
            if self.form == OVER_REVERSE:
                results = _gradients(results, _tensors((sample.input, sample.args, sample.kwargs)))
            parts = [forward_ad.unpack_dual(result) for result in results]
            plain = [part.primal.detach() for part in parts]
            moved = [None if part.tangent is None else part.tangent.detach() for part in parts]
        return Run(plain, moved, [], torch.get_rng_state())


def dual_cases(operator: Any, dtype: torch.dtype, count: int) -> Iterator[DualCase]:
    """The first `count` samples of an operator that supports forward-mode derivatives."""
    if not operator.supports_forward_ad or dtype not in operator.supported_dtypes("cpu"):
        return
    seed()
    for sample in islice(operator.sample_inputs("cpu", dtype, requires_grad=False), count):
        yield DualCase(TANGENT, operator.op, sample)
        if operator.supports_fwgrad_bwgrad:
            yield DualCase(OVER_REVERSE, operator.op, sample)


def _differentiable(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout is torch.strided


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _gradients(results: list[Tensor], arguments: list[Tensor]) -> list[Tensor]:
    outputs = [result for result in results if result.requires_grad]
    inputs = [argument for argument in arguments if argument.requires_grad]
    if not outputs or not inputs:
        return []
    found: Any = torch.autograd.grad(
        outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True
    )
    return [gradient for gradient in found if gradient is not None]
