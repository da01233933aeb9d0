"""PyTorch under an acl.json: models, single operators, statistics, conversion, and calls of the program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opdump
from opdump.adapters.torch.schemas import schema_of
from opdump.commands import main
from opdump.layouts.ascend.operator_files import OperatorRow, decode_operator_csv
from opdump.msaccucmp.command_line import run as msaccucmp
from opdump.plan import DumpPlan, Exclusion, ModelSelection, OperatorRange, StepSet
from opdump.statistics import DEVICE_DEFAULT
from tests.torch.programs import PROGRAMS


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.block = nn.Sequential(nn.ReLU(), nn.Flatten())
        self.fc = nn.Linear(2 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.fc(self.block(self.conv1(x))), -1)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(x)
        return result


IMAGES = torch.ones(1, 1, 6, 6)


def acl_plan(path: Path, *models: ModelSelection, level: Any = "kernel", **fields: Any) -> DumpPlan:
    fields.setdefault("single_operators", not models)
    return DumpPlan(
        path=path,
        models=models or None,
        dump_level=level,
        layout="acl",
        file_format="bin",
        dialect="acl",
        **fields,
    )


def files(path: Path) -> list[str]:
    """The files below `{time}/{device}`, without the numbers at the end of their names."""
    found = [file for file in path.rglob("*") if file.is_file() and ".dump_metadata" not in file.parts]
    parts = sorted("/".join(file.relative_to(path).parts[2:]).rsplit(".", 3)[0] for file in found)
    return [part.partition("Default_network-")[0] + part.rpartition("_")[2] for part in parts]


def kinds(path: Path) -> list[str]:
    return [execution.op.op_type for execution in opdump.open(path).executions()]


def test_a_named_root_module_is_a_model_and_what_runs_outside_is_not(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, ModelSelection(model_name="LeNet"))):
        Head()(LeNet()(IMAGES))
        torch.ones(2).neg()
    directories = {file.parent.relative_to(tmp_path).parts[1:] for file in tmp_path.rglob("*.65535.65535.*")}
    assert directories == {("0", "LeNet", "1", "0")}
    assert kinds(tmp_path) == ["convolution", "relu", "addmm", "_softmax"]


def test_every_execution_of_a_model_has_the_next_data_index(tmp_path: Path) -> None:
    net = LeNet()
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, ModelSelection(model_name="LeNet"))):
        for _ in range(3):
            net(IMAGES)
    found = [execution.op.step for execution in opdump.open(tmp_path).executions()]
    assert found == [0] * 4 + [1] * 4 + [2] * 4


def test_dump_step_counts_executions_of_the_model(tmp_path: Path) -> None:
    net = LeNet()
    plan = acl_plan(tmp_path, ModelSelection(model_name="LeNet"), steps=StepSet.parse("0|2-3"))
    with torch.no_grad(), opdump.capture(plan):
        for _ in range(6):
            net(IMAGES)
    assert sorted(int(file.name) for file in next(tmp_path.rglob("LeNet/1")).iterdir()) == [0, 2, 3]


def test_two_models_have_two_numbers_and_count_apart(tmp_path: Path) -> None:
    first, second, head = LeNet(), LeNet(), Head()
    entries = ModelSelection(model_name="LeNet"), ModelSelection(model_name="Head")
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, *entries)):
        first(IMAGES)
        head(second(IMAGES))
        first(IMAGES)
    (home,) = tmp_path.glob("*/0")
    found = {str(file.parent.relative_to(home)) for file in home.rglob("*.65535.65535.*")}
    assert found == {"LeNet/1/0", "LeNet/1/1", "LeNet/2/0", "Head/3/0"}


def test_a_model_may_have_a_name_that_the_program_gave_it(tmp_path: Path) -> None:
    net = LeNet()
    opdump.name_model(net, "ResNet-50 v1.5")
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, ModelSelection(model_name="ResNet-50 v1.5"))):
        net(IMAGES)
        LeNet()(IMAGES)
    (home,) = tmp_path.glob("*/0")
    assert {str(file.parent.relative_to(home)) for file in home.rglob("*.65535.65535.*")} == {"ResNet-50_v1_5/1/0"}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (("conv1",), ["convolution"]),
        (("block",), ["relu"]),
        (("block.0", "fc"), ["relu", "addmm"]),
        (("Default/network-LeNet/fc-Linear",), ["addmm"]),
        (("_softmax-op5",), ["_softmax"]),
        (("Default/network-LeNet/conv1-Conv2d/convolution-op0",), ["convolution"]),
        (("Conv1", "convolution"), []),
    ],
)
def test_layer_takes_full_names_last_components_scopes_and_paths_of_modules(
    layers: Sequence[str], expected: list[str], tmp_path: Path
) -> None:
    plan = acl_plan(tmp_path, ModelSelection(model_name="LeNet", layers=tuple(layers)))
    net = LeNet()
    with torch.no_grad(), opdump.capture(plan) as dump:
        net(IMAGES)
    assert dump.report is not None
    if not expected:
        assert len(dump.report.warnings) == len(layers)
        assert not list(tmp_path.rglob("*.65535.*"))
        return
    assert kinds(tmp_path) == expected
    assert dump.report.warnings == ()


def test_gradients_belong_to_the_model_and_the_optimizer_does_not(tmp_path: Path) -> None:
    net = LeNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with opdump.capture(acl_plan(tmp_path, ModelSelection(model_name="LeNet"))):
        for _ in range(2):
            net(IMAGES).sum().backward()
            optimizer.step()
    executions = list(opdump.open(tmp_path).executions())
    assert {execution.op.phase for execution in executions} == {"forward", "backward"}
    assert {execution.op.step for execution in executions if execution.op.phase == "backward"} == {0, 1}
    assert not any(execution.op.op_type == "Parameter" for execution in executions)


def test_blacklists_leave_out_inputs_and_outputs_by_type_and_by_name(tmp_path: Path) -> None:
    entry = ModelSelection(
        model_name="LeNet",
        type_exclusions=(Exclusion("convolution", inputs=frozenset({1, 2})),),
        name_exclusions=(Exclusion("fc", outputs=frozenset({0})),),
    )
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, entry)):
        LeNet()(IMAGES)
    by_type = {execution.op.op_type: execution for execution in opdump.open(tmp_path).executions()}
    assert list(by_type["convolution"].inputs) == [0]
    assert list(by_type["convolution"].outputs) == [0]
    assert len(by_type["addmm"].inputs) == 3
    assert not by_type["addmm"].outputs


def test_a_range_holds_its_ends_and_what_lies_between(tmp_path: Path) -> None:
    entry = ModelSelection(model_name="LeNet", ranges=(OperatorRange("block.0", "fc"),))
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, entry)):
        net = LeNet()
        net(IMAGES)
        net(IMAGES)
    assert kinds(tmp_path) == ["relu", "addmm"] * 2


def test_kernels_of_single_operators_have_names_of_the_api_and_two_files(tmp_path: Path) -> None:
    x = torch.arange(3.0)
    with opdump.capture(acl_plan(tmp_path)):
        x + 1
        x.mul_(2)
    (home,) = tmp_path.glob("*/0")
    names = sorted(file.name for file in home.iterdir() if file.is_file())
    assert [name.split(".")[:4] for name in names] == [
        ["aclnnAdd_0_L2", "aclnnAdd", "65535", "65535"],
        ["aclnnAdd_0_L2", "aclnnAdd", "65535", "65535"],
        ["aclnnInplaceMul_1_L2", "aclnnInplaceMul", "65535", "65535"],
        ["aclnnInplaceMul_1_L2", "aclnnInplaceMul", "65535", "65535"],
    ]
    dumped = [opdump.read_dump_file(home / name) for name in names]
    assert [(len(file.inputs), len(file.outputs)) for file in dumped] == [(1, 0), (0, 1)] * 2
    held = [file.tensors[0].to_host().tolist() for file in dumped]
    assert held == [[0, 1, 2], [1, 2, 3], [0, 1, 2], [0, 2, 4]]
    assert kinds(tmp_path) == ["add", "mul_"]


def test_the_level_op_is_what_the_program_called(tmp_path: Path) -> None:
    net = LeNet()
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, level="op")):
        result = net(IMAGES)
        loss = functional.cross_entropy(result, torch.tensor([1]))
        result[0, 0] = 3
    executions = list(opdump.open(tmp_path).executions())
    assert [execution.op.op_type for execution in executions] == [
        *("Conv2d", "ReLU", "Linear", "softmax", "cross_entropy", "setitem")
    ]
    assert executions[0].op.op_name == "Default/network-LeNet/conv1-Conv2d"
    assert executions[3].op.op_name.startswith("Default/network-LeNet/softmax-call")
    payload = executions[4].outputs[0].payload
    assert payload is not None
    assert payload.to_host() == loss.numpy()
    (before,) = [record for record in executions[5].inputs.values() if record.payload is not None][:1]
    assert before.payload is not None
    assert before.payload.to_host()[0, 0] != 3
    assert all(execution.op.stack[0].file == __file__ for execution in executions)


def test_a_module_at_the_level_op_has_its_parameters_and_buffers_after_the_inputs_of_the_call(tmp_path: Path) -> None:
    norm = nn.BatchNorm2d(2)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(32, 3, bias=False))
    lookup = nn.Embedding(5, 2)
    expected = {
        "Conv2d": [IMAGES, *net[0].parameters()],
        "BatchNorm2d": [net[0](IMAGES), *(each.clone() for each in (*norm.parameters(), *norm.buffers()))],
        "Linear": [net[1](net[0](IMAGES)).flatten(1), *net[3].parameters()],
        "Embedding": [torch.tensor([3, 1]), lookup.weight],
    }
    norm.reset_running_stats()
    with opdump.capture(acl_plan(tmp_path, level="op")):
        net(IMAGES)
        lookup(torch.tensor([3, 1]))
    found = {execution.op.op_type: execution.inputs for execution in opdump.open(tmp_path).executions()}
    for kind, tensors in expected.items():
        inputs = found[kind]
        assert list(inputs) == list(range(len(tensors))), kind
        for given, tensor in zip(inputs.values(), tensors, strict=True):
            # Running averages, too, have the values from before the call.
            assert np.array_equal(given.numpy(), tensor.detach().numpy()), kind
    assert [given.argument for given in found["Conv2d"].values()] == ["[0]", "weight", "bias"]
    assert not found["BatchNorm2d"][3].numpy().any()


def test_a_blacklist_leaves_the_weight_of_a_module_out(tmp_path: Path) -> None:
    entry = ModelSelection(model_name="LeNet", type_exclusions=(Exclusion("Conv2d", inputs=frozenset({1})),))
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, entry, level="op")):
        LeNet()(IMAGES)
    (convolution,) = (each for each in opdump.open(tmp_path).executions() if each.op.op_type == "Conv2d")
    # As on a device, the file has no gap, so the bias is the second input.
    assert [record.shape for record in convolution.inputs.values()] == [(1, 1, 6, 6), (2,)]


def test_the_level_all_is_both(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, ModelSelection(model_name="LeNet"), level="all")):
        LeNet()(IMAGES)
    assert sorted(kinds(tmp_path)) == sorted(
        ["Conv2d", "ReLU", "Linear", "softmax", "convolution", "relu", "addmm", "_softmax"]
    )


def test_attention_takes_the_same_path_as_without_capture(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.inference_mode():
        plain = layer(x)
        with opdump.capture(acl_plan(tmp_path, level="all")):
            captured = layer(x)
    assert torch.equal(plain, captured)
    assert kinds(tmp_path)[0] == "TransformerEncoderLayer"
    assert "_transformer_encoder_layer_fwd" in kinds(tmp_path)


def test_statistics_are_one_table_for_each_operator(tmp_path: Path) -> None:
    plan = acl_plan(
        tmp_path,
        ModelSelection(model_name="LeNet", layers=("fc",)),
        saved_data="statistic",
        statistic_category=("max", "min", "avg", "nan count", "negative inf count", "positive inf count"),
    )
    net = LeNet()
    with torch.no_grad(), opdump.capture(plan):
        net(IMAGES)
    (table,) = tmp_path.rglob("*.csv")
    lines = table.read_text().splitlines()
    assert lines[0].startswith("Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value")
    assert [line.split(",")[0] for line in lines[1:]] == ["Input", "Input", "Input", "Output"]
    assert table.name.startswith("addmm.Default_network-LeNet_fc-Linear_addmm-op4.65535.65535.")


def test_a_file_of_the_dialect(tmp_path: Path) -> None:
    config = {
        "dump": {
            "dump_path": str(tmp_path / "output"),
            "dump_list": [{"model_name": "LeNet", "layer": ["fc"]}],
            "dump_mode": "all",
            "dump_level": "kernel",
            "dump_op_switch": "off",
        }
    }
    (tmp_path / "output").mkdir()
    file = tmp_path / "acl.json"
    file.write_text(json.dumps(config))
    net = LeNet()
    with torch.no_grad(), opdump.capture(file):
        result = net.fc(net.block(net.conv1(IMAGES)))
        net(IMAGES)
    (executed,) = opdump.open(tmp_path / "output").executions()
    payload = executed.outputs[0].payload
    assert payload is not None
    assert np.array_equal(payload.to_host(), result.numpy())


class Filter(nn.Module):
    """Has no parameter, only a buffer."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.full((1, 1, 3, 3), 1 / 9))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.kernel)


