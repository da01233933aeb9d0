"""Summaries, digests and metrics of odd arrays equal those of a plain copy, for every instruction set; numpy and
hashlib are the reference.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump import kernels
from opdump.kernels import (
    DTYPE_CODES,
    SUMMARY_FIELDS,
    DigestBatch,
    Summary,
    SummaryTable,
    compare_pair,
    compare_summaries,
    pair_reference,
    reference,
)
from opdump.kernels.pair_metrics import COUNTED, metrics_of_pair
from opdump.statistics import ElementStatistics
from tests.kernels.odd_arrays import DTYPES, GuardedMemory, odd_arrays, plain, shapes
from tests.kernels.tensors import as_float64, expected
from tests.kernels.test_summary import assert_agrees_with_numpy

_ONE, _OTHER = GuardedMemory(), GuardedMemory()


def _by_every_instruction_set(compute: Any) -> list[Any]:
    widest = kernels.instruction_sets()[-1]
    found = []
    try:
        for name in kernels.instruction_sets():
            kernels.use_instruction_set(name)
            found.append(compute())
    finally:
        kernels.use_instruction_set(widest)
    return found


def assert_is_right(found: Summary, values: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore"):
        beyond = math.isinf(np.abs(values[np.isfinite(values)]).sum())
    if beyond:  # whether such a sum overflows float64 on the way depends on its order
        found = found._replace(sum=expected(values).sum)
    assert_agrees_with_numpy(found, values)


@given(st.data())
@settings(max_examples=60)
def test_the_summary_is_that_of_numpy(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(DTYPE_CODES)))
    array = data.draw(odd_arrays(_ONE, dtype, data.draw(shapes())))
    first, *others = _by_every_instruction_set(lambda: kernels.summarise(array, dtype))
    assert_is_right(first, as_float64(plain(array), dtype))
    assert all(repr(other) == repr(first) for other in others)
    copy = plain(array)
    table = reference.SummaryTable()
    table.add(copy.ctypes.data, DTYPE_CODES[dtype], copy.size)
    assert_is_right(Summary(*table.rows()[0].tolist()), as_float64(copy, dtype))


@given(st.data())
@settings(max_examples=60)
def test_the_metrics_are_those_of_plain_copies(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    dtype_a = data.draw(st.sampled_from(DTYPES))
    dtype_b = data.draw(st.one_of(st.just(dtype_a), st.sampled_from(DTYPES)))
    a = data.draw(odd_arrays(_ONE, dtype_a, shape))
    b = data.draw(odd_arrays(_OTHER, dtype_b, shape))
    named: dict[str, Any] = {"atol": 1e-3, "rtol": 1e-2, "dtype_a": dtype_a, "dtype_b": dtype_b}
    right = metrics_of_pair(plain(a), plain(b), pair_reference.pair_totals, **named)
    for found in _by_every_instruction_set(lambda: compare_pair(a, b, **named)):
        assert repr(found) == repr(right)


@given(st.data())
@settings(max_examples=40)
def test_the_digests_are_those_of_hashlib(data: st.DataObject) -> None:
    """The digests of the elements in index order and native byte order."""
    dtype = data.draw(st.sampled_from(DTYPES))
    array = data.draw(odd_arrays(_ONE, dtype, data.draw(shapes())))
    found = ElementStatistics(("md5", "hash", "xxh3")).of(array)
    content = plain(array).tobytes()
    assert found["md5"] == hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert found["hash"] == hashlib.sha1(content, usedforsecurity=False).hexdigest()
    copy = np.frombuffer(content, np.uint8)
    batch = DigestBatch(("xxh3",))
    assert found["xxh3"] == batch.digests(batch.add(copy.ctypes.data, copy.size))["xxh3"]


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 55, 56, 63, 64, 65, 119, 4000, 70_000]), st.integers(0, 64)), max_size=90
    ),
    st.sampled_from([0, 300, 1 << 28]),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(1, 3),
)
@settings(max_examples=25)
def test_a_batch_gives_the_digests_of_hashlib_in_any_order(
    messages: Sequence[tuple[int, int]], capacity: int, asked_after: Sequence[int], threads: int
) -> None:
    numbers = np.random.default_rng(len(messages))
    contents = [numbers.integers(0, 256, max(0, size - cut), np.uint8) for size, cut in messages]
    right = [hashlib.md5(content.tobytes(), usedforsecurity=False).hexdigest() for content in contents]

    def digests() -> list[str]:
        batch = DigestBatch(("md5", "xxh3", "hash"), capacity)
        for place, content in enumerate(contents):
            there = _ONE.put(content, at_end=place % 2 == 0)  # the next message overwrites this memory
            assert batch.add(there.ctypes.data, there.size) == place
            if place in asked_after:
                assert batch.digests(place // 2)["md5"] == right[place // 2]
        return [batch.digests(place)["md5"] for place in range(len(contents))]

    before = kernels.threads()
    try:
        kernels.set_threads(threads)
        assert all(found == right for found in _by_every_instruction_set(digests))
    finally:
        kernels.set_threads(before)


_NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e308, 5e-324, math.inf, -math.inf, math.nan]) | st.floats()
_COUNTS = st.integers(0, 2**53).map(float)


@given(st.lists(st.tuples(*[_COUNTS] * 14, *[_NUMBERS] * 8), max_size=6))
@settings(max_examples=40)
def test_differences_of_summaries_are_those_of_each_pair(pairs: Sequence[tuple[float, ...]]) -> None:
    counted = len(COUNTED)
    sides = [
        np.array([(*pair[i * counted : (i + 1) * counted], *pair[14 + 4 * i : 18 + 4 * i]) for pair in pairs])
        for i in range(2)
    ]
    rows_a, rows_b = (side.reshape(-1, len(SUMMARY_FIELDS)) for side in sides)
    odd = np.empty((len(pairs), 2 * len(SUMMARY_FIELDS)))[:, ::2]
    odd[:] = rows_b
    found = compare_summaries(rows_a[::-1], odd[::-1])
    for place, (a, b) in enumerate(zip(rows_a[::-1].tolist(), rows_b[::-1].tolist(), strict=True)):
        assert found.counts[place].tolist() == [int(y - x) for x, y in zip(a[:counted], b[:counted], strict=True)]
        for name, column in (("max", 7), ("min", 8)):
            assert _is_same(getattr(found, name)[place], _relative(a[column], b[column]))


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0:
        return math.inf
    with np.errstate(all="ignore"):
        return float(np.abs(np.float64(a) - np.float64(b)) / np.abs(np.float64(a)))


def _is_same(found: float, right: float) -> bool:
    return bool(found == right) or (math.isnan(found) and math.isnan(right))


_HUGE = """
import resource
import numpy as np
from opdump import kernels

