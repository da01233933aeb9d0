"""`opdump run` with marks in the script, and with named models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump as package
from tests.cli.programs import opdump, python

pytestmark = pytest.mark.torch

# The guide's sample with PyTorch modules instead of MindSpore's, small images, and the import of set_dump.
ALEXNET = """
import torch
from torch import nn
from opdump import set_dump


class AlexNet(nn.Module):
    def __init__(self, num_classes=10, channel=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channel, 6, 3, stride=2)
        self.conv2 = nn.Conv2d(6, 8, 3, padding="same")
        self.conv3 = nn.Conv2d(8, 8, 3, padding="same")
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=3, stride=2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(8 * 7 * 7, 16)
        self.fc2 = nn.Linear(16, num_classes)

    def forward(self, x):
        x = self.conv1(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.conv2(x)
        x = self.relu(x)
        x = self.conv3(x)
        x = self.relu(x)
        x = self.flatten(x)
        x = self.fc1(x)
        x = self.relu(x)
        x = self.fc2(x)
        return x


torch.manual_seed(0)
net = AlexNet()
MARKS
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(8):
    loss = nn.functional.cross_entropy(net(torch.randn(2, 3, 32, 32)), torch.tensor([1, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def _sample_config(folder: Path, **changes: Any) -> None:
    """The guide's own sample, except for `dump_mode` and the path."""
    common = {
        "dump_mode": 2,
        "path": str(folder / "dump"),
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "op_debug_mode": 0,
        "statistic_category": ["max", "min", "l2norm"],
    }
    e2e = {"enable": True, "trans_flag": True, "stat_calc_mode": "host"}
    text = json.dumps({"common_dump_settings": {**common, **changes}, "e2e_dump_settings": e2e})
    (folder / "data_dump.json").write_text(text)


def _files(folder: Path) -> set[str]:
    """Type and name from the names of the tensor files."""
    return {".".join(file.name.split(".")[:2]) for file in (folder / "dump").rglob("*.npy")}


def test_the_sample_of_the_guide_dumps_what_set_dump_marks(tmp_path: Path) -> None:
    _sample_config(tmp_path)
    script = ALEXNET.replace("MARKS", "set_dump(net.conv3)")
    (tmp_path / "train_alexnet.py").write_text(script)
    done = opdump("run", "-c", "data_dump.json", "train_alexnet.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = ALEXNET.replace("MARKS", "").replace("from opdump import set_dump\n", "")
    (tmp_path / "plain.py").write_text(plain)
    assert done.stdout == python("plain.py", cwd=tmp_path).stdout
    assert "set_dump" not in done.stderr
    rank = tmp_path / "dump" / "rank_0"
    assert sorted(path.name for path in (rank / "ResNet50" / "0").iterdir() if path.name.isdigit()) == [
        "0",
        "5",
        "6",
        "7",
    ]
    ops = [op for op in package.open(tmp_path / "dump").ops() if not op.skip]
    assert {op.op_type for op in ops} == {"convolution", "convolution_backward"}
    assert {op.op_name.rpartition("/")[0] for op in ops} == {
        "Default/network-AlexNet/conv3-Conv2d",
        "Gradients/Default/network-AlexNet/conv3-Conv2d",
    }
    (first,) = (rank / "ResNet50" / "0" / "0").glob("convolution.convolution-op*.output.0.DefaultFormat.npy")
    assert np.load(first).shape == (2, 8, 7, 7)
    for name in ("graphs/ms_output_trace_code_graph_0.ir", "execution_order/ms_global_execution_order_graph_0.csv"):
        assert (rank / name).is_file()
    assert (
        json.loads((rank / ".dump_metadata" / "data_dump.json").read_text())["common_dump_settings"]["dump_mode"] == 2
    )


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("set_dump(net)", {"convolution", "relu", "addmm", "max_pool2d_with_indices"}),
        ("set_dump(nn.Linear)", {"addmm", "mm"}),
        ("set_dump(net); set_dump(net.relu, False); set_dump(nn.Conv2d, enabled=False)", {"addmm", "mm"}),
        ("set_dump(net.forward)", {"convolution", "relu", "addmm"}),
    ],
)
def test_marks_in_the_script_count(marks: str, expected: set[str], tmp_path: Path) -> None:
    _sample_config(tmp_path, iteration="1")
    (tmp_path / "train.py").write_text(ALEXNET.replace("MARKS", marks))
    done = opdump("run", "-c", "data_dump.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kinds = {op.op_type for op in package.open(tmp_path / "dump").ops() if not op.skip}
    assert kinds >= expected
    if "False" in marks:
        assert not kinds & {"convolution", "relu", "convolution_backward"}


def test_a_script_that_marks_nothing_is_reported_and_strict_is_an_error(tmp_path: Path) -> None:
    _sample_config(tmp_path)
    (tmp_path / "train.py").write_text(ALEXNET.replace("MARKS", ""))
    done = opdump("run", "-c", "data_dump.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "nothing is marked" in done.stderr
    assert "opdump.set_dump(net)" in done.stderr


def test_marks_without_any_capture_are_reported_when_the_program_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALEXNET.replace("MARKS", "set_dump(net)"))
    done = python("train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "set_dump marked a module AlexNet, but nothing was captured" in done.stderr


def test_a_start_in_the_script_sees_marks_before_and_after(tmp_path: Path) -> None:
    _sample_config(tmp_path, iteration="all")
    marks = "import opdump; set_dump(net.fc1); opdump.start('data_dump.json'); set_dump(net.fc2)"
    (tmp_path / "train.py").write_text(ALEXNET.replace("MARKS", marks))
    done = python("train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scopes = {op.op_name.split("/")[-2] for op in package.open(tmp_path / "dump").ops() if not op.skip}
    assert scopes == {"fc1-Linear", "fc2-Linear"}


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
