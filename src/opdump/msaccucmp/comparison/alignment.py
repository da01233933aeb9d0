"""Converts a tensor of the device to the format and the shape of the ground truth.

Against ND, both sides are flattened, unless there is a conversion to ND; otherwise the device's data are converted and then cut
to the shape of the ground truth. See docs/msaccucmp.md#what-is-compared-with-what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.msaccucmp.comparison.incomparable import IncomparableError, shape_text
from opdump.msaccucmp.custom_scripts import run_script
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_formats import FORMATS, Stored, can_convert, convert_format, effective_format, slice_to

_Array = npt.NDArray[Any]
FormatScripts = Mapping[tuple[str, str], Callable[..., Any]]
_FEWEST_DIMENSIONS: Final = 4
_CUT_DIMENSIONS: Final = frozenset({4, 5})
_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the device left it: `array` is flat and may have fewer elements than `shape`."""

    name: str
    format: str
    array: _Array
    stored: Stored


def align(
    tensor: StoredTensor, golden: _Array, golden_format: str, scripts: FormatScripts, *, flatten: bool = True
) -> tuple[_Array, _Array]:
    """Both sides, with equal numbers of elements; the shape of the first is that of the row. Raises IncomparableError.

    With `flatten` False, ND is treated as NCHW, which keeps the dimensions.
    """
    target = golden_format or tensor.format
    if target not in FORMATS.values():
        raise IncomparableError(ExitCode.BAD_FORMAT_PAIR, f'The format " {target} " is not supported.')
    if tensor.array.size == 1 and all(size == 1 for size in tensor.stored.shape):
        return _scalar(tensor, golden, golden_format)
    if target == "ND" and not can_convert(tensor.format, "ND"):
        if flatten:
            mine = tensor.array if tensor.array.size else tensor.array.reshape(tensor.stored.shape)
            if not mine.size and not golden.size:
                return mine, golden
            return _cut(tensor.name, mine, golden.reshape(-1) if golden.size else golden)
        target = "NCHW"
    mine = _converted(tensor, target, golden.shape, scripts)
    if tensor.format == "ND" and mine.size == golden.size:
        return mine, golden
    return _cut(tensor.name, mine, golden)


def _scalar(tensor: StoredTensor, golden: _Array, golden_format: str) -> tuple[_Array, _Array]:
    """A single element, whose format has no meaning, with the ground truth, flat."""
    if golden_format and golden.size != 1:
        raise _different(tensor.name, (1,), (golden.size,))
    return _cut(tensor.name, tensor.array, golden.reshape(-1))


def _converted(tensor: StoredTensor, target: str, wanted: tuple[int, ...], scripts: FormatScripts) -> _Array:
    stored = Stored(tensor.stored.shape, wanted, tensor.stored.groups)
    source = effective_format(tensor.format, stored.shape)
    script = scripts.get((source, target))
    if script is None and source in {target, "ND"}:
        return _reshaped(tensor)
    if script is None and not can_convert(source, target):
        raise IncomparableError(ExitCode.BAD_FORMAT_PAIR, "", f"there is no conversion from {source} to {target}")
    if source == "FRACTAL_NZ" and not _is_nz_shape(tensor.name, stored):
        log(
            "WARNING", f"[{tensor.name}] FRACTAL_NZ data of shape {stored.shape} are no {wanted}; they stay as they are"
        )
        return _reshaped(tensor)
    try:
        if script is not None:
            return run_script(script, source, target, tensor.array, stored)
        return convert_format(source, target, tensor.array, stored)
    except AbortError:
        raise
    except Exception as error:
        raise IncomparableError(
            ExitCode.SCRIPT_FAILED,
            "",
            f"the conversion from {source} to {target} failed: {type(error).__name__}: {error}",
        ) from error


def _reshaped(tensor: StoredTensor) -> _Array:
    try:
        return tensor.array.reshape(tensor.stored.shape)
    except (ValueError, OverflowError) as error:
        raise IncomparableError(
            ExitCode.BAD_DUMP, "", f"{tensor.array.size} elements do not have the shape {tensor.stored.shape}"
        ) from error


