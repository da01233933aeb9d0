"""Compiled code: MindSpore's own dump of it, under every kind of configuration. Each program has a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import Catalog, open_dump

HEAD = """
import opdump, sys
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor
ms.set_context(mode=ms.GRAPH_MODE); ms.set_device("CPU")
"""
LOG = (
    HEAD
    + """
class Net(nn.Cell):
    def construct(self, x):
        y = ops.log(x)
        return ops.exp(y) + 1
network = Net()
for step in range(3):
    print(network(Tensor(np.array([1, 2, -1 if step == 1 else 3], np.float32))).asnumpy().tolist())
"""
)
GATHER = (
    HEAD
    + """
class Net(nn.Cell):
    def construct(self, x, index):
        y = ops.relu(x)
        return ops.gather(y, index, 0) + 1
network = Net()
for index in (0, 1, 77):
    print(network(Tensor(np.array([1, 2, 3], np.float32)), Tensor([index], ms.int32)))
"""
)
TRAINING = (
    HEAD
    + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Dense(4, 3), nn.Dense(3, 2), nn.ReLU()
    def construct(self, x):
        return self.second(self.act(self.first(x)))
class Loss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
    def construct(self, x):
        return ops.square(self.network(x)).mean()
network = Net()
for number, parameter in enumerate(network.get_parameters()):
    parameter.set_data(Tensor(np.random.default_rng(number).random(parameter.shape).astype(np.float32)))
if "own" in sys.argv:
    ms.set_dump(network.second)
if "mark" in sys.argv:
    opdump.set_dump(network)
    opdump.set_dump(network.first, False)
train = nn.TrainOneStepCell(Loss(network), nn.Momentum(network.trainable_params(), 0.1, 0.9))
train.set_train()
x = Tensor(np.random.default_rng(0).random((2, 4)).astype(np.float32))
print([float(train(x).asnumpy()) for _ in range(4)])
"""
)
SCOPE = "Default/network-Loss/network-Net"


def run(place: Path, program: str, *options: str, arguments: tuple[str, ...] = (), fails: bool = False) -> str:
    """The output of a program under `opdump run`."""
    script = place / "program.py"
    script.write_text(program)
    command = [sys.executable, "-m", "opdump", "run", *options, str(script), *arguments]
    return _output(command, place, fails=fails)


def _output(command: list[str], place: Path, *, fails: bool = False, **environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != "MINDSPORE_DUMP_CONFIG"}
    done = subprocess.run(
        command, cwd=place, env={**inherited, **environment}, capture_output=True, text=True, check=False, timeout=300
    )
    text = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, text
    return text


def config(place: Path, **common: Any) -> str:
    """The path of a data_dump.json that dumps into `place / "dump"`."""
    settings = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": str(place / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "saved_data": "full",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **common,
    }
    file = place / "data_dump.json"
    file.write_text(
        json.dumps({"common_dump_settings": settings, "e2e_dump_settings": {"enable": True, "trans_flag": True}})
    )
    return str(file)


def names(catalog: Catalog, step: int) -> list[str]:
    return [op.op_name for op in catalog.ops(step=step) if not op.skip and op.op_type != "Parameter"]


def test_only_the_operator_that_overflows_is_filed(tmp_path: Path) -> None:
    text = run(tmp_path, LOG, "-c", config(tmp_path, op_debug_mode=3))
    assert "first overflow: step 1, mindspore::Log at program.py:9 (Default/Log-op0)" in text
    catalog = open_dump(tmp_path / "dump")
    assert names(catalog, 1) == ["Default/Log-op0"]
    assert names(catalog, 0) == names(catalog, 2) == []


def test_only_the_operator_that_fails_is_filed(tmp_path: Path) -> None:
    text = run(tmp_path, GATHER, "-c", config(tmp_path, op_debug_mode=4), fails=True)
    assert "should be in the range [0, 3), but got 77" in text
    assert "first failure: step 2, mindspore::Gather at program.py:10 (Default/Gather-op0)" in text
    catalog = open_dump(tmp_path / "dump")
    assert names(catalog, 2) == ["Default/Gather-op0"]
    (read,) = catalog.tensors(step=2)
    assert read.payload is not None
    assert (read.io, read.slot, read.source) == ("input", 0, "Default/ReLU-op0:0")
    assert read.payload.to_host().tolist() == [1, 2, 3]


