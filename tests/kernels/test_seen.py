"""A view is not read again while its storage, version, geometry and memory stay the same; compiled and in numpy."""

from __future__ import annotations

from typing import Any

import pytest

from opdump.kernels import BatchSummarizer, DigestBatch, SeenTensors, SummaryTable, batch_summarizer, reference
from opdump.kernels import batch_summarizer as twin
from opdump.recorder import TensorSnapshot

torch = pytest.importorskip("torch")

_TWINS = (reference.SummaryTable, batch_summarizer.BatchSummarizer, batch_summarizer.DigestBatch, twin.SeenTensors)
PARTS = list(dict.fromkeys(((SummaryTable, BatchSummarizer, DigestBatch, SeenTensors), _TWINS)))


class Taking:
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
    taking, tensor = Taking(parts), torch.ones(shape)
    assert taking.take(tensor) == taking.take(tensor) == 0
    assert taking.take(tensor.view_as(tensor)) == 0
    assert (len(taking.table), len(taking.digests), len(taking.seen)) == (1, 1, 1)


@pytest.mark.parametrize("place", [(2, 0), (1, 1), None])
def test_another_storage_or_version_or_none_is_read(parts: Any, place: tuple[int, int] | None) -> None:
    taking, tensor = Taking(parts), torch.ones(100)
    taking.take(tensor)
    taking.place = place
    assert taking.take(tensor) == 1


def test_other_views_are_read_once_each(parts: Any) -> None:
    taking, tensor = Taking(parts), torch.arange(64.0).view(8, 8)
    views = [tensor, tensor.t(), tensor[1:], tensor[:, 1:], tensor[::2], tensor.view(-1), tensor.view(torch.int32)]
    first = [taking.take(view) for view in views]
    assert first == [*range(len(views))]
    assert [taking.take(view) for view in views] == first


def test_what_was_forgotten_is_read(parts: Any) -> None:
    taking, tensor, other = Taking(parts), torch.ones(100), torch.ones(100)
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
    taking, tensor = Taking(parts), torch.zeros(1_000_000)
    taking.take(tensor)
    count = bytes_written // 4
    tensor[place * count or None :][:count] = 1
    assert taking.take(tensor) == 1


def test_a_change_in_the_middle_of_a_large_tensor_is_noticed(parts: Any) -> None:
    for page in range(1, 200, 13):
        taking, tensor = Taking(parts), torch.zeros(200 * 1024)
        taking.take(tensor)
        tensor[page * 1024 : (page + 2) * 1024] = 1
        assert taking.take(tensor) == 1, page


def test_small_ones_are_read_each_time(parts: Any) -> None:
    taking = Taking(parts, least_bytes=401)
    small, large = torch.ones(100), torch.ones(101)
    assert [taking.take(small), taking.take(small)] == [0, 1]
    assert [taking.take(large), taking.take(large)] == [2, 2]


def test_one_element_in_all_places_is_read(parts: Any) -> None:
    taking, tensor = Taking(parts), torch.ones(1).expand(50)
    assert [taking.take(tensor), taking.take(tensor)] == [0, 1]
