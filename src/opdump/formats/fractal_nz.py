"""FRACTAL_NZ: matrices in blocks of 16 rows by C0 columns, block after block down the columns, each row by row.

Element (m, n) of (..., M, N) is at (..., n // C0, m // M0, m % M0, n % C0) of (..., N1, M1, M0, C0). The leading axes are those
of the tensor.
"""

from __future__ import annotations

import math

from opdump.errors import FormatShapeError
from opdump.formats.blocks import Blocks
from opdump.formats.device_format import CUBE, DeviceFormat, ceil_div, require_same
from opdump.formats.reading import Array, Shape


def _plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(..., M, N) of (..., N1, M1, M0, C0); without a shape M is M1 * M0 and N is N1 * C0.

    Leading axes of the shape may be split differently from those of the array; a shape of one axis (N,) counts as (1, N).
    """
    if array.ndim < 4 or 0 in array.shape[-2:]:
        raise FormatShapeError(
            f"a tensor in FRACTAL_NZ has the shape (..., N1, M1, M0, C0), blocks of at least one element; "
            f"found {array.shape}"
        )
    *leading, n1, m1, m0, c0 = array.shape
    if shape is None:
        return (*leading, m1 * m0, n1 * c0)
    expected = _in_blocks(shape, m0, c0)
    if math.prod(expected[:-4]) != math.prod(leading):
        require_same(array.shape, expected, "FRACTAL_NZ", "ND", shape)
    require_same(array.shape[-4:], expected[-4:], "FRACTAL_NZ", "ND", shape)
    return shape


def _device_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    return _in_blocks(shape, CUBE, c0)


def _in_blocks(shape: Shape, m0: int, c0: int) -> Shape:
    *leading, m, n = _matrix(shape)
    return *leading, ceil_div(n, c0), ceil_div(m, m0), m0, c0


def _matrix(shape: Shape) -> Shape:
    return (1,) * (2 - len(shape)) + shape


def _place(array: Array, shape: Shape, _groups: int) -> Blocks:
    matrices = array.reshape(*_matrix(shape)[:-2], *array.shape[-4:])
    leading = len(shape) - 2
    if leading < 0:  # one row; for a scalar, one element
        row = matrices[:, 0, 0]
        return Blocks(row, ((0, 1),)) if shape else Blocks(row[0, 0, ...], ())
    rows, columns = (leading + 1, leading + 2), (leading, leading + 3)
    return Blocks(matrices, (*((axis,) for axis in range(leading)), rows, columns))


FRACTAL_NZ = DeviceFormat("FRACTAL_NZ", "ND", _plain_shape, _device_shape, _place)