@pytest.mark.parametrize("way", ["its class is named", "it has a name", "around another module"])
def test_a_model_that_is_named_needs_no_parameter(way: str, tmp_path: Path) -> None:
    name = "Filter" if way == "its class is named" else "smooth"
    net: nn.Module = nn.Sequential(Filter(), nn.ReLU()) if way == "around another module" else Filter()
    if name == "smooth":
        opdump.name_model(net, name)
    with torch.no_grad(), opdump.capture(acl_plan(tmp_path, ModelSelection(model_name=name))):
        functional.relu(net(IMAGES))
    assert {file.rpartition("/")[2].partition(".")[0] for file in files(tmp_path)} >= {"convolution"}
    (home,) = tmp_path.glob(f"*/0/{name}")
    assert home.is_dir()


def test_the_sample_for_single_operators_dumps_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "acl.json"
    (tmp_path / "output").mkdir()
    config = {"dump_path": str(tmp_path / "output"), "dump_list": [], "dump_op_switch": "on", "dump_data": "tensor"}
    file.write_text(json.dumps({"dump": config}))
    with opdump.capture(file):
        torch.ones(3) + 1
    (home,) = (tmp_path / "output").glob("*/0")
    assert {name.name.split(".")[1] for name in home.iterdir() if name.is_file()} >= {"aclnnAdd"}


