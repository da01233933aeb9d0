"""The example set: programs that run as if the host's memory were a device's (`late_streams`).

    PROGRAMS["alexnet, training"]()      the state that the program leaves

Each program trains, and also runs in inference mode: only the forward passes, with a backward that does nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from tests.parity import peers
from tests.torch import compiled_programs, programs

ROOT = Path(__file__).parents[2]
Program = Callable[[], Any]

_NEEDS_GRADIENTS = frozenset({"custom_functions", "mutating_hooks", "nested_derivatives", "scaled_gradients"})
"""Programs that compute with gradients themselves; inference mode has no gradients."""
_OUT_OF_REACH = frozenset({"data_workers", "nested_tensors", "quantised"})
"""Programs that the stand-in for a device does not support: a part runs in other processes, the host's side of a tensor (sizes of
nested tensors) would be late too, which happens on no device, or weights are packed by operators that no device has.
"""


def inferring(program: Program) -> Program:
    """The same program in inference mode; its calls of `backward` do nothing."""

    def inferred() -> Any:
        with torch.inference_mode(), _without_backward():
            return program()

    return inferred


@contextmanager
def _without_backward() -> Iterator[None]:
    backward = torch.Tensor.backward
    torch.Tensor.backward = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def _digits() -> Any:
    example = _loaded(ROOT / "examples" / "digits_resnet" / "train.py")
    digits = example.load_digits()
    images, labels = (
        torch.tensor(digits.images[:2], dtype=torch.float32).unsqueeze(1) / 16,
        torch.tensor(digits.target[:2]),
    )
    network = example.DigitsResNet()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return _step(network, optimizer, images, labels)


def _alexnet() -> Any:
    example = _loaded(ROOT / "examples" / "alexnet" / "train_alexnet.py")
    wide = example.fc_with_initialize

    def narrow(inputs: int, outputs: int) -> Any:
        # These layers hold 58 of the 62 million weights, and the stand-in for a device is slow.
        return (
            wide(min(inputs, 9216), 16 if outputs == 4096 else outputs)
            if inputs == 9216
            else wide(16, min(outputs, 16))
        )

    example.fc_with_initialize = narrow
    network = example.AlexNet()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.002, momentum=0.9)
    ((images, labels),) = example.batches(1, 1)
    return _step(network, optimizer, images, labels)


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> Any:
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, {name: each.grad for name, each in network.named_parameters()}, dict(network.state_dict())


def _compiled_programs() -> Any:
    return compiled_programs.train(compiled_programs.Network())


def _overflowing_and_failing() -> Any:
    """Two steps with overflowing numbers and failing operators."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 6)) * 3e38 * 2).square().mean()
        loss.backward()
        with suppress(RuntimeError):
            torch.ones(3, 3) @ torch.ones(2, 2)
        optimizer.step()
        losses += [loss, (torch.full((2, 4), 300.0).half() @ torch.full((4, 4), 300.0).half()).float().softmax(-1)]
    return losses, dict(model.state_dict())


def _of_page(page: str, file: str, *names: str) -> Program:
    """A program from a documentation page; it returns the values of these names."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```python file={re.escape(file)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:1]
    code: CodeType = compile(found, page, "exec")

    def run() -> Any:
        scope: dict[str, Any] = {"print": lambda *_: None}
        exec(code, scope)  # code from this project's documentation
        return [dict(scope[name].state_dict()) if isinstance(scope[name], nn.Module) else scope[name] for name in names]

    return run


def _of_framework(name: str) -> Program:
    def run() -> Any:
        return getattr(importlib.import_module("tests.parity.programs.framework"), name)()

    return run


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


_TRAININGS: dict[str, Program] = {
    "convnet": lambda: programs.train_convnet(2),
    "transformer": lambda: programs.train_transformer(1),
    "digits": _digits,
    "alexnet": _alexnet,
    "batch norm": _compiled_programs,
    "overflow": _overflowing_and_failing,
    "README": _of_page("README.md", "train.py", "model", "loss"),
    "start": _of_page("docs/start.md", "train.py", "model"),
    "check": _of_page("docs/check.md", "train.py", "scale", "scores"),
    "LeNet": _of_page("docs/modes.md", "infer.py", "net"),
    **{
        f"framework/{name}": _of_framework(name) for name in peers.programs_of("framework") if name not in _OUT_OF_REACH
    },
}
PROGRAMS: dict[str, Program] = {
    **{f"{name}, training": program for name, program in _TRAININGS.items()},
    **{
        f"{name}, inference": inferring(program)
        for name, program in _TRAININGS.items()
        if name.rpartition("/")[2] not in _NEEDS_GRADIENTS
    },
}
