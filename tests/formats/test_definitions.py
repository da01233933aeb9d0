"""Every conversion against the element-by-element definition of the formats."""

from __future__ import annotations

import numpy as np
import pytest

from opdump.formats import DEVICE_FORMATS, FORMATS, PLAIN_FORMATS, can_convert, convert_format
from tests.formats.definitions import DEFINITIONS, Shape, numbered, on_device, transposed

SHAPES: dict[str, tuple[Shape, ...]] = {
    "NCHW": ((2, 19, 3, 4), (1, 16, 2, 2), (17, 3, 1, 1), (33, 4, 3, 5), (1, 1, 1, 1), (2, 32, 7, 7)),
    "NCDHW": ((2, 19, 3, 4, 5), (18, 16, 1, 2, 2), (1, 1, 1, 1, 1)),
    "ND": ((20, 35), (16, 16), (1, 1), (3, 17, 5), (2, 3, 20, 35), (2, 1, 2, 5, 9), (5, 64)),
}
PLAIN_OF = {name: device.plain for name, device in DEVICE_FORMATS.items()}
CASES = [
    (name, shape, c0)
    for name in DEVICE_FORMATS
    for shape in SHAPES[PLAIN_OF[name]]
    for c0 in (16, 8, 32, 4)
    if name != "FRACTAL_Z_C04" or shape[1] <= 4
]


def test_every_format_is_defined_here() -> None:
    assert set(DEFINITIONS) == set(DEVICE_FORMATS)


@pytest.mark.parametrize(("name", "shape", "c0"), CASES)
def test_elements_lie_where_the_format_says(name: str, shape: Shape, c0: int) -> None:
    plain = numbered(shape)
    device = on_device(plain, name, c0)
    made = convert_format(plain, PLAIN_OF[name], name, c0=c0)
    assert made.dtype == plain.dtype
    np.testing.assert_array_equal(made, device, strict=True)
    np.testing.assert_array_equal(convert_format(device, name, PLAIN_OF[name], shape=shape), plain, strict=True)


@pytest.mark.parametrize("target", [name for name in PLAIN_FORMATS if name not in ("ND", "NC", "CN")])
@pytest.mark.parametrize("name", DEVICE_FORMATS)
def test_a_device_format_goes_to_every_order_of_its_axes(name: str, target: str) -> None:
    plain_name = PLAIN_OF[name]
    if plain_name == "ND":
        plain_name = target
    if sorted(plain_name) != sorted(target):
        assert not can_convert(name, target)
        return
    plain = numbered((18, 4, 2, 3) if len(target) == 4 else (18, 19, 2, 3, 4), "float16")
    device = on_device(plain, name, 16)
    expected = transposed(plain, plain_name, target)
    np.testing.assert_array_equal(convert_format(device, name, target, shape=expected.shape), expected, strict=True)
    np.testing.assert_array_equal(convert_format(expected, target, name, c0=16), device, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16", "int32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", DEVICE_FORMATS)
def test_every_size_of_element_is_moved_whole(name: str, dtype: str) -> None:
    plain = numbered((18, 3, 5, 2) if PLAIN_OF[name] != "NCDHW" else (18, 3, 2, 5, 2), dtype)
    device = convert_format(plain, PLAIN_OF[name], name)
    np.testing.assert_array_equal(device, on_device(plain, name, 4 if name == "NC1HWC0_C04" else 16), strict=True)
    np.testing.assert_array_equal(convert_format(device, name, PLAIN_OF[name], shape=plain.shape), plain, strict=True)


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 8, 17, 32])
@pytest.mark.parametrize(("filters", "channels"), [(1, 1), (2, 3), (8, 16), (16, 16), (24, 8), (3, 17), (16, 4)])
@pytest.mark.parametrize("name", ["FRACTAL_Z", "FRACTAL_Z_3D"])
def test_groups_share_blocks_and_none_overwrites_another(name: str, filters: int, channels: int, groups: int) -> None:
    plain = numbered(
        (filters * groups, channels, 1, 2) if name == "FRACTAL_Z" else (filters * groups, channels, 2, 1, 2)
    )
    device = convert_format(plain, PLAIN_OF[name], name, groups=groups)
    np.testing.assert_array_equal(device, on_device(plain, name, 16, groups), strict=True)
    assert np.count_nonzero(device) == plain.size
    back = convert_format(device, name, PLAIN_OF[name], shape=plain.shape, groups=groups)
    np.testing.assert_array_equal(back, plain, strict=True)