def test_stop_after_dump_ends_with_the_next_call(tmp_path: Path) -> None:
    net = LeNet()
    plan = acl_plan(tmp_path, ModelSelection(model_name="LeNet"), steps=StepSet.parse("0-1"))
    calls = 0
    with torch.no_grad(), opdump.capture(plan, stop_after_dump=True):
        for _ in range(10):
            net(IMAGES)
            calls += 1
    assert calls == 2


def test_an_operator_that_fails_leaves_what_was_read_of_it(tmp_path: Path) -> None:
    with opdump.capture(acl_plan(tmp_path)), pytest.raises(RuntimeError):
        torch.ones(2, 3) + torch.ones(2, 4)
    failed = list(opdump.open(tmp_path).executions())[-1]
    assert [record.shape for record in failed.inputs.values()] == [(2, 3), (2, 4)]
    assert not failed.outputs


def test_a_compiled_function_is_compiled_as_without_capture(tmp_path: Path) -> None:
    torch._dynamo.reset()
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    @torch.compile(backend=counting, fullgraph=True)
    def scaled(x: Tensor) -> Tensor:
        return torch.sigmoid(x) * 3

    plain = scaled(torch.ones(3))
    with opdump.capture(acl_plan(tmp_path, level="all")):
        captured = scaled(torch.ones(3))
        called = captured + 1
    assert torch.equal(plain, captured)
    assert torch.equal(called, plain + 1)
    assert len(graphs) == 1
    assert [kind for kind in kinds(tmp_path) if kind != "ones"][-3:] == ["compiled_scaled", "add", "add"]


