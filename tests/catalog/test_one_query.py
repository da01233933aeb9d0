"""A text means the same operators to every command and to the catalog."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.errors import NotInDumpError

pytestmark = pytest.mark.torch

BLOCKS, STEPS = 3, 3
PROGRAM = """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        weights = (torch.matmul(self.qkv(x), x.t()) * 0.5).softmax(-1)
        return self.proj(torch.matmul(weights, x))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(4), Attention()
    def forward(self, x):
        x = x + self.attn(self.norm(x))
        x.mul_(0.5)
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
    def forward(self, x, scale):
        for number, block in enumerate(self.blocks):
            x = block(x) * (scale if number == 1 else 1.0)
        return x

torch.manual_seed(0)
net = Net()
inputs = [torch.randn(5, 4) for _ in range(STEPS)]
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three blocks in three steps; in step 1, the output of the second block is multiplied by NaN."""
    folder = tmp_path_factory.mktemp("query")
    (folder / "model.py").write_text(PROGRAM)
    names: dict[str, Any] = {"BLOCKS": BLOCKS, "STEPS": STEPS, "__name__": "model"}
    exec(compile(PROGRAM, str(folder / "model.py"), "exec"), names)
    with opdump.capture(path=str(folder / "dump"), saved_data="full", iteration="all") as recording:
        for number, data in enumerate(names["inputs"]):
            names["net"](data, float("nan") if number == 1 else 1.0).sum().backward()
            recording.step()
    return folder / "dump"


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def meant(dump: Path, text: str) -> dict[str, int]:
    """The number of operators in the forward pass of step 0 that a text means, by type."""
    found = [op for op in opdump.open(dump).ops(text, step=0) if op.phase == "forward"]
    return dict(Counter(op.op_type for op in found))


ATTENTION = {"addmm": 2, "mm": 2, "mul": 1, "_softmax": 1}


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("attn", {name: count * BLOCKS for name, count in ATTENTION.items()}),
        ("Attention", {name: count * BLOCKS for name, count in ATTENTION.items()}),
        ("blocks.0.attn", ATTENTION),
        ("blocks/0/attn", ATTENTION),
        ("0-Block/attn-Attention", ATTENTION),
        ("blocks.2.attn.qkv", {"addmm": 1}),
        ("blocks.2.attn.mul", {"mul": 1}),
        ("blocks.2.attn.softmax", {"_softmax": 1}),
        ("mul", {"mul": 2 * BLOCKS}),
        ("Mul", {"mul": 2 * BLOCKS}),
        ("mul_", {"mul_": BLOCKS}),
        ("aten::mul", {"mul": 2 * BLOCKS}),
        ("aten::mul.Tensor", {"mul": 2 * BLOCKS}),
        ("aten::mul_", {"mul_": BLOCKS}),
        ("mm", {"mm": 2 * BLOCKS}),
        ("addmm", {"addmm": 2 * BLOCKS}),
        ("softmax", {"_softmax": BLOCKS}),
        ("model.py:9", {"addmm": BLOCKS, "mm": BLOCKS, "mul": BLOCKS, "_softmax": BLOCKS}),
        ("name-regex(.*/1-Block/attn-.*softmax-op[0-9]+)", {"_softmax": 1}),
    ],
)
def test_a_text_means_whole_modules_types_kernels_and_lines(dump: Path, text: str, types: dict[str, int]) -> None:
    assert meant(dump, text) == types


def test_a_number_of_a_module_is_not_the_beginning_of_another(dump: Path) -> None:
    with pytest.raises(NotInDumpError, match=r"the nearest are blocks\.0, blocks\.1"):
        opdump.open(dump).ops("blocks.10")


def test_other_names_of_an_operator_count_where_none_has_the_name_itself(dump: Path) -> None:
    assert set(meant(dump, "MatMul")) == {"mm", "addmm"}
    assert meant(dump, "layer_norm") == {"native_layer_norm": BLOCKS}
    assert {op.op_type for op in opdump.open(dump).ops("backward", step=0)} > {"native_layer_norm_backward"}


@pytest.mark.parametrize("text", ["attn", "blocks.1.attn", "mul", "aten::mm", "model.py:9", "Attention", "qkv.weight"])
def test_the_commands_and_the_catalog_mean_the_same(dump: Path, text: str) -> None:
    catalog = opdump.open(dump)
    names = [op.op_name for op in catalog.ops(text, step=0)]
    shown = json.loads(run("show", dump, "--op", text, "--step", 0, "--json").stdout)
    assert [op["op_name"] for op in shown["operators"]] == names
    assert list(dict.fromkeys(tensor.op.op_name for tensor in catalog.find(text, step=0))) == list(dict.fromkeys(names))
    assert catalog.op(text, step=0).op_name == names[0]
    if "weight" not in text:
        refused = run("replay", dump, "--op", text, "--step", 0)
        assert refused.exit_code == 2
        assert f"{text} matches {len(names)} operators" in refused.stderr


def test_find_takes_several_texts_and_none_is_no_error(dump: Path) -> None:
    catalog = opdump.open(dump)
    found = {tensor.op.op_type for tensor in catalog.find(["aten::mm", "blocks.0.attn.mul", "nothing"], step=0)}
    assert found == {"mm", "mul"}
    assert not list(catalog.find("nothing"))


def test_one_operator_of_a_module_is_run_again_in_the_step_with_a_finding(dump: Path) -> None:
    assert opdump.replay(dump, "blocks.2.attn.softmax").op.step == 1
    assert opdump.replay(dump, "blocks.0.attn.softmax").op.step == 0


def test_several_operators_are_named_once_for_all_blocks(dump: Path) -> None:
    refused = run("replay", dump, "--op", "softmax")
    assert refused.exit_code == 2
    assert "in step 1, softmax matches 3 operators; name one of them: " in refused.stderr
    assert refused.stderr.count("softmax-op") == 1
    assert "2-Block/attn-Attention/_softmax-op" in refused.stderr, "the one with NaN"
    assert "(2 more alike)" in refused.stderr


def test_what_is_alike_is_shown_in_full_once_where_it_has_nan(dump: Path) -> None:
    shown = run("show", dump, "--op", "softmax").stdout
    assert shown.count("aten::_softmax:") == 1
    assert "step 1, forward" in shown
    assert shown.splitlines()[0].endswith(next(opdump.open(dump).ops("blocks.2.attn.softmax")).op_name)
    _, _, table = shown.partition("Others of the same kind:\n")
    assert table.count("_softmax-op") == BLOCKS * STEPS - 1


def test_a_pair_of_operators_is_named_by_the_same_texts(dump: Path, tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    file.write_text("steps:\n- step: 0\n  pairs:\n  - {a: blocks.0.attn.softmax, b: blocks.1.attn.softmax}\n")
    (step,) = opdump.compare(dump, dump, step=0, match=file).matches
    (pair,) = (pair for pair in step.pairs if pair.kind == "by hand")
    assert "/0-Block/attn-Attention/_softmax-op" in pair.a
    assert "/1-Block/attn-Attention/_softmax-op" in pair.b
    file.write_text("steps:\n- step: 0\n  pairs:\n  - {a: softmax, b: softmax}\n")
    refused = run("compare", dump, dump, "--step", 0, "--match", file)
    assert refused.exit_code == 2
    assert f"{file}:4: in A, softmax matches 3 operators; name one of them: " in refused.stderr


@pytest.mark.parametrize(
    ("text", "near"), [("atn", "attn"), ("blocks.0.atn", "blocks.0.attn"), ("addmmm", "addmm"), ("Attentions", "attn")]
)
def test_a_mistyped_text_gives_the_nearest_in_its_own_form(dump: Path, text: str, near: str) -> None:
    refused = run("show", dump, "--op", text)
    assert refused.exit_code == 1
    assert f"holds no operator {text!r}; the nearest are {near}" in refused.stderr
