"""Compares two runs bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.torch.op_db.samples import Run


def differences(one: Run, other: Run) -> list[str]:
    """Where two runs differ in a bit, a stride or the state of the generator; empty if they are equal."""
    found = [*_lists("result", one.results, other.results), *_lists("argument", one.arguments, other.arguments)]
    if one.gradients is not None and other.gradients is not None:
        found += _lists("gradient", one.gradients, other.gradients)
    elif one.gradients is not other.gradients:
        found.append("gradients in one run alone")
    if not torch.equal(one.generator, other.generator):
        found.append("state of the random generator")
    return found


def _lists(what: str, one: list[Any], other: list[Any]) -> list[str]:
    if len(one) != len(other):
        return [f"{len(one)} and {len(other)} {what}s"]
    pairs = enumerate(zip(one, other, strict=True))
    return [f"{what} {index}: {why}" for index, (left, right) in pairs if (why := _difference(left, right))]


def _difference(one: Any, other: Any) -> str:
    if type(one) is not type(other):
        return f"{type(one).__name__} and {type(other).__name__}"
    if not isinstance(one, Tensor):
        return "" if one == other or (_is_nan(one) and _is_nan(other)) else f"{one!r} and {other!r}"
    one, other = one.detach(), other.detach()
    if (one.dtype, one.layout, one.is_nested) != (other.dtype, other.layout, other.is_nested):
        return f"{one.dtype} {one.layout} and {other.dtype} {other.layout}"
    if one.is_nested:
        return "; ".join(_lists("element", list(one.unbind()), list(other.unbind())))
    if one.shape != other.shape:
        return f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
    if one.layout is torch.sparse_coo:
        one, other = one.coalesce(), other.coalesce()
        return _difference(one.values(), other.values()) or _difference(one.indices(), other.indices())
    if one.layout is not torch.strided:
        one, other = one.values(), other.values()
    if not torch.equal(_bytes(one), _bytes(other)):
        wide = torch.complex128 if one.is_complex() else torch.float64
        return f"values, by up to {(one.to(wide) - other.to(wide)).abs().max().item():.3g}"
    return "" if one.stride() == other.stride() else f"strides {one.stride()} and {other.stride()}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, complex)) and bool(np.isnan(value))


def _bytes(tensor: Tensor) -> Tensor:
    dense = torch.zeros(tensor.numel(), dtype=tensor.dtype)
    return dense.copy_(tensor.reshape(-1)).view(torch.uint8)
