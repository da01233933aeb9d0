"""The documents' own samples: the asynchronous dump of a network, and the operators that overflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.programs import opdump

pytestmark = pytest.mark.torch

TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(7):
    optimizer.zero_grad()
    net(torch.ones(1, 3, 8, 8)).sum().backward()
    optimizer.step()
"""

OVERFLOWING = """
import torch

weights = torch.full((4, 4), 300.0).half()
torch.full((2, 4), 100.0).half() @ weights
"""


def test_the_sample_of_the_asynchronous_dump(tmp_path: Path) -> None:
    (tmp_path / "data_dump.json").write_text(
        """{
"common_dump_settings": {
"dump_mode": 0,
"path": "PATH",
"net_name": "ResNet50",
"iteration": "0|5-8|100-120",
"saved_data": "tensor",
"input_output": 0,
"kernels": ["Default/Conv-op12"],
"support_device": [0,1,2,3,4,5,6,7],
"op_debug_mode": 0,
"statistic_category": ["max", "min", "l2norm"],
"file_format": "npy"
}
}""".replace("PATH", str(tmp_path / "dump"))
    )
    (tmp_path / "train.py").write_text(TRAIN)
    done = opdump("run", "-c", "data_dump.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (home,) = (tmp_path / "dump").glob("*/0/ResNet50/*")
    assert sorted(step.name for step in home.iterdir()) == ["0", "5", "6"]
    names = [file.name.split(".") for file in (home / "5").glob("convolution.*.npy")]
    # {op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}.{input_output_index}.{slot}.{format}.npy
    assert {tuple(name[5:]) for name in names} >= {
        ("input", "0", "DefaultFormat", "npy"),
        ("input", "1", "DefaultFormat", "npy"),
        ("output", "0", "DefaultFormat", "npy"),
    }
    assert {tuple(name[2:4]) for name in names} == {("65535", "65535")}
    assert {name[1].startswith("Default_network-Sequential_0-Conv2d_convolution-op") for name in names} == {True}
    (output,) = (home / "5").glob("convolution.*.output.0.DefaultFormat.npy")
    assert np.load(output).shape == (1, 4, 6, 6)


def test_the_sample_of_operators_that_overflow_is_converted_as_the_document_does(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "acl.json").write_text('{ "dump":{ "dump_path":"output", "dump_debug":"on" } }')
    (tmp_path / "infer.py").write_text(OVERFLOWING)
    done = opdump("run", "-c", "acl.json", "infer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [file for file in (tmp_path / "output").rglob("*") if file.is_file() and ".dump_metadata" not in file.parts]
    (record,) = [file for file in files if file.name.startswith("Opdebug.Node_OpDebug.")]
    (operator,) = [file for file in files if file.name.startswith("mm.")]
    assert len(files) == 2
    for file, options in ((operator, ["-v", "2"]), (record, [])):
        converted = subprocess.run(
            [
                sys.executable,
                "-m",
                "opdump.msaccucmp",
                "convert",
                "-d",
                str(file),
                "-out",
                str(tmp_path / "result"),
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert converted.returncode == 0, converted.stdout + converted.stderr
    result = np.load(tmp_path / "result" / f"{operator.name}.output.0.npy")
    assert np.isinf(result).all()
    np.savetxt(tmp_path / "result" / "output.txt", result.flatten())
    (report,) = (tmp_path / "result").glob("Opdebug.*.json")
    told = json.loads(report.read_text())
    assert list(told) == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]
    keys = [
        "model_id",
        "stream_id",
        "task_id",
        "task_type",
        "pc_start",
        "para_base",
        "kernel_code",
        "block_idx",
        "status",
    ]
    assert list(told["AI Core"]) == keys
    assert told["AI Core"]["status"] == 0x400
    assert told["AI Core"]["pc_start"] == "0x0"
