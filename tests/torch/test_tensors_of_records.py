"""`TensorRecord.torch()` returns the tensor that was dumped, bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opdump
from opdump.errors import NoElementsError, PackageMissingError
from opdump.records import HostPayload, OpRecord, TensorRecord

_OP = OpRecord(op_type="add", op_name="add-op0", timestamp=1)
_FLOAT8 = [
    name
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]


def _record(array: Any, dtype: str, shape: tuple[int, ...] | None = None) -> TensorRecord:
    return TensorRecord(_OP, "output", 0, dtype, array.shape if shape is None else shape, payload=HostPayload(array))


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def _dumped(value: torch.Tensor, path: Path) -> TensorRecord:
    with opdump.capture(path=path, saved_data="full"):
        value.clone()
    record: TensorRecord = next(opdump.open(path).tensors("clone", io="input"))
    return record


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "complex32",
        "complex64",
        "int64",
        "int8",
        "uint8",
        "uint16",
        "bool",
        *_FLOAT8,
    ],
)
@pytest.mark.parametrize("shape", [(), (3, 5), (4,)])
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_dumped_tensor_comes_back_as_it_was(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    value = torch.linspace(-3, 4, max(1, int(np.prod(shape)))).reshape(shape).to(kind)
    record = _dumped(value, tmp_path / "dump")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = record.torch()
    assert (found.dtype, found.shape) == (kind, value.shape)
    assert _bits(found) == _bits(value)
    found.zero_()  # writable, and separate memory
    assert _bits(record.torch()) == _bits(value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_bit_of_a_half_is_kept_with_those_of_nan(dtype: str, tmp_path: Path) -> None:
    value = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    assert _bits(_dumped(value, tmp_path / "dump").torch()) == _bits(value)


@pytest.mark.parametrize("dtype", _FLOAT8)
def test_every_number_of_a_small_float_is_kept_and_nan_stays_nan(dtype: str, tmp_path: Path) -> None:
    value = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(getattr(torch, dtype))
    found = _dumped(value, tmp_path / "dump").torch()
    is_nan = value.float().isnan()
    assert torch.equal(found.float().isnan(), is_nan)
    assert torch.equal(found.view(torch.uint8)[~is_nan], value.view(torch.uint8)[~is_nan])


def test_no_elements_are_an_empty_tensor_of_the_type() -> None:
    for dtype in ("bfloat16", "float8_e5m2", "complex32", "float32"):
        found = TensorRecord(_OP, "input", 0, dtype, (0, 3), skip="empty").torch()
        assert (found.dtype, found.shape) == (getattr(torch, dtype), (0, 3))


def test_types_that_pytorch_lacks_come_widened() -> None:
    for dtype, array in (
        ("int4", np.array([-8, 7], "int8")),
        ("hifloat8", np.array([0.5], "float32")),
        ("qint8", np.array([0.25], "float32")),
    ):
        found = _record(array, dtype).torch()
        assert found.numpy().dtype == array.dtype
        assert found.tolist() == array.tolist()


def test_a_sample_has_one_axis_and_bytes_of_another_order_are_turned() -> None:
    array = np.arange(6, dtype=">f4")[::2]
    array.flags.writeable = False
    record = TensorRecord(_OP, "output", 0, "float32", (4, 5), payload=HostPayload(array), sample=3)
    assert record.torch().tolist() == [0, 2, 4]


def test_without_elements_the_error_is_that_of_numpy() -> None:
    with pytest.raises(NoElementsError, match="add-op0:output:0"):
        TensorRecord(_OP, "output", 0, "float32", (3,), statistics={"max": 1.0}).torch()


def test_without_pytorch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(PackageMissingError, match=r"pip install torch, or use numpy\(\)"):
        _record(np.zeros(2, "float32"), "float32").torch()
