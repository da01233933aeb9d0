"""Replay operators of a small program from their dump."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.errors import CannotReplayError, NotInDumpError
from opdump.records import SupportsFile
from tests.cli.json_shapes import mistakes

PROGRAM = """\
import torch
from torch.nn import functional as F

torch.manual_seed(0)
convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
data = torch.randn(6, 5)
narrow = torch.randn(8, 5).bfloat16()
product = narrow[::2].t() @ narrow[::2]
summed = torch.tensor([60000.0, 60000.0]).half().cumsum(0)
image = convolution(torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last))
dropped = F.dropout(data, 0.5)
joined = torch.cat([data, data.expand(6, 5)[1:3]])
chosen = data[torch.tensor([0, 2]), torch.tensor([1, 3])]
largest = data.argmax(-1)
limited = torch.clamp(data, min=float("-inf"), max=0.5)
spread = torch.randn(4, 1).expand(4, 3) + 1
data.mul_(2).add_(data)
spectrum = torch.fft.fft(data)
pair, *rest = torch.topk(data, 2)
norm = F.batch_norm(data, torch.zeros(5), torch.ones(5), training=True)
logarithms = torch.tensor([0.0, 0.3, 0.5]).log()
ratio = torch.tensor([0.0, 1.0, 3.0]).div(torch.tensor([0.0, 0.0, 7.0]))
"""
AGREEING = (
    "mm",
    "cumsum",
    "convolution",
    "cat",
    "index.Tensor",
    "argmax",
    "clamp",
    "add.Tensor",
    "mul_.Tensor",
    "add_.Tensor",
    "_fft_r2c",
    "topk",
    "native_batch_norm",
    "log",
    "div.Tensor",
)


def dumped(folder: Path, saved_data: Literal["full", "statistic"] = "full") -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    code = compile(path.read_text(), str(path), "exec")
    with opdump.capture(path=str(folder / "dump"), saved_data=saved_data):
        exec(code, {"__name__": "__main__"})
    return folder / "dump"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return dumped(tmp_path_factory.mktemp("replayed"))


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def ran(script: Path, text: str, **names: Any) -> dict[str, Any]:
    """The variables of a program, which runs here."""
    names |= {"__name__": "__main__", "__file__": str(script)}
    exec(compile(text, str(script), "exec"), names)
    return names


@pytest.mark.parametrize("kernel", AGREEING)
def test_operator_gives_the_same_bits_again(dump: Path, kernel: str) -> None:
    result = opdump.replay(dump, f"aten::{kernel}")
    assert result.verdict == "agrees"
    for output in result.outputs:
        assert output.agrees
        assert output.distances[0].max_absolute == 0
        assert [distance.dtype for distance in output.distances] == ["recorded", "float64"]


@pytest.mark.parametrize("kernel", AGREEING)
def test_written_program_runs_by_itself(dump: Path, tmp_path: Path, kernel: str) -> None:
    testing = pytest.importorskip("torch").testing
    script = tmp_path / "repro.py"
    files = opdump.replay(dump, f"aten::{kernel}", emit=script).files
    text = script.read_text()
    assert "opdump" not in text.partition('"""\n')[2]
    assert len(text.splitlines()) <= 30
    names = ran(script, text)
    recorded, now = names["recorded"], names["now"]
    assert recorded.keys() == now.keys() == {output.slot for output in opdump.replay(dump, f"aten::{kernel}").outputs}
    for slot, tensor in recorded.items():
        assert tensor.dtype == now[slot].dtype
        testing.assert_close(now[slot], tensor, rtol=0, atol=0, equal_nan=True)
    assert len(files) == (2 if "np.load" in text else 1)


def test_written_program_needs_no_opdump(dump: Path, tmp_path: Path) -> None:
    opdump.replay(dump, "aten::convolution", emit=tmp_path / "repro.py")
    environment = {**os.environ, "PYTHONPATH": ""}
    program = "import sys; sys.modules['opdump'] = None; import runpy; runpy.run_path('repro.py')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "output.0 recorded, torch.float32",
        "output.0 now, torch.float32",
    ]


def test_inputs_lie_in_memory_as_they_did(dump: Path, tmp_path: Path) -> None:
    for kernel in ("mm", "convolution", "add.Tensor"):
        made: list[dict[str, Any]] = []
        script = tmp_path / f"{kernel}.py"
        opdump.replay(dump, f"aten::{kernel}", emit=script)
        ran(script, script.read_text().replace("    result =", "    made.append(locals())\n    result ="), made=made)
        inputs = next(opdump.open(dump).ops(f"aten::{kernel}")).inputs
        for record in inputs.values():
            assert record.memory is not None
            assert made[0][record.argument].stride() == record.memory.strides


