"""Memory written by something other than an operator (numpy, a library, a foreign function) counts as data of its
readers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import opdump
from opdump.comparison.result import Result

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Program = Callable[[float], object]
Saved = Literal["full", "statistic"]
SAVED: tuple[Saved, ...] = ("full", "statistic")


def one_element(value: float) -> list[float]:
    return [1.0, 1.0, 1.0, value, 1.0, 1.0, 1.0, 1.0]


def by_numpy(value: float) -> object:
    a = torch.empty(8)
    a.numpy()[:] = one_element(value)
    return torch.ones(8) * a


def by_a_library_with_out(value: float) -> object:
    a = torch.empty(8)
    np.add(one_element(value), 1, out=a.numpy(), casting="unsafe")
    return torch.ones(8) * a


def by_memmove(value: float) -> object:
    a, source = torch.empty(8), np.array(one_element(value), np.float32)
    ctypes.memmove(a.data_ptr(), source.ctypes.data, source.nbytes)
    return torch.ones(8) * a


def by_dlpack(value: float) -> object:
    a = torch.empty(8)
    np.from_dlpack(a)[:] = one_element(value)
    return torch.ones(8) * a


def by_the_address_of_the_storage(value: float) -> object:
    a = torch.empty(8)
    there = (ctypes.c_float * 8).from_address(a.untyped_storage().data_ptr())
    for place, each in enumerate(one_element(value)):
        there[place] = each
    return torch.ones(8) * a


def by_a_buffer_of_the_program(value: float) -> object:
    buffer = bytearray(32)
    a = torch.frombuffer(buffer, dtype=torch.float32)
    memoryview(buffer).cast("f")[:] = np.array(one_element(value), np.float32).data
    return torch.ones(8) * a


def by_the_array_behind_a_tensor(value: float) -> object:
    array = np.ones(8, np.float32)
    a = torch.from_numpy(array)
    before = a + 1
    array[3] = value
    return before * a


def of_a_maker(value: float) -> object:
    a = torch.zeros(8)
    a.numpy()[:] = one_element(value)
    return a * 2


def of_a_maker_and_copied(value: float) -> object:
    a = torch.zeros(8)
    a.numpy()[:] = one_element(value)
    return a.clone() * 2


def of_a_maker_between_two_readers(value: float) -> object:
    a = torch.zeros(8)
    before = a + 1
    a.numpy()[:] = one_element(value)
    return before * a


def of_a_maker_again_and_again(value: float) -> object:
    a, found = torch.zeros(8), torch.ones(8)
    for step in range(3):
        a.numpy()[:] = one_element(value) if step == 2 else step + 1
        found = found * a
    return found


def of_a_weight(value: float) -> object:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1, bias=False)
    net.weight.data.numpy()[:] = [one_element(value)]
    return net(torch.ones(2, 8)).sum().item()


def compared(program: Program, folder: Path, saved: Saved, value: float = 5.0, other: float = 6.0) -> Result:
    for name, each in (("a", value), ("b", other)):
        with opdump.capture(path=str(folder / name), saved_data=saved):
            program(each)
    return opdump.compare(folder / "a", folder / "b")


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize(
    "program",
    [
        *(
            by_numpy,
            by_a_library_with_out,
            by_memmove,
            by_dlpack,
            by_the_address_of_the_storage,
            by_a_buffer_of_the_program,
        ),
        *(by_the_array_behind_a_tensor, of_a_maker, of_a_maker_and_copied, of_a_maker_between_two_readers),
        *(of_a_maker_again_and_again, of_a_weight),
    ],
    ids=lambda program: program.__name__,
)
def test_data_that_differ_are_named_where_they_are_read_first(program: Program, saved: Saved, tmp_path: Path) -> None:
    found = compared(program, tmp_path, saved)
    assert found.verdict == "divergent"
    first = found.introduced[0]
    assert first.kind == ("parameter" if program is of_a_weight else "data")
    assert (first.io, first.op.op_type) == ("input", _READERS.get(program, "mul"))
    assert "data differ" in first.evidence
    if saved == "full":
        assert first.amount == "1 of 8 elements"
        assert "differ: 1 of 8 elements" in first.evidence
        assert "differs: 1 of 8 elements" in first.headline or "data differ: 1 of 8 elements" in first.headline
    same = compared(program, tmp_path / "same", saved, 5.0, 5.0)
    assert same.verdict == "identical"


_READERS: dict[Program, str] = {of_a_maker_and_copied: "clone", of_a_weight: "mm"}


def test_a_part_that_no_operator_wrote_is_compared_like_the_rest(tmp_path: Path) -> None:
    def half(value: float) -> None:
        a = torch.empty(8)
        a[:4] = torch.ones(4) * 2
        a.numpy()[4:] = [1, value, 1, 1]
        a * 2

    found = compared(half, tmp_path, "full")
    assert (found.introduced[0].kind, found.introduced[0].amount) == ("data", "1 of 8 elements")


@pytest.mark.parametrize("saved", SAVED)
def test_what_a_mask_leaves_out_is_not_accused(saved: Saved, tmp_path: Path) -> None:
    def masked(value: float) -> None:
        a = torch.empty(8)
        a.numpy()[:] = value
        a[:4] = torch.ones(4) * 2
        torch.where(torch.arange(8) < 4, a * 3, torch.zeros(8)).sum().item()

    found = compared(masked, tmp_path, saved)
    assert (found.verdict, list(found.introduced)) == ("benign", [])
    assert saved != "full" or any("no difference at the end depends on it" in note for note in found.notes)


def test_what_a_network_is_given_is_data(tmp_path: Path) -> None:
    buffer = torch.zeros(2, 8)

    def network(value: float) -> None:
        torch.manual_seed(0)
        buffer.numpy()[:] = [one_element(1.0), one_element(value)]
        torch.nn.Linear(8, 1)(buffer)

    for saved in SAVED:
        first = compared(network, tmp_path / saved, saved).introduced[0]
        assert first.kind == "data"
        assert "inputs0, an input of the network" in first.evidence
