"""Names in a configuration that match nothing: the messages at the end, in each dialect and on each framework."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import opdump
import opdump.onnx
from opdump.capturing.report import CaptureReport
from opdump.configs.acl_keys import DUMP, ArrayOf, Table
from opdump.configs.json_text import KEYS
from opdump.configs.tensorflow import DUMP_KEYS
from opdump.errors import ConfigError, IncompleteCaptureError
from tests.cli.programs import opdump as command

pytestmark = pytest.mark.torch

PLAIN_WORDS = {"path", "name", "enable", "layout"}
"""Keys that are also ordinary words in messages."""


def _keys_of(kind: Any) -> Iterator[str]:
    if isinstance(kind, ArrayOf):
        yield from _keys_of(kind.item)
    elif isinstance(kind, Table):
        for key, inner in kind.keys.items():
            yield key
            yield from _keys_of(inner)


WORDS = {
    "mindspore": {*KEYS, *(key for keys in KEYS.values() for key in keys)},
    "acl": set(_keys_of(DUMP)),
    "tensorflow": set(DUMP_KEYS),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration, the expected messages, and the reason for an empty capture; `reason` is empty if something was
    captured.
    """

    dialect: str
    keys: dict[str, Any]
    told: tuple[str, ...] = ()
    reason: str = ""
    is_gap: bool = True
    onnx_reason: str | None = None
    """The reason on ONNX Runtime, if it differs."""


def _entry(**entry: Any) -> dict[str, Any]:
    return {"dump_list": [entry]}


NO_NAME = "no operator that ran matches a name in `{}`"
CASES = {
    "kernels": Case(
        "mindspore",
        {"dump_mode": 1, "kernels": ["conv_1", "fcc"]},
        ("kernels: 'conv_1' matched no operator; nearest: ", "kernels: 'fcc' matched no operator"),
        NO_NAME.format("kernels"),
    ),
    "kernels by expression": Case(
        "mindspore",
        {"dump_mode": 1, "kernels": ["name-regex(.*conv9.*)"]},
        ("kernels: 'name-regex(.*conv9.*)' matched no operator",),
        NO_NAME.format("kernels"),
    ),
    "iteration": Case("mindspore", {"iteration": "5-8"}, (), "`iteration` selects 5-8"),
    "no overflow": Case("mindspore", {"op_debug_mode": 3}, (), "no operator overflowed", is_gap=False),
    "no failure": Case("mindspore", {"op_debug_mode": 4}, (), "no operator failed", is_gap=False),
    "model_name": Case(
        "acl",
        _entry(model_name="Nett"),
        ("dump_list.model_name: ", "is called 'Nett'", "nearest: 'Net'"),
        "no model in dump_list ran; the models that ran are 'Net'",
    ),
    "dump_step": Case(
        "acl",
        {"dump_step": "7", **_entry(model_name="Net")},
        (),
        "'Net' ran 2 times (0 to 1), but `dump_step` selects 7",
    ),
    "dump_step of single operators": Case(
        "acl",
        {"dump_step": "7", "dump_op_switch": "on", "dump_list": []},
        (),
        "`dump_step` selects 7",
        onnx_reason="`dump_op_switch` selects only single operators, and `dump_list` selects no model; the loaded models are 'Net'",
    ),
    **{
        f"layer at {level}": Case(
            "acl",
            {"dump_level": level, **_entry(model_name="Net", layer=["conv_1"])},
            ("dump_list.layer: 'conv_1' is not an operator", "nearest: 'conv1'"),
            NO_NAME.format("dump_list"),
        )
        for level in ("op", "kernel", "all")
    },
    "layer of every model": Case(
        "acl",
        _entry(layer=["conv_1"]),
        ("dump_list.layer: 'conv_1' is not an operator", "nearest: 'conv1'"),
        NO_NAME.format("dump_list"),
    ),
    "opname_range": Case(
        "acl",
        {"dump_level": "op", **_entry(model_name="Net", opname_range=[{"begin": "conv_1", "end": "fcc"}])},
        (
            "dump_list.opname_range: 'conv_1' is no",
            "nearest: 'conv1'",
            "dump_list.opname_range: 'fcc' is no",
            "nearest: 'fc'",
        ),
        NO_NAME.format("dump_list"),
    ),
    "opname_range with one name": Case(
        "acl",
        {"dump_level": "op", **_entry(model_name="Net", opname_range=[{"begin": "conv_1", "end": "fc"}])},
        ("dump_list.opname_range: 'conv_1' is no", "nearest: 'conv1'"),
        "no operator that ran lies in an `opname_range` of `dump_list`",
    ),
    "opname_range reversed": Case(
        "acl",
        {"dump_level": "op", **_entry(model_name="Net", opname_range=[{"begin": "fc", "end": "conv1"}])},
        ("dump_list.opname_range: 'conv1' runs before 'fc'", 'write "begin": "conv1", "end": "fc"'),
        "no operator that ran lies in an `opname_range` of `dump_list`",
    ),
    "opname_blacklist": Case(
        "acl",
        {"dump_level": "op", **_entry(model_name="Net", opname_blacklist=[{"name": "conv_1", "pos": ["input0"]}])},
        ("dump_list.opname_blacklist: 'conv_1' is not an operator", "nearest: 'conv1'"),
    ),
    "optype_blacklist": Case(
        "acl",
        {"dump_level": "op", **_entry(model_name="Net", optype_blacklist=[{"name": "ReLUU", "pos": ["input0"]}])},
        ("dump_list.optype_blacklist: 'ReLUU' is not the type of any operator that ran; nearest: ",),
    ),
    "watcher": Case(
        "acl",
        {"dump_scene": "watcher", "dump_mode": "output", **_entry(layer=["fcc"], watcher_nodes=["conv_1"])},
        (
            "dump_list.watcher_nodes: 'conv_1' is not an operator",
            "nearest: 'conv1'",
            "dump_list.layer: 'fcc' is not an operator",
            "nearest: 'fc'",
        ),
        "no watched operator ran",
    ),
    "dump_debug": Case("acl", {"dump_debug": "on"}, (), "no operator overflowed", is_gap=False),
    "dump_layer": Case(
        "tensorflow",
        {"dump_layer": "conv_1 fcc"},
        (
            "dump_layer: 'conv_1' is not an operator",
            "nearest: 'conv1'",
            "dump_layer: 'fcc' is not an operator",
            "nearest: 'fc'",
        ),
        NO_NAME.format("dump_layer"),
    ),
    "dump_step of a session": Case("tensorflow", {"dump_step": "7|9"}, (), "`dump_step` selects 7|9"),
}