def _rows(root: Path) -> list[OperatorRow]:
    return [
        row
        for path in sorted(root.rglob("*.csv"))
        if path.name != "mapping.csv"
        for row in decode_operator_csv(path.read_bytes(), where=str(path))
    ]


def _plan(root: Path) -> DumpPlan:
    return DumpPlan(path=root, layout="acl", dialect="acl", saved_data="statistic", statistic_category=DEVICE_DEFAULT)


def test_a_nan_counts_where_it_stands(tmp_path: Path) -> None:
    first, later = torch.tensor([math.nan, 2.0, 1.0]), torch.tensor([2.0, math.nan, 1.0])
    with opdump.capture(_plan(tmp_path)) as dump:
        first + 1
        later + 1
        (later.to(torch.float16)[::2] + 1).sum()
        dump.step()
    found = [(row.dtype, row.shape, row.statistics["max"], row.statistics["nan count"]) for row in _rows(tmp_path)]
    as_text = sorted(f"{dtype} {shape} {greatest:g} {nans}" for dtype, shape, greatest, nans in found if shape == (3,))
    assert as_text == sorted(
        [
            *("float32 (3,) nan 1",) * 2,  # an operand and the sum
            *("float32 (3,) 2 1", "float32 (3,) 3 1"),
            *("float32 (3,) 2 1", "float16 (3,) 2 1"),  # the cast
        ]
    )


