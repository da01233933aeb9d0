"""Where NaN and infinities start, how far they spread, and what is no finding."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import opdump
from opdump.checks import Checks, Thresholds
from opdump.checks.nonfinite_lineage import Checked, Histories, History
from opdump.checks.tensor_checks import TensorStats, stats_of
from opdump.commands import main
from opdump.plan import DumpPlan
from opdump.records import IO, OpRecord, StatisticValue, TensorRecord
from opdump.reports.findings import check_dump, print_histories
from opdump.reports.table import Printer
from opdump.verdict import Verdict

pytestmark = pytest.mark.torch

INF = math.inf


def checked(directory: Path, program: Callable[[], object], *, steps: int = 1) -> Checked:
    with opdump.capture(DumpPlan(path=directory, saved_data="statistic"), steps="manual") as dump:
        for _ in range(steps):
            program()
            dump.step()
    return check_dump(opdump.open(directory), Thresholds())


def bad() -> torch.Tensor:
    """[1, Inf, NaN, -1], made by operators that the capture sees."""
    return torch.tensor([1.0, 0.0, 0.0, -1.0]) / torch.tensor([1.0, 0.0, 0.0, 1.0]) + torch.tensor([0.0, INF, 0.0, 0.0])


def infinite() -> torch.Tensor:
    return torch.tensor([1e38, 1.0, -1e38]) * 100.0


KILLS: dict[str, Callable[[], object]] = {
    "clamp": lambda: infinite().clamp(-9, 9),
    "where": lambda: torch.where(torch.tensor([False, True, False]), infinite(), torch.zeros(3)),
    "nan_to_num": lambda: bad().nan_to_num(),
    "masked_fill": lambda: infinite().masked_fill(torch.tensor([True, False, True]), 0.0),
    "max_pool2d_with_indices": lambda: nn.functional.max_pool2d(-infinite()[:2].view(1, 1, 2), (1, 2)),
    "gt": lambda: bad() > 0,
    "relu": lambda: torch.relu(infinite()[1:]),
    "sigmoid": lambda: infinite().sigmoid(),
    "reciprocal": lambda: infinite().reciprocal(),
    "argmax": lambda: bad().argmax(),
}


@pytest.mark.parametrize("operator", KILLS)
def test_an_operator_that_reads_infinities_and_gives_finite_numbers_killed_them(operator: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "dump", KILLS[operator])
    assert [each.op_type for each in found.findings if each.check == "killed"] == [operator]
    assert [place.op_type for history in found.histories for place in history.killed] == [operator]
    assert found.histories[0].born is not None
    assert found.histories[0].born.source.endswith(
        f"{Path(__file__).name}:{found.histories[0].born.source.rpartition(':')[2]}"
    )


def overwritten() -> None:
    infinite().copy_(torch.zeros(3))
    infinite().zero_()


SPARES: dict[str, Callable[[], object]] = {
    "asks for NaN": lambda: bad().isnan(),
    "asks for infinities": lambda: infinite().isinf().any(),
    "asks whether all is finite": lambda: bad().isfinite().all(),
    "needs the shape alone": lambda: torch.zeros_like(bad()) + torch.full_like(bad(), 2.0),
    "takes a part": lambda: bad().index_select(0, torch.tensor([0, 3])),
    "takes rows": lambda: nn.functional.embedding(torch.tensor([0]), bad().view(4, 1)),
    "is written over": overwritten,
    "hands them on": lambda: bad() * 2,
    "a gradient that needs a shape": lambda: torch.ops.aten.nll_loss_backward(
        torch.tensor(1.0), bad().view(1, 4), torch.tensor([1]), None, 1, -100, torch.tensor(1.0)
    ),
    "a gradient of pooling": lambda: torch.ops.aten.avg_pool2d_backward(
        torch.ones(1, 1, 1), bad().view(1, 2, 2), [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "a gradient of padding": lambda: torch.ops.aten.reflection_pad1d_backward(
        torch.ones(1, 6), bad().view(1, 4), [1, 1]
    ),
    "a mask": lambda: (torch.ones(2, 2) + torch.full((2, 2), -INF).triu(1)).softmax(-1),
}


@pytest.mark.parametrize("what", SPARES)
def test_an_operator_that_tests_for_them_or_does_not_use_them_kills_nothing(what: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "dump", SPARES[what])
    assert [each.op_type for each in found.findings if each.check == "killed"] == []
    assert [history.killed for history in found.histories if history.killed] == []


def told(histories: list[History]) -> list[str]:
    stream = io.StringIO()
    print_histories(Printer(stream), histories, limit=0)
    return stream.getvalue().split("\n")[:-2]


def test_a_gradient_that_is_not_finite_is_followed_through_the_optimizer_into_the_next_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with opdump.capture(DumpPlan(path=tmp_path / "dump", saved_data="statistic")):
        for step in range(3):
            optimizer.zero_grad()
            data = torch.ones(2, 3) / torch.full((2, 3), 0.0 if step == 1 else 1.0)
            layer(data).sum().backward()
            optimizer.step()
    found = check_dump(opdump.open(tmp_path / "dump"), Thresholds())
    (history,) = found.histories
    assert history.born is not None
    assert (history.born.step, history.born.op_type, history.kind) == (1, "div", "inf")
    assert history.phases == ["forward", "backward", "optimizer"]
    assert history.parameters == {"weight": 1}
    assert (history.first_step, history.last_step, history.killed) == (1, 2, [])
    lines = told(found.histories)
    assert lines[0].startswith("inf  born    step 1  div at test_nonfinite_lineage.py:")
    assert lines[1].endswith(", in forward, backward, optimizer, up to step 2")
    assert lines[2] == "     kept    step 1  in weight: later steps read them"


@pytest.mark.parametrize("follower", ["train", "eval"])
def test_what_a_step_leaves_in_running_statistics_is_the_same_history_in_the_next(
    tmp_path: Path, follower: str
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    batches = iter([torch.full((4, 3), INF), torch.randn(4, 3), torch.randn(4, 3)])

    def program() -> None:
        batch = next(batches) * 2.0
        norm(batch)
        getattr(norm, follower)()

    found = checked(tmp_path / "dump", program, steps=3)
    births = [(each.born and each.born.op_type, each.given) for each in found.histories]
    assert len(births) == 1, births
    assert found.histories[0].last_step == 2


def test_an_output_that_the_next_step_reads_belongs_to_the_history_of_its_step(tmp_path: Path) -> None:
    losses: list[torch.Tensor] = []

    def program() -> None:
        if losses:
            losses.pop().exp()
        losses.append(infinite())

    histories = checked(tmp_path / "dump", program, steps=2).histories
    assert [(each.given, each.born and each.born.op_type, each.last_step) for each in histories] == [
        ("", "mul", 1),
        ("", "mul", 1),
    ]


@pytest.mark.parametrize("given", [[INF, 1.0, 1.0], [INF, INF, 1.0]], ids=["cleared since", "others"])
def test_bad_data_of_a_later_step_is_no_history_of_one_before(tmp_path: Path, given: list[float]) -> None:
    total, fresh = torch.zeros(3), torch.tensor(given)
    read = iter([infinite, fresh.exp])

    def program() -> None:
        total.add_(next(read)())
        total.fill_(0.0)

    found = checked(tmp_path / "dump", program, steps=2)
    assert [bool(each.given) for each in found.histories] == [False, True]


def test_what_backward_kills_is_reported_for_its_phase(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor([1.0, -1.0], requires_grad=True)
        y = x.clamp(min=0.0)
        y.backward(torch.tensor([1.0, 1e38]) * torch.tensor([1.0, 100.0]))

    (history,) = checked(tmp_path / "dump", program).histories
    (place,) = history.killed
    assert place.phase == "backward"
    assert history.born is not None
    assert history.born.phase == "forward"


def test_every_birth_has_a_history_and_a_kill_belongs_to_the_one_that_it_read(tmp_path: Path) -> None:
    def program() -> None:
        one, other = torch.tensor([0.0]).log(), torch.tensor([-1.0]).sqrt()
        (one * 2).clamp(min=-1.0)
        (other * 2 * 3).nan_to_num()

    histories = checked(tmp_path / "dump", program).histories
    facts = [
        (each.kind, each.born and each.born.op_type, each.passed_on, [place.op_type for place in each.killed])
        for each in histories
    ]
    assert facts == [("inf", "log", 1, ["clamp"]), ("nan", "sqrt", 2, ["nan_to_num"])]


def test_a_kill_in_every_step_is_one_line(tmp_path: Path) -> None:
    scale = nn.Parameter(torch.tensor([1e38, 1.0]))
    with torch.no_grad():
        found = checked(tmp_path / "dump", lambda: (scale * 100.0).clamp(max=1.0), steps=3)
    assert len(found.histories) == 3
    assert len([each for each in found.findings if each.check == "killed"]) == 3
    infinite = nn.Parameter(torch.tensor([INF, 1.0]))
    with torch.no_grad():
        found = checked(tmp_path / "other", lambda: infinite.clamp(max=1.0), steps=3)
    lines = told(found.histories)
    assert lines[0].startswith("inf  given   step 0  ")
    assert lines[1].startswith("     KILLED  steps 0-2  clamp at ")
    assert len(lines) == 2


@pytest.mark.parametrize("statistics", [{"max": 1.0, "min": 0.0}, {"max": 1.0}])
def test_sources_that_are_not_known_mean_the_latest_history(statistics: dict[str, StatisticValue]) -> None:
    histories = Histories()
    checks = Checks(Thresholds(), histories=histories)
    exp, clip = OpRecord("Exp", "Default/Exp-op0", 1), OpRecord("ClipByValue", "Default/ClipByValue-op1", 2)
    not_finite: dict[str, StatisticValue] = {"max": INF, "min": 0.0}

    def known(op: OpRecord, side: IO, values: dict[str, StatisticValue]) -> tuple[TensorRecord, TensorStats]:
        stats = stats_of(values, 2)
        assert stats is not None
        return TensorRecord(op, side, 0, "float32", (2,), statistics=values), stats

    checks.findings(exp, [known(exp, "input", {"max": 1.0, "min": 0.0}), known(exp, "output", not_finite)])
    found = checks.findings(clip, [known(clip, "input", not_finite), known(clip, "output", statistics)])
    (history,) = histories.found
    assert [place.op_name for place in history.killed] == [clip.op_name]
    assert [(each.check, each.text) for each in found if each.check == "killed"] == [("killed", "some inf made finite")]


def given_masks() -> None:
    mask = torch.from_numpy(np.array([[0, -INF], [0, 0]], np.float32))
    torch.softmax(torch.ones(2, 2) + mask, -1)
    filled = torch.where(torch.tensor([True, False]), torch.ones(2), torch.tensor(-INF))
    torch.softmax(filled, 0)
    torch.minimum(torch.tensor(INF), torch.ones(3)).sum()


def nan_beside_a_mask() -> None:
    torch.tensor([math.nan, 1.0]) + 1
    torch.softmax(torch.zeros(2).masked_fill(torch.tensor([True, False]), -INF), 0)


def nan_after_a_mask() -> None:
    torch.softmax(torch.zeros(2).masked_fill(torch.tensor([True, False]), -INF), 0)
    torch.tensor([math.nan, 1.0]) + 1


def infinite_data() -> None:
    torch.tensor([INF, 1.0]) + 1


def made_beside_a_mask() -> None:
    given_masks()
    torch.log(torch.tensor([0.0, 1.0]))


def recorded(directory: Path, program: object) -> tuple[Verdict, int]:
    assert callable(program)
    with opdump.capture(DumpPlan(path=directory, saved_data="statistic")) as dump:
        program()
    assert dump.report is not None
    found = check_dump(opdump.open(directory), Thresholds()).findings
    return dump.report.verdict, sum(each.check in ("inf", "nan", "killed") for each in found)


def test_given_masks_are_no_findings(tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, given_masks)
    assert verdict.kind == "none"
    assert findings == 0


@pytest.mark.parametrize("program", [nan_beside_a_mask, nan_after_a_mask])
def test_a_nan_that_the_program_gives_is_found_beside_a_mask(program: object, tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, program)
    assert verdict.kind == "nan"
    assert "data-" in verdict.how
    assert findings == 2


@pytest.mark.parametrize(("program", "how"), [(infinite_data, "data-"), (made_beside_a_mask, "output.0")])
def test_other_infinities_are_found(program: object, how: str, tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, program)
    assert verdict.kind == "infinity"
    assert how in verdict.how
    assert findings


def test_the_layer_that_overflows_and_the_clamp_that_hides_it_are_named(tmp_path: Path) -> None:
    # Importing it takes seconds in every worker, also in those that run no test of this file.
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0)
    model: Any = T5EncoderModel(config).eval().half()
    dump = tmp_path / "dump"
    with torch.no_grad():
        model.encoder.block[0].layer[1].DenseReluDense.wo.weight.mul_(1e5)
        with opdump.capture(path=dump, saved_data="statistic"):
            answer = model(input_ids=torch.arange(8).reshape(1, 8)).last_hidden_state
    assert answer.isfinite().all()
    printed = json.loads(CliRunner().invoke(main, ["check", str(dump), "--json"]).stdout)
    (history,) = printed["histories"]
    assert "/layer-ModuleList/1-T5LayerFF/DenseReluDense-T5DenseActDense/wo-Linear/" in history["born"]["op_name"]
    assert "modeling_t5.py:" in history["born"]["source"]
    (kill,) = history["killed"]
    assert kill["op_type"] == "clamp"
    assert "/0-T5Block/clamp-op" in kill["op_name"]
    found = [each for each in printed["findings"] if each["check"] in ("inf", "killed")]
    assert [each["op_name"] for each in found if each["origin"]] == [history["born"]["op_name"]]
    assert [each["op_name"] for each in found if each["check"] == "killed"] == [kill["op_name"]]
