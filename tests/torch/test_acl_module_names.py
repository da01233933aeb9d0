"""acl.json with PyTorch: names from `named_modules()` in `layer`, ranges and blacklists, at every `dump_level`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import opdump
from opdump.plan import Exclusion, ModelSelection, OperatorRange
from tests.torch.test_acl_layout import acl_plan


class Block(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential(nn.Conv2d(channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + self.downsample(x))
        return result


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(Block(4), Block(4))
        self.layer2 = nn.ModuleList([Block(4, 2), Block(4)])
        self.heads = nn.ModuleDict({"first-head": nn.Linear(4, 3), "second": nn.Linear(4, 2)})
        self.again = self.heads["second"]

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.conv1(x))
        for block in self.layer2:
            x = block(x)
        x = x.mean((2, 3))
        return torch.cat([self.heads["first-head"](x), self.heads["second"](x), self.again(x)], 1)


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def dumped(path: Path, net: nn.Module, *entries: ModelSelection, level: str, **fields: Any) -> tuple[list[str], Any]:
    """The names of what one inference dumped, in the order of calls, and the report."""
    with torch.no_grad(), opdump.capture(acl_plan(path, *entries, level=level, **fields)) as dump:
        net.eval()(IMAGES if isinstance(net, ResNet) or "ResNet" in repr(net) else torch.ones(2, 5, 8))
    assert dump.report is not None
    files = any(path.iterdir())
    names = [execution.op.op_name for execution in opdump.open(path).executions()] if files else []
    return names, dump.report


def scopes(names: Sequence[str]) -> list[str]:
    """The scopes below the network, without kernel numbers and class names."""
    found = []
    for name in names:
        parts = [part.rpartition("-")[0] for part in name.split("/")[2:]]
        found.append(".".join(parts) + ("" if "-op" in name or "-call" in name else "()"))
    return found


@pytest.mark.parametrize(
    ("layer", "calls", "kernels"),
    [
        ("conv1", ["conv1()"], ["conv1.convolution"]),
        ("layer1.0.conv2", ["layer1.0.conv2()"], ["layer1.0.conv2.convolution"]),
        ("layer2.1.downsample.0", ["layer2.1.downsample.0()"], ["layer2.1.downsample.0.convolution"]),
        (
            "layer2.1.downsample",
            ["layer2.1.downsample.0()", "layer2.1.downsample.1()"],
            ["layer2.1.downsample.0.convolution", "layer2.1.downsample.1.native_batch_norm"],
        ),
        ("heads.first-head", ["heads.first-head()"], ["heads.first-head.addmm"]),
        ("heads.second", ["heads.second()"] * 2, ["heads.second.addmm"] * 2),
        ("again", ["heads.second()"] * 2, ["heads.second.addmm"] * 2),
        ("layer1.0.relu", ["layer1.0.relu()"] * 2, ["layer1.0.relu.relu"] * 2),
    ],
)
def test_a_module_is_chosen_by_its_name_at_every_level(
    layer: str, calls: list[str], kernels: list[str], tmp_path: Path
) -> None:
    entry = ModelSelection(model_name="ResNet", layers=(layer,))
    for level, expected in (("op", calls), ("kernel", kernels), ("all", [*calls, *kernels])):
        names, report = dumped(tmp_path / level, ResNet(), entry, level=level)
        assert sorted(scopes(names)) == sorted(expected), level
        assert report.warnings == ()


def test_every_name_of_named_modules_means_that_module_at_the_level_op(tmp_path: Path) -> None:
    net = ResNet()
    everything, _ = dumped(tmp_path / "all", net, ModelSelection(model_name="ResNet"), level="op")
    calls = [scope for scope in scopes(everything) if scope.endswith("()")]
    assert len(calls) > 20
    layers = [name for name, _ in net.named_modules() if name]
    for number, layer in enumerate(layers):
        wanted = [call for call in calls if f"{call[:-2]}.".startswith(f"{layer}.")]
        names, report = dumped(
            tmp_path / str(number), net, ModelSelection(model_name="ResNet", layers=(layer,)), level="op"
        )
        if layer == "heads.second":
            wanted = ["heads.second()"] * 2
        found = [scope for scope in scopes(names) if scope.endswith("()")]
        assert found == wanted, layer
        # A ModuleList is never called; the operators of its modules have its name in their scope.
        assert report.warnings == (), layer


def test_names_work_without_class_names_in_scopes(tmp_path: Path) -> None:
    entry = ModelSelection(model_name="ResNet", layers=("heads.first-head", "layer1.1.bn2"))
    names, report = dumped(tmp_path, ResNet(), entry, level="all", class_names_in_scope=False)
    assert {name.rpartition("/")[2].partition("-op")[0] for name in names} == {
        "first-head",
        "addmm",
        "bn2",
        "native_batch_norm",
    }
    assert report.warnings == ()


class Averages(nn.Module):
    """Has only buffers, so it is not a network unless `dump_list` names it."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.full((1, 5, 3), 1 / 15))
        self.act = nn.ReLU()
        self.again = nn.ModuleList([self.act])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.again[0](nn.functional.conv1d(x, self.kernel))
        return result


