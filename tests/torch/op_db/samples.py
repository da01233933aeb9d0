"""One sample of one operator, which can run from the same state any number of times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORWARD, BACKWARD, INFINITE, IN_PLACE = "forward", "backward", "backward from infinity", "in place"


@dataclass(frozen=True, slots=True)
class Run:
    """The state after a run: results, gradients, the arguments afterwards, and the state of the generator."""

    results: list[Any]
    gradients: list[Tensor | None] | None
    arguments: list[Tensor]
    generator: Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """A sample, and how to run it."""

    form: str
    function: Callable[..., Any]
    sample: Any

    def copied(self) -> Case:
        """The same case on separate memory; a run may write into its arguments."""
        return Case(self.form, self.function, self.sample.transform(_copy))

    def run(self) -> Run:
        sample = self.sample
        leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        arguments = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        seed()
        result = self.function(sample.input, *sample.args, **sample.kwargs)
        gradients = None
        if self.form in (BACKWARD, INFINITE):
            first = -1.0 if self.form == BACKWARD else torch.inf
            gradients = _gradients(sample.output_process_fn_grad(result), arguments, first)
        return Run(torch.utils._pytree.tree_leaves(result), gradients, arguments, torch.get_rng_state())


def cases(operator: Any, dtype: torch.dtype, count: int | None, *, in_place: bool) -> Iterator[Case]:
    """The first `count` samples of an operator, with gradients if PyTorch supports them, and without."""
    backward = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
    seed()
    for sample in islice(operator.sample_inputs("cpu", dtype, requires_grad=backward), count):
        if backward:
            yield Case(BACKWARD, operator.op, sample)
            if dtype is torch.float32:
                yield Case(INFINITE, operator.op, sample)
        detached = sample.transform(_detach)
        yield Case(FORWARD, operator.op, detached)
        if in_place and operator.inplace_variant is not None and not sample.broadcasts_input:
            yield Case(IN_PLACE, operator.inplace_variant, detached)


def seed() -> None:
    torch.default_generator.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  # samples draw from the global generator


def _gradients(result: Any, arguments: list[Tensor], first: float) -> list[Tensor | None] | None:
    leaves = torch.utils._pytree.tree_leaves(result)
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    inputs = [argument for argument in arguments if argument.requires_grad]
    if not outputs or not inputs:
        return None
    return list(
        torch.autograd.grad(outputs, inputs, [_seed_of(output, first) for output in outputs], allow_unused=True)
    )


def _seed_of(output: Tensor, first: float) -> Tensor:
    """An initial gradient: random except for its first value."""
    if output.layout is not torch.strided or output.is_nested:
        return torch.ones_like(output)
    values = torch.randn(output.numel(), dtype=output.dtype, generator=torch.Generator().manual_seed(11))
    values[:1] = first
    return values.reshape(output.shape)


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copy(value: Any) -> Any:
    """A copy with the same strides, offset and gaps in memory."""
    if not isinstance(value, Tensor):
        return value
    plain = value.detach()
    if (
        plain.layout is torch.strided
        and type(plain) is Tensor
        and not (plain.is_nested or plain.is_quantized or plain.is_conj() or plain.is_neg())
    ):
        storage = plain.untyped_storage().clone()
        copy = torch.empty(0, dtype=plain.dtype).set_(storage, plain.storage_offset(), plain.size(), plain.stride())
    else:
        copy = plain.clone()
    return copy.requires_grad_(value.requires_grad)
