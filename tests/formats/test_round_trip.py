"""A tensor converted to a device format and back is unchanged, and the padding on the device is zero."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.formats import DEVICE_FORMATS, PLAIN_FORMATS, can_convert, convert_format
from tests.formats.definitions import Shape

DTYPES = (
    *(
        "int8",
        "uint8",
        "bool",
        "int16",
        "uint16",
        "float16",
        "int32",
        "uint32",
        "float32",
        "int64",
        "uint64",
        "float64",
    ),
    *("complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
)
PAIRS = [(plain, device) for device in DEVICE_FORMATS for plain in PLAIN_FORMATS if can_convert(plain, device)]
sizes = st.integers(0, 9) | st.sampled_from([15, 16, 17, 31, 32, 33])


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, str, Shape, int, int]:
    plain, device = draw(st.sampled_from(PAIRS))
    through = DEVICE_FORMATS[device].plain if plain == "ND" else plain
    rank = draw(st.integers(2, 6)) if through == "ND" else len(through)
    shape = [draw(sizes if axis in (0, 1, rank - 2, rank - 1) else st.integers(0, 3)) for axis in range(rank)]
    axes = "" if through == "ND" else through
    groups = 1
    if "N" in axes and device in ("FRACTAL_Z", "FRACTAL_Z_3D"):
        groups = draw(st.integers(1, 12))
        shape[axes.index("N")] = draw(st.integers(0, 8)) * groups
    if device == "FRACTAL_Z_C04":
        shape[axes.index("C")] = draw(st.integers(0, 4))
    for spatial in "DHW":
        if spatial in axes:
            shape[axes.index(spatial)] %= 4
    return plain, device, tuple(shape), groups, draw(st.sampled_from([4, 8, 16, 32]))


@settings(deadline=None, max_examples=300)
@given(tensors(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_what_goes_to_the_device_comes_back(tensor: tuple[str, str, Shape, int, int], dtype: object, seed: int) -> None:
    plain_name, name, shape, groups, c0 = tensor
    values = np.random.default_rng(seed).integers(1, 7, math.prod(shape))
    plain = values.astype(dtype).reshape(shape)  # type: ignore[call-overload]
    device = convert_format(plain, plain_name, name, groups=groups, c0=c0)
    assert device.dtype == plain.dtype
    assert np.count_nonzero(device.astype(np.complex128)) == plain.size
    back = convert_format(device, name, plain_name, shape=shape, groups=groups)
    assert back.dtype == plain.dtype
    assert back.shape == shape
    assert back.tobytes() == plain.tobytes()
