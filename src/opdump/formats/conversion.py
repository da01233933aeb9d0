"""Converts a tensor from one format to another."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from opdump.errors import FormatShapeError, UnknownFormatError
from opdump.formats.device_formats import DEVICE_FORMATS, FORMATS
from opdump.formats.placement import (
    Array,
    Reading,
    Shape,
    move_elements,
    read_elements,
    require_plain_shape,
    require_possible,
    write_elements,
)
from opdump.kernels import copy_elements


def can_convert(source: str, target: str) -> bool:
    """Whether `convert_format` can convert from one format to the other."""
    if source not in FORMATS or target not in FORMATS:
        return False
    plain, wanted = _plain_of(source), _plain_of(target)
    return source == target or "ND" in (plain, wanted) or sorted(plain) == sorted(wanted)


def convert_format(
    array: Array,
    source: str,
    target: str,
    *,
    shape: Shape | None = None,
    groups: int = 1,
    c0: int | None = None,
    out: Array | None = None,
    reading: Reading | None = None,
) -> Array:
    """The elements of a tensor in another format: `(2, 2, 8, 8, 16)` of NC1HWC0 as `(2, 19, 8, 8)` of NCHW.

    `array` has the shape of `source`, the result that of `target`; the result may be a view. If `out`, a C-contiguous array of
    the result's shape and dtype, is given, the elements and zeros for padding are written there, and `out` is returned. Reused
    memory is written faster than new memory. `reading` is called after each part of an array in a device format, or of one
    converted to such, has been read, so that pages of a mapped file can be released.

    `shape` is the tensor's own shape, in the order of a plain target, otherwise in the order of NCHW, NCDHW or, for FRACTAL_NZ,
    of the source. It removes the padding; without it, padding is kept. FRACTAL_Z requires it. Between plain formats, and into a
    device format, it has no effect but must be right. `groups` is the number of groups of a grouped convolution (FRACTAL_Z,
    FRACTAL_Z_3D; ignored elsewhere); 0, as in a dump file, means none. `c0` is the number of channels in a block of a device's
    target; the default is 16, for any dtype, and 4 for NC1HWC0_C04.

    Raises UnknownFormatError if there is no such format or conversion; FormatShapeError if the array or the target shape is
    impossible, a shape is needed, or `out` has another; and ValueError if `out` has another dtype, is read-only, is not
    C-contiguous, or overlaps the elements of `array`. `out` is then unchanged.
    """
    _require_known(source, target)
    if out is not None:
        _require_writable(out, array)
    if groups < 0 or (c0 is not None and c0 < 1):
        raise FormatShapeError(f"groups and c0 must be at least 1; found groups={groups}, c0={c0}")
    groups = groups or 1
    wanted = None if shape is None else tuple(int(size) for size in shape)
    if source == target:
        return _filled(_same(array, source, wanted), out)
    order, here, there = plain_shapes(array, source, target, wanted, groups)
    from_device, to_device = DEVICE_FORMATS.get(source), DEVICE_FORMATS.get(target)
    if to_device is None:
        if from_device is None:
            return _filled(array.transpose(order), out)
        made = _for_plain(there, array.dtype, out)
        if made.size:
            # Its axes are in the memory order of the target.
            read_elements(from_device.place(array, here, groups), made.transpose(np.argsort(order)), reading)
        return made
    made = _for_device(
        to_device.device_shape(there, to_device.c0 if c0 is None else c0, groups), there, array.dtype, out
    )
    if 0 in there:
        return made
    place = to_device.place(made, there, groups)
    if from_device is None:
        write_elements(array.transpose(order), place, reading)
    else:
        move_elements(from_device.place(array, here, groups), place, there, array.dtype, reading)
    return made


def _require_writable(out: Array, array: Array) -> None:
    if not out.flags.c_contiguous:
        raise ValueError(f"out is not C-contiguous: it has the shape {out.shape} and the strides {out.strides}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if out.dtype != array.dtype:
        raise ValueError(f"out has elements of {out.dtype}; those of the tensor are {array.dtype}")
    if np.may_share_memory(out, array):
        raise ValueError("out overlaps the elements of the tensor. Use separate memory")


def _require_shape(out: Array, shape: Shape) -> None:
    if out.shape != shape:
        raise FormatShapeError(f"out has the shape {out.shape}; the result has {shape}")


def _filled(result: Array, out: Array | None) -> Array:
    """The elements in `out`, if there is one."""
    if out is None:
        return result
    _require_shape(out, result.shape)
    copy_elements(result, out)
    return out


def _for_plain(shape: Shape, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Memory for a plain format, of which every element will be written."""
    if out is None:
        return np.empty(shape, dtype)
    _require_shape(out, shape)
    return out


def _for_device(shape: Shape, of_plain: Shape, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Memory for a device format, with zeros for the padding."""
    require_possible(shape, dtype)
    if out is None:
        return np.zeros(shape, dtype)
    _require_shape(out, shape)
    if out.size != math.prod(of_plain):
        out.fill(0)
    return out


def _same(array: Array, name: str, wanted: Shape | None) -> Array:
    if wanted is not None and wanted != array.shape:
        raise FormatShapeError(f"the tensor is in {name} already and has the shape {array.shape}, not {wanted}")
    return array


class PlainShapes(NamedTuple):
    """The shapes of a tensor before and after a conversion, as it would be in plain formats."""

    order: tuple[int, ...]
    """The axis of `here` for each axis of `there`."""
    here: Shape
    there: Shape


def plain_shapes(array: Array, source: str, target: str, shape: Shape | None, groups: int = 1) -> PlainShapes:
    """The plain shapes of a tensor in the format `source`, whose own shape is as in `convert_format`.

    Raises FormatShapeError if the array or the shape is impossible.
    """
    plain, plain_target = plain_axes(source, target), plain_axes(target, source)
    order = tuple(map(plain.index, plain_target)) if plain != plain_target else None
    if shape is not None:
        require_plain_shape(shape, plain_target)
        require_possible(shape, array.dtype)
    if source in DEVICE_FORMATS:
        in_order = (
            shape if shape is None or order is None else tuple(shape[order.index(axis)] for axis in range(len(plain)))
        )
        here = DEVICE_FORMATS[source].plain_shape(array, in_order, groups)
    else:
        here = array.shape
    require_plain_shape(here, plain)
    order = tuple(range(len(here))) if order is None else order
    there = tuple(here[axis] for axis in order)
    if shape is not None and there != shape:
        raise FormatShapeError(
            f"the tensor of the shape {array.shape} in {source} has the shape {there} in {plain_target}, not {shape}"
        )
    return PlainShapes(order, here, there)


def plain_axes(name: str, other: str) -> str:
    """The plain format of a format; if that is ND, the plain format of the other side of the conversion."""
    plain = _plain_of(name)
    return _plain_of(other) if plain == "ND" else plain


def _plain_of(name: str) -> str:
    return DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name


def _require_known(source: str, target: str) -> None:
    for name in (source, target):
        if name not in FORMATS:
            raise UnknownFormatError(f"no format is called {name!r}; these are known: {', '.join(FORMATS)}")
    if not can_convert(source, target):
        targets = ", ".join(name for name in FORMATS if name != source and can_convert(source, name))
        raise UnknownFormatError(f"{source} cannot be converted to {target}; it can be to: {targets}")