def broadcast(dtype, shape):
    return np.broadcast_to(np.ones((), dtype), shape)

kernels.summarise(broadcast("f4", (10,)))
kernels.compare_pair(broadcast("f4", (10,)), broadcast("f4", (10,)))
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
for dtype, shape in (("i1", (1 << 62,)), ("f4", (1 << 30, 1 << 30)), ("f8", (3, 1 << 40, 1, 5)), ("f2", (1 << 20, 0, 1 << 20))):
    found = kernels.summarise(broadcast(dtype, shape))
    print(found.count, found.sum, found.max)
row = np.lib.stride_tricks.as_strided(np.arange(4096, dtype="f4"), (1 << 40, 4096), (0, 4))
print(kernels.summarise(row).count)
large = broadcast("f4", (1 << 13, 1 << 12))
found = kernels.compare_pair(large, np.broadcast_to(np.float16(2), large.shape))
print(found.count, found.different, found.max_absolute)
"""


@pytest.mark.skipif(kernels.instruction_sets() == ("numpy",), reason="numpy's passes allocate memory")
def test_huge_arrays_of_little_memory_take_little_memory() -> None:
    ended = subprocess.run([sys.executable, "-c", _HUGE], capture_output=True, text=True, check=False)
    assert ended.stdout.split("\n") == [
        f"{2.0**62} {2.0**62} 1.0",
        f"{2.0**60} {2.0**60} 1.0",
        f"{15 * 2.0**40} {15 * 2.0**40} 1.0",
        "0.0 0.0 -inf",
        f"{2.0**52}",
        f"{1 << 25} {1 << 25} 1.0",
        "",
    ], ended.stderr


_BEYOND = (((1 << 62, 1 << 62), (0, 0)), ((1 << 61,), (0,)), ((2, 2), (1 << 62, 1 << 62)), ((3,), (-(1 << 62),)))


@pytest.mark.parametrize("table", list(dict.fromkeys([SummaryTable, reference.SummaryTable])))
@pytest.mark.parametrize(("shape", "strides"), _BEYOND)
def test_what_no_memory_holds_is_refused(table: type[SummaryTable], shape: Any, strides: Any) -> None:
    element = np.ones(1)
    with pytest.raises(ValueError, match="beyond the address space"):
        table().add_strided(element.ctypes.data, DTYPE_CODES["float64"], shape, strides)
    for totals in (kernels.pair_totals, pair_reference.pair_totals):
        side = (element.ctypes.data, DTYPE_CODES["float64"], strides)
        with pytest.raises(ValueError, match="beyond the address space"):
            totals(*side, *side, shape, 0.0, 0.0, False)
    with pytest.raises(ValueError, match="beyond the address space"):
        table().add(element.ctypes.data, DTYPE_CODES["float64"], 1 << 62)


def test_a_guarded_page_ends_a_process_that_reads_it() -> None:
    program = (
        "import numpy as np\nfrom tests.kernels.odd_arrays import GuardedMemory\nfrom opdump import kernels\n"
        "memory = GuardedMemory()\nplace = memory.put(np.zeros(64, np.uint8), at_end={})\n"
        "table = kernels.SummaryTable()\ntable.add(place.ctypes.data + {}, 8, 64)\nprint('read')"
    )
    # The crash is intended, so a sanitizer must not report it.
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0"}
    ended = [
        subprocess.run(
            [sys.executable, "-c", program.format(*each)], capture_output=True, text=True, check=False, env=environ
        )
        for each in ((True, 0), (True, 1), (False, -1))
    ]
    assert [each.stdout for each in ended] == ["read\n", "", ""], ended[0].stderr
    assert all(each.returncode < 0 for each in ended[1:])