def _is_nz_shape(name: str, stored: Stored) -> bool:
    """Whether FRACTAL_NZ data can be cut to the target shape. Raises IncomparableError if the original recommends a better shape.

    If the target has more dimensions than the data represent, it checks only one of them.
    """
    *leading, c1, no, ni, c0 = stored.shape
    wanted = stored.wanted
    if not wanted:
        raise IncomparableError(
            ExitCode.BAD_PARAMETER, f"[{name}] The format before transfer is FRACTAL_NZ. Please enter a valid shape."
        )
    rows, columns = no * ni, c1 * c0
    ends = wanted[len(leading) :]
    fits = len(ends) >= 2 and rows - _BLOCK < ends[0] <= rows
    if not fits or (len(ends) == 2 and not columns - _BLOCK < ends[1] <= columns):
        raise IncomparableError(
            ExitCode.BAD_NZ_SHAPE,
            f"[{name}] The target shape {shape_text(wanted)} is invalid. "
            f"The recommended shape is {shape_text((*leading, rows, columns))}.",
        )
    cut = math.prod(leading) * min(rows, wanted[-2]) * min(columns, wanted[-1])
    return cut == math.prod(wanted)


def _cut(name: str, mine: _Array, golden: _Array) -> tuple[_Array, _Array]:
    """The corner of `mine` with the shape of `golden`, or `mine` if the shapes are equivalent."""
    sizes, wanted_sizes = ([size for size in shape if size != 1] for shape in (mine.shape, golden.shape))
    if mine.ndim < golden.ndim and sizes != wanted_sizes:
        raise _different(name, tuple(sizes), tuple(wanted_sizes))
    if mine.ndim < golden.ndim or mine.shape == golden.shape or (mine.size == golden.size and len(sizes) <= 1):
        return mine, golden
    dimensions = max(mine.ndim, _FEWEST_DIMENSIONS)
    have = (*mine.shape, *(1,) * (dimensions - mine.ndim))
    wanted = (*golden.shape, *(1,) * (dimensions - golden.ndim))
    if have < wanted:  # the first dimension that differs decides
        raise _different(name, have, wanted)
    result = mine
    if dimensions in _CUT_DIMENSIONS:
        result = mine.reshape(have)[tuple(slice(size) for size in wanted)]
    log("INFO", f"[{name}] the data of shape {mine.shape} are cut to {wanted}")
    if result.size != golden.size:
        raise _different(name, (result.size,), (golden.size,))
    return result, golden


def same_shape(tensor: StoredTensor, golden: _Array, paths: tuple[str, str]) -> tuple[_Array, _Array]:
    """Both sides, if their shapes are equal, as the original compares quantised models. Raises IncomparableError."""
    shape = tensor.stored.shape
    if shape != golden.shape:
        raise _different(tensor.name, shape, golden.shape)
    if tensor.array.size != golden.size:
        raise IncomparableError(
            ExitCode.BAD_SHAPE,
            f"The my output dump data size ({tensor.array.size}) in ''{paths[0]}'' does not match the ground truth dump data "
            f"size ({golden.size}) in ''{paths[1]}''.",
        )
    return tensor.array.reshape(shape), golden


def _different(name: str, mine: tuple[int, ...], golden: tuple[int, ...]) -> IncomparableError:
    return IncomparableError(
        ExitCode.BAD_SHAPE,
        f"[{name}] Due to the different shapes on the left and right,the left dump data{shape_text(mine)} can not be "
        f"compared to the right dump data{shape_text(golden)}. Please check the batch of the dump data or the shape may be "
        "changed due to optimization.",
    )


def restore(tensor: StoredTensor) -> _Array:
    """The elements in the framework's order (NCHW or ND), cut to its shape if that is known; flat.

    Two dumps of devices are compared in this way. A tensor that cannot be restored stays in the device's order.
    """
    wanted = tensor.stored.wanted
    source = effective_format(tensor.format, tensor.stored.shape)
    array = tensor.array
    if not array.size:
        return array.reshape(-1)
    try:
        array = _reshaped(tensor)
        if wanted:
            array = _restored(source, array, tensor.stored)
    except (CommandError, AbortError, ValueError, ArithmeticError, LookupError) as error:
        log("ERROR", f"[{tensor.name}] the data stay in the order of the device: {error}")
    return np.ascontiguousarray(array).reshape(-1)


def _restored(source: str, array: _Array, stored: Stored) -> _Array:
    if source == "ND":
        return array
    target = "ND" if source == "FRACTAL_NZ" else "NCHW"
    if source != target:
        if not can_convert(source, target):
            raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"there is no conversion from {source} to {target}")
        array = convert_format(source, target, array, stored)
    return slice_to(array, stored.wanted)