def test_no_groups_is_written_as_zero_in_dump_files() -> None:
    plain = numbered((18, 5, 2, 3))
    made = convert_format(plain, "NCHW", "FRACTAL_Z", groups=0)
    np.testing.assert_array_equal(made, convert_format(plain, "NCHW", "FRACTAL_Z"))


@pytest.mark.parametrize("source", PLAIN_FORMATS)
@pytest.mark.parametrize("target", PLAIN_FORMATS)
def test_plain_formats_are_transposed(source: str, target: str) -> None:
    if "ND" in (source, target):
        axes = source if target == "ND" else target
        plain = numbered((2, 3, 4, 5, 6)[: len(axes)])
        np.testing.assert_array_equal(convert_format(plain, source, target), plain)
        return
    if sorted(source) != sorted(target):
        assert not can_convert(source, target)
        return
    plain = numbered((2, 3, 4, 5, 6)[: len(source)])
    expected = transposed(plain, source, target)
    result = convert_format(plain, source, target, shape=expected.shape)
    np.testing.assert_array_equal(result, expected, strict=True)
    assert np.shares_memory(result, plain)


def test_padding_stays_where_no_shape_is_given() -> None:
    device = numbered((2, 2, 3, 4, 16))
    kept = convert_format(device, "NC1HWC0", "NHWC")
    assert kept.shape == (2, 3, 4, 32)
    np.testing.assert_array_equal(convert_format(kept, "NHWC", "NC1HWC0"), device)
    assert convert_format(numbered((3, 2, 16, 16)), "FRACTAL_NZ", "ND").shape == (32, 48)
    assert convert_format(numbered((2, 3, 2, 4, 5, 16)), "NDC1HWC0", "ND").shape == (2, 32, 3, 4, 5)
    assert convert_format(numbered((2, 1, 2, 3, 16, 16)), "C1HWNCoC0", "HWCN").shape == (1, 2, 32, 3)


def test_one_device_format_becomes_another() -> None:
    plain = numbered((18, 19, 2, 3))
    fractal = on_device(plain, "FRACTAL_Z", 16)
    blocks = convert_format(fractal, "FRACTAL_Z", "NC1HWC0", shape=(18, 19, 2, 3), c0=8)
    np.testing.assert_array_equal(blocks, on_device(plain, "NC1HWC0", 8), strict=True)


def test_a_vector_is_a_matrix_of_one_row_in_fractal_nz() -> None:
    vector = numbered((35,))
    device = convert_format(vector, "ND", "FRACTAL_NZ")
    assert device.shape == (3, 1, 16, 16)
    np.testing.assert_array_equal(convert_format(device, "FRACTAL_NZ", "ND", shape=(35,)), vector, strict=True)


def test_leading_axes_of_fractal_nz_may_have_been_merged() -> None:
    plain = numbered((2, 3, 20, 35))
    device = on_device(plain, "FRACTAL_NZ", 16).reshape(6, 3, 2, 16, 16)
    np.testing.assert_array_equal(convert_format(device, "FRACTAL_NZ", "NCHW", shape=plain.shape), plain, strict=True)


@pytest.mark.parametrize("name", DEVICE_FORMATS)
def test_an_array_of_any_strides_is_read(name: str) -> None:
    plain = numbered((18, 3, 2, 5) if PLAIN_OF[name] != "NCDHW" else (18, 3, 2, 2, 5))
    device = on_device(plain, name, 16)
    turned = np.ascontiguousarray(device[::-1].T).T[::-1]
    np.testing.assert_array_equal(convert_format(turned, name, PLAIN_OF[name], shape=plain.shape), plain)
    spread = np.repeat(plain, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(convert_format(spread, PLAIN_OF[name], name, c0=16), device)


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_format_is_the_same_array(name: str) -> None:
    array = numbered((2, 3, 4, 5))
    assert convert_format(array, name, name) is array
