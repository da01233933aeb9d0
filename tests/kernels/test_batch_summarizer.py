"""A tensor is read in place, from its own attributes, and a view once; the compiled classes and their specification in Python return the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from opdump.kernels import (
    DTYPE_CODES,
    BatchSummarizer,
    DigestBatch,
    SeenTensors,
    SummaryTable,
    digests,
    reference,
)
from opdump.kernels.append_file import xxh3_128
from opdump.recorder import TensorSnapshot
from opdump.records import OpRecord
from tests.kernels import summarizer_twin as twin

torch = pytest.importorskip("torch")

CLASSES = (torch.Tensor, torch.nn.Parameter)
PAIRS = list(
    dict.fromkeys(
        (
            (SummaryTable, BatchSummarizer or twin.BatchSummarizer, DigestBatch),
            (reference.SummaryTable, twin.BatchSummarizer, digests.DigestBatch),
        )
    )
)
OP = OpRecord("Add", "Default/Add-op0", 1)
"""The operator that the tensors belong to."""


class Taking:
    """A table, the object that fills it, and the tensors that it passed to the fallback."""

    def __init__(self, pair: tuple[Any, Any, Any]) -> None:
        self.table = pair[0]()
        self.digests = pair[2](("md5", "hash", "xxh3"))
        self.taker = pair[1](self.table, TensorSnapshot("", (), 0), CLASSES, self.digests)
        self.others: list[tuple[Any, str]] = []

    def take(self, *lives: tuple[int, str, Any, str, str]) -> list[TensorSnapshot]:
        entries: list[TensorSnapshot] = []
        self.taker.take_all(OP, "input", lives, entries, self._other)
        return entries

    def _other(self, tensor: Any, skip: str) -> TensorSnapshot:
        self.others.append((tensor, skip))
        return TensorSnapshot("other", (), 0)


def _small_numbers(dtype: str) -> Any:
    return torch.tensor([0, 1, 3]).to(getattr(torch, dtype))


READ: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: torch.arange(12.0).reshape(3, 4),
    "no dimensions": lambda: torch.tensor(2.5),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "every second": lambda: torch.arange(12.0)[1::2],
    "expanded": lambda: torch.tensor([1.5]).expand(3, 2),
    "16 bits": lambda: torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "result that needs a gradient": lambda: torch.nn.Parameter(torch.ones(2, 2)) * 2,
    **{name: partial(_small_numbers, name) for name in DTYPE_CODES if name not in ("float32", "bfloat16")},
}
NOT_READ: dict[str, Callable[[], Any]] = {
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "8-bit floats": lambda: torch.ones(2).to(torch.float8_e5m2),
    "no elements": lambda: torch.empty(0, 3),
    "a subclass": lambda: torch.ones(2).as_subclass(type("Named", (torch.Tensor,), {})),
    "no tensor": object,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed rows": lambda: torch.eye(3).to_sparse_csr(),
    "negated lazily": lambda: torch.tensor([1 + 2j]).conj().imag,
    "no memory": lambda: torch.empty(2, 2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", READ)
def test_what_lies_in_memory_is_read(pair: tuple[Any, Any, Any], name: str) -> None:
    tensor = READ[name]()
    taking = Taking(pair)
    (taken,) = taking.take((3, "weight", tensor, "Parameter.w", ""))
    assert not taking.others
    assert taken.dtype == str(tensor.dtype).removeprefix("torch.")
    assert taken.shape == tuple(tensor.shape)
    assert type(taken.shape) is tuple
    assert taken.data_size == tensor.numel() * tensor.element_size()
    assert (taken.op, taken.io, taken.slot, taken.argument, taken.source) == (OP, "input", 3, "weight", "Parameter.w")
    assert (taken.skip, taken.elements, taken.others, taken.file) == ("", None, None, None)
    assert taken.table is taking.table
    assert taken.row == 0
    row = taking.table.rows()[0]
    wanted = tensor.detach().double()
    assert row[0] == tensor.numel()
    assert torch.equal(torch.tensor(row[9]), wanted.sum()) or wanted.isnan().any()
    assert row[1] == wanted.isnan().sum().item()
    elements = bytes(tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist())
    assert taking.digests.by_row()[taken.row] == {
        "md5": hashlib.md5(elements, usedforsecurity=False).hexdigest(),
        "hash": hashlib.sha1(elements, usedforsecurity=False).hexdigest(),
        "xxh3": xxh3_128(elements),
    }


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", NOT_READ)
def test_everything_else_is_left_to_others(pair: tuple[Any, Any, Any], name: str) -> None:
    tensor = NOT_READ[name]()
    taking = Taking(pair)
    (taken,) = taking.take((0, "self", tensor, "", ""))
    assert taking.others == [(tensor, "")]
    assert (taken.dtype, taken.op, taken.argument) == ("other", OP, "self")
    assert len(taking.table) == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_a_reason_to_skip_is_respected(pair: tuple[Any, Any, Any]) -> None:
    taking = Taking(pair)
    tensor = torch.ones(2)
    taking.take((0, "self", tensor, "", "allocation"))
    assert taking.others == [(tensor, "allocation")]
    assert len(taking.table) == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_tensors_keep_their_order_and_are_objects_of_their_own(pair: tuple[Any, Any, Any]) -> None:
    taking = Taking(pair)
    tensors = [torch.full((2,), float(number)) for number in range(40)]
    entries = taking.take(*((slot, f"tensors[{slot}]", tensor, "", "") for slot, tensor in enumerate(tensors)))
    assert [entry.slot for entry in entries] == [entry.row for entry in entries] == list(range(40))
    assert taking.table.rows()[:, 7].tolist() == [float(number) for number in range(40)]
    entries[0].others = {"md5": "0"}
    assert entries[1].others is None
    del tensors, taking
    assert entries[39].argument == "tensors[39]"


@pytest.mark.parametrize("pair", PAIRS)
def test_tensors_may_belong_to_no_operator_yet(pair: tuple[Any, Any, Any]) -> None:
    entries: list[TensorSnapshot] = []
    Taking(pair).taker.take_all(None, "output", ((0, "", torch.ones(2), "", ""),), entries, lambda *_: None)
    assert [entry.op for entry in entries] == [None]


@pytest.mark.parametrize("pair", PAIRS)
def test_mistakes_of_a_caller_are_refused(pair: tuple[Any, Any, Any]) -> None:
    table_type, taker_type, _ = pair
    with pytest.raises(AttributeError, match="__dlpack_c_exchange_api__"):
        taker_type(table_type(), TensorSnapshot("", (), 0), (int,))
    with pytest.raises(TypeError, match="slot, argument, tensor, source and skip"):
        Taking(pair).take((0, "self", torch.ones(2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of a different kind than the prototype"):
        Taking(pair).taker.take_all(OP, "input", [(0, "", 1, "", "")], [], lambda *_: object())


@pytest.mark.parametrize("pair", PAIRS)
def test_an_error_that_is_not_the_tensors_own_is_not_hidden(pair: tuple[Any, Any, Any]) -> None:
    def fails(tensor: Any, skip: str) -> TensorSnapshot:
        raise KeyError(skip)

    with pytest.raises(KeyError, match="in flight"):
        Taking(pair).taker.take_all(OP, "input", [(0, "", torch.ones(2), "", "in flight")], [], fails)


_TWINS = (reference.SummaryTable, twin.BatchSummarizer, digests.DigestBatch, twin.SeenTensors)
_NATIVE = (SummaryTable, BatchSummarizer, DigestBatch, SeenTensors)
PARTS = [_TWINS] if SeenTensors is None else [_NATIVE, _TWINS]


class TakingOnce:
    """What was read, and the storage that is reported for a tensor."""

    def __init__(self, parts: tuple[Any, Any, Any, Any], least_bytes: int = 0) -> None:
        table, taker, digests, seen = parts
        self.table, self.digests, self.seen = table(), digests(["md5"]), seen(least_bytes)
        self.place: tuple[int, int] | None = (1, 0)
        prototype = TensorSnapshot("", (), 0)
        self.taker = taker(self.table, prototype, (torch.Tensor,), self.digests, self.seen, lambda _: self.place)

    def take(self, tensor: Any) -> int:
        """Take a tensor; return the row of its summary, which also identifies its digest."""
        entries: list[TensorSnapshot] = []
        self.taker.take_all(None, "input", ((0, "", tensor, "", ""),), entries, lambda *_: None)
        assert entries[0].row in self.digests.by_row()
        return entries[0].row


@pytest.fixture(params=PARTS, ids=lambda parts: parts[0].__module__)
def parts(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("shape", [(1000,), (4, 1), (3, 5, 7)])
def test_the_same_is_read_once(parts: Any, shape: tuple[int, ...]) -> None:
    taking, tensor = TakingOnce(parts), torch.ones(shape)
    assert taking.take(tensor) == taking.take(tensor) == 0
    assert taking.take(tensor.view_as(tensor)) == 0
    assert (len(taking.table), len(taking.digests), len(taking.seen)) == (1, 1, 1)


@pytest.mark.parametrize("place", [(2, 0), (1, 1), None])
def test_another_storage_or_version_or_none_is_read(parts: Any, place: tuple[int, int] | None) -> None:
    taking, tensor = TakingOnce(parts), torch.ones(100)
    taking.take(tensor)
    taking.place = place
    assert taking.take(tensor) == 1


def test_other_views_are_read_once_each(parts: Any) -> None:
    taking, tensor = TakingOnce(parts), torch.arange(64.0).view(8, 8)
    views = [tensor, tensor.t(), tensor[1:], tensor[:, 1:], tensor[::2], tensor.view(-1), tensor.view(torch.int32)]
    first = [taking.take(view) for view in views]
    assert first == [*range(len(views))]
    assert [taking.take(view) for view in views] == first


def test_what_was_forgotten_is_read(parts: Any) -> None:
    taking, tensor, other = TakingOnce(parts), torch.ones(100), torch.ones(100)
    taking.take(tensor)
    taking.place = (2, 0)
    taking.take(other)
    taking.seen.forget(1)
    assert taking.take(other) == 1
    taking.place = (1, 0)
    assert taking.take(tensor) == 2
    taking.seen.clear()
    assert len(taking.seen) == 0
    assert taking.take(tensor) == 3


@pytest.mark.parametrize("bytes_written", [4, 4 * 10_000])
@pytest.mark.parametrize("place", [0, -1])
def test_both_ends_and_any_large_part_are_looked_at(parts: Any, place: int, bytes_written: int) -> None:
    taking, tensor = TakingOnce(parts), torch.zeros(1_000_000)
    taking.take(tensor)
    count = bytes_written // 4
    tensor[place * count or None :][:count] = 1
    assert taking.take(tensor) == 1


def test_a_change_in_the_middle_of_a_large_tensor_is_noticed(parts: Any) -> None:
    for page in range(1, 200, 13):
        taking, tensor = TakingOnce(parts), torch.zeros(200 * 1024)
        taking.take(tensor)
        tensor[page * 1024 : (page + 2) * 1024] = 1
        assert taking.take(tensor) == 1, page


def test_small_ones_are_read_each_time(parts: Any) -> None:
    taking = TakingOnce(parts, least_bytes=401)
    small, large = torch.ones(100), torch.ones(101)
    assert [taking.take(small), taking.take(small)] == [0, 1]
    assert [taking.take(large), taking.take(large)] == [2, 2]


def test_one_element_in_all_places_is_read(parts: Any) -> None:
    taking, tensor = TakingOnce(parts), torch.ones(1).expand(50)
    assert [taking.take(tensor), taking.take(tensor)] == [0, 1]
