"""Every kind of tensor has its correct values in the dump, or is skipped, counted and given a reason."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import opdump
from opdump.adapters.torch import reader
from opdump.catalog.catalog import Execution
from opdump.plan import DumpPlan


def capture(path: Path, function: Any, *inputs: Tensor, **settings: Any) -> dict[str, Execution]:
    """The executions of `function(*inputs)` by operator type."""
    settings.setdefault("saved_data", "full")
    with opdump.capture(path=path, **settings) as dump:
        function(*inputs)
    assert dump.report is not None
    return {execution.op.op_type: execution for execution in opdump.open(path).executions()}


def elements(execution: Execution, io: str = "output", slot: int = 0) -> npt.NDArray[Any]:
    record = (execution.outputs if io == "output" else execution.inputs)[slot]
    assert record.payload is not None
    return record.payload.to_host()


NUMBERS = [0.0, -1.5, 2.0, 3.25]


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"],
)
def test_types_that_numpy_has_keep_their_type(dtype: str, tmp_path: Path) -> None:
    x = torch.tensor(NUMBERS).abs().to(getattr(torch, dtype))
    ran = capture(tmp_path, torch.clone, x)
    assert elements(ran["clone"]).dtype == np.dtype(dtype)
    assert np.array_equal(elements(ran["clone"]), x.numpy())
    record = ran["clone"].outputs[0]
    assert record.dtype == dtype
    assert record.statistics["max"] == float(x.to(torch.float64).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_types_that_numpy_lacks_are_widened_and_keep_their_name(dtype: str, tmp_path: Path) -> None:
    x = torch.tensor(NUMBERS).to(getattr(torch, dtype))
    ran = capture(tmp_path, lambda value: value.clone(), x)
    record = ran["clone"].outputs[0]
    assert elements(ran["clone"]).dtype == np.float32
    assert np.array_equal(elements(ran["clone"]), x.float().numpy())
    assert record.dtype == dtype
    assert record.statistics["max"] == float(x.float().max())
    assert record.data_size == 4 * x.element_size()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_have_elements_and_no_statistics(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.tensor([1 + 2j, -3j], dtype=dtype)
    ran = capture(tmp_path, lambda value: (torch.ones(2) + 1, value * 2, torch.conj(value) * 1j), x)
    assert elements(ran["mul"], "input").tolist() == [1 - 2j, 3j]
    assert dict(ran["mul"].outputs[0].statistics) == {}
    csv = (tmp_path / "rank_0" / "Net" / "0" / "0" / "statistic.csv").read_text()
    assert "complex" not in csv


def test_the_imaginary_part_of_a_conjugate_is_negated(tmp_path: Path) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert x.conj().imag.is_neg()
    ran = capture(tmp_path, lambda value: value + 1, x.conj().imag)
    assert elements(ran["add"], "input").tolist() == [-2, 4]
    assert ran["add"].inputs[0].statistics["max"] == 4


def test_a_scalar_has_the_empty_shape(tmp_path: Path) -> None:
    ran = capture(tmp_path, lambda value: value + 1, torch.tensor(2.0))
    assert ran["add"].outputs[0].shape == ()
    assert elements(ran["add"]).item() == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(12.0)[::3],
        lambda: torch.arange(3.0).expand(4, 3),
        lambda: torch.as_strided(torch.arange(2.0), (5,), (0,)),
        lambda: torch.arange(24.0).reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        lambda: torch.arange(8.0)[5:],
    ],
    ids=["transposed", "strided", "expanded", "zero stride", "channels last", "offset"],
)
def test_layouts_in_memory_do_not_matter(make: Any, tmp_path: Path) -> None:
    x = make()
    ran = capture(tmp_path, lambda value: value * 1, x)
    assert np.array_equal(elements(ran["mul"], "input"), x.numpy())
    assert ran["mul"].inputs[0].shape == tuple(x.shape)
    assert ran["mul"].inputs[0].statistics["l2norm"] == pytest.approx(float(x.double().norm()), rel=1e-12)
    assert ran["mul"].inputs[0].statistics["count"] == x.numel()


def test_an_empty_tensor_is_a_counted_skip(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path) as dump:
        torch.zeros(0, 3) + 1
    assert dump.report is not None
    assert dump.report.tensors_skipped == {"empty": 3}
    (add,) = [e for e in opdump.open(tmp_path).executions(include_skipped=True) if e.op.op_type == "add"]
    assert [(record.shape, record.skip) for record in add.tensors] == [((0, 3), "empty"), ((0, 3), "empty")]


def test_a_meta_tensor_is_a_counted_skip(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path) as dump:
        torch.empty(2, device="meta") + 1
    assert dump.report is not None
    assert dump.report.tensors_skipped["no storage"] >= 1


def test_memory_that_nothing_wrote_is_a_counted_skip(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path) as dump:
        torch.empty(3).fill_(7)
    assert dump.report is not None
    assert dump.report.skipped == {"allocation": 1}
    assert dump.report.tensors_skipped == {"allocation": 1}
    (fill,) = opdump.open(tmp_path).executions()
    assert elements(fill).tolist() == [7, 7, 7]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors_are_recorded_as_the_dense_values_they_stand_for(layout: str, tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    ran = capture(tmp_path, lambda value: value @ torch.ones(2, 1), sparse)
    (product,) = [e for name, e in ran.items() if name.endswith("mm")]
    records = [record for record in product.inputs.values() if record.shape == (2, 2)]
    assert records
    assert records[0].payload is not None
    assert np.array_equal(records[0].payload.to_host(), dense.numpy())
    assert records[0].statistics["max"] == 3


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.* are deprecated")
def test_quantised_tensors_are_recorded_as_the_numbers_they_stand_for(tmp_path: Path) -> None:
    x = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.quint8)
    ran = capture(tmp_path, lambda value: value.clone(), x)
    assert elements(ran["clone"]).tolist() == [0.5, 1.0]
    assert ran["clone"].outputs[0].dtype == "quint8"


def test_a_subclass_that_only_overrides_functions_is_read_as_the_tensor_it_is(tmp_path: Path) -> None:
    class Loud(torch.Tensor):
        pass

    ran = capture(tmp_path, lambda value: value * 2, torch.ones(2).as_subclass(Loud))
    assert elements(ran["mul"]).tolist() == [2, 2]


def test_a_subclass_that_dispatches_itself_is_captured_as_what_it_runs(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with opdump.capture(path=tmp_path) as dump:
        TwoTensor(torch.ones(2), torch.full((2,), 3.0)) * 2
    assert dump.report is not None
    products = [e for e in opdump.open(tmp_path).executions() if e.op.op_type == "mul"]
    assert [elements(e).tolist() for e in products] == [[2, 2], [6, 6]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_a_counted_skip(tmp_path: Path) -> None:
    nested = torch._nested_tensor_from_tensor_list([torch.ones(2), torch.ones(3)])
    with opdump.capture(path=tmp_path) as dump:
        nested.clone()
    assert dump.report is not None
    assert dump.report.tensors_skipped["unsupported layout"] >= 1


def test_bits_without_a_meaning_are_a_counted_skip(tmp_path: Path) -> None:
    x = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
    with opdump.capture(path=tmp_path) as dump:
        x.clone()
    assert dump.report is not None
    assert dump.report.tensors_skipped["opaque"] >= 1


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_bytes_viewed_as_a_quantised_type_are_opaque(tmp_path: Path, saved_data: Any) -> None:
    viewed = torch.arange(8, dtype=torch.uint8).view(torch.qint8)
    with opdump.capture(path=tmp_path, saved_data=saved_data) as dump:
        with suppress(RuntimeError):  # there is no kernel for it
            viewed.clone()
        torch.ones(3) + 1
    assert dump.report is not None
    assert not dump.report.failure
    assert [op.op_type for op in opdump.open(tmp_path).ops(step=0)][-1] == "add"


def test_strict_makes_a_gap_an_error(tmp_path: Path) -> None:
    from opdump.errors import IncompleteCaptureError

    x = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
    with pytest.raises(IncompleteCaptureError, match="opaque"), opdump.capture(path=tmp_path, strict=True):
        x.clone()


def test_inference_tensors_are_captured(tmp_path: Path) -> None:
    with torch.inference_mode():
        ran = capture(tmp_path, lambda value: value + 1, torch.ones(2))
    assert elements(ran["add"]).tolist() == [2, 2]


def test_a_release_that_cannot_describe_its_tensors_gives_the_same_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statistics(path: Path) -> list[tuple[Any, ...]]:
        x = torch.arange(24.0).reshape(4, 6)
        ran = capture(path, lambda: (x.t() * x.t().bfloat16()).sum(0, dtype=torch.float64), saved_data="statistic")
        records = [
            record for execution in ran.values() for record in (*execution.inputs.values(), *execution.outputs.values())
        ]
        return [
            (record.name, record.dtype, record.shape, record.data_size, *record.statistics.values())
            for record in records
        ]

    described = statistics(tmp_path / "described")
    monkeypatch.setattr(reader, "_DESCRIBES_TENSORS", False)
    assert statistics(tmp_path / "asked") == described
    assert len(described) == 7


class Wrapper(torch.Tensor):
    """A wrapper of another tensor with a storage offset: it has an address but no memory."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=5, dtype=inner.dtype
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*(each.held if isinstance(each, Wrapper) else each for each in args), **(kwargs or {}))


@pytest.mark.parametrize("saved_data", ["statistic", "tensor"])
@pytest.mark.parametrize("dump_level", ["op", "all"])
def test_a_wrapper_that_begins_at_an_offset_has_no_memory_to_read(
    dump_level: Any, saved_data: Any, tmp_path: Path
) -> None:
    wrapped = Wrapper(torch.arange(3.0))
    assert wrapped.data_ptr() != 0
    plan = DumpPlan(
        path=tmp_path, layout="acl", file_format="bin", dialect="acl", dump_level=dump_level, saved_data=saved_data
    )
    with opdump.capture(plan) as dump:
        assert torch.add(wrapped, 1).tolist() == [1.0, 2.0, 3.0]
    assert dump.report is not None
    assert dump.report.tensors_skipped == {"no storage": 1}