def _config(case: Case, folder: Path) -> Path:
    dump = folder / "dump"
    dump.mkdir()
    file = folder / {"mindspore": "data_dump.json", "acl": "acl.json", "tensorflow": "npu_dump.json"}[case.dialect]
    content: dict[str, Any]
    if case.dialect == "acl":
        content = {"dump": {"dump_path": str(dump), **case.keys}}
    elif case.dialect == "tensorflow":
        content = {"enable_dump": True, "dump_path": str(dump), "dump_mode": "all", **case.keys}
    else:
        common = {
            "dump_mode": 0,
            "path": str(dump),
            "net_name": "Net",
            "iteration": "all",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": [0],
            "op_debug_mode": 0,
        }
        sections = {"common_dump_settings": {**common, **case.keys}}
        content = {**sections, "e2e_dump_settings": {"enable": True, "trans_flag": True}}
    file.write_text(json.dumps(content))
    return file


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.ReLU()
        self.fc = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv1(x).exp())  # type: ignore[no-any-return]


def _train(net: nn.Module | None = None) -> None:
    net = Net() if net is None else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def _with_torch(config: Path, *, strict: bool) -> CaptureReport:
    with opdump.capture(config, framework="torch", strict=strict) as dump:
        _train()
    assert dump.report is not None
    return dump.report


def _write_model(folder: Path) -> Path:
    real = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], "conv1"),
            helper.make_node("Exp", ["a"], ["b"], "middle"),
            helper.make_node("Neg", ["b"], ["y"], "fc"),
        ],
        "Net",
        [helper.make_tensor_value_info("x", real, (2,))],
        [helper.make_tensor_value_info("y", real, (2,))],
    )
    file = folder / "Net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def _with_onnx(config: Path, *, strict: bool) -> CaptureReport:
    with opdump.onnx.session(_write_model(config.parent), config, strict=strict) as session:
        for _ in range(2):
            session.run(None, {"x": np.ones(2, np.float32)})
    assert session.report is not None
    return session.report


FRAMEWORKS: dict[str, Callable[..., CaptureReport]] = {"torch": _with_torch, "onnx": _with_onnx}


def _assert_speaks_its_own(dialect: str, texts: list[str]) -> None:
    foreign = set().union(*WORDS.values()) - WORDS[dialect] - PLAIN_WORDS
    for text in texts:
        assert not foreign & set(re.findall(r"[a-z0-9_]+", text)), text


@pytest.mark.sampled(3, each="framework")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", CASES)
def test_the_end_names_the_nearest_names_and_the_true_reason_with_the_keys_of_the_file(
    name: str, framework: str, tmp_path: Path
) -> None:
    case = CASES[name]
    report = FRAMEWORKS[framework](_config(case, tmp_path), strict=False)
    warnings = "\n".join(report.warnings)
    for part in case.told:
        assert part in warnings
    assert bool(report.warnings) == bool(case.told), warnings
    reason = case.onnx_reason if framework == "onnx" and case.onnx_reason else case.reason
    if reason:
        assert report.nothing is not None
        assert reason in report.nothing.reason
        assert report.nothing.is_gap is case.is_gap
    else:
        assert report.nothing is None
        assert report.captured
    _assert_speaks_its_own(case.dialect, [*report.warnings, report.nothing.reason if report.nothing else ""])


