"""A second definition of the formats: the place of each element on the device, by index arithmetic only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Place = Callable[[Shape, Shape, int, int], tuple[int, ...]]


def up(count: int, size: int) -> int:
    return (count + size - 1) // size


def nc1hwc0_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, h, w = shape
    return n, up(c, c0), h, w, c0


def nc1hwc0_place(index: Shape, _shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, h, w = index
    return n, c // c0, h, w, c % c0


def ndc1hwc0_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, d, h, w = shape
    return n, d, up(c, c0), h, w, c0


def ndc1hwc0_place(index: Shape, _shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, d, h, w = index
    return n, d, c // c0, h, w, c % c0


def c1hwncoc0_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, h, w = shape
    return up(c, c0), h, w, n, c0, c0


def c1hwncoc0_place(index: Shape, _shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, h, w = index
    return c // c0, h, w, n, c % c0, c % c0


def fractal_nz_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    *leading, m, n = shape
    return *leading, up(n, c0), up(m, 16), 16, c0


def fractal_nz_place(index: Shape, _shape: Shape, c0: int, _groups: int) -> Shape:
    *leading, m, n = index
    return *leading, n // c0, m // 16, m % 16, n % c0


def together(filters: int, channels: int, c0: int, groups: int) -> int:
    return min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(filters, 16) // filters), groups)


def fractal_z_3d_shape(shape: Shape, c0: int, groups: int) -> Shape:
    n, c, d, h, w = shape
    filters = n // groups
    e = together(filters, c, c0, groups)
    return up(groups, e) * d * up(e * c, c0) * h * w, up(e * filters, 16), 16, c0


def fractal_z_3d_place(index: Shape, shape: Shape, c0: int, groups: int) -> Shape:
    """As the original describes it, counting the shares of a group."""
    n, c, d, h, w = index
    all_n, all_c, all_d, all_h, all_w = shape
    filters = all_n // groups
    group = n // filters
    e = together(filters, all_c, c0, groups)
    dc = group % e * all_c + c
    dn = group % e * filters + n % filters
    row = (((group // e * all_d + d) * up(e * all_c, c0) + dc // c0) * all_h + h) * all_w + w
    return row, dn // 16, dn % 16, dc % c0


def fractal_z_shape(shape: Shape, c0: int, groups: int) -> Shape:
    n, c, h, w = shape
    return fractal_z_3d_shape((n, c, 1, h, w), c0, groups)


def fractal_z_place(index: Shape, shape: Shape, c0: int, groups: int) -> Shape:
    (n, c, h, w), (all_n, all_c, all_h, all_w) = index, shape
    return fractal_z_3d_place((n, c, 0, h, w), (all_n, all_c, 1, all_h, all_w), c0, groups)


def fractal_z_c04_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    n, _, h, w = shape
    return up(h * w * 4, c0), up(n, 16), 16, c0


def fractal_z_c04_place(index: Shape, shape: Shape, c0: int, _groups: int) -> Shape:
    n, c, h, w = index
    k = (h * shape[3] + w) * 4 + c
    return k // c0, n // 16, n % 16, k % c0


DEFINITIONS: dict[str, tuple[Callable[[Shape, int, int], Shape], Place]] = {
    "NC1HWC0": (nc1hwc0_shape, nc1hwc0_place),
    "NC1HWC0_C04": (nc1hwc0_shape, nc1hwc0_place),
    "NDC1HWC0": (ndc1hwc0_shape, ndc1hwc0_place),
    "C1HWNCoC0": (c1hwncoc0_shape, c1hwncoc0_place),
    "FRACTAL_NZ": (fractal_nz_shape, fractal_nz_place),
    "FRACTAL_Z": (fractal_z_shape, fractal_z_place),
    "FRACTAL_Z_3D": (fractal_z_3d_shape, fractal_z_3d_place),
    "FRACTAL_Z_C04": (fractal_z_c04_shape, fractal_z_c04_place),
}


def on_device(plain: NDArray[Any], name: str, c0: int, groups: int = 1) -> NDArray[Any]:
    """The plain tensor (NCHW, NCDHW or ND) as stored on the device, one element at a time."""
    shape_of, place_of = DEFINITIONS[name]
    device = np.zeros(shape_of(plain.shape, c0, groups), plain.dtype)
    for index in itertools.product(*map(range, plain.shape)):
        device[place_of(index, plain.shape, c0, groups)] = plain[index]
    return device


def transposed(plain: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Convert one plain format to another, one element at a time."""
    result = np.empty([plain.shape[source.index(axis)] for axis in target], plain.dtype)
    for index in itertools.product(*map(range, result.shape)):
        result[index] = plain[tuple(index[target.index(axis)] for axis in source)]
    return result


def numbered(shape: Shape, dtype: str = "float32") -> NDArray[Any]:
    """Elements that differ from their neighbours and from zero."""
    values = np.arange(1, 1 + math.prod(shape)) % 251 + 1
    return values.astype(dtype).reshape(shape)
