"""What each form of a `kernels` entry selects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from opdump.configs.mindspore.plan import load_plan
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern
from tests.config.verdicts import load, says

# Names and types as MindSpore reported them for the net of observed_kernels.json.
NODES: Mapping[str, str] = MappingProxyType(
    {
        "Default/fc-Dense/MatMul-op0": "MatMul",
        "Default/fc-Dense/BiasAdd-op0": "BiasAdd",
        "Default/relu-ReLU/ReLU-op0": "ReLU",
        "fc.weight": "Parameter",
        "fc.bias": "Parameter",
        "x": "Parameter",
    }
)
ESCAPED = "MindSpore keeps JSON's escapes, so that a backslash matches a backslash; opdump reads what JSON means"
DIFFERENCES: Mapping[str, tuple[list[str] | type[ConfigError], str]] = MappingProxyType(
    {
        r"name-regex(fc\.weight)": (["fc.weight"], ESCAPED),
        r"name-regex((a)\2)": (ConfigError, ESCAPED),
        "name-regex(\\)": (ConfigError, ESCAPED),
        r"name-regex([\d-x]+)": (ConfigError, ESCAPED),
        r"name-regex(.*\d)": ([name for name in NODES if name.endswith("0")], ESCAPED),
        '"MatMul"': (["Default/fc-Dense/MatMul-op0"], ESCAPED),
        "name-regex(.{1,100000})": (list(NODES), "MindSpore's library limits the size of an expression"),
    }
)


def _config(kernels: list[Any], root: Path) -> Path:
    file = root / "data_dump.json"
    common = {
        "dump_mode": 1,
        "path": str(root / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": kernels,
        "support_device": [0],
    }
    file.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {}}), encoding="utf-8")
    return file


@pytest.mark.parametrize("case", load("observed_kernels.json"), ids=lambda case: json.dumps(case["kernels"]))
def test_kernels_select_what_mindspore_selects(case: Mapping[str, Any], root: Path) -> None:
    file = _config(case["kernels"], root)
    expected: list[str] | type[ConfigError] = ConfigError if case["exit_code"] else case["selected"]
    difference = DIFFERENCES.get(case["kernels"][0]) if isinstance(case["kernels"][0], str) else None
    if difference is not None:
        assert difference[0] != expected, "the table of differences is out of date"
        expected = difference[0]
    if isinstance(expected, list):
        plan = load_plan(file, environ={})
        assert sorted(name for name, kind in NODES.items() if plan.selects(name, kind)) == sorted(expected)
        return
    with pytest.raises(ConfigError) as caught:
        load_plan(file, environ={})
    if difference is None:
        assert says(caught.value, case["exception"])


def test_a_type_is_found_in_the_last_component_in_any_case() -> None:
    pattern = KernelPattern.parse("conv2d")
    assert pattern.kind == "type"
    assert pattern.matches("Default/conv1-Conv2d/Conv2D-op0", "Conv2D")
    assert pattern.matches("Gradients/Default/conv1-Conv2d/Conv2DBackpropFilter-op3", "Conv2DBackpropFilter")
    assert not pattern.matches("Default/conv1-Conv2d/ReLU-op0", "ReLU")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("Conv2D", ["convolution", "convolution_backward"]),
        ("MatMul", ["mm", "addmm", "bmm", "baddbmm", "linear", "matmul"]),
        ("BiasAdd", ["addmm", "linear"]),
        ("ReLU", ["relu", "threshold_backward", "leaky_relu"]),
        ("ReluGrad", ["threshold_backward"]),
        ("MaxPool", ["max_pool2d_with_indices", "max_pool2d_with_indices_backward"]),
        ("LayerNorm", ["native_layer_norm", "native_layer_norm_backward"]),
        ("BatchNorm", ["native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"]),
        ("Softmax", ["_softmax", "_log_softmax"]),
        ("NLLLoss", ["nll_loss_forward"]),
        ("AdamWeightDecay", ["_fused_adamw"]),
        ("ApplyMomentum", ["_fused_sgd"]),
        ("Gelu", ["gelu"]),
        ("ReduceMean", ["mean"]),
    ],
)
def test_a_type_also_knows_other_frameworks_names(wanted: str, found: list[str]) -> None:
    pattern = KernelPattern.parse(wanted)
    for op_type in found:
        assert pattern.matches(f"Default/layer/{op_type}-op0", op_type), op_type
    assert not pattern.matches("Default/layer/cumsum-op0", "cumsum")


def test_a_name_is_compared_whole_and_with_its_case() -> None:
    pattern = KernelPattern.parse("Default/fc-Dense/MatMul-op0")
    assert pattern.kind == "name"
    assert pattern.matches("Default/fc-Dense/MatMul-op0", "MatMul")
    assert not pattern.matches("Default/fc-Dense/matmul-op0", "MatMul")
    assert not KernelPattern.parse("MatMul-op0").matches("Default/fc-Dense/MatMul-op0", "MatMul")


def test_a_parameter_is_matched_with_and_without_its_prefix() -> None:
    for name in ("fc.weight", "Parameter.fc.weight"):
        assert KernelPattern.parse("fc.weight").matches(name, "Parameter")
        assert KernelPattern.parse("name-regex(fc[.].*)").matches(name, "Parameter")
        assert not KernelPattern.parse("Parameter").matches(name, "Parameter")
    assert KernelPattern.parse("Parameter.fc.weight").matches("Parameter.fc.weight", "Parameter")


def test_a_parameter_is_no_operator_of_its_owners_name() -> None:
    assert not KernelPattern.parse("MatMul").matches("Parameter.mm", "Parameter")


def test_the_empty_entry_selects_everything() -> None:
    pattern = KernelPattern.parse(' "" ')
    assert pattern.text == ""
    assert all(pattern.matches(name, kind) for name, kind in NODES.items())


def test_entries_that_never_matched_are_told_in_order(tmp_path: Path) -> None:
    kernels = tuple(KernelPattern.parse(text) for text in ("ReLU", "NoSuch", "name-regex(.*fc2.*)", "Default/nope-op1"))
    plan = DumpPlan(path=tmp_path, selection="kernels", kernels=kernels)
    matched = set(plan.matching_kernels("Default/relu-op0", "relu"))
    assert matched == {"ReLU"}
    assert plan.unused_kernels(matched) == ("Default/nope-op1", "NoSuch", "name-regex(.*fc2.*)")
    assert DumpPlan(path=tmp_path).unused_kernels(()) == ()
