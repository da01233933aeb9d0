"""Converting a tensor in parts produces the same bytes as converting the whole, for all formats and groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opdump.conversion import ConversionPlan, formatted
from opdump.conversion.formatted import in_format
from opdump.conversion.stored_tensor import stored_tensor
from opdump.formats import DEVICE_FORMATS, FORMATS, can_convert, convert_format
from tests.conversion.dump_files import tensor

PAIRS = [
    (source, target)
    for source in FORMATS
    for target in FORMATS
    if source != target and can_convert(source, target) and {source, target} & DEVICE_FORMATS.keys()
]
SHAPES: dict[int, list[tuple[tuple[int, ...], int]]] = {
    4: [((1, 17, 5, 6), 1), ((18, 3, 7, 5), 1), ((33, 40, 3, 3), 1), ((24, 8, 3, 5), 3), ((96, 17, 2, 3), 2)],
    5: [((1, 17, 2, 5, 6), 1), ((33, 20, 2, 3, 3), 1), ((24, 8, 2, 3, 5), 3), ((3, 1, 4, 9, 7), 3)],
    2: [((1, 700), 1), ((70, 35), 1)],
}


def _orders(source: str, target: str) -> tuple[str, str]:
    """The plain formats of source and target; ND takes the format of the other side."""
    plain, wanted = (DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name for name in (source, target))
    return (wanted if plain == "ND" else plain), (plain if wanted == "ND" else wanted)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize(("dtype", "c0"), [("float16", 16), ("int8", 32), ("float32", 8)])
def test_the_bytes_are_those_of_the_whole(
    source: str, target: str, dtype: str, c0: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[None] = []
    monkeypatch.setattr(formatted, "_SLAB", 3000)
    monkeypatch.setattr(formatted, "_READ", 2000)
    monkeypatch.setattr(formatted, "forget", lambda _: read.append(None))
    here, there = _orders(source, target)
    in_parts = 0
    for shape, groups in SHAPES[2 if here == "ND" else len(here)]:
        sizes = dict(zip("NCDHW" if len(shape) == 5 else "NCHW", shape, strict=False))
        if "FRACTAL_Z_C04" in (source, target):
            sizes["C"] = min(sizes["C"], 4)
        of_source, wanted = (
            shape if order == "ND" else tuple(sizes[axis] for axis in order) for order in (here, there)
        )
        plain = (np.arange(math.prod(of_source)) % 125 + 1).astype(dtype).reshape(of_source)
        array = convert_format(plain, here, source, groups=groups, c0=c0) if source in DEVICE_FORMATS else plain
        dumped = tensor(array, format_name=source, sub_format=groups, original_shape=wanted)
        read.clear()
        made = in_format(stored_tensor(dumped), ConversionPlan(format=target))
        whole = convert_format(array, source, target, shape=wanted, groups=groups)
        assert made.shape == whole.shape
        assert b"".join(piece.tobytes() for piece in made.raw()) == whole.tobytes()
        in_parts += made.slabs is not None or len(read) > 1
    assert in_parts
