"""Losses, gradients, parameters and random numbers are the same, bit for bit, in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import opdump
from opdump.plan import DumpPlan, ModelSelection, StepSet
from tests.torch.programs import PROGRAMS
from tests.torch.test_capture_changes_nothing import assert_identical

_DEVICE: Mapping[str, Any] = {"layout": "acl", "file_format": "bin", "dialect": "acl"}
MODES: dict[str, Mapping[str, Any]] = {
    "kernel": {"dump_level": "kernel", **_DEVICE},
    "op": {"dump_level": "op", **_DEVICE},
    "all": {"dump_level": "all", **_DEVICE},
    "model": {
        "dump_level": "all",
        "models": (ModelSelection(model_name="ConvNet"), ModelSelection(model_name="GPT2LMHeadModel")),
        **_DEVICE,
    },
    "stats": {"saved_data": "statistic", "dump_level": "all", **_DEVICE},
    "overflow": {"captures": "overflow", **_DEVICE},
    "exception": {"captures": "exception", **_DEVICE},
    "watch": {
        "captures": "watch",
        "models": (ModelSelection(watcher_nodes=("conv1", "transformer.h.0.mlp.act")),),
        **_DEVICE,
    },
    "statistics": {"saved_data": "statistic", "statistic_category": ("max", "l2norm", "md5")},
    "packed": {"saved_data": "full", "layout": "packed"},
    "ring": {"saved_data": "statistic", "ring": 1, "triggers": ()},
    "bounded": {"saved_data": "full", "max_disk": 100_000},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_in_every_mode(program: str, mode: str, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train(steps=2)
    with opdump.capture(DumpPlan(path=tmp_path, **MODES[mode])) as dump:
        captured = train(steps=2)
    assert_identical(plain, captured)
    assert dump.report is not None
    if mode not in ("overflow", "exception", "ring"):
        assert dump.report.captured > 10


class Residual(nn.TransformerEncoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        encoded: torch.Tensor = super().forward(*args, **kwargs) + args[0]
        return encoded


def _encoded(kind: type[nn.TransformerEncoderLayer], hooked: bool, mode: Any) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(kind(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    if hooked:
        attention.register_forward_hook(lambda _, __, out: out)
    words = torch.randn(3, 5, 8)
    with torch.inference_mode(), mode:
        return torch.cat([encoder(words), attention(words, words, words)[0]])


@pytest.mark.parametrize("iteration", ["all", "7"])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Residual])
@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"watch"}))
def test_modules_that_ask_for_function_modes_take_the_same_path(
    mode: str, kind: type[nn.TransformerEncoderLayer], hooked: bool, iteration: str, tmp_path: Path
) -> None:
    # In inference mode, PyTorch runs one kernel for a whole layer, unless a function mode is on.
    dispatched: list[list[str]] = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            dispatched[-1].append(str(func))
            return func(*args, **(kwargs or {}))

    dispatched.append([])
    plain = _encoded(kind, hooked, Dispatched())  # type: ignore[no-untyped-call]  # an override in an untyped class
    assert any("_transformer_encoder_layer_fwd" in name for name in dispatched[0])
    plan = DumpPlan(
        path=tmp_path, steps=StepSet.all() if iteration == "all" else StepSet.parse(iteration), **MODES[mode]
    )
    dispatched.append([])
    with opdump.capture(plan):
        captured = _encoded(kind, hooked, Dispatched())  # type: ignore[no-untyped-call]  # an override in an untyped class
    assert dispatched[0] == dispatched[1]
    assert plain.numpy().tobytes() == captured.numpy().tobytes()
