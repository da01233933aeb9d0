"""FRACTAL_NZ: matrices in blocks of 16 rows by C0 columns, block after block down the columns, each row by row.

Element (m, n) of (..., M, N) lies at (..., n // C0, m // M0, m % M0, n % C0) of (..., N1, M1, M0, C0). The leading axes
are those of the tensor.

Source: section 3 of the description of msaccucmp.
"""

from __future__ import annotations

import math

from opdump.errors import FormatShapeError
from opdump.formats.blocks import from_blocks, into_blocks
from opdump.formats.device_format import CUBE, Array, DeviceFormat, Memory, Shape, ceil_div, require_same, text
from opdump.formats.reading import Reading


def to_nd(array: Array, shape: Shape | None, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(..., N1, M1, M0, C0) to (..., M, N); without a shape M is M1 * M0 and N is N1 * C0.

    Leading axes of the shape may be split otherwise than those of the array; of one axis (N,) it is that of (1, N).
    """
    if array.ndim < 4 or 0 in array.shape[-2:]:
        raise FormatShapeError(
            f"a tensor in FRACTAL_NZ has the shape (..., N1, M1, M0, C0), blocks of at least one element; "
            f"found {text(array.shape)}"
        )
    *leading, n1, m1, m0, c0 = array.shape
    if shape is None:
        shape = (*leading, m1 * m0, n1 * c0)
    matrix = shape if len(shape) > 1 else (1, *shape) if shape else (1, 1)
    batch = math.prod(leading)
    expected = _device_shape(matrix, m0, c0)
    if math.prod(matrix[:-2]) != batch:
        require_same(array.shape, expected, "FRACTAL_NZ", "ND", shape)
    require_same(array.shape[-4:], expected[-4:], "FRACTAL_NZ", "ND", shape)
    if len(shape) > 1 and tuple(leading) == shape[:-2]:
        plain = memory(shape, array.dtype)
        from_blocks(array, _axes(len(leading)), plain, reading=reading)
    else:
        plain = memory(shape, array.dtype)
        if plain.size:
            from_blocks(
                array.reshape(batch, n1, m1, m0, c0), _axes(1), plain.reshape(batch, *matrix[-2:]), reading=reading
            )
    return plain


def from_nd(array: Array, c0: int, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(..., M, N) to (..., N1, M1, M0, C0); a vector (N,) becomes a matrix of one row."""
    matrix = array if array.ndim > 1 else array.reshape(1, -1)
    device = memory(_device_shape(matrix.shape, CUBE, c0), array.dtype)
    into_blocks(matrix, device, _axes(matrix.ndim - 2), reading=reading)
    return device


def _axes(leading: int) -> list[tuple[int, ...]]:
    return [*((axis,) for axis in range(leading)), (leading + 1, leading + 2), (leading, leading + 3)]


def _device_shape(matrix: Shape, m0: int, c0: int) -> Shape:
    *leading, m, n = matrix
    return *leading, ceil_div(n, c0), ceil_div(m, m0), m0, c0


FRACTAL_NZ = DeviceFormat("FRACTAL_NZ", "ND", to_nd, from_nd)
