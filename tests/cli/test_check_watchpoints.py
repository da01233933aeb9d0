"""`opdump check --watch` on dumps of opdump, of MindSpore and of overflows, from statistics and from elements."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.plan import DumpPlan
from tests.cli.json_shapes import mistakes

pytestmark = pytest.mark.torch

MINDSPORE = Path(__file__).parents[1] / "data" / "mindspore"


def check(dump: Path, *watch: str, options: tuple[str, ...] = ()) -> Result:
    watches = [argument for each in watch for argument in ("--watch", each)]
    return CliRunner().invoke(main, ["check", str(dump), *watches, *options])


def hits(done: Result) -> list[dict[str, Any]]:
    printed = json.loads(done.stdout)
    assert mistakes("check", printed) == []
    return [hit for hit in printed["hits"] if not hit["error_code"]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    plans = (
        DumpPlan(path=folder / "statistic", saved_data="statistic"),
        DumpPlan(path=folder / "full", saved_data="full"),
    )
    for plan in plans:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        with opdump.capture(plan):
            for _ in range(3):
                optimizer.zero_grad()
                torch.relu(layer(torch.randn(3, 4)) + 5).square().mean().backward()
                optimizer.step()
    return folder


def test_a_hit_ends_with_one_and_none_with_zero(trained: Path) -> None:
    found = check(trained / "full", "weight_too_large max_gt=0.1")
    assert found.exit_code == 1
    assert "hits of 1 watchpoint: " in found.output
    clean = check(trained / "full", "weight_too_large max_gt=100", "weight_not_changed")
    assert clean.exit_code == 0
    assert "no hits of 2 watchpoints" in clean.output
    assert "weight_not_changed: 2 tensors of step 0 not checked: no tensor of the previous step" in clean.output


def test_what_statistics_cannot_decide_is_counted_once_for_a_condition(trained: Path) -> None:
    watch = "tensor_range range_start_inclusive=-1 range_end_inclusive=1 range_percentage_gt=60"
    done = check(trained / "statistic", watch, "weight_change_too_large abs_mean_update_ratio_gt=0.9")
    needing = [line for line in done.output.splitlines() if line.endswith("needs values; record them with --full")]
    assert sorted(line.partition(":")[0] for line in needing) == ["tensor_range", "weight_change_too_large"]
    assert "needs elements" not in check(trained / "full", watch).output


def test_one_step_is_compared_with_the_one_before_that_is_not_asked_for(trained: Path) -> None:
    watch = "weight_change_too_large abs_mean_update_ratio_gt=0.0001"
    done = hits(check(trained / "full", watch, options=("--step", "2", "--json")))
    assert [(hit["op_name"], hit["step"]) for hit in done] == [("weight", 2), ("bias", 2)]


def test_hits_are_in_the_order_of_time(trained: Path) -> None:
    found = hits(
        check(trained / "full", "tensor_too_small max_lt=1e9", "weight_too_small max_lt=1e9", options=("--json",))
    )
    times = [hit["timestamp"] for hit in found]
    assert times == sorted(times)
    assert {hit["condition"] for hit in found} == {"tensor_too_small", "weight_too_small"}


def test_a_watchpoint_that_finds_nothing_to_look_at_says_so_unless_it_is_recommended(trained: Path) -> None:
    done = check(trained / "full", "activation_range op=Sigmoid max_min_lt=1", "operator_overflow", "recommended")
    lines = done.output.splitlines()
    assert (
        "activation_range op=Sigmoid max_min_lt=1: nothing was checked (no output of an activation function of Sigmoid)"
        in lines
    )
    assert len([line for line in lines if "nothing was checked" in line]) == 2
    printed = json.loads(check(trained / "full", "tensor_overflow op=Tan", options=("--json",)).stdout)
    assert printed["watchpoints"] == [{"text": "tensor_overflow op=Tan", "tensors": 0}]


def test_a_wrong_watchpoint_is_reported_with_the_nearest(trained: Path) -> None:
    done = check(trained / "full", "weight_overflows")
    assert done.exit_code == 2
    assert "nearest: 'weight_overflow'" in done.output


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-async", "acl"])
def test_operators_of_an_overflow_dump_are_hits_each_once(layout: str, tmp_path: Path) -> None:
    with opdump.capture(DumpPlan(path=tmp_path / "dump", captures="overflow", layout=layout)):
        torch.full((2,), 3e38) * 2
        torch.ones(2) * 2
    found = hits(check(tmp_path / "dump", "operator_overflow", options=("--json",)))
    assert [(hit["condition"], hit["op_type"]) for hit in found] == [("operator_overflow", "mul")]


def test_weights_gradients_and_activations_of_a_dump_of_mindspore_are_known(tmp_path: Path) -> None:
    with tarfile.open(MINDSPORE / "net_train.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (dump,) = {path.parent for path in tmp_path.rglob("rank_0")}
    watch = (
        "weight_too_large abs_mean_gt=0",
        "gradient_too_large abs_mean_gt=0",
        "activation_range max_min_gt=0",
        "weight_not_changed atol=100",
    )
    found = hits(check(dump, *watch, options=("--json",)))
    by_condition: dict[str, set[str]] = {}
    for hit in found:
        by_condition.setdefault(hit["condition"], set()).add(hit["op_name"].rpartition("/")[2])
    assert by_condition["weight_too_large"] == {"fc.weight", "fc.bias"}
    assert by_condition["weight_not_changed"] == {"fc.weight", "fc.bias"}
    assert by_condition["activation_range"] == {"ReLU-op0"}
    assert {"ReluGrad-op0", "MatMul-op0"} <= by_condition["gradient_too_large"]
