"""Converting a tensor part by part equals converting it whole, in every format and at every part size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.conversion.stored_tensor import slabs_of
from opdump.errors import OpdumpError
from opdump.formats import DEVICE_FORMATS, FORMATS, can_convert, convert_format

PAIRS = [
    (source, target) for source in FORMATS for target in FORMATS if source != target and can_convert(source, target)
]


def _plain(name: str) -> str:
    return DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name


@settings(max_examples=300)
@given(
    st.sampled_from(PAIRS),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.lists(st.integers(1, 40), min_size=2, max_size=2),
    st.sampled_from([4, 8, 16, 32]),
    st.integers(1, 3000),
    st.booleans(),
)
def test_parts_one_after_the_other_are_the_whole(
    pair: tuple[str, str], small: list[int], large: list[int], c0: int, most: int, padded: bool
) -> None:
    source, target = pair
    sizes = [*large, *small]  # N and C, or the first two axes of other formats; then the other axes
    letters = next((name for name in (_plain(source), _plain(target)) if name != "ND"), "")
    rank = len(letters) or 2 + small[0] % 3
    plain = np.arange(math.prod(sizes[:rank]), dtype=np.int32).reshape(sizes[:rank])
    origin = _plain(source) if _plain(source) != "ND" else letters or "ND"
    array = plain
    if source in DEVICE_FORMATS:
        try:
            array = convert_format(plain, origin, source, c0=c0)
        except OpdumpError:
            return  # FRACTAL_Z_C04 has at most four channels
    order = next((name for name in (_plain(target), origin) if name != "ND"), "ND")
    shape = plain.shape if order == "ND" else tuple(plain.shape[origin.index(letter)] for letter in order)
    wanted = None if padded else shape
    try:
        whole = convert_format(array, source, target, shape=wanted)
    except OpdumpError:
        return
    cut = slabs_of(array, source, target, wanted, most)
    if cut is None:
        return
    parts = [convert_format(part, source, target, shape=part_shape) for part, part_shape in cut.parts()]
    assert cut.shape == whole.shape
    np.testing.assert_array_equal(np.concatenate([part.reshape(-1) for part in parts]), whole.reshape(-1))
    assert len(parts) > 1


def _cut_shape(source: str, shape: tuple[int, ...], target: str, wanted: tuple[int, ...], most: int) -> int:
    """The number of elements of the largest part."""
    cut = slabs_of(np.zeros(shape, np.int8), source, target, wanted, most)
    assert cut is not None, (source, target)
    return max(convert_format(part, source, target, shape=size).size for part, size in cut.parts())


@pytest.mark.parametrize(
    ("source", "shape", "target", "wanted"),
    [
        ("NC1HWC0", (1, 4, 20, 20, 16), "NCHW", (1, 60, 20, 20)),
        ("NC1HWC0", (1, 1, 80, 20, 16), "NCHW", (1, 3, 80, 20)),
        ("NC1HWC0", (5, 4, 20, 20, 16), "NHWC", (5, 20, 20, 60)),
        ("NC1HWC0", (1, 4, 20, 20, 16), "HWCN", (20, 20, 60, 1)),
        ("NDC1HWC0", (1, 4, 4, 10, 20, 16), "NCDHW", (1, 60, 4, 10, 20)),
        ("FRACTAL_Z", (4 * 9, 8, 16, 16), "NCHW", (120, 60, 3, 3)),
        ("FRACTAL_Z", (4 * 9, 8, 16, 16), "HWCN", (3, 3, 60, 120)),
        ("FRACTAL_Z_3D", (2 * 4 * 9, 8, 16, 16), "NCDHW", (120, 60, 2, 3, 3)),
        ("FRACTAL_NZ", (8, 16, 16, 16), "ND", (250, 127)),
        ("FRACTAL_NZ", (3, 8, 16, 16, 16), "ND", (3, 250, 127)),
        ("C1HWNCoC0", (8, 3, 3, 1, 16, 16), "NCHW", (1, 120, 3, 3)),
        ("HWCN", (3, 3, 60, 120), "FRACTAL_Z", (120, 60, 3, 3)),
        ("ND", (250, 127), "FRACTAL_NZ", (250, 127)),
        ("NCHW", (1, 60, 20, 20), "NC1HWC0", (1, 60, 20, 20)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_part_is_larger_than_asked_for(
    source: str, shape: tuple[int, ...], target: str, wanted: tuple[int, ...]
) -> None:
    size = convert_format(np.zeros(shape, np.int8), source, target, shape=wanted).size
    # A part contains whole rows of blocks: of a matrix to its last row, of images to the end of the row of blocks.
    smallest = 16 * 16 if target in DEVICE_FORMATS else 1
    for most in (size // 2, size // 5, max(smallest, size // 100)):
        assert _cut_shape(source, shape, target, wanted, most) <= most


def test_what_does_not_fit_is_left_to_the_conversion_of_the_whole() -> None:
    array = np.zeros((1, 2, 4, 4, 16), np.int8)
    for wanted in ((1, 33, 4, 4), (1, 16, 4, 4), (2, 32, 4, 4), (1, 32, 4), (1, 0, 4, 4)):
        assert slabs_of(array, "NC1HWC0", "NCHW", wanted, 10) is None
        with pytest.raises(OpdumpError):
            convert_format(array, "NC1HWC0", "NCHW", shape=wanted)
    assert slabs_of(np.zeros((18, 2, 16, 16), np.int8), "FRACTAL_Z", "NCHW", None, 10) is None
