"""Compares the dump of a program on a device with the dump of the same program on the host."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import opdump
from opdump.records import TensorRecord

_INITIALISING = re.compile(r"^Default/\w+-call")
_OVERWRITES = frozenset({"copy_", "copy", "normal", "uniform", "fill", "zero", "bernoulli", "exponential"}) | {
    name.removesuffix("_") for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")
}
"""Operators and calls that overwrite their first argument, so its previous content may be uninitialised."""
_TIME = re.compile(r"\d{12,}")
Key = tuple[str, int, str, int, int]


def assert_same_dumps(device: Path, host: Path, *, low: bool = False) -> int:
    """Assert that both dumps have the same files and the same tensors with the same values, and return the number of tensors.

    Sums may differ in the order of additions; with `low` they are accumulated in the dtype of the tensor.
    """
    files, expected_files = _files(device), _files(host)
    only = files - expected_files, expected_files - files
    assert only == (Counter(), Counter()), f"files of the device alone, of the host alone: {only}"
    if not expected_files:
        return 0  # no operator overflowed or failed
    found, expected = dict(_records(device)), dict(_records(host))
    assert found.keys() == expected.keys()
    for key, other in expected.items():
        one = found[key]
        facts = ("dtype", "shape", "data_size", "skip", "sample", "argument", "source")
        assert [getattr(one, name) for name in facts] == [getattr(other, name) for name in facts], key
        assert (one.payload is None) == (other.payload is None), key
        if one.payload is not None and other.payload is not None:
            left, right = one.payload.to_host(), other.payload.to_host()
            assert (left.dtype, left.shape) == (right.dtype, right.shape), key
            assert np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes(), key
        _assert_same_statistics(one, other, low=low)
    return len(expected)


def _files(path: Path) -> Counter[str]:
    """The names of the files below a folder, without time stamps."""
    return Counter(_TIME.sub("T", str(file.relative_to(path))) for file in path.rglob("*") if file.is_file())


def _records(path: Path) -> Iterator[tuple[Key, TensorRecord]]:
    seen: Counter[tuple[str, int, str, int]] = Counter()
    for record in opdump.open(path).tensors(include_skipped=True):
        op = record.op
        if _INITIALISING.search(op.op_name):
            continue  # a call during the construction of the network reads uninitialised memory
        if op.op_type in _OVERWRITES and (record.io, record.slot) == ("input", 0):
            continue
        place = (op.op_name, 1000 * op.step + op.occurrence, record.io, record.slot)
        seen[place] += 1  # a watched tensor has the same name after every operator
        yield (*place, seen[place]), record


def _assert_same_statistics(found: TensorRecord, expected: TensorRecord, *, low: bool) -> None:
    assert found.statistics.keys() == expected.statistics.keys(), found.name
    for name, value in expected.statistics.items():
        other = found.statistics[name]
        if name in ("avg", "l2norm"):
            if low and isinstance(other, float) and not math.isfinite(other):
                continue  # the sum exceeds the range of the tensor's dtype
            bound = 0.05 if low else 1e-9
            assert other == pytest.approx(value, rel=bound, abs=bound, nan_ok=True), (found.name, name)
        else:
            np.testing.assert_equal(other, value, err_msg=f"{found.name} {name}")
