"""The answer of a program, bit for bit: every tensor and number that it returned, by name, and the state of the random generators."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


def answer_of(program: Callable[[], Any]) -> dict[str, bytes]:
    """Run a program with fixed seeds and return the bits of everything that it returned."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # programs draw from the global generator
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned = program()
    bits = {name: _bits(value) for name, value in _leaves("", returned)}
    assert bits, "the program returned nothing to compare"
    bits["random numbers"] = torch.get_rng_state().numpy().tobytes()
    return bits


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """The names of the values in which two answers differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _leaves(f"{name}.{number}", each)
    else:
        yield name, value


def _bits(value: Any) -> bytes:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value).encode()
    if isinstance(value, np.ndarray):
        return repr((value.dtype, value.shape)).encode() + value.tobytes()
    assert isinstance(value, torch.Tensor), f"{type(value)} cannot be compared"
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    flat = value.cpu().contiguous().reshape(-1)
    bits: bytes = flat.view(torch.uint8).numpy().tobytes()
    return repr((value.dtype, tuple(value.shape))).encode() + bits
