"""Vectors written by the real tool are decoded to the same values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from opdump.formats import convert_format

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