def test_whole_numbers_keep_their_digits_and_bfloat16_has_none(tmp_path: Path) -> None:
    big = torch.tensor([2**62 + 1, 0])
    with opdump.capture(_plan(tmp_path)) as dump:
        big.clone()
        torch.ones(2, dtype=torch.bfloat16).neg()
        dump.step()
    (table,) = (path.read_text(encoding="utf-8") for path in tmp_path.rglob("*[cC]lone*.csv"))
    assert "DT_INT64,ND,2,4611686018427387905,0," in table
    assert [row.statistics for row in _rows(tmp_path) if row.dtype == "unknown"]
    assert not any(row.statistics for row in _rows(tmp_path) if row.dtype == "unknown")


def test_the_index_has_the_statistics_of_every_layout(tmp_path: Path) -> None:
    with opdump.capture(_plan(tmp_path)) as dump:
        torch.tensor([2.0, math.nan]).neg()
        dump.step()
    (record,) = [each for each in opdump.open(tmp_path) if each.op.op_type == "neg" and each.io == "output"]
    assert math.isnan(float(record.statistics["max"]))
    assert (record.statistics["nan count"], record.payload) == (1, None)


_Array = npt.NDArray[Any]
_FILLING = frozenset({"fill_.Scalar", "zero_.default", "uniform_.default", "normal_.default", "bernoulli_.float"})
"""They allocate memory whose values are not read, because it is uninitialised."""
_PLACE = re.compile(r"_(\d+)_L2\.")


