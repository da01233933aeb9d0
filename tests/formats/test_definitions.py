"""Every conversion against the element-by-element definition of the formats, and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump.errors import FormatShapeError
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


PAIRS = [(source, target) for source in FORMATS for target in FORMATS if can_convert(source, target)]


def plain_shape(name: str) -> Shape:
    """The shape of a tensor with padding in every device format that supports it."""
    plain = DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name
    sizes = {"N": 18, "C": 3, "D": 2, "H": 5, "W": 4}
    return (3, 18, 35) if plain == "ND" else tuple(sizes[axis] for axis in plain)


def source_and_shape(source: str, target: str) -> tuple[NDArray[Any], Shape]:
    """A tensor in `source`, and the shape that `convert_format` needs to convert it to `target`."""
    axes = [DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name for name in (source, target)]
    through = axes[0] if axes[0] != "ND" else axes[1]
    plain = numbered(plain_shape(through), "float16")
    wanted = plain_shape(axes[1] if axes[1] != "ND" else through)
    return (convert_format(plain, through, source) if source in DEVICE_FORMATS else plain), wanted


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_elements_and_padding_are_written_to_what_is_given(source: str, target: str) -> None:
    array, shape = source_and_shape(source, target)
    wanted = None if source == target else shape
    expected = convert_format(array, source, target, shape=wanted)
    out = np.full(expected.shape, 77, expected.dtype)
    assert convert_format(array, source, target, shape=wanted, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", DEVICE_FORMATS)
def test_without_padding_every_element_is_written(name: str) -> None:
    plain = numbered(
        {"NCDHW": (16, 16, 2, 1, 3), "ND": (32, 16)}.get(DEVICE_FORMATS[name].plain, (16, 4, 2, 4)), "int8"
    )
    expected = convert_format(plain, DEVICE_FORMATS[name].plain, name)
    out = np.full(expected.shape, 77, np.int8)
    convert_format(plain, DEVICE_FORMATS[name].plain, name, out=out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("groups", [3, 6])
def test_groups_are_written_to_what_is_given(groups: int) -> None:
    plain = numbered((18, 5, 2, 3))
    device = np.full(convert_format(plain, "NCHW", "FRACTAL_Z", groups=groups).shape, 77, plain.dtype)
    convert_format(plain, "NCHW", "FRACTAL_Z", groups=groups, out=device)
    back = np.full((18, 2, 3, 5), 77, plain.dtype)
    convert_format(device, "FRACTAL_Z", "NHWC", shape=(18, 2, 3, 5), groups=groups, out=back)
    np.testing.assert_array_equal(back, plain.transpose(0, 2, 3, 1))


def test_a_tensor_without_elements_fills_nothing() -> None:
    out = np.zeros((2, 0, 3, 4), np.float16)
    array = np.zeros((2, 0, 3, 4, 16), np.float16)
    assert convert_format(array, "NC1HWC0", "NCHW", shape=out.shape, out=out) is out


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_array_of_another_shape_is_refused(source: str, target: str) -> None:
    array, shape = source_and_shape(source, target)
    wanted = None if source == target else shape
    expected = convert_format(array, source, target, shape=wanted).shape
    for wrong in ((*expected, 1), (expected[0] + 1, *expected[1:]), (int(np.prod(expected)),)):
        out = np.full(wrong, 77, array.dtype)
        with pytest.raises(FormatShapeError, match=r"out has the shape \(.*\); the result has \("):
            convert_format(array, source, target, shape=wanted, out=out)
        assert (out == 77).all()


def refused(out: NDArray[Any], array: NDArray[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        convert_format(array, "NC1HWC0", "NCHW", out=out)


def test_an_array_that_cannot_hold_the_result_is_refused() -> None:
    array = numbered((2, 1, 3, 4, 16), "float16")
    shape = (2, 16, 3, 4)
    refused(np.zeros(shape, np.int16), array, "out has elements of int16; those of the tensor are float16")
    refused(np.zeros(shape, ">f2"), array, "out has elements of >f2; those of the tensor are float16")
    refused(np.zeros((2, 16, 3, 8), np.float16)[..., ::2], array, "out is not C-contiguous: it has the shape")
    refused(np.zeros(shape, np.float16, order="F"), array, "not C-contiguous")
    fixed = np.zeros(shape, np.float16)
    fixed.setflags(write=False)
    refused(fixed, array, "out is read-only")


def test_an_array_among_the_elements_of_the_tensor_is_refused() -> None:
    array = numbered((2, 1, 3, 4, 16), "float16")
    before = array.copy()
    refused(array.reshape(2, 16, 3, 4), array, "out overlaps the elements of the tensor. Use separate memory")
    memory = numbered((2 * array.size,), "float16")
    half = memory[array.size // 2 :][: array.size].reshape(2, 16, 3, 4)
    refused(half, memory[: array.size].reshape(array.shape), "out overlaps the elements")
    with pytest.raises(ValueError, match="out overlaps"):
        convert_format(array, "NC1HWC0", "NC1HWC0", out=array)
    np.testing.assert_array_equal(array, before)


def test_nothing_is_written_where_the_conversion_is_refused() -> None:
    out = np.full((32, 48), 77, np.float16)
    with pytest.raises(FormatShapeError, match="a shape in NCHW has 4 dimensions"):
        convert_format(numbered((3, 2, 16, 16), "float16"), "FRACTAL_NZ", "NCHW", out=out)
    assert (out == 77).all()


@pytest.mark.parametrize("target", [name for name in PLAIN_FORMATS if len(name) == 4])
def test_slabs_go_through_one_array(target: str) -> None:
    slabs = [numbered((1, 2, 3, 4, 16), "float16") + step for step in range(3)]
    out = np.zeros(convert_format(slabs[0], "NC1HWC0", target).shape, np.float16)
    for slab in slabs:
        convert_format(slab, "NC1HWC0", target, out=out)
        np.testing.assert_array_equal(out, convert_format(slab, "NC1HWC0", target))


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
ROUND_TRIPS = [(plain, device) for device in DEVICE_FORMATS for plain in PLAIN_FORMATS if can_convert(plain, device)]
sizes = st.integers(0, 9) | st.sampled_from([15, 16, 17, 31, 32, 33])


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, str, Shape, int, int]:
    plain, device = draw(st.sampled_from(ROUND_TRIPS))
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


DATA = Path(__file__).parents[1] / "data" / "formats"
VECTORS = json.loads((DATA / "vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_values_are_those_of_the_real_tool(vector: dict[str, str]) -> None:
    with np.load(DATA / "vectors.npz", allow_pickle=False) as arrays:
        array, expected = arrays[f"{vector['name']}.in"], arrays[f"{vector['name']}.out"]
    shape = expected.shape
    if vector["name"] == "NZ_to_ND":
        shape = (2, 3, 20, 35)  # the real tool merges the leading axes
    into_device = vector["target"] == "FRACTAL_Z"
    found = convert_format(
        array, vector["source"], vector["target"], shape=None if into_device else shape, groups=int(vector["groups"])
    )
    assert found.dtype == expected.dtype
    assert found.shape == shape
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_there_are_vectors() -> None:
    assert {(vector["source"], vector["target"]) for vector in VECTORS} >= {
        ("NC1HWC0", "NCHW"),
        ("FRACTAL_Z", "HWCN"),
        ("FRACTAL_NZ", "ND"),
        ("NDC1HWC0", "NCDHW"),
        ("NCHW", "FRACTAL_Z"),
    }
