"""Losses, gradients, parameters and random numbers are the same, bit for bit, in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import opdump
from opdump.plan import DumpPlan, ModelSelection
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
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_in_every_mode(program: str, mode: str, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train(steps=2)  # type: ignore[call-arg]  # a callable of the table
    with opdump.capture(DumpPlan(path=tmp_path, **MODES[mode])) as dump:
        captured = train(steps=2)  # type: ignore[call-arg]  # the same
    assert_identical(plain, captured)
    assert dump.report is not None
    if mode not in ("overflow", "exception"):
        assert dump.report.captured > 10
