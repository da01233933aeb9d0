"""The position of a recording mode among the modes of the program, and its state while it is suspended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from opdump.adapters.torch.compiled import CompiledCall, CompiledRegions
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, recording_here, suspended, take_off
from tests.torch.compiled_programs import assert_same, compiled_with, formula
from tests.torch.recording import Operators

# Warnings of PyTorch itself: parts of it use deprecated functions, and dynamo accesses the gradient of each tensor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


class Others(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode of the user's program."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def depth() -> int:
    return torch._C._len_torch_dispatch_stack()


def test_a_mode_goes_below_those_of_the_program_and_comes_off_from_there() -> None:
    mode, others = Operators(), Others()
    with others:
        put_on(mode)
        torch.ones(2)
    torch.ones(3)
    with others:
        assert take_off(mode)
        torch.ones(4)
    assert others.names == ["aten.ones.default"] * 2
    assert [operator.outputs[0].shape[0] for operator in mode.all] == [2, 3]
    assert depth() == 0
    assert not take_off(mode)


def test_suspending_leaves_the_modes_of_the_program_on() -> None:
    mode, others = Operators(), Others()
    put_on(mode)
    with others:
        with suspended():
            assert not recording_here()
            torch.ones(2)
        assert recording_here()
    assert take_off(mode)
    assert (mode.names, others.names) == ([], ["aten.ones.default"])


def test_a_mode_that_is_closed_while_suspended_does_not_come_back() -> None:
    mode = Operators()
    put_on(mode)
    with suspended():
        mode.closed = True
    assert depth() == 0


def test_a_mode_that_does_not_record_at_present_leaves_compiled_graphs_alone() -> None:
    class Idle(RecordingMode):
        recording = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def refuse(name: str, function: CompiledCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise AssertionError("recorded")

    mode = Idle()
    regions = CompiledRegions(refuse)
    regions.attach()
    put_on(mode)
    try:
        assert_same(compiled_with(formula, backend="eager")(torch.ones(3)), formula(torch.ones(3)))
    finally:
        take_off(mode)
        regions.detach()
