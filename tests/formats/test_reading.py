"""A conversion that reports what it has read: the result is the same, and the reads of each part are close together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.formats import DEVICE_FORMATS, FORMATS, Array, Reading, Shape, can_convert, convert_format

PAGE = 256
"""Bytes per page; a part reads whole pages."""

_OF_RANK = {4: ("NCHW", "HWCN", "NHWC"), 5: ("NCDHW", "DHWCN", "NDHWC")}
_IN_GROUPS = {"FRACTAL_Z": 4, "FRACTAL_Z_3D": 5}


def _in_order(ncdhw: dict[str, int], order: str) -> Shape:
    return tuple(ncdhw[letter] for letter in order)


def _both_ways(
    device: str, sizes: dict[str, int], order: str, groups: int, most: int, c0: int | None = None
) -> tuple[Array, Array]:
    """A device array and its plain source, each converted part by part and compared with the conversion of the whole."""
    shape = _in_order(sizes, order)
    plain = np.arange(1, 1 + math.prod(shape), dtype=np.int32).reshape(shape)
    parts: list[None] = []
    reading = Reading(most, lambda: parts.append(None))
    whole = convert_format(plain, order, device, groups=groups, c0=c0)
    made = convert_format(plain, order, device, groups=groups, c0=c0, reading=reading)
    assert parts
    np.testing.assert_array_equal(made, whole)
    np.testing.assert_array_equal(
        convert_format(made, device, order, shape=shape, groups=groups, reading=reading), plain
    )
    return made, plain


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(_IN_GROUPS)),
    st.integers(0, 2),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 40),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.sampled_from([8, 16, 32]),
    st.integers(200, 20000),
)
def test_groups_part_by_part_are_the_whole(
    device: str, order: int, groups: int, filters: int, channels: int, small: list[int], c0: int, most: int
) -> None:
    d, h, w = small
    sizes = {"N": groups * filters, "C": channels, "D": d, "H": h, "W": w}
    _both_ways(device, sizes, _OF_RANK[_IN_GROUPS[device]][order], groups, most, c0)


@pytest.mark.parametrize("order", _OF_RANK[4])
@pytest.mark.parametrize(
    ("groups", "filters", "channels", "shares"),
    [(3, 16, 16, 3), (3, 32, 40, 3), (6, 8, 8, 3), (7, 8, 8, 4), (32, 1, 1, 2), (33, 1, 1, 3), (5, 4, 1, 1)],
)
@pytest.mark.parametrize("most", [600, 5000, 1 << 20])
def test_shares_of_one_group_of_several_and_a_last_one_that_is_not_full(
    groups: int, filters: int, channels: int, shares: int, order: str, most: int
) -> None:
    sizes = {"N": groups * filters, "C": channels, "H": 3, "W": 2}
    device, _ = _both_ways("FRACTAL_Z", sizes, order, groups, most)
    channels_of_share = device.shape[0] // shares // (3 * 2) * 16
    assert device.shape[0] % shares == 0
    assert channels_of_share >= channels


@settings(max_examples=40)
@given(
    st.sampled_from(_OF_RANK[4]),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(200, 20000),
)
def test_few_channels_part_by_part_are_the_whole(order: str, n: int, c: int, h: int, w: int, most: int) -> None:
    _both_ways("FRACTAL_Z_C04", {"N": n, "C": c, "H": h, "W": w}, order, 1, most)


_BETWEEN = [
    (source, target)
    for source in DEVICE_FORMATS
    for target in DEVICE_FORMATS
    if source != target and can_convert(source, target)
]


def _between(source: str, target: str, ncdhw: Shape, groups: int, most: int, c0: int) -> None:
    """Convert between device formats part by part, and compare with the conversion through the plain tensor."""
    order = next(DEVICE_FORMATS[name].plain for name in (source, target) if name != "FRACTAL_NZ")
    shape = _in_order(dict(zip("NCDHW", ncdhw, strict=True)), order)
    plain = np.arange(1, 1 + math.prod(shape), dtype=np.int32).reshape(shape)
    parts: list[None] = []
    made = convert_format(
        convert_format(plain, order, source, groups=groups, c0=c0),
        source,
        target,
        shape=shape,
        groups=groups,
        reading=Reading(most, lambda: parts.append(None)),
    )
    assert parts
    np.testing.assert_array_equal(made, convert_format(plain, order, target, groups=groups))


@settings(max_examples=60)
@given(
    st.sampled_from(_BETWEEN),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(1, 40),
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
    st.sampled_from([4, 8, 16, 32]),
    st.integers(2000, 20000),
)
def test_between_device_formats_part_by_part_is_by_way_of_a_plain_tensor(
    pair: tuple[str, str], groups: int, filters: int, channels: int, small: list[int], c0: int, most: int
) -> None:
    few = (channels - 1) % 4 + 1 if "FRACTAL_Z_C04" in pair else channels
    _between(*pair, (groups * filters, few, *small), groups if _IN_GROUPS.keys() & set(pair) else 1, most, c0)


@pytest.mark.parametrize(("source", "target"), _BETWEEN)
@pytest.mark.parametrize(
    ("ncdhw", "groups"),
    [
        ((1, 17, 2, 3, 5), 1),
        ((1, 3, 1, 20, 40), 1),
        ((33, 4, 3, 1, 1), 1),
        ((24, 8, 2, 3, 5), 3),  # two groups in a share, and one
        ((96, 17, 1, 2, 3), 2),  # 16 groups of 17 channels would fill their blocks
        ((3, 1, 2, 7, 9), 3),  # one share
    ],
)
def test_shapes_that_fill_no_block(source: str, target: str, ncdhw: Shape, groups: int) -> None:
    n, c, *space = ncdhw
    few = min(c, 4) if "FRACTAL_Z_C04" in (source, target) else c
    for most, c0 in ((4000, 16), (8000, 32), (4000, 8)):
        _between(source, target, (n, few, *space), groups, most, c0)


def _pages_of_parts(array: Array, source: str, target: str, shape: Shape, groups: int, most: int) -> list[int]:
    """The number of source pages that each part read; the elements show where they come from."""
    numbered = np.arange(1, 1 + array.size, dtype=np.int32).reshape(array.shape)
    out = np.zeros(convert_format(numbered, source, target, shape=shape, groups=groups).shape, np.int32)
    before = out.copy()
    pages: list[int] = []

    def done() -> None:
        read = out[before != out] - 1
        pages.append(len(np.unique(read * 4 // PAGE)))
        before[...] = out

    convert_format(numbered, source, target, shape=shape, groups=groups, out=out, reading=Reading(most, done))
    return pages


@pytest.mark.parametrize(
    ("device", "sizes", "order", "groups"),
    [
        ("FRACTAL_Z", {"N": 64, "C": 40, "H": 3, "W": 5}, "NCHW", 2),
        ("FRACTAL_Z", {"N": 64, "C": 40, "H": 3, "W": 5}, "HWCN", 2),
        ("FRACTAL_Z", {"N": 480, "C": 8, "H": 4, "W": 4}, "NHWC", 60),
        ("FRACTAL_Z", {"N": 480, "C": 8, "H": 4, "W": 4}, "HWCN", 60),
        ("FRACTAL_Z", {"N": 16, "C": 8, "H": 60, "W": 70}, "NCHW", 2),
        ("FRACTAL_Z", {"N": 320, "C": 1, "H": 20, "W": 20}, "HWCN", 320),
        ("FRACTAL_Z", {"N": 3000, "C": 7, "H": 2, "W": 2}, "HWCN", 1),
        ("FRACTAL_Z_3D", {"N": 64, "C": 40, "D": 3, "H": 3, "W": 5}, "NCDHW", 4),
        ("FRACTAL_Z_C04", {"N": 200, "C": 3, "H": 20, "W": 20}, "NCHW", 1),
        ("FRACTAL_Z_C04", {"N": 16, "C": 4, "H": 100, "W": 60}, "NHWC", 1),
        ("FRACTAL_Z_C04", {"N": 20000, "C": 4, "H": 1, "W": 1}, "HWCN", 1),
        ("NC1HWC0", {"N": 1, "C": 3, "H": 100, "W": 100}, "NCHW", 1),
        ("NC1HWC0", {"N": 9, "C": 50, "H": 10, "W": 10}, "NHWC", 1),
        ("C1HWNCoC0", {"N": 1, "C": 2000, "H": 3, "W": 3}, "HWCN", 1),
        ("FRACTAL_Z", {"N": 64, "C": 40, "H": 3, "W": 5}, "NC1HWC0", 2),
        ("FRACTAL_Z", {"N": 480, "C": 8, "H": 4, "W": 4}, "FRACTAL_NZ", 60),
        ("FRACTAL_Z_3D", {"N": 64, "C": 40, "D": 3, "H": 3, "W": 5}, "NDC1HWC0", 4),
        ("FRACTAL_Z_C04", {"N": 16, "C": 4, "H": 100, "W": 60}, "NC1HWC0", 1),
        ("FRACTAL_Z_C04", {"N": 16, "C": 4, "H": 60, "W": 100}, "FRACTAL_NZ", 1),
        ("FRACTAL_Z_C04", {"N": 20000, "C": 4, "H": 2, "W": 2}, "FRACTAL_Z", 1),
    ],
)
def test_a_part_spans_no_more_than_twice_what_was_asked_for(
    device: str, sizes: dict[str, int], order: str, groups: int
) -> None:
    first = DEVICE_FORMATS[device].plain
    plain = np.zeros(_in_order(sizes, first), np.int32)
    made = {name: convert_format(plain, first, name, groups=groups) for name in (device, order)}
    for source, target in ((order, device), (device, order)):
        array = made[source]
        most = max(8192, array.nbytes // 40)
        wanted = _in_order(sizes, first if target in DEVICE_FORMATS else order)
        pages = _pages_of_parts(array, source, target, wanted, groups, most)
        assert len(pages) > 1
        assert max(pages) * PAGE <= 2 * most, (source, target)


@pytest.mark.parametrize("device", DEVICE_FORMATS)
def test_every_device_format_reports_what_it_has_read(device: str) -> None:
    plain = next(name for name in FORMATS if name not in DEVICE_FORMATS and can_convert(name, device))
    shape = (8, 4, 6, 5, 7)[: len(plain) if plain != "ND" else 2]
    parts: list[None] = []
    reading = Reading(10, lambda: parts.append(None))
    made = convert_format(np.zeros(shape, np.int8), plain, device, reading=reading)
    there = len(parts)
    convert_format(made, device, plain, shape=shape, reading=reading)
    assert 1 < there < len(parts) - 1
