"""Comparisons of a network under PyTorch with its export under ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import opdump
from opdump.comparison.result import Introduced

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from torch import Tensor, nn
from torch.nn import functional

from tests.comparison.networks import NETWORKS, Block, Exporter, Layer, dump_onnx, dump_torch, network


@pytest.mark.parametrize("exporter", ["folded", "plain"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_is_benign_and_matched(name: str, exporter: Exporter, tmp_path: Path) -> None:
    model, given = network(name)
    result = opdump.compare(
        dump_torch(model, given, tmp_path / "torch"), dump_onnx(model, given, tmp_path / "onnx", exporter)
    )
    assert (result.verdict, list(result.introduced)) == ("benign", [])
    assert result.unmatched <= 0.02 * (result.matched + result.unmatched)


def planted(name: str, change: Callable[[nn.Module], None], path: Path, exporter: Exporter = "plain") -> Introduced:
    """The comparison of a network with a modified export of it, checked to be the same in the other order."""
    model, given = network(name)
    original = dump_torch(model, given, path / "torch")
    change(model)
    exported = dump_onnx(model, given, path / "onnx", exporter)
    result, reverse = opdump.compare(original, exported), opdump.compare(exported, original)
    assert (result.verdict, reverse.verdict) == ("divergent", "divergent")
    assert (len(result.introduced), len(reverse.introduced)) == (1, 1)
    found, turned = result.introduced[0], reverse.introduced[0]
    assert (found.a, found.b) == (turned.b, turned.a)
    return found


def scaled_epsilon(model: nn.Module) -> None:
    """Change the epsilon of one batch norm."""
    block = model.get_submodule("layers.1")
    assert isinstance(block, Block)
    block.norm.eps = 1e-3


@pytest.mark.parametrize("exporter", ["folded", "plain"])
def test_another_epsilon_of_a_batch_norm_is_named(exporter: Exporter, tmp_path: Path) -> None:
    found = planted("resnet", scaled_epsilon, tmp_path, exporter)
    assert found.kind == "argument"
    assert found.evidence.startswith("eps: 1e-05 in A, as if 0.001 in B")
    assert found.a is not None
    assert found.b is not None
    assert (found.a.op_type, found.a.op_name.split("/")[-2]) == ("native_batch_norm", "norm-BatchNorm2d")
    assert found.b.op_type == ("Conv" if exporter == "folded" else "BatchNormalization")


def test_an_epsilon_that_changes_the_sixth_digit_is_named(tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        layer = model.get_submodule("layers.0")
        assert isinstance(layer, Layer)
        layer.norm.eps = 1e-6

    found = planted("transformer", change, tmp_path)
    assert found.evidence.startswith("eps: 1e-05 in A, as if 1e-06 in B")


def test_another_gelu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = functional.gelu

    def change(_: nn.Module) -> None:
        monkeypatch.setattr(functional, "gelu", lambda x: gelu(x, approximate="tanh"))

    model, given = network("transformer")
    model.layers = nn.Sequential(model.get_submodule("layers.0"))
    original = dump_torch(model, given, tmp_path / "torch")
    change(model)
    result = opdump.compare(original, dump_onnx(model, given, tmp_path / "onnx", "plain"))
    assert [(each.kind, each.a and each.a.op_type) for each in result.introduced] == [("argument", "gelu")]
    assert result.introduced[0].evidence.startswith("approximate: none in A, as if tanh in B")
    assert result.introduced[0].a is not None
    assert result.introduced[0].a.line.startswith("networks.py:")


def test_a_parameter_that_differs_is_named_though_all_that_follows_differs_too(tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        weight = model.get_parameter("layers.0.up.weight")
        weight.data[[0, 1]] = weight.data[[1, 0]]

    found = planted("transformer", change, tmp_path)
    assert (found.kind, found.io) == ("parameter", "input")
    assert found.evidence.startswith("Parameter.layers.0.up.weight differs by")
    assert found.a is not None
    assert found.a.op_name.split("/")[-2] == "up-Linear"


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_row_of_a_packed_parameter_is_named(name: str, tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        model.get_parameter("recurrent.weight_hh_l1").data[3, 3] += 0.01

    found = planted(name, change, tmp_path)
    assert found.kind == "parameter"
    assert "Parameter.recurrent.weight_hh_l1" in found.evidence


def test_an_activation_that_is_missing_is_named(tmp_path: Path) -> None:
    class Bare(Block):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = functional.relu(self.other_norm(self.second(self.norm(self.first(x)))) + self.short(x))
            return result

    def change(model: nn.Module) -> None:
        model.get_submodule("layers.1").__class__ = Bare

    found = planted("resnet", change, tmp_path)
    assert (found.kind, found.a and found.a.op_type) == ("missing", "relu")


class _Changed(Layer):
    """The layer with one change."""

    change = ""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        weights = (scores if self.change == "scale" else scores * 8**-0.5).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = y if self.change == "first residual" else x + y
        y = self.up(self.other_norm(x))
        y = self.down(y if self.change == "gelu" else functional.gelu(y))
        result: Tensor = y if self.change == "second residual" else x + y
        return result


@pytest.mark.parametrize(
    ("left_out", "op_type"), [("first residual", "add"), ("second residual", "add"), ("scale", "mul"), ("gelu", "gelu")]
)
def test_an_operator_that_is_missing_is_named_whichever_input_is_passed_on(
    left_out: str, op_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Changed, "change", left_out)

    def change(model: nn.Module) -> None:
        model.get_submodule("layers.0").__class__ = _Changed

    model, given = network("transformer")
    original = dump_torch(model, given, tmp_path / "torch")
    change(model)
    changed = dump_onnx(model, given, tmp_path / "onnx", "plain")
    for result in (opdump.compare(original, changed), opdump.compare(changed, original)):
        assert result.verdict == "divergent"
        first = result.introduced[0]
        found = first.a if first.a is not None and "onnx" not in str(first.a.line) else first.b
        assert found is not None
        assert {each.op_type for each in (first.a, first.b) if each is not None} & {op_type}, first.evidence


def _without_relu(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    class Bare(Block):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = functional.relu(self.other_norm(self.second(self.norm(self.first(x)))) + self.short(x))
            return result

    model.get_submodule("layers.1").__class__ = Bare


def _other_gelu(_: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = functional.gelu
    monkeypatch.setattr(functional, "gelu", lambda x: gelu(x, approximate="tanh"))


def _other_row(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    model.get_parameter("layers.0.up.weight").data[0] += 0.01


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("name", "change"), [("resnet", _without_relu), ("transformer", _other_gelu), ("transformer", _other_row)]
)
def test_rows_of_only_one_run_are_operators_counted_without_a_counterpart(
    name: str,
    change: Callable[[nn.Module, pytest.MonkeyPatch], None],
    turned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, given = network(name)
    dumps = [dump_torch(model, given, tmp_path / "torch")]
    change(model, monkeypatch)
    dumps.append(dump_onnx(model, given, tmp_path / "onnx", "plain"))
    result = opdump.compare(*(dumps[::-1] if turned else dumps))
    assert result.verdict == "divergent"
    rows = [each.cells() for each in result.window]
    alone = [row for row in rows if row[-1].startswith("only in")]
    assert len(alone) <= result.unmatched
    assert all(("+" in row[0] or "-" in row[0]) == (row in alone) for row in rows)
    lost = [each for each in result.introduced if each.kind in ("missing", "extra")]
    assert len(lost) <= result.unmatched


def test_networks_that_have_nothing_in_common_are_incomparable(tmp_path: Path) -> None:
    one, other = network("lstm"), network("resnet")
    result = opdump.compare(dump_torch(*one, tmp_path / "torch"), dump_onnx(*other, tmp_path / "onnx", "plain"))
    assert (result.verdict, list(result.introduced)) == ("incomparable", [])
