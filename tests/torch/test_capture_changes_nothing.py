"""Losses, gradients, parameters and random numbers are the same, bit for bit, with and without capture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opdump
from opdump.plan import SavedData
from tests.torch.programs import PROGRAMS, Trained


def assert_identical(left: Trained, right: Trained) -> None:
    assert torch.equal(left.random_state, right.random_state)
    assert [loss.item() for loss in left.losses] == [loss.item() for loss in right.losses]
    for one, other in ((left.gradients, right.gradients), (left.parameters, right.parameters)):
        assert one.keys() == other.keys()
        for name in one:
            assert _bits(one[name]) == _bits(other[name]), name


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("saved_data", ["tensor", "statistic", "full"])
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_with_and_without_capture(
    program: str, saved_data: SavedData, tmp_path: Path
) -> None:
    train = PROGRAMS[program]
    plain = train()
    with opdump.capture(path=tmp_path, saved_data=saved_data) as dump:
        captured = train()
    assert_identical(plain, captured)
    assert dump.report is not None
    assert dump.report.steps == (0, 1, 2)
    assert dump.report.captured > 300
    assert dump.report.tensors_skipped.keys() <= {"allocation", "empty"}


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_when_only_some_steps_are_dumped(program: str, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train()
    with opdump.capture(path=tmp_path, saved_data="full", iteration="1") as dump:
        captured = train()
    assert_identical(plain, captured)
    assert dump.report is not None
    assert dump.report.steps == (1,)


def test_training_after_a_capture_is_plain_again(tmp_path: Path) -> None:
    train = PROGRAMS["convnet"]
    plain = train()
    call, backward = torch.nn.Module.__call__, torch.autograd.backward
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        train()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    assert_identical(plain, train())


def test_a_failing_program_leaves_no_hook_behind(tmp_path: Path) -> None:
    call, backward = torch.nn.Module.__call__, torch.autograd.backward

    def fail() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="inconsistent tensor size"), opdump.capture(path=tmp_path):
        fail()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    # The inputs of the failed operator are recorded.
    failed = opdump.open(tmp_path).op("dot-op2")
    assert [record.shape for record in failed.inputs.values()] == [(2,), (3,)]
    assert not failed.outputs
