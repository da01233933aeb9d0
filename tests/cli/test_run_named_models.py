"""`opdump.name_model` in a script under `opdump run` with an acl.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import opdump

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn
import opdump


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.res2a_branch1 = nn.Conv2d(4, 4, 1)
        self.pool1 = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool1(self.res2a_branch1(self.conv1(x)))


net = Net().eval()
opdump.name_model(net, "ResNet-50")
with torch.no_grad():
    net(torch.ones(1, 3, 8, 8))
"""


def test_name_model_in_a_script_names_the_model_of_the_documents_sample(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    dump = {
        "dump_list": [
            {"model_name": "ResNet-101"},
            {
                "model_name": "ResNet-50",
                "layer": ["conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu", "res2a_branch1", "pool1"],
            },
        ],
        "dump_path": "$HOME/output",
        "dump_mode": "output",
        "dump_op_switch": "off",
        "dump_data": "tensor",
    }
    (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
    (tmp_path / "infer.py").write_text(MODEL)
    done = opdump("run", "-c", "acl.json", "infer.py", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = list((tmp_path / "output").rglob("*.65535.65535.*"))
    assert {"/".join(file.relative_to(tmp_path / "output").parts[1:5]) for file in found} == {"0/ResNet-50/1/0"}
    executions = list(package.open(tmp_path / "output").executions())
    # With dump_level "all", both what the program called and what ran for it.
    assert sorted(execution.op.op_type for execution in executions) == [
        "Conv2d",
        "MaxPool2d",
        "convolution",
        "max_pool2d_with_indices",
    ]
    assert all(not execution.inputs for execution in executions)
    for name in ("ResNet-101", "conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu"):
        assert f"{name!r}" in done.stderr
    assert "'pool1'" not in done.stderr.replace("nearest", "")
