"""The pass over two tensors: compiled and twin, for every instruction set of this machine, against each other and numpy; metrics by name."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump import kernels
from opdump.errors import UnsupportedDtypeError
from opdump.kernels import DTYPE_CODES, PairMetrics, compare_pair, pair_reference
from opdump.kernels.pair_metrics import metrics_of_pair
from opdump.metrics import METRICS, AddedMetrics
from tests.kernels.tensors import FLOATS, INTEGERS, KINDS, Array, as_dtype, as_float64, make, ordinary

# Around lanes, blocks and chunks; rows that blocks, chunks and spans cut; short rows, many axes, axes of length one.
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (3, 0, 2),
    (1,),
    (17,),
    (2049,),
    (5, 7),
    (7, 1, 300, 1),
    (1, 4099),
    (3, 4, 5, 6, 7),
    (40_001, 3),
    (2, 70_001),
)
KINDS_OF_TYPES = [(dtype, dtype) for dtype in (*FLOATS, *INTEGERS, "bool")]
TWO_TYPES = [
    ("float32", "bfloat16"),
    ("float64", "float16"),
    ("float16", "int8"),
    ("int64", "uint64"),
    ("bool", "float32"),
]


def twin(a: Array, b: Array, **options: Any) -> PairMetrics:
    return metrics_of_pair(
        a, b, pair_reference.pair_totals, **{"atol": 0.0, "rtol": 0.0, "dtype_a": None, "dtype_b": None, **options}
    )


def assert_same(found: PairMetrics, right: PairMetrics) -> None:
    """Check bitwise equality, including the signs of zeros."""
    for field in fields(PairMetrics):
        assert repr(getattr(found, field.name)) == repr(getattr(right, field.name)), field.name


def changed(array: Array, dtype: str, case: str = "ordinary") -> Array:
    """A copy in which most elements are the same, some near, some far; NaN and infinities appear, disappear and stay."""
    generator = np.random.default_rng(array.size)
    other: Array = np.array(array, copy=True)
    flat = other.reshape(-1)
    places = generator.random(flat.size) < 0.3
    if dtype == "bool":
        flat[places] = ~flat[places].astype(np.bool_)
    elif dtype in INTEGERS:
        np.bitwise_xor(flat, places.astype(dtype), out=flat, casting="unsafe")
        flat[generator.random(flat.size) < 0.02] = np.iinfo(dtype).max
    else:
        bits = flat.view(f"u{flat.itemsize}")
        bits[places] ^= bits.dtype.type(1) << (generator.integers(0, 4, int(places.sum())).astype(bits.dtype))
        for value in (math.nan, math.inf, -math.inf, 0.0, -1.0)[: 5 if case != "ordinary" else 0]:
            some = generator.random(flat.size) < 0.004
            flat[some] = as_dtype(np.full(int(some.sum()), value), dtype)
    return other


@pytest.mark.parametrize(("dtype", "case"), KINDS)
def test_native_and_twin_agree_to_the_bit(instruction_set: str, dtype: str, case: str, threads_restored: None) -> None:
    for shape in SHAPES:
        a = make(dtype, case, math.prod(shape)).reshape(shape)
        b = changed(a, dtype, case)
        options: dict[str, Any] = {"atol": 1e-3, "rtol": 1e-2, "dtype_a": dtype, "dtype_b": dtype}
        right = twin(a, b, **options)
        for threads in (1, 3):
            kernels.set_threads(threads)
            assert_same(compare_pair(a, b, **options), right)


@pytest.mark.parametrize(("one", "other"), TWO_TYPES)
def test_two_types_are_compared_as_float64_and_named(instruction_set: str, one: str, other: str) -> None:
    for shape in SHAPES:
        a = ordinary(one, math.prod(shape)).reshape(shape)
        b = ordinary(other, math.prod(shape)).reshape(shape)
        found = compare_pair(a, b, dtype_a=one, dtype_b=other)
        assert_same(found, twin(a, b, dtype_a=one, dtype_b=other))
        assert (found.dtype_a, found.dtype_b, found.ulps) == (one, other, None)
        assert found.different == np.count_nonzero(as_float64(a, one) != as_float64(b, other))


@pytest.mark.parametrize("shape", [(700_001,), (30, 23_333), (233_333, 3), (2, 3, 5, 70, 333)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(
    instruction_set: str, shape: tuple[int, ...], threads: int, threads_restored: None
) -> None:
    a = make("float32", "many NaN", math.prod(shape)).reshape(shape)
    b = changed(a, "float32", "many NaN")
    kernels.set_threads(threads)
    assert_same(compare_pair(a, b), twin(a, b))


@pytest.mark.parametrize(("shape", "axes"), [((3, 140_001), [0, 1]), ((2, (1 << 20) + 1), [0])])
def test_a_long_axis_has_fewer_sums_or_none(shape: tuple[int, ...], axes: list[int]) -> None:
    a = ordinary("int8", math.prod(shape)).reshape(shape)
    b = changed(a, "int8")
    found = compare_pair(a, b)
    assert_same(found, twin(a, b))
    assert [each.axis for each in found.worst_channels] == axes


def expected(a: NDArray[np.float64], b: NDArray[np.float64], atol: float, rtol: float) -> dict[str, Any]:
    """The metrics of two finite arrays, by numpy."""
    difference = np.abs(a - b)
    relative = difference[a != 0] / np.abs(a[a != 0])
    known = (a != 0) | (b == 0)
    squares = difference**2
    out = difference > atol + rtol * np.abs(a)
    return {
        "cosine": float(np.dot(a.ravel(), b.ravel()) / np.linalg.norm(a.ravel()) / np.linalg.norm(b.ravel())),
        "max_absolute": float(difference.max()),
        "mean_absolute": float(difference.mean()),
        "max_relative": float(relative.max()),
        "mean_relative": float(relative.sum() / known.sum()),
        "relative_l2": float(np.linalg.norm((a - b).ravel()) / np.linalg.norm(a.ravel())),
        "rmse": float(np.sqrt(squares.mean())),
        "snr_db": float(10 * np.log10((a**2).sum() / squares.sum())),
        "rms_a": float(np.sqrt((a**2).mean())),
        "peak_a": float(np.abs(a).max()),
        "peak_b": float(np.abs(b).max()),
        "different": int((a != b).sum()),
        "out_of_tolerance": int(out.sum()),
        "first_bad": tuple(int(each[0]) for each in np.nonzero(out)),
        "sign_flips": int((a * b < 0).sum()),
        "argmax_flips": int((a.argmax(-1) != b.argmax(-1)).sum()),
        "from_zero": int(((a == 0) & (b != 0)).sum()),
        "worst": [
            int(squares.sum(tuple(other for other in range(a.ndim) if other != axis)).argmax())
            for axis in range(a.ndim)
        ],
        "shares": [
            float(squares.sum(tuple(other for other in range(a.ndim) if other != axis)).max() / squares.sum())
            for axis in range(a.ndim)
        ],
    }


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32", "uint16"])
@pytest.mark.parametrize("shape", [(4, 5), (30, 1009), (7, 6, 5, 300)])
def test_the_metrics_are_those_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    a = ordinary(dtype, math.prod(shape)).reshape(shape)
    noise = np.random.default_rng(3).standard_normal(shape)
    x = as_float64(a, dtype)
    if dtype in FLOATS:
        b = as_dtype(x * (1 + noise * 0.1) + noise * 0.01, dtype)
    else:
        b = np.clip(x + noise * 3, np.iinfo(dtype).min / 2, np.iinfo(dtype).max / 2).astype(dtype)
    found = compare_pair(a, b, atol=0.02, rtol=0.05, dtype_a=dtype, dtype_b=dtype)
    right = expected(x, as_float64(b, dtype), 0.02, 0.05)
    assert [each.axis for each in found.worst_channels] == list(range(len(shape)))
    assert [each.index for each in found.worst_channels] == right.pop("worst")
    assert [each.share for each in found.worst_channels] == pytest.approx(right.pop("shares"))
    for name, value in right.items():
        assert getattr(found, name) == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def test_the_rules_on_tensors_written_by_hand(instruction_set: str) -> None:
    nan, inf = math.nan, math.inf
    a = np.array([[1.0, nan, inf, 0.0, -2.0], [nan, inf, 3.0, -0.0, 4.0]], np.float32)
    b = np.array([[1.0, nan, inf, 0.5, 2.0], [1.00, -inf, nan, 0.0, 4.5]], np.float32)
    found = compare_pair(a, b, atol=0.5)
    assert (found.count, found.finite, found.same_nonfinite) == (10, 5, 2)
    assert (found.different, found.out_of_tolerance, found.first_bad) == (6, 4, (0, 4))
    assert (found.nan_a, found.nan_b, found.inf_a, found.inf_b) == (1, 1, 1, 1)
    assert (found.sign_flips, found.from_zero, found.argmax_flips) == (1, 1, 1)
    assert (found.max_absolute, found.mean_absolute, found.max_relative) == (4.0, 1.0, 2.0)
    assert found.mean_relative == (0 + 2 + 0 + 0.125) / 4
    assert found.rmse == math.sqrt((0.25 + 16 + 0.25) / 5)
    assert (found.peak_a, found.peak_b, found.rms_a) == (4.0, 4.5, math.sqrt((1 + 4 + 16) / 5))
    assert found.ulps is not None
    assert sum(found.ulps) == 7
    assert found.ulps[0] == 4


def test_equal_tensors_differ_in_nothing(instruction_set: str) -> None:
    array = make("float32", "NaN and both Inf", 5000).reshape(50, 100)
    found = compare_pair(array, array.copy())
    assert (found.different, found.out_of_tolerance, found.first_bad, found.argmax_flips) == (0, 0, None, 0)
    assert (found.cosine, found.max_absolute, found.rmse, found.snr_db) == (1.0, 0.0, 0.0, math.inf)
    assert (found.ulps, found.worst_channels) == ((5000,), ())


def test_no_elements_are_equal_and_nothing_but_nan_is_unknown(instruction_set: str) -> None:
    empty = compare_pair(np.empty((3, 0), np.float32), np.empty((3, 0), np.float32))
    assert (empty.count, empty.cosine, empty.rmse, empty.snr_db, empty.ulps) == (0, 1.0, 0.0, math.inf, ())
    lost = compare_pair(np.ones(3), np.full(3, math.nan))
    assert (lost.finite, lost.different, lost.first_bad) == (0, 3, (0,))
    assert all(math.isnan(x) for x in (lost.cosine, lost.max_absolute, lost.rmse, lost.snr_db, lost.relative_l2))


def test_of_zeros_there_is_no_angle_and_no_ratio(instruction_set: str) -> None:
    found = compare_pair(np.zeros(4), np.ones(4))
    assert (found.cosine, found.relative_l2, found.snr_db) == (0.0, math.inf, -math.inf)
    assert (found.max_relative, found.mean_relative, found.from_zero) == (0.0, 0.0, 4)
    assert compare_pair(np.zeros(4), np.zeros(4)).cosine == 1.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_distances_are_counted_in_units_in_the_last_place(instruction_set: str, dtype: str) -> None:
    one = as_dtype(np.ones(12), dtype)
    bits = one.view(f"u{one.itemsize}")
    other = (bits + np.arange(12).astype(bits.dtype)).view(one.dtype)
    assert compare_pair(one, other, dtype_a=dtype, dtype_b=dtype).ulps == (1, 1, 2, 4, 4)
    zeros = as_dtype(np.array([0.0, -0.0]), dtype)
    smallest = zeros.view(bits.dtype) + bits.dtype.type(1)
    found = compare_pair(zeros, smallest.view(zeros.dtype)[::-1], dtype_a=dtype, dtype_b=dtype)
    assert found.ulps == (0, 2)
    assert compare_pair(zeros, zeros[::-1], dtype_a=dtype, dtype_b=dtype).ulps == (2,)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_wide_integers_that_float64_cannot_distinguish_differ(instruction_set: str, dtype: str) -> None:
    a = np.array([2**62 + 1, np.iinfo(dtype).max, 7], dtype)
    b = np.array([2**62, np.iinfo(dtype).min, 7], dtype)
    found = compare_pair(a, b)
    assert (found.different, found.max_absolute, found.mean_absolute) == (2, 2.0**64, (2.0**64 + 1) / 3)
    assert_same(found, twin(a, b))
    assert compare_pair(a, b, atol=1).first_bad == (1,)


def test_the_first_of_equal_elements_and_the_first_nan_are_the_largest(instruction_set: str) -> None:
    nan = math.nan
    a = np.array([[1, 3, 3, 0], [nan, 9, nan, 1], [-math.inf] * 4, [5, 1, 1, 1]])
    b = np.array([[1, 3, 4, 0], [1, nan, nan, 1], [-math.inf] * 4, [5, 5, 5, 5]])
    assert compare_pair(a, b).argmax_flips == 2
    wide = np.tile(np.array([0.0, 1.0, 1.0]), 40_000).reshape(3, 40_000)
    other = wide.copy()
    other[1, 39_999] = 2.0
    other[2, 39_990] = nan
    assert compare_pair(wide, other).argmax_flips == 2


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of this shape, as a view of another one."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3, 0])) for _ in shape]
    within = [1 if step == 0 else size * abs(step) for size, step in zip(shape, steps, strict=True)]
    array = ordinary(dtype, math.prod(within)).reshape([within[axis] for axis in order])
    array = np.transpose(array, np.argsort(np.array(order, np.int64)))
    array = np.asarray(array[tuple(slice(None, None, step or 1) for step in steps)])
    return np.broadcast_to(array, shape)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_view_is_compared_as_its_copy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=0, max_size=5)))
    one, other = (data.draw(st.sampled_from(sorted(DTYPE_CODES))) for _ in range(2))
    a, b = data.draw(views(shape, one)), data.draw(views(shape, other))
    widest = kernels.instruction_sets()[-1]
    right = twin(np.array(a), np.array(b), dtype_a=one, dtype_b=other)
    assert_same(twin(a, b, dtype_a=one, dtype_b=other), right)
    for name in kernels.instruction_sets():
        kernels.use_instruction_set(name)
        assert_same(compare_pair(a, b, dtype_a=one, dtype_b=other), right)
    kernels.use_instruction_set(widest)


def test_large_views_are_read_in_the_order_of_their_indices(instruction_set: str) -> None:
    a = np.asfortranarray(np.asarray(ordinary("float32", 600 * 700)).reshape(600, 700))
    b = np.ascontiguousarray(a)[::-1].copy()[::-1]
    assert compare_pair(a, b).different == 0
    b[599, 3] += 1
    found = compare_pair(a, b)
    assert (found.first_bad, found.worst_channels[0].index, found.worst_channels[1].index) == ((599, 3), 599, 3)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_compared_by_their_parts(instruction_set: str, dtype: str) -> None:
    generator = np.random.default_rng(0)
    a = (generator.standard_normal((30, 40)) + 1j * generator.standard_normal((30, 40))).astype(dtype)
    b = a.copy()
    b[4, 5] += 2j
    b[4, 6] = complex(1, math.nan)
    found = compare_pair(a, b)
    assert (found.dtype_a, found.shape, found.count, found.finite, found.nan_b) == (dtype, (30, 40), 2400, 2399, 1)
    assert (found.first_bad, found.argmax_flips) == ((4, 5), None)
    assert [(each.axis, each.index) for each in found.worst_channels] == [(0, 4), (1, 5)]
    assert_same(
        compare_pair(a[::-1, ::2].T, b[::-1, ::2].T), compare_pair(a[::-1, ::2].T.copy(), b[::-1, ::2].T.copy())
    )
    real = a.real.copy()
    assert compare_pair(real, a).max_absolute == pytest.approx(np.abs(a.imag).max(), rel=1e-12)
    assert compare_pair(np.array(1 + 2j), np.array(1 + 3j)).first_bad == ()


def test_arrays_of_ml_dtypes_byte_orders_scalars_and_odd_strides_are_taken(instruction_set: str) -> None:
    values = np.array([1.0, 2.5, -3.0])
    assert compare_pair(values.astype(ml_dtypes.bfloat16), values.astype(">f4")).different == 0
    assert compare_pair(np.float32(1), np.float32(2)).max_absolute == 1
    packed = np.zeros(5, [("flag", "i1"), ("value", "f4")])
    packed["value"] = 3
    assert compare_pair(packed["value"], np.full(5, 3, np.float32)).different == 0


def test_mapped_files_are_compared_where_they_lie(tmp_path: Path) -> None:
    array = np.arange(300_000, dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array + (array == 5))
    a, b = (np.load(tmp_path / name, mmap_mode="r") for name in ("a.npy", "b.npy"))
    assert compare_pair(a, b).first_bad == (5,)


def test_what_cannot_be_compared_is_refused() -> None:
    one = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"found \(2, 3\) and \(3, 2\)"):
        compare_pair(one, one.T)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="rtol is a finite number from 0"):
            compare_pair(one, one, rtol=wrong)
    with pytest.raises(UnsupportedDtypeError, match="datetime64"):
        compare_pair(one.astype("M8[s]"), one)
    with pytest.raises(ValueError, match="null"):
        kernels.pair_totals(0, 2, (1,), 0, 2, (1,), (3,), 0.0, 0.0, True)
    with pytest.raises(ValueError, match="dtype code 13"):
        kernels.pair_totals(1, 13, (1,), 1, 2, (1,), (0,), 0.0, 0.0, True)


A, B = np.array([[1.0, 2.0, -3.0]]), np.array([[1.5, 2.0, 3.0]])


@pytest.mark.parametrize("name", METRICS.own)
def test_a_metric_of_opdump_is_that_of_the_pair(name: str) -> None:
    assert METRICS.load(name)(A, B) == getattr(compare_pair(A, B), name)


def test_a_metric_that_a_pair_does_not_have_is_nan() -> None:
    assert math.isnan(METRICS.load("argmax_flips")(A * 1j, B * 1j))


def test_a_function_that_raises_leaves_the_pair_without_its_metric_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def writes(a: Any, b: Any) -> float:
        a[0] = 0
        return 0.0

    monkeypatch.setattr(METRICS, "added", lambda: {"writes": writes, "largest": lambda a, b: b.max()})
    metrics = AddedMetrics()
    assert metrics
    assert [metrics.of(A, B), metrics.of(A, B)] == [{"largest": 3.0}] * 2
    (warning,) = caplog.records
    assert warning.getMessage().startswith("the metric 'writes' of a pair is left out: ValueError: ")
    assert A[0, 0] == 1.0
    assert A.flags.writeable
