"""MindSpore programs under an acl.json: models, single operators, and watched memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest
from mindspore import Tensor, nn, ops

import opdump
from opdump.adapters.mindspore.models import OperatorNames
from opdump.catalog.catalog import open_dump
from opdump.dump_file import read_dump_file
from opdump.dump_file.opdebug import decode_opdebug

X = Tensor(np.random.default_rng(0).random((2, 4)).astype(np.float32))


class Head(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.act = nn.Dense(4, 4), nn.LayerNorm((4,)), nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        encoded = self.encode(x)
        normed = self.norm(encoded)
        return self.act(encoded + normed)


class Stomping(Head):
    def construct(self, x: Tensor) -> Tensor:
        encoded = self.encode(x)
        normed = self.norm(encoded)
        encoded[0] = 7.0  # runs no operator
        return self.act(encoded + normed)


def config(place: Path, **dump: Any) -> Path:
    (place / "output").mkdir(exist_ok=True)
    file = place / "acl.json"
    file.write_text(json.dumps({"dump": {"dump_path": str(place / "output"), **dump}}))
    return file


def files(place: Path) -> list[str]:
    """The operators that have files, by their directories below that of the device, in the order of their time stamps."""
    found = sorted((place / "output").rglob("*.65535.65535.*"), key=lambda path: int(path.name.rpartition(".")[2]))
    return ["/".join([*path.parts[len(place.parts) + 3 : -1], path.name.partition(".65535")[0]]) for path in found]


def report(dump: opdump.Dump) -> opdump.CaptureReport:
    assert dump.report is not None
    return dump.report


def looks(dump: Path) -> list[npt.NDArray[Any]]:
    """The content of watched memory after each operator."""
    return [op.outputs[0].numpy() for op in open_dump(dump).ops() if "_To_" in op.op_name]


@pytest.fixture(autouse=True)
def _one_by_one() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.parametrize("switch", [{"dump_op_switch": "on"}, {}])
def test_the_documents_samples_for_single_operators_dump_what_runs(tmp_path: Path, switch: dict[str, str]) -> None:
    with opdump.capture(config(tmp_path, dump_list=[], dump_data="tensor", **switch)) as dump:
        ops.relu(X) * 2
    assert files(tmp_path) == ["ReLU.Default_ReLU-op0", "Muls.Default_Muls-op0"]
    assert report(dump).warnings == ()


def test_a_root_cell_is_a_model_by_its_class_or_by_the_name_it_was_given(tmp_path: Path) -> None:
    one, other = Head(), Head()
    opdump.name_model(other, "ResNet-50")
    entries = [{"model_name": "Head", "layer": ["encode"]}, {"model_name": "ResNet-50", "layer": ["ReLU-op0"]}]
    with opdump.capture(config(tmp_path, dump_list=entries, dump_op_switch="off", dump_step="0|2")) as dump:
        for _ in range(3):
            one(X)
            other(X)
        ops.tanh(X)
    encode = ["MatMul.Default_encode-Dense_MatMul-op0", "BiasAdd.Default_encode-Dense_BiasAdd-op0"]
    relu = "ReLU.Default_act-ReLU_ReLU-op0"
    assert files(tmp_path) == [
        *(f"Head/1/0/{name}" for name in encode),
        f"ResNet-50/2/0/{relu}",
        *(f"Head/1/2/{name}" for name in encode),
        f"ResNet-50/2/2/{relu}",
    ]
    assert report(dump).warnings == ()


def test_names_that_match_nothing_are_reported_with_the_nearest(tmp_path: Path) -> None:
    entries = [{"model_name": "Heads"}, {"model_name": "Head", "layer": ["encoder", "norm"]}]
    with opdump.capture(config(tmp_path, dump_list=entries)) as dump:
        Head()(X)
    assert report(dump).captured == 1
    text = "\n".join(report(dump).warnings)
    assert "dump_list.model_name: no model is called 'Heads'; there are 'Head'" in text
    assert "dump_list.layer: 'encoder' is not an operator or module that ran; nearest: 'encode'" in text
    assert "'norm'" not in text.replace("nearest: 'encode', 'norm'", "")


def test_ranges_and_blacklists_choose_operators_and_slots(tmp_path: Path) -> None:
    entry = {
        "model_name": "Head",
        "opname_range": [{"begin": "encode", "end": "norm"}],
        "optype_blacklist": [{"name": "BiasAdd", "pos": ["input0"]}],
    }
    with opdump.capture(config(tmp_path, dump_list=[entry], dump_mode="all", dump_level="op")):
        Head()(X)
    dump = open_dump(tmp_path / "output")
    assert {op.op_type: sorted(op.inputs) for op in dump.ops()} == {
        "MatMul": [0, 1],
        "BiasAdd": [1],
        "LayerNorm": [0, 1, 2],
    }


def test_gradients_belong_to_the_model(tmp_path: Path) -> None:
    network = Head()
    gradient = ms.value_and_grad(lambda x: network(x).sum(), None, network.trainable_params())
    with opdump.capture(config(tmp_path, dump_list=[{"model_name": "Head", "layer": ["act"]}])):
        gradient(X)
    assert files(tmp_path) == [
        "Head/1/0/ReLU.Default_act-ReLU_ReLU-op0",
        "Head/1/0/ReluGrad.Gradients_Default_act-ReLU_Grad_ReLU_ReluGrad-op0",
    ]


def test_memory_that_is_written_unseen_shows_at_the_next_operator(tmp_path: Path) -> None:
    entries = [{"layer": ["norm", "act"], "watcher_nodes": ["encode"]}]
    with opdump.capture(config(tmp_path, dump_list=entries, dump_scene="watcher")) as dump:
        Stomping()(X)
    assert files(tmp_path) == ["BiasAdd.norm_To_encode", "BiasAdd.act_To_encode"]
    assert report(dump).warnings == ()
    norm, act = looks(tmp_path / "output")
    assert act[0].tolist() == [7] * 4
    assert norm[1].tolist() == act[1].tolist()
    assert norm[0].tolist() != act[0].tolist()


def test_tensors_of_the_program_are_watched_by_name(tmp_path: Path) -> None:
    tensor = Tensor(np.ones(3, np.float32))
    tensor[0] = 1.0
    with opdump.capture(watch=[{"mine": tensor}], path=tmp_path / "watched"):
        ops.relu(X)
        tensor[1] = 5.0
        ops.tanh(X)
    assert [each.tolist() for each in looks(tmp_path / "watched")] == [[1, 1, 1], [1, 5, 1]]


def test_the_documents_sample_for_overflows_dumps_the_operator_and_its_status(tmp_path: Path) -> None:
    large = Tensor(np.full(3, 3e38, np.float32))
    with opdump.capture(config(tmp_path, dump_debug="on")) as dump:
        ops.relu(X)
        ops.add(large, large)
    assert report(dump).failure == ""
    assert sorted(files(tmp_path)) == ["Add.Default_Add-op0", "Opdebug.Node_OpDebug"]
    (record,) = (tmp_path / "output").rglob("Opdebug.Node_OpDebug.*")
    (told,) = decode_opdebug(read_dump_file(record).outputs[0].data.read()).overflows
    assert (told.accelerator, told.model_id, told.statuses) == ("AI Core", 0, (0x20,))


def test_the_names_of_an_operator_in_a_training() -> None:
    scope = "Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d"
    for name in (f"{scope}/Conv2D-op0", f"Gradients/{scope}/Grad_Conv2D/Conv2DBackpropFilter-op0"):
        found = OperatorNames().of(name)
        assert {name, name.rpartition("/")[2], scope, "conv1", "_backbone.conv1", "network._backbone.conv1"} <= found
        assert "Default/network-WithLossCell" in found
    assert OperatorNames().of("Expand/_MatMulExt/MatMul-op3") == {
        "Expand/_MatMulExt/MatMul-op3",
        "MatMul-op3",
        "Expand/_MatMulExt",
    }


GRAPH = """
import sys, opdump, numpy as np, mindspore as ms
from mindspore import nn, ops, Tensor
ms.set_context(mode=ms.GRAPH_MODE)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Dense(4, 3), nn.Dense(3, 2), nn.ReLU()
    def construct(self, x):
        return self.second(self.act(self.first(x)))
