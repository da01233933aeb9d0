"""A small recording mode, for tests of when a mode is on rather than of what it records."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from opdump.adapters.torch.compiled import CompiledCall, CompiledRegions
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, take_off


@dataclass
class Operator:
    """One operator as the mode saw it, with copies of its tensors."""

    name: str
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    thread: str = ""


class Operators(RecordingMode):
    """Records the operators of the threads in which it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Operator] = []

    @property
    def names(self) -> list[str]:
        return [operator.name for operator in self.all]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.recording:
            return func(*args, **kwargs)
        operator = Operator(str(func), _copies((args, kwargs)), thread=threading.current_thread().name)
        result = func(*args, **kwargs)
        operator.outputs = _copies(result)
        self.all.append(operator)
        return result

    @contextmanager
    def on(self) -> Iterator[None]:
        """On in the calling thread within the block."""
        was_off = put_on(self)
        try:
            yield
        finally:
            if was_off:
                take_off(self)

    def run_as_one(self, name: str, function: CompiledCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        operator = Operator(name, _copies((args, kwargs)), thread=threading.current_thread().name)
        result = function(*args, **kwargs)
        operator.outputs = _copies((result, function.written))
        self.all.append(operator)
        return result


@contextmanager
def recording(*, eager: bool = False) -> Iterator[Operators]:
    """An attached mode that is on in this thread."""
    mode = Operators()
    regions = CompiledRegions(mode.run_as_one, eager=eager)
    regions.attach()
    put_on(mode)
    try:
        yield mode
    finally:
        mode.closed = True
        take_off(mode)
        regions.detach()


def _copies(values: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf.detach().clone() for leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter)]
