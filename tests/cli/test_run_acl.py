"""`opdump run -c acl.json script.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.commands.run import run

SCRIPT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x).relu()

net = Net()
for _ in range(2):
    net(torch.ones(1, 3))
"""


@pytest.fixture(autouse=True)
def _own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes the script the `__main__` of this process permanently; later tests need the original."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setattr(sys, "path", sys.path[:])


def _run(tmp_path: Path, script: str, *options: str, **dump: object) -> tuple[int, str]:
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
    done = CliRunner().invoke(run, ["-c", str(tmp_path / "acl.json"), *options, str(tmp_path / "script.py")])
    return done.exit_code, done.output


def test_a_model_of_the_script_under_an_acl_json(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    # A relative path is resolved against the script's directory, and by `config check` against that of the file beside it.
    code, _ = _run(tmp_path, SCRIPT, dump_path="output", dump_list=[{"model_name": "Net"}], dump_level="kernel")
    assert code == 0
    checked = CliRunner().invoke(main, ["config", "check", str(tmp_path / "acl.json")])
    assert json.loads(checked.stdout)["path"] == str(tmp_path / "output")
    executions = list(opdump.open(tmp_path / "output").executions())
    assert [execution.op.op_type for execution in executions] == ["addmm", "relu"] * 2
    assert {execution.op.net_name for execution in executions} == {"Net"}


def test_a_failing_script_under_an_exception_scene_keeps_its_traceback(tmp_path: Path) -> None:
    script = "import torch\ntorch.ones(2) + torch.ones(3)\n"
    code, output = _run(tmp_path, script, dump_scene="lite_exception", dump_path=str(tmp_path))
    assert code == 1
    assert "RuntimeError: The size of tensor a (2) must match" in output
    assert "line 2, in <module>\n    torch.ones(2) + torch.ones(3)" in output
    assert "opdump/adapters" not in output
    assert list(tmp_path.glob("extra-info/data-dump/0/exception_info.*"))


def test_a_file_that_enables_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    code, output = _run(tmp_path, SCRIPT, dump_path="output")
    assert code == 0
    assert "valid, but enables nothing" in output


def test_variables_alone_ask_for_failures(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(2) + torch.ones(3)\n")
    environ = {"ASCEND_DUMP_SCENE": "aic_err_norm_dump", "ASCEND_WORK_PATH": str(tmp_path / "work")}
    done = CliRunner().invoke(run, [str(tmp_path / "script.py")], env={**environ, "MINDSPORE_DUMP_CONFIG": None})
    assert done.exit_code == 1
    assert list((tmp_path / "work").glob("extra-info/data-dump/0/add.*"))


def test_first_dumps_one_overflow_of_several(tmp_path: Path) -> None:
    script = "import torch\nbig = torch.full((2,), 1e5)\nfor _ in range(3):\n    big.half()\n"
    for options, expected in (((), 3), (("--first",), 1)):
        output = tmp_path / f"output{expected}"
        output.mkdir()
        code, _ = _run(tmp_path, script, *options, dump_path=str(output), dump_debug="on")
        assert code == 0
        assert len(list(output.rglob("Opdebug.Node_OpDebug.*"))) == expected


def test_first_needs_overflow_mode(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    code, output = _run(tmp_path, SCRIPT, "--first", dump_path="output", dump_list=[{"model_name": "Net"}])
    assert code == 2
    assert "dump_debug" in output
    assert not list((tmp_path / "output").iterdir())