@pytest.mark.parametrize("arguments", [("own",), ("mark",)])
def test_marked_cells_are_filed_with_their_backward(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """MindSpore's own dump cannot do this on a CPU."""
    run(tmp_path, TRAINING, "-c", config(tmp_path, dump_mode=2, iteration="1"), arguments=arguments)
    found = names(open_dump(tmp_path / "dump"), 1)
    assert {f"{SCOPE}/second-Dense/MatMul-op0", f"{SCOPE}/second-Dense/BiasAdd-op0"} <= set(found)
    assert any(name.startswith(f"Gradients/{SCOPE}/second-Dense/") for name in found)
    assert not [name for name in found if "first-Dense" in name or "optimizer" in name]
    assert (f"{SCOPE}/act-ReLU/ReLU-op0" in found) == (arguments == ("mark",))


def test_operators_are_chosen_by_type_and_by_name(tmp_path: Path) -> None:
    kernels = ["BiasAdd", 'name-regex("Default/.*second-Dense/MatMul-op0")', "Convolution"]
    text = run(tmp_path, TRAINING, "-c", config(tmp_path, dump_mode=1, kernels=kernels, iteration="0"))
    found = names(open_dump(tmp_path / "dump"), 0)
    assert f"{SCOPE}/second-Dense/MatMul-op0" in found
    assert f"{SCOPE}/first-Dense/MatMul-op0" not in found
    assert len([name for name in found if "BiasAdd" in name]) == 4
    assert "Convolution" in text, "what names nothing is told"
    assert "skipped" in text, "the others are counted"


def test_files_that_have_only_the_last_component_have_a_number_for_each_operator(tmp_path: Path) -> None:
    run(tmp_path, TRAINING, "--path", "dump", "--full", "--layout", "mindspore-2.3", "--steps", "0-1")
    catalog = open_dump(tmp_path / "dump")
    found = names(catalog, 0)
    assert len({name.rpartition("/")[2] for name in found}) == len(found)
    assert sorted(found) == sorted(names(catalog, 1))
    graph = catalog.graph(0)
    assert graph is not None
    assert set(found) <= {node.op_name for node in graph.nodes}
    assert set(found) == set(catalog.execution_order(0))
    made = {f"{op.op_name}:{slot}" for op in catalog.ops(step=0) for slot in op.outputs}
    read = {record.source for op in catalog.ops(step=0) for record in op.inputs.values() if ":" in record.source}
    assert len(read) > 10
    assert read <= made


@pytest.mark.parametrize("kernels", [["Softmax"], ["Default/act-ReLU/ReLU-op9"]])
def test_kernels_that_match_nothing_are_reported_with_what_ran(tmp_path: Path, kernels: list[str]) -> None:
    text = run(tmp_path, TRAINING, "-c", config(tmp_path, dump_mode=1, kernels=kernels, iteration="0-1"))
    assert f"kernels: '{kernels[0]}' matched no operator" in text
    assert "and nothing was captured: no operator that ran matches a name in `kernels`" in text
    assert "no operator of MindSpore ran" not in text
    assert kernels == ["Softmax"] or "nearest: '" in text


def test_a_configuration_of_acl_files_operators_as_devices_do(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    dump = {
        "dump_path": str(tmp_path / "dump"),
        "dump_mode": "output",
        "dump_step": "1",
        "dump_op_switch": "off",
        "dump_list": [{"layer": [f"{SCOPE}/first-Dense/MatMul-op0", f"{SCOPE}/act-ReLU/ReLU-op0"]}],
    }
    (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
    run(tmp_path, TRAINING, "-c", "acl.json")
    catalog = open_dump(tmp_path / "dump")
    assert names(catalog, 1) == [f"{SCOPE}/first-Dense/MatMul-op0", f"{SCOPE}/act-ReLU/ReLU-op0"]
    assert {record.io for record in catalog.tensors(step=1)} == {"output"}


def test_a_dump_of_statistics_contains_no_values(tmp_path: Path) -> None:
    text = run(tmp_path, TRAINING, "--path", "dump", "--steps", "1|3")
    catalog = open_dump(tmp_path / "dump")
    assert catalog.steps == (1, 3)
    assert not list((tmp_path / "dump").rglob("*.npy"))
    assert "steps 1, 3" in text
    assert "no NaN, no infinity" in text
    weight = next(op for op in catalog.ops(step=1) if op.op_name.endswith("first-Dense/MatMul-op0"))
    assert weight.inputs[1].source == "Parameter.network.first.weight"


def test_the_program_ends_with_the_last_wanted_step(tmp_path: Path) -> None:
    text = run(tmp_path, TRAINING, "--path", "dump", "--steps", "0-1", "--stop-after-dump")
    assert open_dump(tmp_path / "dump").steps == (0, 1)
    assert "[" not in text.splitlines()[-1], "the program did not come to its end"


def test_complex_numbers_give_the_reason_and_the_way_out(tmp_path: Path) -> None:
    program = HEAD + "class Net(nn.Cell):\n    def construct(self, x):\n        return x * x\n"
    program += "print(Net()(Tensor(np.ones(2, np.complex64))))\n"
    text = run(tmp_path, program, "--path", "dump", fails=True)
    assert "Unexpected type Complex" in text
    assert "PYNATIVE_MODE" in text


def test_the_variable_of_mindspore_names_the_configuration_of_opdump(tmp_path: Path) -> None:
    """MindSpore would read the file too, and refuse statistics on a CPU, so opdump hides the variable from it."""
    script = tmp_path / "program.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "opdump", "run", str(script)]
    text = _output(command, tmp_path, MINDSPORE_DUMP_CONFIG=config(tmp_path, iteration="0"))
    assert "1 step" in text or "step 0" in text
    assert open_dump(tmp_path / "dump").steps == (0,)


CAPTURES = (
    LOG.replace(
        "for step", "def run(step):\n    return network(Tensor(np.ones(2, np.float32)))\nfor step in ():\n  for step"
    )
    + """
if "late" in sys.argv:
    run(0)
with opdump.capture(path="first", saved_data="full", iteration="0-1") as dump:
    for step in range(3):
        run(step)
print("first", dump.report.captured, dump.report.warnings, dump.report.nothing)
run(0)
with opdump.capture(path="second", saved_data="statistic", iteration="0-1") as dump:
    run(0)
print("second", dump.report.captured, dump.report.warnings)
"""
)


def test_captures_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CAPTURES)
    text = _output([sys.executable, "program.py"], tmp_path)
    assert "first 6 ()" in text
    assert open_dump(tmp_path / "first").steps == (0, 1)
    assert "second 0" in text, "MindSpore counts on, and was asked for its first two iterations"


def test_a_capture_that_begins_too_late_says_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CAPTURES)
    text = _output([sys.executable, "program.py", "late"], tmp_path)
    assert "compiled code ran, but MindSpore dumped nothing" in text


def test_a_value_that_leaves_a_loop_is_there_for_each_trip(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
class Net(nn.Cell):
    def construct(self, x, n):
        i = Tensor(0, ms.int32)
        while i < n:
            x = ops.tanh(x)
            i = i + 1
        return x
print(Net()(Tensor(np.full(2, 0.5, np.float32)), Tensor(3, ms.int32)).asnumpy().tolist())
"""
    )
    run(tmp_path, program, "--path", "dump", "--full")
    trips = [op for op in open_dump(tmp_path / "dump").ops(step=0) if op.op_type == "Tanh"]
    assert [op.occurrence for op in trips] == [0, 1, 2]
    values = []
    for op in trips:
        payload = op.outputs[0].payload
        assert payload is not None
        values.append(float(payload.to_host()[0]))
    expected = 0.5
    for value in values:
        expected = float(np.tanh(np.float32(expected)))
        assert value == pytest.approx(expected, rel=1e-6)