@pytest.mark.sampled(2, each="framework")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "name", ["layer at op", "opname_range reversed", "dump_layer", "no failure", "opname_blacklist"]
)
def test_strict_ends_with_the_reason_where_it_is_a_gap(name: str, framework: str, tmp_path: Path) -> None:
    case = CASES[name]
    config = _config(case, tmp_path)
    if not case.reason or not case.is_gap:
        FRAMEWORKS[framework](config, strict=True)
        return
    with pytest.raises(IncompleteCaptureError, match=re.escape(case.reason)):
        FRAMEWORKS[framework](config, strict=True)


def test_strict_ends_infer_with_1(tmp_path: Path) -> None:
    case = CASES["dump_layer"]
    config = _config(Case("acl", _entry(model_name="Net", layer=["conv_1"])), tmp_path)
    model = _write_model(tmp_path)
    done = command("infer", model.name, "-c", config.name, "--strict", cwd=tmp_path)
    assert done.returncode == 1
    assert "dump_list.layer: 'conv_1' is not an operator of the model; nearest: 'conv1'" in done.stderr
    assert case.reason.replace("dump_layer", "dump_list") in done.stderr


MARKS = {
    "mindspore": (
        {"dump_mode": 0},
        'set_dump has no effect in this capture, and a module Unused is marked; write "dump_mode": 2',
    ),
    "acl": (
        _entry(model_name="Net"),
        "set_dump has no effect in this capture, and a module Unused is marked; an acl.json selects",
    ),
    "tensorflow": (
        {},
        "set_dump has no effect in this capture, and a module Unused is marked; TensorFlow programs select",
    ),
}


class Unused(Net):
    pass


@pytest.mark.parametrize("dialect", MARKS)
def test_marks_that_count_for_nothing_are_reported(dialect: str, tmp_path: Path) -> None:
    keys, told = MARKS[dialect]
    with opdump.capture(_config(Case(dialect, keys), tmp_path), framework="torch") as dump:
        net = Unused()
        opdump.set_dump(net)
        _train()
    opdump.set_dump(net, enabled=False)
    assert dump.report is not None
    assert any(told in warning for warning in dump.report.warnings), dump.report.warnings


def test_a_mark_in_which_nothing_ran_is_reported_at_the_end(tmp_path: Path) -> None:
    net = Unused()
    with opdump.capture(_config(Case("mindspore", {"dump_mode": 2}), tmp_path), framework="torch") as dump:
        opdump.set_dump(net)
        _train()
    opdump.set_dump(net, enabled=False)
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert dump.report.nothing.reason == "dump_mode is 2 and no operator ran in the targets that set_dump marked"
    assert any("no operator ran in" in warning for warning in dump.report.warnings)


@pytest.mark.parametrize("keys", [{}, {"config": True}])
def test_a_name_that_the_program_watches_is_reported_as_that(keys: dict[str, Any], tmp_path: Path) -> None:
    config = _config(Case("acl", _entry(model_name="Net")), tmp_path) if keys else None
    settings: dict[str, Any] = {} if keys else {"path": tmp_path}
    with opdump.capture(config, framework="torch", watch="conv_1", **settings) as dump:
        _train()
    assert dump.report is not None
    assert any(
        warning.startswith("watch: 'conv_1' is not an operator or module that ran; nearest: 'conv1'")
        for warning in dump.report.warnings
    ), dump.report.warnings


def test_keywords_are_answered_in_the_words_of_keywords(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, framework="torch", overflow=True, iteration="5-8") as dump:
        _train()
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert "`iteration` selects 5-8" in dump.report.nothing.reason


@pytest.mark.parametrize("text", ["8-5", "a", "99999999999999999999999", "|"])
@pytest.mark.parametrize(
    ("dialect", "key"),
    [("mindspore", "iteration"), ("acl", "dump_step"), ("tensorflow", "dump_step"), ("acl", "steps")],
)
def test_steps_that_cannot_be_are_refused_by_the_name_of_their_key(
    dialect: str, key: str, text: str, tmp_path: Path
) -> None:
    keys = {key: text} if key != "steps" else {}
    given: dict[str, Any] = {"steps": text} if key == "steps" else {}
    config = _config(Case(dialect, {**keys, **(_entry() if dialect == "acl" else {})}), tmp_path)
    with pytest.raises(ConfigError) as raised:
        opdump.onnx.plan_of(config, **given)
    assert key in str(raised.value)
    others = {"iteration", "dump_step"} - {key}
    assert not others & set(re.findall(r"[a-z_]+", str(raised.value).removeprefix(str(config))))
