"""A text means the same operators to every command and to the catalog, and every printed name is accepted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import opdump
from opdump.catalog.catalog import Catalog, TensorKeywords
from opdump.commands import main
from opdump.commands.show import show
from opdump.errors import NotInDumpError
from opdump.records import OpRecord, TensorRecord
from opdump.reports.shown_part import ShownPart, selected
from opdump.step_table import StepTable, StepTemplate

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


def torch_mindspore(path: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.Adam(model.parameters())
    mask = torch.ones(2)
    with opdump.capture(path=path, saved_data="full"):
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(2, 1, 6, 6)) * mask).sum().backward()
            optimizer.step()


def torch_acl(path: Path) -> None:
    import torch

    from tests.torch.test_acl_layout import acl_plan

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    with opdump.capture(acl_plan(path, level="all")):
        model(torch.ones(1, 3)).sum().backward()


def onnx_acl(path: Path) -> None:
    import numpy as np

    from tests.acl.program import small_model

    with opdump.onnx.session(small_model(), dump_path=str(path), dump_list=[{}], dump_mode="all") as model:
        model.run(None, {value.name: np.ones((2, 3), np.float32) for value in model.inputs})


def names_in(value: Any, key: str = "") -> Iterator[str]:
    """The operator names in the output of `show --json`."""
    if isinstance(value, dict):
        for name, item in value.items() if key != "arguments" else ():
            yield from names_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from names_in(item, key)
    elif isinstance(value, str) and value and key in ("op_name", "op_type", "kernel", "forward_op", "source", "name"):
        yield value


def names_of(catalog: Catalog) -> set[str]:
    found: set[str] = set()
    for execution in catalog.executions(include_skipped=True):
        op = execution.op
        parts = op.op_name.split("/")
        found.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        found.update("/".join(parts[start:]) for start in range(len(parts)))
        found.update({op.op_type, op.kernel, op.forward_op})
        if op.op_type == "Parameter":
            found.add(f"Parameter.{op.op_name}")
        for tensor in execution.tensors:
            found.update({tensor.name, tensor.source})
    return found - {""}


@pytest.mark.parametrize("make", [torch_mindspore, torch_acl, onnx_acl])
def test_every_name_that_is_printed_is_found(make: Callable[[Path], None], tmp_path: Path) -> None:
    if make is onnx_acl:
        pytest.importorskip("onnx")
    make(tmp_path)
    catalog = opdump.open(tmp_path)
    printed = CliRunner().invoke(show, [str(tmp_path), "--json", "--limit", "0", "--skipped"])
    assert printed.exit_code == 0, printed.output
    names = names_of(catalog) | set(names_in(json.loads(printed.stdout)))
    assert len(names) > 10
    for name in sorted(names):
        assert selected(catalog, ShownPart(op=name)), name


def test_a_parameter_is_found_by_the_name_that_made_by_has(tmp_path: Path) -> None:
    torch_mindspore(tmp_path)
    shown = CliRunner().invoke(show, [str(tmp_path), "--op", "Parameter.0.weight", "--json"])
    assert shown.exit_code == 0, shown.output
    assert {each["op_name"] for each in json.loads(shown.stdout)["operators"]} == {"0.weight"}
    catalog = opdump.open(tmp_path)
    assert {tensor.op.op_name for tensor in catalog.find("Parameter.0.weight")} == {"0.weight"}
    assert catalog.op("Parameter.0.weight").op.op_name == "0.weight"


def test_a_name_that_does_not_exist_is_still_an_error(tmp_path: Path) -> None:
    torch_mindspore(tmp_path)
    shown = CliRunner().invoke(show, [str(tmp_path), "--op", "Parameter.7.weight"])
    assert shown.exit_code != 0


SEARCHED_STEPS = 8


KINDS: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "digests": {"saved_data": "statistic", "statistic_category": ["md5", "max"]},
    "one file of elements": {"saved_data": "full", "layout": "packed"},
}


@pytest.fixture(scope="module", params=KINDS)
def searched_dump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Identical steps, except for a sigmoid in the second-to-last."""
    path = tmp_path_factory.mktemp("search")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with opdump.capture(path=path, iteration="all", **KINDS[request.param]):
        for step in range(SEARCHED_STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).sum()
            if step == SEARCHED_STEPS - 2:
                loss = loss.sigmoid()
            loss.backward()
            optimizer.step()
    return path


