"""The status bits of PyTorch operators, for programs that overflow and programs that only look as if they did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils._python_dispatch import TorchDispatchMode

from opdump.adapters.torch.naming import json_value
from opdump.checks import InspectedTensor, overflow_kind, overflow_status
from opdump.kernels import DTYPE_CODES, Summary, summarise
from opdump.op_types import bare_name
from tests.checks.overflow_programs import CLEAN, OVERFLOWING, Program


def seen(tensor: torch.Tensor, argument: str = "") -> InspectedTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().clone()  # its current contents
    if dtype.startswith("float8"):
        return InspectedTensor(dtype, tuple(tensor.shape), argument, None, lambda: tensor.float().numpy())
    bits = (tensor.view(torch.uint16) if dtype == "bfloat16" else tensor).numpy()
    array = tensor.float().numpy() if dtype == "bfloat16" else bits
    summary = summarise(bits, dtype) if dtype in DTYPE_CODES else None
    return InspectedTensor(dtype, tuple(tensor.shape), argument, summary, lambda: array)


class OverflowDetector(TorchDispatchMode):
    """Compute the status of every operator that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch gives it no types
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
        inputs = list(_tensors(given))
        numbers = {name: json_value(value) for name, value in given.items() if not isinstance(value, torch.Tensor)}
        result = func(*args, **kwargs)
        writes = any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)
        returned = result if result is not None or not writes else given["self"]
        outputs = [each for _, each in _named("", returned)]
        status = overflow_status(func._schema.name, str(func), numbers, inputs, [seen(each) for each in outputs])
        if status:
            self.found.append((bare_name(func._schema.name), status))
        return result


def _tensors(given: Mapping[str, Any]) -> Iterator[InspectedTensor]:
    for name, value in given.items():
        for argument, tensor in _named(name, value):
            yield seen(tensor, argument)


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _named(f"{name}[{place}]", item)


@pytest.mark.parametrize("program", OVERFLOWING, ids=lambda program: program.name)
def test_the_operator_that_overflows_and_no_other_gets_its_status(program: Program) -> None:
    torch.manual_seed(0)
    with OverflowDetector() as detector:
        program.run()
    assert tuple(detector.found) == program.expected


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.name)
def test_what_only_looks_like_an_overflow_gets_none(program: Program) -> None:
    torch.manual_seed(0)
    with OverflowDetector() as detector:
        program.run()
    assert detector.found == []


def test_the_tables_have_at_least_thirty_programs_each_and_every_status() -> None:
    names = [program.name for program in (*OVERFLOWING, *CLEAN)]
    assert len(set(names)) == len(names)
    assert min(len(OVERFLOWING), len(CLEAN)) >= 30
    assert {status for program in OVERFLOWING for _, status in program.expected} == {
        0x8,
        0x10,
        0x20,
        0x80,
        0x100,
        0x400,
    }


def test_an_ordinary_operator_on_floats_is_judged_by_summaries_alone() -> None:
    def never() -> Any:
        raise AssertionError("elements were asked for")

    finite = Summary(4, 0, 0, 0, 0, 0, 4, 2.0, 1.0, 6.0, 10.0)
    broken = finite._replace(positive_inf=1, max=math.inf)
    inputs = [
        InspectedTensor("float32", (4,), "self", finite, never),
        InspectedTensor("float32", (4,), "other", finite, never),
    ]
    assert overflow_status("mul", "", {}, inputs, [InspectedTensor("float32", (4,), "", finite, never)]) == 0
    assert overflow_status("mul", "", {}, inputs, [InspectedTensor("float32", (4,), "", broken, never)]) == 0x20
    assert overflow_status("mm", "", {}, inputs, [InspectedTensor("float32", (4,), "", broken, never)]) == 0x400
    small = [
        InspectedTensor("int32", (4,), "self", finite, never),
        InspectedTensor("int32", (4,), "other", finite, never),
    ]
    assert overflow_status("mul", "", {}, small, [InspectedTensor("int32", (4,), "", finite, never)]) == 0


def test_what_could_not_be_looked_at_proves_nothing() -> None:
    broken = Summary(1, 1, 0, 0, 0, 0, 0, math.nan, math.nan, math.nan, math.nan)
    unseen = InspectedTensor("complex64", (1,), "self")
    assert overflow_status("abs", "", {}, [unseen], [InspectedTensor("float32", (1,), "", broken)]) == 0
    assert overflow_status("exp", "", {}, [], [InspectedTensor("complex64", (1,))]) == 0


