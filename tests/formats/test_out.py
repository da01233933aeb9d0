"""Conversions into an array that the caller provides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opdump.errors import FormatShapeError
from opdump.formats import DEVICE_FORMATS, FORMATS, PLAIN_FORMATS, can_convert, convert_format
from tests.formats.definitions import Shape, numbered

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