class _Computed(TorchDispatchMode):
    """Copies what every operator with a kernel reads and writes, independently of the recorder."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self.operators: list[tuple[str, dict[str, list[_Array]]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = _copies((args, kwargs))
        result = func(*args, **kwargs)
        schema = schema_of(func)
        if not schema.kind:
            written = _copies((result, [args[index] for index, _ in schema.written if index < len(args)]))
            self.operators.append((str(func), {"input": read, "output": written}))
        return result


def _copies(values: Any) -> list[_Array]:
    tensors = [leaf.detach() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [(each.float() if each.dtype is torch.bfloat16 else each.clone()).numpy() for each in tensors]


def _low_precision() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = model(torch.ones(2, 5, dtype=torch.bfloat16)).half().exp().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("program", [*PROGRAMS.values(), _low_precision], ids=[*PROGRAMS, "low precision"])
def test_every_file_converts_to_what_was_computed(program: Callable[[], Any], tmp_path: Path) -> None:
    program()  # operators that a library runs on import are not part of the program
    with _Computed() as computed:
        program()
    plan = DumpPlan(
        path=tmp_path / "dump",
        layout="acl",
        dialect="acl",
        file_format="bin",
        dump_level="kernel",
        single_operators=True,
    )
    with opdump.capture(plan) as dump:
        program()
    assert dump.report is not None
    assert dump.report.captured == len(computed.operators)
    (home,) = tmp_path.glob("dump/*/0")
    (tmp_path / "npy").mkdir()
    assert msaccucmp(["convert", "-d", str(home), "-out", str(tmp_path / "npy")]) == 0
    arrays = {file.name: np.load(file) for file in (tmp_path / "npy").iterdir()}
    names: dict[int, list[str]] = {}
    for file in home.iterdir():
        place = _PLACE.search(file.name)
        if place is not None:
            names.setdefault(int(place[1]), []).append(file.name)
    # An operator whose tensors are all empty leaves no file.
    operators = [one for one in computed.operators if any(array.size for side in one[1].values() for array in side)]
    assert sorted(names) == list(range(len(operators)))
    unread = set()
    for number, (operator, tensors) in enumerate(operators):
        for side, computed_arrays in tensors.items():
            for slot, expected in enumerate(computed_arrays):
                (name,) = [name for name in names[number] if f"{name}.{side}.{slot}.npy" in arrays] or [""]
                found = arrays.pop(f"{name}.{side}.{slot}.npy", None)
                if found is None:
                    unread.add((operator.removeprefix("aten."), side))
                else:
                    if expected.size:  # the original msaccucmp returns float64 for empty tensors
                        assert found.dtype == expected.dtype, (operator, side, slot)
                    assert found.reshape(expected.shape).tobytes() == expected.tobytes(), (operator, side, slot)
    assert not arrays
    assert unread <= {(name, "input") for name in _FILLING}


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "acl", "file_format": "bin"},
        {"layout": "mindspore-async", "file_format": "bin"},
    ],
    ids=["acl", "asynchronous"],
)
def test_an_own_dump_is_converted_and_what_is_no_dump_file_is_counted(settings: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "dump"
    with opdump.capture(opdump.DumpPlan(path=root, **settings)):
        torch.nn.Linear(2, 3)(torch.ones(1, 2)).sum().backward()
    (root / "ge_proto_00002_Build.txt").write_text('graph {\n  name: "net"\n}\n')
    for name in ("index.sqlite-journal", "model.onnx", "notes.txt", ".hidden", "train.py"):
        (root / name).write_bytes(b"\x0a")
    (root / "database").write_bytes(b"SQLite format 3\0" + bytes(84))
    assert list(root.rglob("index.sqlite"))
    done = CliRunner().invoke(main, ["convert", str(root), "-o", str(tmp_path / "out"), "--recursive", "--json"])
    said = json.loads(done.output)
    assert said["failures"] == []
    assert done.exit_code == 0
    assert said["tensors"] > 0
    passed_over = {Path(path).name for path in said["skipped"]}
    assert {"index.sqlite", "ge_proto_00002_Build.txt", "database", ".hidden"} <= passed_over
    every = {path for path in root.rglob("*") if path.is_file()}
    assert len(every) == said["converted"] + len(said["skipped"])
    told = CliRunner().invoke(main, ["convert", str(root), "-o", str(tmp_path / "again"), "--recursive"])
    assert f"{len(said['skipped'])} files skipped" in told.output
