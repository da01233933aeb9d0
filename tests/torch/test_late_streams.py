"""The simulated device (`late_streams`) detects missing waits, and does nothing that no real device does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from opdump.adapters.torch.memory import elements_of
from tests.torch.late_streams import LateDevice

TURNS = pytest.mark.parametrize("turns", [0, 3])


def test_code_that_does_not_wait_reads_noise() -> None:
    """A forgotten wait shows."""
    device = LateDevice()
    with device.program():
        x = torch.ones(4)
        with device.on(device.new_stream()):
            y = x * 2  # did not wait for x
        read = np.array(elements_of(y))
    assert read.tolist() != [2, 2, 2, 2]


@TURNS
def test_what_the_host_writes_into_memory_of_no_operator_is_kept(turns: int) -> None:
    """`empty` writes nothing, so its memory cannot be late."""
    with LateDevice(turns).program():
        for empty in (torch.empty(4), torch.ones(4).new_empty(4), torch.empty_strided((4,), (1,))):
            empty.numpy()[:] = 3
            assert (empty * 2).sum().item() == 24
            assert empty.tolist() == [3] * 4


@TURNS
def test_lengths_of_packed_sequences_are_the_hosts(turns: int) -> None:
    tokens, lengths = torch.ones(3, 6, 2), torch.tensor([3, 6, 4])
    with LateDevice(turns).program():
        packed = pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
        packed.batch_sizes[0].item()  # a network calls this too; from now on the host knows the lengths
        _, found = pad_packed_sequence(packed, batch_first=True)
    assert found.tolist() == [3, 6, 4]


@TURNS
def test_memory_that_a_tensor_no_longer_has_is_left_alone(turns: int) -> None:
    with LateDevice(turns).program():
        grown = torch.ones(4).mul_(2)
        grown.resize_(4000)
        others = [torch.full((4,), 5.0) for _ in range(100)]  # some reuse the memory of the four numbers
        kept = grown[:4] * 3
        freed = torch.ones(4) * 2
        freed.untyped_storage().resize_(0)
        others += [torch.full((4,), 5.0) for _ in range(100)]
    assert kept.tolist() == [6] * 4
    assert all(other.tolist() == [5] * 4 for other in others)


@TURNS
def test_an_empty_tensor_is_late_once_an_operator_wrote_it(turns: int) -> None:
    device = LateDevice(turns)
    with device.program():
        written = torch.empty(4)
        written.fill_(2)
        assert list(written.numpy()) != [2] * 4
        device.wait(device.current)
        assert list(written.numpy()) == [2] * 4
