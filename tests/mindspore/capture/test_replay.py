"""Runs every operator of a training step again, in both modes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import opdump
from opdump.adapters.replay import required_replayer
from opdump.catalog.catalog import open_dump
from opdump.comparison.execution import Execution, recorded, recorded_inputs
from opdump.comparison.memory import read_step
from opdump.comparison.nodes import Node
from opdump.errors import CannotReplayError
from opdump.graph import PYNATIVE
from opdump.records import OpRecord, TensorRecord
from tests.replaying.written_scripts import check_scripts

WIDTH: Final = 8
_CLOSE: Final = 1e-5


class Network(nn.Cell):
    """An attention layer between two normalisations, and its loss."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        drawn = np.random.default_rng(0)
        self.table = Parameter(Tensor(drawn.standard_normal((5, WIDTH)).astype(np.float32)), name="table")
        self.qkv = Parameter(Tensor(drawn.standard_normal((WIDTH, 3 * WIDTH)).astype(np.float32)), name="qkv")
        self.norm = nn.LayerNorm((WIDTH,), epsilon=epsilon)
        self.mask = Tensor(np.triu(np.ones((3, 3)), 1).astype(bool))

    def construct(self, ids: Tensor) -> Tensor:
        x = self.norm(ops.gather(self.table, ids, 0))
        q, k, v = ops.split(ops.matmul(x, self.qkv), WIDTH, axis=-1)
        scores = ops.matmul(q, ops.transpose(k, (0, 2, 1))) / 2.0
        shares = ops.softmax(ops.masked_fill(scores, self.mask, -1e9), -1)
        x = ops.reshape(x + ops.gelu(ops.matmul(shares, v)), (2, 3 * WIDTH))
        return ops.log_softmax(ops.concat((x, -x), 1), -1).mean()


class Convolutional(nn.Cell):
    """Two convolutions with a batch norm and pooling, and their loss."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 3, 3, pad_mode=how, weight_init="ones") for how in ("same", "valid"))
        self.norm = nn.BatchNorm2d(3, eps=epsilon)
        self.pool = nn.MaxPool2d(2, 2)

    def construct(self, x: Tensor) -> Tensor:
        return ops.softplus(self.second(self.pool(self.norm(self.first(x))))).sum() / 4.0


class Indexed(nn.Cell):
    """Parts of tensors by their index, a sorted one among them, and their loss. A size of the last part other than 3 is a fault."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)), name="w")
        self.bias = Parameter(Tensor(np.linspace(-1, 1, 6).astype(np.float32)), name="b")
        self.size = int(size)
        self.multiplies = size != int(size)

    def construct(self, x: Tensor) -> Tensor:
        h = ops.matmul(x, self.weight) + self.bias
        row = h[:, 1] * 2.0
        whole = ops.stack((row, h[:, 0]), 1)
        ordered, _ = ops.sort(h[..., :5] * h[..., 1:], -1)
        last = ordered[:, -self.size :]
        squares = last * last if self.multiplies else ops.square(last)
        return ops.mean(squares) + ops.mean(whole, 1).sum() + ops.softplus(h).mean()


def train(mode: str, fault: float) -> None:
    """Train in this mode: "graph", "pynative", or one of these after the name of another network."""
    name, _, mode = mode.rpartition(" ")
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    batches: list[Any]
    if name == "indexed":
        network = Indexed(fault)
        batches = [np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32) for seed in range(2)]
    elif name == "convolutional":
        network = Convolutional(fault).set_train()
        batches = [np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)]
    else:
        network = Network(fault)
        batches = [np.array([[0, 1, 2], [3, 4, 0]], np.int32)]
    if name:
        optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    else:
        optimizer = nn.SGD(network.trainable_params(), learning_rate=0.1, weight_decay=0.01)
    gradients_of = ops.value_and_grad(network, None, optimizer.parameters)

    def step(data: Tensor) -> Tensor:
        loss, gradients = gradients_of(data)
        optimizer(gradients if name else ops.clip_by_global_norm(gradients, 0.5))
        return loss

    run = ms.jit(step) if mode == "graph" else step
    for batch in batches:
        run(Tensor(batch))


