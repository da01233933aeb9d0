"""Inputs of a model, read from a file or random with the right element type and shape; and its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.errors import ModelInputError
from opdump.onnx.recording import adapter_module

Array = npt.NDArray[Any]

_NARROW: Final = ("bfloat16", "float8_")
_INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def random_feed(value: Any, shape: Sequence[int] | None, seed: tuple[int, ...]) -> Any:
    """Random values for an input of a session: standard normal floats, integers that are 0 or 1, booleans.

    Integers are mostly indices or lengths, for which 0 and 1 are usually valid. An open dimension of the model is 1, unless
    `shape` sets it. Raises ModelInputError for a shape that does not fit, and for text and sequences.
    """
    dtype, dims = adapter_module("tensors_of_run").dtype_and_dims(value)
    wanted = tuple(1 if dim < 0 else dim for dim in dims) if shape is None else tuple(shape)
    _check_shape(value.name, dims, wanted)
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, wanted).astype(np.bool_)
    if dtype in _INTEGERS:
        return generator.integers(0, 2, wanted).astype(dtype)
    if dtype in ("complex64", "complex128"):
        return (generator.standard_normal(wanted) + 1j * generator.standard_normal(wanted)).astype(dtype)
    if dtype in ("float16", "float32", "float64"):
        return generator.standard_normal(wanted).astype(dtype)
    if dtype.startswith(_NARROW):
        return _narrow(generator.standard_normal(wanted), dtype)
    raise ModelInputError(
        f"{value.name}: no random input of type {value.type}; give one with --input {value.name}=FILE.npy"
    )


def load_input(value: Any, path: Path) -> Any:
    """An input from an npy file, in the model's element type if that can represent all its values exactly.

    Raises ModelInputError for a file that cannot be read, another shape, and elements that the type cannot represent.
    """
    array = _loaded(path)
    dtype, dims = adapter_module("tensors_of_run").dtype_and_dims(value)
    if dtype.startswith(_NARROW):
        _check_shape(value.name, dims, array.shape)
        return _narrow(array, dtype)
    if array.dtype.name != dtype and not (dtype == "string" and array.dtype.kind in "US"):
        try:
            fits = np.can_cast(array.dtype, np.dtype(dtype), "safe")
        except TypeError:
            fits = False
        if not fits:
            raise ModelInputError(
                f"{path}: elements are {array.dtype.name}, and {value.name} is {dtype}; save it as that: "
                f"numpy.save({str(path)!r}, array.astype({dtype!r}))"
            )
        array = array.astype(dtype)
    _check_shape(value.name, dims, array.shape)
    return array


def _loaded(path: Path) -> Array:
    try:
        with np.errstate(all="ignore"):  # numpy multiplies the dimensions in the header, whatever they are
            # Mapped first, so that the size of the file is checked against the header before memory is allocated.
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if isinstance(found, np.ndarray):
                return np.array(found)
    except Exception as error:  # numpy evaluates the header, and does not catch all resulting exceptions
        raise ModelInputError(f"{path}: cannot be read as an npy file: {error}") from error
    found.close()
    raise ModelInputError(f"{path}: contains several arrays; expected the npy file of one")


def outputs_for_numpy(values: Sequence[Any]) -> list[str] | None:
    """Names of the outputs that ONNX Runtime returns as arrays; None, which requests all, if there are none."""
    known = adapter_module("tensors_of_run").dtype_and_dims
    return [
        value.name for value in values if not known(value)[0].startswith((*_NARROW, "int4", "uint4", "float4"))
    ] or None


def _check_shape(name: str, dims: Sequence[int], shape: Sequence[int]) -> None:
    if len(dims) != len(shape) or any(wanted not in (-1, given) for wanted, given in zip(dims, shape, strict=True)):
        shown = ", ".join("any" if dim < 0 else str(dim) for dim in dims)
        raise ModelInputError(f"{name}: the shape is {tuple(shape)}, and the model has ({shown}) there")


def _narrow(array: Array, dtype: str) -> Any:
    import ml_dtypes

    narrow = array.astype(getattr(ml_dtypes, dtype))
    bits = narrow.view(np.uint16 if dtype == "bfloat16" else np.uint8)
    return adapter_module("tensors_of_run").feed_of(bits, dtype)
