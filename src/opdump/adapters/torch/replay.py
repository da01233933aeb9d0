"""Runs recorded PyTorch operators again, in a chosen precision, through the dispatcher (`torch.ops`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from opdump.adapters.replay import Array, Replayed
from opdump.adapters.torch.private_names import operator_schema
from opdump.adapters.torch.schemas import schema_of, tensors_returned
from opdump.records import OpRecord, TensorRecord

_ELEMENT = re.compile(r"(\w+)\[(\d+)\]")
_MISSING: Final = object()
_REFUSALS: Final = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
"""What kernels of PyTorch raise for a type or for values that they do not take, after what a record says was filled in. Who asked is told that
the operator could not be run again, and `opdump compare` says so of its kernel."""


class _MissingArgumentError(Exception):
    """An argument that the record does not have."""


class TorchReplayer:
    """Runs operators of PyTorch's dispatcher on tensors of the CPU."""

    def knows(self, op: OpRecord) -> bool:
        func = _overload(op.kernel)
        return func is not None and not draws_random(op) and not _has_unknown(op.arguments)

    def draws(self, op: OpRecord) -> bool:
        return draws_random(op)

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed | None:
        func = _overload(op.kernel)
        if func is None:
            return None
        try:
            outputs = _call(func, op, inputs, values, dtype)
        except _MissingArgumentError:
            return None
        except _REFUSALS:
            # Kernels that have no float64: recurrent networks of oneDNN.
            return self.run(op, inputs, values, dtype="float32") if dtype == "float64" else None
        return Replayed(outputs, dtype)


def draws_random(op: OpRecord) -> bool:
    """Whether the operator draws random numbers, with these arguments."""
    func = _overload(op.kernel)
    return (
        func is not None
        and torch.Tag.nondeterministic_seeded in func.tags
        and op.arguments.get("dropout_p", op.arguments.get("p")) != 0.0
        and op.arguments.get("train", op.arguments.get("training")) is not False
    )


def _overload(kernel: str) -> Any:
    namespace, _, rest = kernel.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
    return None if packet is None else getattr(packet, overload or "default", None)


def _has_unknown(value: Any) -> bool:
    """Whether an argument is one of which the record has the class alone: a generator, an object of a script."""
    if isinstance(value, str):
        return value.startswith("<")
    if isinstance(value, Mapping):
        return any(map(_has_unknown, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_unknown, value))


def _call(
    func: Any, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], width: str
) -> dict[int, Array]:
    floating: torch.dtype = getattr(torch, width)
    schema = schema_of(func)
    given: dict[str, Any] = {}
    for slot, record in inputs.items():
        if slot in values:
            tensor = _tensor(values[slot], record, floating)
        elif record.skip == "allocation" or 0 in record.shape:
            # Memory that nobody wrote yet: the operator writes it.
            tensor = _tensor(np.zeros(record.shape, _numpy_type(record.dtype)), record, floating)
        else:
            raise _MissingArgumentError(record.argument)
        listed = _ELEMENT.fullmatch(record.argument)
        if listed:
            elements = given.setdefault(listed[1], [])
            elements.extend([None] * (int(listed[2]) + 1 - len(elements)))
            elements[int(listed[2])] = tensor
        else:
            given[record.argument] = tensor
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in operator_schema(func).arguments:
        value = given.get(argument.name, _MISSING)
        if value is _MISSING and argument.name in op.arguments:
            value = _decoded(op.arguments[argument.name], str(argument.type), floating)
        if value is _MISSING:
            if argument.has_default_value():
                value = argument.default_value
            elif "Optional" in str(argument.type):
                value = None
            elif "List[Tensor]" in str(argument.type):
                value = []
            else:
                raise _MissingArgumentError(argument.name)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    with torch.no_grad():
        result = func(*args, **kwargs)
    return {slot: tensor.detach().numpy() for slot, _, tensor in tensors_returned(schema, tuple(args), kwargs, result)}


def _numpy_type(dtype: str) -> str:
    return "float32" if dtype.startswith(("bfloat16", "float8")) else dtype


def _tensor(array: Array, record: TensorRecord, floating: torch.dtype) -> torch.Tensor:
    # A copy: operators write into their arguments, and numpy's views are of memory that is to stay as it is.
    tensor = torch.from_numpy(np.array(array, copy=True))
    if tensor.is_floating_point():
        return tensor.to(floating)
    if tensor.is_complex():
        return tensor.to(torch.complex128 if floating is torch.float64 else torch.complex64)
    kind = getattr(torch, record.dtype, None)
    return (
        tensor.to(kind)
        if isinstance(kind, torch.dtype) and tensor.dtype != kind and not kind.is_floating_point
        else tensor
    )


def _decoded(value: Any, kind: str, floating: torch.dtype) -> Any:
    if isinstance(value, Mapping):
        if "float" in value:
            return float(value["float"])
        if "complex" in value:
            real, imaginary = (_decoded(part, kind, floating) for part in value["complex"])
            return complex(real, imaginary)
    if isinstance(value, list):
        return [_decoded(element, kind, floating) for element in value]
    if isinstance(value, str):
        if value.startswith("torch."):
            found = getattr(torch, value.removeprefix("torch."), None)
            if isinstance(found, torch.dtype):
                return floating if found.is_floating_point else found
            return value if found is None else found
        if "device" in kind.lower():
            return torch.device("cpu")
    return value


REPLAYER: Final = TorchReplayer()