class Dumps:
    """Dumps of training steps, each made once, in a process of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def of(self, mode: str, epsilon: float = 1e-5) -> opdump.Catalog:
        path = self._place / f"{mode}-{epsilon}"
        if not path.exists():
            command = [
                sys.executable,
                "-m",
                "opdump",
                "run",
                "--full",
                "--path",
                str(path),
                __file__,
                mode,
                str(epsilon),
            ]
            subprocess.run(command, check=True, capture_output=True)
        return open_dump(path)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return Dumps(tmp_path_factory.mktemp("dumps"))


def differences(node: Node, values: dict[int, np.ndarray[Any, Any]]) -> list[str]:
    """Why the operator does not give what was recorded: by bits in the recorded types, within rounding in float64."""
    found = []
    for dtype in ("recorded", "float64"):
        try:
            outputs = required_replayer(node.op).run(node.op, node.inputs, values, dtype=dtype).outputs
        except CannotReplayError as error:
            return [f"{node.op.op_name}: {error}"]
        for slot, record in node.outputs.items():
            given = recorded(record)
            assert given is not None
            again = outputs[slot].reshape(given.shape)
            off = np.abs(again.astype(np.float64) - given).max(initial=0)
            limit = 0.0 if dtype == "recorded" and again.dtype == record.dtype else _CLOSE
            if not off <= limit * max(1.0, float(np.abs(given).max(initial=0))):
                found.append(f"{node.op.op_name}:{slot} in {dtype}: {off}")
    return found


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_every_operator_of_a_training_step_runs_again(dumps: Dumps, mode: str) -> None:
    run = Execution(read_step(dumps.of(mode), 0, 0))
    failing, count = [], 0
    for node, values in run.nodes():
        count += 1
        failing += differences(node, values)
        run.write(
            node, {slot: value for slot, record in node.outputs.items() if (value := recorded(record)) is not None}
        )
    assert count > 40
    # No operator reads the number of steps before the optimizer counts it up.
    assert [each for each in failing if "AssignAdd" not in each] == []


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_a_script_runs_an_operator_without_opdump(dumps: Dumps, mode: str, tmp_path: Path) -> None:
    dump = dumps.of(mode)
    written: list[Path] = []
    for op in {each.op_type: each for each in (node.op for node in read_step(dump, 0, 0).nodes)}.values():
        path = tmp_path / f"repro_{len(written)}.py"
        try:
            opdump.replay(dump.path, op.op_name, occurrence=op.occurrence, emit=path)
        except CannotReplayError as error:
            reason = str(error)
            is_in_place = "after" in reason or "MindSpore has no primitive that runs" in reason
        else:
            written.append(path)
            continue
        assert is_in_place, reason
    assert len(written) > 20
    check_scripts(written)


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_an_argument_has_the_name_in_the_definition_of_its_primitive(dumps: Dumps, mode: str) -> None:
    named = {node.op.op_type: node for node in read_step(dumps.of(mode), 0, 0).nodes if node.op.phase == "forward"}
    assert named["LayerNorm"].op.arguments["epsilon"] == pytest.approx(1e-5)
    assert named["LayerNorm"].op.arguments["begin_norm_axis"] == -1
    assert [record.argument for record in named["LayerNorm"].inputs.values()] == ["input_x", "gamma", "beta"]
    assert named["Softmax"].op.arguments["axis"] == [-1]
    assert named["Softmax"].op.kernel == "mindspore::Softmax"
    assert not any(name.isdecimal() for node in named.values() for name in node.op.arguments)


def test_a_wrong_epsilon_is_named_and_the_other_mode_is_no_difference(dumps: Dumps) -> None:
    one, other, wrong = dumps.of("graph"), dumps.of("pynative"), dumps.of("pynative", 1e-3)
    assert opdump.compare(one.path, other.path).verdict == "benign"
    judged = opdump.compare(other.path, wrong.path)
    assert judged.verdict == "divergent"
    assert judged.introduced[0].op.op_type == "LayerNorm"
    assert "epsilon: 1e-05 in A, 0.001 in B" in judged.introduced[0].evidence


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_gradients_of_convolutions_run_again(dumps: Dumps, mode: str) -> None:
    """MindSpore dispatches none of these in PyNative mode, so their inputs are those of the forward operators."""
    nodes = read_step(dumps.of(f"convolutional {mode}"), 0, 0).nodes
    gradients = {"BatchNormGrad", "Conv2DBackpropFilter", "Conv2DBackpropInput", "MaxPoolGrad", "SoftplusGrad"}
    found = [node for node in nodes if node.op.op_type in gradients]
    assert {node.op.op_type for node in found} == gradients
    assert [each for node in found for each in differences(node, recorded_inputs(node))] == []


def test_every_part_of_a_tensor_and_its_gradient_has_a_maker_in_pynative_mode(dumps: Dumps) -> None:
    """MindSpore dispatches neither an index of a tensor nor the copies and the scatter of its gradient."""
    nodes = read_step(dumps.of("indexed pynative", 3), 0, 0).nodes
    assert [node.op.line for node in nodes if node.op.op_type == "Contiguous" and 0 not in node.makers] == []
    of_sort = [node for node in nodes if node.op.op_type == "Grad_Sort"]
    assert of_sort
    assert all(node.makers for node in of_sort)
    parts = [node for node in nodes if node.op.op_type == "StridedSliceGrad"]
    last = next(node for node in parts if node.op.arguments["part"]["of"] == [3, 5])
    assert last.op.arguments["part"] == {"of": [3, 5], "shape": [3, 3], "offset": 2, "strides": [5, 1]}
    assert {node.op.phase for node in nodes for maker in node.makers.values() if nodes[maker[0]] is last} == {
        "backward"
    }


def test_gradients_of_parts_means_and_stacks_run_again(dumps: Dumps) -> None:
    nodes = read_step(dumps.of("indexed pynative", 3), 0, 0).nodes
    gradients = {"RealDiv", "SoftplusGrad", "StridedSliceGrad", "UnsortedSegmentSum", "Unstack"}
    found = [node for node in nodes if node.op.op_type in gradients]
    assert {node.op.op_type for node in found} == gradients
    assert [each for node in found for each in differences(node, recorded_inputs(node))] == []


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_another_part_is_named_and_a_square_by_a_product_is_no_difference(dumps: Dumps, mode: str) -> None:
    plain, product, wrong = (dumps.of(f"indexed {mode}", size) for size in (3, 3.5, 2))
    assert opdump.compare(plain.path, product.path).verdict == "benign"
    judged = opdump.compare(plain.path, wrong.path)
    assert judged.verdict == "divergent"
    assert judged.introduced[0].op.phase == "forward"


def test_a_part_is_the_same_in_both_modes_and_another_part_is_not(dumps: Dumps) -> None:
    plain, same, wrong = dumps.of("indexed graph", 3), dumps.of("indexed pynative", 3), dumps.of("indexed pynative", 2)
    assert opdump.compare(plain.path, same.path).verdict == "benign"
    judged = opdump.compare(plain.path, wrong.path)
    assert judged.verdict == "divergent"
    assert judged.introduced[0].op.phase == "forward"


@pytest.mark.parametrize("paddings", [[0, 0, 1, 1], [1, 2], [0, 0, -1, -1], [-1, 2, 0, -1]])
def test_padding_with_a_constant_is_that_of_numpy(paddings: list[int]) -> None:
    """MindSpore's kernel is wrong for some negative paddings, so float64 does not use it."""
    x = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    arguments = {"paddings": paddings, "mode": "constant"}
    op = OpRecord("PadV3", "PadV3", 0, arguments=arguments, kernel="mindspore::PadV3", graph_id=PYNATIVE)
    given = TensorRecord(op, "input", 0, "float64", x.shape, argument="x")
    (found,) = required_replayer(op).run(op, {0: given}, {0: x}).outputs.values()
    wide = np.pad(x, [(3, 3)] * 3)
    around = [(0, 0)] * (3 - len(paddings) // 2) + list(zip(paddings[::2], paddings[1::2], strict=True))[::-1]
    cut = (slice(3 - low, 3 + size + high) for (low, high), size in zip(around, x.shape, strict=True))
    assert np.array_equal(found, wide[tuple(cut)])


def test_operators_of_a_compiled_step_have_phases(dumps: Dumps) -> None:
    ops_of_step = tuple(dumps.of("graph").ops(step=0))
    phases = {(op.op_type, op.phase) for op in ops_of_step}
    assert {("LayerNorm", "forward"), ("LayerNormGrad", "backward"), ("SGD", "optimizer")} <= phases
    assert {phase for op_type, phase in phases if op_type == "SGD"} == {"optimizer"}
    expanded = {op.phase for op in ops_of_step if op.op_name.startswith("Expand/")}
    assert expanded == {"forward", "backward"}
    assert {op.phase for op in ops_of_step if op.op_name.startswith("Gradients/")} == {"backward"}


def test_the_optimizer_of_pynative_mode_reads_the_gradients_of_the_backward(dumps: Dumps) -> None:
    records = dumps.of("convolutional pynative").tensors(step=0)
    sources = [record.source for record in records if record.argument == "gradient" and record.io == "input"]
    assert len(sources) == 4
    assert all(source.startswith("Gradients/") for source in sources)


if __name__ == "__main__":
    train(sys.argv[1], float(sys.argv[2]))