@pytest.mark.parametrize("layer", ["act", "again.0"])
@pytest.mark.parametrize(("level", "expected"), [("op", ["act()"]), ("kernel", ["act.relu"])])
def test_modules_of_a_module_without_parameters_have_their_names(
    layer: str, level: str, expected: list[str], tmp_path: Path
) -> None:
    entry = ModelSelection(layers=(layer,))
    names, report = dumped(tmp_path, Averages(), entry, level=level, single_operators=True)
    assert scopes(names) == expected
    assert report.warnings == ()


class Wrapped(nn.Module):
    """Contains parts inside the wrappers that programs use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(nn.Linear(8, 8), backend="eager")
        self.second = checkpoint_wrapper(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


@pytest.mark.parametrize("layer", ["second.0", "second._checkpoint_wrapped_module.0"])
def test_the_part_of_a_name_that_a_wrapper_adds_is_optional(layer: str, tmp_path: Path) -> None:
    entry = ModelSelection(model_name="Wrapped", layers=(layer,))
    names, report = dumped(tmp_path, Wrapped(), entry, level="kernel")
    assert [name.rpartition("/")[2].partition("-op")[0] for name in names] == ["addmm"]
    assert report.warnings == ()


@pytest.mark.parametrize("layer", ["first", "first._orig_mod"])
def test_a_compiled_part_is_chosen_by_its_name_with_and_without_the_prefix(layer: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    entry = ModelSelection(model_name="Wrapped", layers=(layer,))
    names, report = dumped(tmp_path, Wrapped(), entry, level="kernel")
    assert len(names) == 1
    assert report.warnings == ()


@pytest.mark.parametrize("layer", ["layer1.0.conv1", "_orig_mod.layer1.0.conv1"])
def test_names_of_a_compiled_model_that_runs_eagerly(layer: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(ResNet(), backend="eager")
    plan = acl_plan(tmp_path, ModelSelection(model_name="ResNet", layers=(layer,)))
    with torch.no_grad(), opdump.capture(plan, eager=True) as dump:
        compiled.eval()(IMAGES)
    (name,) = [execution.op.op_name for execution in opdump.open(tmp_path).executions()]
    assert "/layer1-Sequential/0-Block/conv1-Conv2d/" in name
    assert dump.report is not None
    assert dump.report.warnings == ()


def _in_data_parallel(net: nn.Module) -> nn.Module:
    return nn.DataParallel(net)


@pytest.mark.parametrize("layer", ["layer1.0.conv1", "module.layer1.0.conv1"])
@pytest.mark.parametrize("model", ["ResNet", "DataParallel"])
@pytest.mark.parametrize("level", ["op", "kernel"])
def test_a_wrapper_for_several_devices_is_looked_through(model: str, layer: str, level: str, tmp_path: Path) -> None:
    entry = ModelSelection(model_name=model, layers=(layer,))
    names, report = dumped(tmp_path, _in_data_parallel(ResNet()), entry, level=level)
    assert len(names) == 1
    assert "/layer1-Sequential/0-Block/conv1-Conv2d" in names[0]
    assert report.warnings == ()


def test_modules_of_a_transformer_are_chosen_by_their_names(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.encoder(x))
            return result

    names, report = dumped(
        tmp_path / "op", Model(), ModelSelection(model_name="Model", layers=("encoder", "head")), level="op"
    )
    assert scopes(names) == ["encoder()", "head()"]
    assert report.warnings == ()
    # A module of PyTorch was recorded as one call; at the level kernel, operators of its parts, which the program did not call, are recorded.
    entry = ModelSelection(model_name="Model", layers=("encoder.layers.1", "encoder.layers.1.norm2"))
    names, report = dumped(tmp_path / "kernel", Model(), entry, level="kernel")
    assert names
    assert all("/layers-ModuleList/1-TransformerEncoderLayer" in name for name in names)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("layer1.1.conv1", "layer1.1.conv2", ["conv1()", "bn1()", "relu()", "conv2()"]),
        ("layer1.1.downsample", "layer1.1.downsample", ["downsample.0()", "downsample.1()"]),
        ("layer1.1.bn2", "layer1.1.downsample", ["bn2()", "downsample.0()", "downsample.1()"]),
    ],
)
def test_a_range_goes_from_the_first_operator_of_a_module_to_the_last_of_another(
    first: str, last: str, expected: list[str], tmp_path: Path
) -> None:
    entry = ModelSelection(model_name="ResNet", ranges=(OperatorRange(first, last),))
    names, report = dumped(tmp_path, ResNet(), entry, level="op")
    assert [scope for scope in scopes(names) if scope.endswith("()")] == [f"layer1.1.{each}" for each in expected]
    assert report.warnings == ()


def test_blacklists_know_modules_at_the_level_op(tmp_path: Path) -> None:
    entry = ModelSelection(
        model_name="ResNet",
        layers=("layer1.0.conv1", "layer1.1.conv1"),
        name_exclusions=(Exclusion("layer1.0", inputs=frozenset({0})),),
        type_exclusions=(Exclusion("Conv2d", outputs=frozenset({0})),),
    )
    _, report = dumped(tmp_path, ResNet(), entry, level="op")
    sides = [(len(each.inputs), len(each.outputs)) for each in opdump.open(tmp_path).executions()]
    assert sides == [(1, 0), (2, 0)]  # only the weight of each
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        (
            ModelSelection(model_name="ResNet", layers=("layer1.0.conv3",)),
            ["dump_list.layer: 'layer1.0.conv3' is not an operator or module that ran; nearest: 'layer1.0.conv"],
        ),
        (
            ModelSelection(model_name="ResNet", layers=("Layer1.0",)),
            ["'Layer1.0' is not an operator or module that ran; nearest: 'layer1.0'"],
        ),
        (
            ModelSelection(model_name="Resnet", layers=("conv1",)),
            ["dump_list.model_name: no model is called 'Resnet'; there are 'ResNet'; nearest: 'ResNet'"],
        ),
        (
            ModelSelection(
                model_name="ResNet",
                name_exclusions=(Exclusion("cnv1", inputs=frozenset({0})),),
                type_exclusions=(Exclusion("Conv2D", outputs=frozenset({0})),),
            ),
            ["dump_list.opname_blacklist: 'cnv1'", "dump_list.optype_blacklist: 'Conv2D' is not the type of any"],
        ),
        (
            ModelSelection(model_name="ResNet", ranges=(OperatorRange("layer2.0", "conv1"),)),
            ["dump_list.opname_range: 'conv1' runs before 'layer2.0', so the range is empty"],
        ),
        (
            ModelSelection(model_name="ResNet", ranges=(OperatorRange("conv1", "layer3"),)),
            ["dump_list.opname_range: 'layer3' is not an operator or module that ran; nearest: 'layer"],
        ),
    ],
)
def test_names_that_match_nothing_are_reported_with_the_nearest(
    entry: ModelSelection, texts: list[str], tmp_path: Path
) -> None:
    _, report = dumped(tmp_path, ResNet(), entry, level="op")
    assert len(report.warnings) == len(texts)
    for text, warning in zip(texts, report.warnings, strict=True):
        assert text in warning


def test_modules_that_are_added_between_two_calls_have_names(tmp_path: Path) -> None:

    net = nn.Sequential()
    net.add_module("one", nn.Conv2d(3, 4, 1))
    plan = acl_plan(tmp_path, ModelSelection(model_name="Sequential", layers=("two",)), level="op")
    with torch.no_grad(), opdump.capture(plan):
        net(IMAGES)
        net.add_module("two", nn.Conv2d(4, 4, 1))
        net(IMAGES)
    names = [execution.op.op_name for execution in opdump.open(tmp_path).executions()]
    assert names == ["Default/network-Sequential/two-Conv2d"]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch was built without torch.distributed")
def test_distributed_data_parallel_is_looked_through_by_names_and_by_marks(tmp_path: Path) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = ResNet()
        parallel = nn.parallel.DistributedDataParallel(net)
        for number, layer in enumerate(("layer1.0.conv1", "module.layer1.0.conv1")):
            entry = ModelSelection(model_name="ResNet", layers=(layer,))
            names, report = dumped(tmp_path / f"acl{number}", parallel, entry, level="op")
            assert [name.rpartition("/")[2] for name in names] == ["conv1-Conv2d"]
            assert report.warnings == ()
        opdump.set_dump(net.conv1)
        with torch.no_grad(), opdump.capture(path=tmp_path / "marked", selection="marked"):
            parallel(IMAGES)
        assert [op.op_type for op in opdump.open(tmp_path / "marked").ops() if not op.skip] == ["convolution"]
        opdump.set_dump(net.conv1, enabled=False)
    finally:
        distributed.destroy_process_group()