NAMES = [
    "addmm",
    "Conv2D",
    "sigmoid",
    "aten::tanh",
    "0-Linear",
    "Default/network-Sequential/2-Linear",
    "name-regex(.*mm-op.*)",
    "Parameter.0.weight",
    "0.weight",
    "t",  # runs no kernel
    "missing",
]


def without_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, tables consist of single records."""
    whole = Catalog.table

    def table(self: Catalog, step: int, rank: int | None = None) -> StepTable[TensorRecord]:
        found = whole(self, step, rank)
        return StepTable.of([*found.ops], [*found.tensors], found.counted)

    monkeypatch.setattr(Catalog, "table", table)


def _facts(tensor: TensorRecord) -> object:
    told = tensor.io, tensor.slot, tensor.dtype, tensor.shape, tensor.source, dict(tensor.statistics)
    return asdict(tensor.op), told, None if tensor.payload is None else tensor.numpy().tolist()


@pytest.mark.parametrize("include_skipped", [False, True])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_templates_and_records_agree(
    searched_dump: Path, name: str | None, include_skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        try:
            executions = opdump.open(searched_dump).ops(name, include_skipped=include_skipped)
            return [(asdict(each.op), [*map(_facts, each.tensors)]) for each in executions]
        except NotInDumpError as error:
            return [str(error)]

    with_templates = found()
    without_templates(monkeypatch)
    assert found() == with_templates
    assert with_templates


@pytest.mark.parametrize("which", [{"source": Path(__file__).name}, {"op_type": "tanh"}, {"graph": 1}, {"step": 6}])
def test_templates_and_records_agree_on_combined_filters(
    searched_dump: Path, which: TensorKeywords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        return [_facts(each) for name in (None, "tanh") for each in opdump.open(searched_dump).tensors(name, **which)]

    with_templates = found()
    without_templates(monkeypatch)
    assert found() == with_templates


@pytest.mark.parametrize("occurrence", [None, 0, 1])
def test_one_operator_is_the_first_of_that_name(
    searched_dump: Path, occurrence: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sigmoid = next(opdump.open(searched_dump).ops("aten::sigmoid")).op_name

    def found(name: str) -> str:
        try:
            return repr(opdump.open(searched_dump).op(name, occurrence=occurrence).op)
        except NotInDumpError as error:
            return str(error)

    names = [sigmoid, sigmoid.rpartition("/")[2], "sigmoid-op", "0.weight", "Parameter.0.weight"]
    with_templates = [*map(found, names)]
    without_templates(monkeypatch)
    assert [*map(found, names)] == with_templates
    assert "the nearest are" in with_templates[2]
    assert (f"step {SEARCHED_STEPS - 2}" in with_templates[0]) == (occurrence != 1)


def test_no_record_is_made_of_a_step_that_runs_what_an_earlier_one_ran(
    searched_dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opdump.open(searched_dump)
    made: list[int] = []
    real = StepTable._tensor

    def tensor(self: StepTable[Any], template: StepTemplate, within: int, place: int, op: OpRecord, row: Any) -> Any:
        made.append(op.step)
        return real(self, template, within, place, op, row)

    monkeypatch.setattr(StepTable, "_tensor", tensor)
    with pytest.raises(NotInDumpError, match="missing"):
        catalog.ops("missing")
    # The first steps differ in their memory, the second-to-last has another operator, and the last may be written in several batches.
    assert set(made) <= {0, 1, 2, SEARCHED_STEPS - 2, SEARCHED_STEPS - 1}