net, other = Net(), Net()
opdump.name_model(net, "ResNet-50")
for _ in range(3):
    net(Tensor(np.ones((2, 4), np.float32)))
    other(Tensor(np.ones((2, 4), np.float32)))
"""


@pytest.mark.parametrize(
    ("entries", "step", "expected"),
    [
        (
            [{"model_name": "ResNet-50", "layer": ["second", "Default/act-ReLU/ReLU-op0"]}],
            "0|2",
            [
                f"ResNet-50/1/{step}/{name}"
                for step in (0, 2)
                for name in (
                    "ReLU.Default_act-ReLU_ReLU-op0",
                    "MatMul.Default_second-Dense_MatMul-op0",
                    "BiasAdd.Default_second-Dense_BiasAdd-op0",
                )
            ],
        ),
        ([{"layer": ["act"]}], "0", ["ReLU.Default_act-ReLU_ReLU-op0"]),
    ],
)
def test_compiled_networks_are_models_too(
    tmp_path: Path, entries: list[dict[str, Any]], step: str, expected: list[str]
) -> None:
    config(tmp_path, dump_list=entries, dump_step=step)
    (tmp_path / "program.py").write_text(GRAPH)
    command = [sys.executable, "-m", "opdump", "run", "-c", "acl.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert files(tmp_path) == expected


def test_a_watch_says_that_it_does_not_look_into_compiled_code(tmp_path: Path) -> None:
    network = Head()

    @ms.jit
    def compiled(x: Tensor) -> Tensor:
        return ops.tanh(x)

    entries = [{"watcher_nodes": ["encode"]}]
    with opdump.capture(config(tmp_path, dump_list=entries, dump_scene="watcher")) as dump:
        compiled(network(X))
    assert any("compiled code ran" in each and "PYNATIVE_MODE" in each for each in report(dump).warnings)
