"""T5 in half precision: a feed-forward layer overflows, and the clamp in its implementation hides that from the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main

pytestmark = pytest.mark.torch


def test_the_layer_that_overflows_and_the_clamp_that_hides_it_are_named(tmp_path: Path) -> None:
    # Importing it takes seconds in every worker, also in those that run no test of this file.
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0)
    model: Any = T5EncoderModel(config).eval().half()
    dump = tmp_path / "dump"
    with torch.no_grad():
        model.encoder.block[0].layer[1].DenseReluDense.wo.weight.mul_(1e5)
        with opdump.capture(path=dump, saved_data="statistic"):
            answer = model(input_ids=torch.arange(8).reshape(1, 8)).last_hidden_state
    assert answer.isfinite().all()
    printed = json.loads(CliRunner().invoke(main, ["check", str(dump), "--json"]).stdout)
    (history,) = printed["histories"]
    assert "/layer-ModuleList/1-T5LayerFF/DenseReluDense-T5DenseActDense/wo-Linear/" in history["born"]["op_name"]
    assert "modeling_t5.py:" in history["born"]["source"]
    (kill,) = history["killed"]
    assert kill["op_type"] == "clamp"
    assert "/0-T5Block/clamp-op" in kill["op_name"]
    found = [each for each in printed["findings"] if each["check"] in ("inf", "killed")]
    assert [each["op_name"] for each in found if each["origin"]] == [history["born"]["op_name"]]
    assert [each["op_name"] for each in found if each["check"] == "killed"] == [kill["op_name"]]