def test_a_kind_of_overflow_that_is_not_wanted_is_not_reported() -> None:
    arguments = {"accumulate": True}
    assert (overflow_kind("index_put_", arguments), overflow_kind("index_put_", {})) == ("atomic", "aicore")
    assert (overflow_kind("scatter_add", {}), overflow_kind("add", {})) == ("atomic", "aicore")
    assert overflow_kind("ScatterND", {"reduction": "add"}) == "atomic"
    large = seen(torch.tensor([60000.0], dtype=torch.float16), "self")
    broken = seen(torch.tensor([math.inf], dtype=torch.float16))
    for op_type, kind, other in (("scatter_add", "atomic", "aicore"), ("add", "aicore", "atomic")):
        assert overflow_status(op_type, "", {}, [large, large], [broken], {kind}) == 0x20  # type: ignore[arg-type]  # a literal in a loop
        assert overflow_status(op_type, "", {}, [large, large], [broken], {other}) == 0  # type: ignore[arg-type]  # as above


def test_an_operator_of_another_library_is_not_judged_by_its_name() -> None:
    finite, broken = seen(torch.ones(2), "self"), seen(torch.tensor([1.0, math.nan]))
    assert overflow_status("clone", "aten::clone", {}, [finite], [broken]) == 0
    assert overflow_status("clone", "mine::clone", {}, [finite], [broken]) == 0x20


_TYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


@st.composite
def _two_arrays(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    dtype = draw(st.sampled_from(_TYPES))
    limits = np.iinfo(dtype)
    ends = st.sampled_from([limits.min, limits.min + 1, -1 if limits.min else 0, 0, 1, 2, limits.max - 1, limits.max])
    elements = st.one_of(ends, st.integers(limits.min, limits.max), st.integers(0, 20))
    shape = draw(st.sampled_from([(1,), (3,), (2, 3)]))
    one, other = (draw(hnp.arrays(np.dtype(dtype), shape, elements=elements)) for _ in range(2))
    return one, other


@given(_two_arrays(), st.sampled_from(["add", "sub", "mul", "Add", "Sub", "Mul", "sum", "prod", "cumsum"]))
def test_an_integer_overflow_is_reported_exactly_where_whole_numbers_differ(
    arrays: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], op_type: str
) -> None:
    one, other = arrays
    whole, second = one.astype(object), other.astype(object)
    true: Any
    arguments: dict[str, Any] = {}
    if op_type in ("sum", "prod"):
        inputs = [_of(one, "self")]
        true = whole.sum(keepdims=True) if op_type == "sum" else whole.prod(keepdims=True)
    elif op_type == "cumsum":
        inputs, arguments = [_of(one, "self")], {"dim": -1}
        true = np.add.accumulate(whole, axis=-1)
    else:
        named = op_type.islower()
        inputs = [_of(one, "self" if named else "A"), _of(other, "other" if named else "B")]
        true = {"add": whole + second, "sub": whole - second, "mul": whole * second}[op_type.lower()]
    limits = np.iinfo(one.dtype.name)
    span = int(limits.max) - int(limits.min) + 1
    wrapped = (true - int(limits.min)) % span + int(limits.min)
    overflows = bool(np.any(wrapped != true))
    status = overflow_status(op_type, "", arguments, inputs, [_of(wrapped.astype(one.dtype))])
    assert status == (0x10 if overflows else 0)


_FLOATS = st.one_of(
    st.floats(width=32),
    st.floats(-70000, 70000, width=32),
    st.sampled_from([65504.0, 65519.0, 65520.0, -0.0, math.inf]),
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns about the overflow
@given(hnp.arrays(np.float32, (3,), elements=_FLOATS))
def test_a_cast_is_judged_element_by_element(array: np.ndarray[Any, Any]) -> None:
    cast = array.astype(np.float16)
    overflows = bool(np.any(np.isfinite(array) & ~np.isfinite(cast)))
    assert overflow_status("_to_copy", "", {}, [_of(array, "self")], [_of(cast)]) == (0x100 if overflows else 0)
    unsigned = array.astype(np.uint8)
    negative = bool(np.any(array < 0))
    assert overflow_status("Cast", "", {}, [_of(array, "input")], [_of(unsigned)]) == (0x80 if negative else 0)


def _of(array: np.ndarray[Any, Any], argument: str = "") -> InspectedTensor:
    return InspectedTensor(array.dtype.name, array.shape, argument, summarise(array), lambda: array)
