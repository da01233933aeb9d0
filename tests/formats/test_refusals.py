"""Impossible shapes and unknown formats: the error names what was found and what to do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.errors import FormatShapeError, UnknownFormatError
from opdump.formats import DEVICE_FORMATS, FORMATS, can_convert, convert_format
from tests.formats.definitions import Shape, numbered

WRONG: list[tuple[str, Shape, str, Shape | None, str]] = [
    # A rank that the format does not support.
    ("NC1HWC0", (2, 2, 3, 4), "NCHW", None, "has the shape (N, C1, H, W, C0); found (2, 2, 3, 4), of 4 dimensions"),
    ("NC1HWC0", (), "NCHW", None, "found (), of 0 dimensions"),
    ("NDC1HWC0", (2, 2, 3, 4, 16), "NCDHW", None, "of 5 dimensions"),
    ("FRACTAL_Z", (16,), "NCHW", (1, 1, 1, 1), "found (16,), of 1 dimensions"),
    ("FRACTAL_NZ", (2, 16, 16), "ND", None, "(..., N1, M1, M0, C0)"),
    ("NCHW", (2, 3, 4), "NHWC", None, "a shape in NCHW has 4 dimensions; found (2, 3, 4)"),
    ("NCHW", (2, 3, 4), "NC1HWC0", None, "a shape in NCHW has 4 dimensions"),
    ("ND", (2, 3), "NC1HWC0", None, "a shape in NCHW has 4 dimensions"),
    ("FRACTAL_NZ", (3, 2, 16, 16), "NCHW", None, "a shape in NCHW has 4 dimensions; found (32, 48)"),
    # Blocks without elements.
    ("NC1HWC0", (2, 2, 3, 4, 0), "NCHW", None, "blocks of C0 elements; found C0 = 0"),
    ("FRACTAL_Z", (4, 1, 0, 16), "NCHW", (1, 16, 2, 2), "N0 = 0"),
    ("FRACTAL_NZ", (1, 1, 16, 0), "ND", (16, 0), "at least one element"),
    ("C1HWNCoC0", (1, 2, 2, 3, 16, 8), "NCHW", None, "the last two dimensions of C1HWNCoC0 are equal"),
    # The shape of a different array.
    (
        "NC1HWC0",
        (2, 2, 3, 4, 16),
        "NCHW",
        (2, 33, 3, 4),
        "has the shape (2, 3, 3, 4, 16) in NC1HWC0; found (2, 2, 3, 4, 16)",
    ),
    ("NC1HWC0", (2, 2, 3, 4, 16), "NCHW", (2, 16, 3, 4), "has the shape (2, 1, 3, 4, 16)"),
    ("NC1HWC0", (2, 2, 3, 4, 16), "NHWC", (2, 19, 3, 4), "Give the tensor's original shape"),
    ("NC1HWC0", (2, 2, 3, 4, 16), "NCHW", (2, 19), "has 4 dimensions; found (2, 19)"),
    ("NC1HWC0", (2, 2, 3, 4, 16), "NCHW", (2, -19, 3, 4), "which has a negative dimension"),
    ("NC1HWC0", (2, 2, 3, 4, 16), "NCHW", (2**63, 2**63, 3, 4), "larger than any memory"),
    ("FRACTAL_Z", (12, 2, 16, 16), "NCHW", (20, 19, 2, 2), "has the shape (8, 2, 16, 16) in FRACTAL_Z"),
    ("FRACTAL_Z", (12, 2, 16, 16), "NCHW", (2**62, 2**62, 2**62, 2**62), "larger than any memory"),
    ("FRACTAL_Z_C04", (2, 2, 16, 16), "NCHW", (20, 5, 2, 3), "at most 4 channels; found 5"),
    ("FRACTAL_NZ", (3, 2, 16, 16), "ND", (20, 10), "has the shape (1, 2, 16, 16) in FRACTAL_NZ"),
    ("FRACTAL_NZ", (2, 3, 2, 16, 16), "ND", (3, 20, 35), "has the shape (3, 3, 2, 16, 16)"),
    ("FRACTAL_NZ", (3, 2, 16, 16), "ND", (), "in FRACTAL_NZ"),
    ("NCHW", (2, 3, 4, 5), "NHWC", (2, 3, 4, 5), "has the shape (2, 4, 5, 3) in NHWC, not (2, 3, 4, 5)"),
    ("NCHW", (2, 3, 4, 5), "NCHW", (2, 3, 4), "is in NCHW already"),
    ("NCHW", (18, 5, 2, 3), "FRACTAL_Z", (18, 4, 2, 3), "not (18, 4, 2, 3)"),
    ("NCHW", (18, 5, 2, 3), "FRACTAL_Z_C04", None, "at most 4 channels; found 5"),
    # Conversions that need the original shape.
    ("FRACTAL_Z", (12, 2, 16, 16), "NCHW", None, "Give the tensor's original shape"),
    ("FRACTAL_Z_3D", (12, 2, 16, 16), "NCDHW", None, "Give the tensor's original shape"),
    ("FRACTAL_Z_C04", (2, 2, 16, 16), "NCHW", None, "Give the tensor's original shape"),
]


@pytest.mark.parametrize(("source", "shape", "target", "wanted", "words"), WRONG)
def test_a_shape_that_cannot_be_is_refused(
    source: str, shape: Shape, target: str, wanted: Shape | None, words: str
) -> None:
    with pytest.raises(FormatShapeError) as caught:
        convert_format(np.zeros(shape, np.float16), source, target, shape=wanted)
    assert words in str(caught.value)


@pytest.mark.parametrize("groups", [-1, 5, 18 * 2])
def test_groups_that_do_not_part_the_filters_are_refused(groups: int) -> None:
    with pytest.raises(FormatShapeError, match="groups"):
        convert_format(numbered((18, 5, 2, 3)), "NCHW", "FRACTAL_Z", groups=groups)


@pytest.mark.parametrize("groups", [2, 3, 9])
def test_groups_that_the_array_does_not_have_are_refused(groups: int) -> None:
    device = convert_format(numbered((18, 20, 2, 3)), "NCHW", "FRACTAL_Z")
    with pytest.raises(FormatShapeError, match=f"with {groups} groups"):
        convert_format(device, "FRACTAL_Z", "NCHW", shape=(18, 20, 2, 3), groups=groups)


def test_blocks_of_no_channels_are_refused() -> None:
    with pytest.raises(FormatShapeError, match="c0=0"):
        convert_format(numbered((1, 1, 1, 1)), "NCHW", "NC1HWC0", c0=0)
    with pytest.raises(FormatShapeError, match="must be a multiple of 4; found 6"):
        convert_format(numbered((1, 1, 1, 1)), "NCHW", "FRACTAL_Z_C04", c0=6)


def test_padding_beyond_any_memory_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(FormatShapeError, match="larger than any memory"):
        convert_format(np.zeros((2, 3, 1, 1)), "NCHW", "NC1HWC0", c0=2**62)


@pytest.mark.parametrize(
    ("source", "shape", "target", "wanted"),
    [
        ("FRACTAL_Z", (0, 1, 16, 16), "NCHW", (16, 2**62, 0, 5)),
        ("FRACTAL_Z_C04", (0, 1, 16, 16), "NCHW", (16, 4, 0, 2**64)),
        ("FRACTAL_NZ", (0, 1, 1, 16, 16), "ND", (0, 2**62, 16)),
    ],
)
def test_a_shape_without_elements_may_not_be_endless_either(
    source: str, shape: Shape, target: str, wanted: Shape
) -> None:
    with pytest.raises(FormatShapeError, match="larger than any memory"):
        convert_format(np.zeros(shape, np.complex128), source, target, shape=wanted)


@pytest.mark.parametrize("name", DEVICE_FORMATS)
def test_no_shape_makes_an_array_larger_than_what_was_read(name: str) -> None:
    device = np.zeros((1, 1, 16, 16) if name.startswith("FRACTAL") else (1, 1, 1, 1, 16, 16)[-(5 + (name[1] != "C")) :])
    plain = DEVICE_FORMATS[name].plain
    huge = (2**40,) * (4 if plain == "ND" else len(plain))
    with pytest.raises(FormatShapeError):
        convert_format(device, name, plain, shape=huge)


@pytest.mark.parametrize(("source", "target"), [("FOO", "NCHW"), ("NCHW", "FOO"), ("nchw", "NHWC"), ("", "ND")])
def test_an_unknown_format_is_named_with_those_that_are_known(source: str, target: str) -> None:
    assert not can_convert(source, target)
    with pytest.raises(
        UnknownFormatError, match=r"no format is called '(FOO|nchw|)'; these are known: NCHW, NHWC, .*NC1HWC0"
    ):
        convert_format(numbered((1, 1, 1, 1)), source, target)


def test_what_a_format_can_become_is_named() -> None:
    assert not can_convert("NC1HWC0", "NCDHW")
    with pytest.raises(
        UnknownFormatError, match="NC1HWC0 cannot be converted to NCDHW; it can be to: NCHW, NHWC, HWCN"
    ):
        convert_format(numbered((1, 1, 1, 1, 16)), "NC1HWC0", "NCDHW")


sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 15, 16, 17, 32])
endless = sizes | st.integers(-2, 2**64)


@settings(deadline=None, max_examples=500)
@given(
    st.sampled_from(FORMATS),
    st.sampled_from(FORMATS),
    st.lists(sizes, max_size=7),
    st.none() | st.lists(endless, max_size=7),
    st.integers(-1, 40),
    st.none() | st.integers(-1, 40) | st.just(2**62),
)
def test_any_shape_is_converted_or_refused(
    source: str, target: str, shape: list[int], wanted: list[int] | None, groups: int, c0: int | None
) -> None:
    while math.prod(shape) > 200_000:
        shape.pop()
    array = np.zeros(shape, np.int8)
    try:
        result = convert_format(
            array, source, target, shape=None if wanted is None else tuple(wanted), groups=groups, c0=c0
        )
    except (FormatShapeError, UnknownFormatError):
        return  # refused with an opdump error
    assert result.dtype == array.dtype
    assert wanted is None or target in DEVICE_FORMATS or result.shape == tuple(wanted)
    assert target in DEVICE_FORMATS or result.size <= array.size