def test_changed_output_differs(dump: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    subprocess.run(["cp", "-r", dump, changed], check=True)
    record = next(opdump.open(changed).ops("aten::cat")).outputs[0]
    payload: object = record.payload
    assert isinstance(payload, SupportsFile)
    elements = np.load(payload.file)
    elements[3, 2] += 1e-3
    np.save(payload.file, elements)
    done = replay(changed, "--op", "aten::cat")
    assert done.exit_code == 1
    assert "DIFFERS: output.0 is" in done.output


def test_infinities_beyond_the_type_agree(dump: Path) -> None:
    (output,) = opdump.replay(dump, "aten::cumsum").outputs
    assert (output.dtype, output.beyond, output.agrees) == ("float16", 1, True)


@pytest.mark.parametrize("kernel", ["log", "div.Tensor"])
def test_the_same_nan_and_infinities_are_no_difference(dump: Path, kernel: str) -> None:
    (output,) = opdump.replay(dump, f"aten::{kernel}").outputs
    assert output.agrees
    assert 0 < output.distances[-1].roundings < 1


def test_other_type(dump: Path) -> None:
    (output,) = opdump.replay(dump, "aten::mm", dtype="float32").outputs
    assert [distance.dtype for distance in output.distances] == ["float32", "float64"]
    assert output.distances[1].ulps == 0
    (output,) = opdump.replay(dump, "aten::mm", dtype="float64").outputs
    assert len(output.distances) == 1


def test_line_names_an_operator(dump: Path) -> None:
    assert opdump.replay(dump, "program.py:14").op.op_type == "argmax"
    with pytest.raises(NotInDumpError, match="matches 2 operators; name one of them"):
        opdump.replay(dump, "program.py:17")
    with pytest.raises(NotInDumpError, match=r"program\.py:99"):
        opdump.replay(dump, "program.py:99")


def test_wrong_name_gives_the_nearest(dump: Path) -> None:
    name = next(opdump.open(dump).ops("aten::argmax")).op_name
    done = replay(dump, "--op", name.replace("argmax", "argmix"))
    assert done.exit_code == 2
    assert name in done.stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [("aten::randn", "draws random numbers"), ("aten::bernoulli_.float", "draws random numbers"), ("t-op", "view")],
)
def test_what_cannot_be_run_again_is_reported(dump: Path, name: str, why: str) -> None:
    if name == "t-op":
        name = next(opdump.open(dump).ops("aten::t", include_skipped=True)).op_name
    else:
        name = next(opdump.open(dump).ops(name)).op_name
    done = replay(dump, "--op", name)
    assert done.exit_code == 3
    assert why in done.stderr


def test_statistics_without_elements_are_reported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = replay(dumped(tmp_path, "statistic"), "--op", "aten::cat")
    assert done.exit_code == 3
    assert "the dump has only statistics; record values too, with `opdump run --full`" in done.stderr


def test_operator_of_a_package_is_reported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    doubled = torch.library.custom_op(
        "opdump_tests::doubled", lambda values: values * 2, mutates_args=(), schema="(Tensor values) -> Tensor"
    )
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        doubled(torch.ones(3))
    with pytest.raises(CannotReplayError, match="operators of opdump_tests:: are not run again here"):
        opdump.replay(tmp_path, "opdump_tests::doubled")


def test_missing_framework_is_reported(dump: Path) -> None:
    program = f"""\
import sys
sys.modules["torch"] = None
from opdump.commands import main
main(["replay", {str(dump)!r}, "--op", "aten::cat"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "run: pip install torch" in done.stderr


def test_json_has_its_shape(dump: Path, tmp_path: Path) -> None:
    done = replay(dump, "--op", "aten::topk", "--json", "--emit", tmp_path / "repro.py")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert mistakes("replay", found) == []
    assert (found["verdict"], len(found["outputs"]), found["files"]) == ("agrees", 2, [str(tmp_path / "repro.py")])


@pytest.mark.parametrize("name", ["weight", "inputs0"])
def test_a_recorded_value_is_said_to_be_no_operator(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    network, read = torch.nn.Linear(3, 2), torch.ones(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with opdump.capture(path=str(tmp_path / "dump"), saved_data="full"):
        network(read).sum().backward()
        optimizer.step()
    result = replay(tmp_path / "dump", "--op", name)
    assert result.exit_code == 2
    assert f"{name} is a recorded value, not an operator; name an operator that reads it" in result.output
