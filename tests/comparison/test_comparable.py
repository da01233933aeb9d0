"""What is compared at all: steps that exist, programs that have something in common, dumps that lack a part."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.comparison.trace import Trace, are_unrelated_programs, nearest_names
from opdump.errors import NotInDumpError
from tests.comparison.hand_made import node
from tests.comparison.programs import dumped
from tests.comparison.test_compare_programs import PROGRAM

OTHER = """
import torch

torch.manual_seed(1)
values = torch.randn(3, 50)
for step in range(2):
    found = torch.sort(values.cumsum(1))[0].flip(0).exp().prod(1)
    found = torch.logsumexp(torch.fft.rfft(values).abs(), 1).sqrt() + torch.linalg.norm(values, dim=1)
    found = torch.cummax(values, 1)[0].roll(2).atan().tril().unfold(1, 5, 5).mean(2).ceil().floor()
    torch.nn.functional.conv1d(values[:, None], torch.ones(1, 1, 3)).sigmoid().std().log()
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("comparable"), "before", PROGRAM)


def test_a_step_that_does_not_exist_is_reported(dump: Path) -> None:
    with pytest.raises(NotInDumpError, match=r"holds no step 9; it holds 0, 1"):
        opdump.compare(dump, dump, step=9)
    with pytest.raises(NotInDumpError, match="holds no step 7"):
        opdump.compare(dump, dump, step=0, step_b=7)
    done = CliRunner().invoke(main, ["compare", str(dump), "--step", "0:7"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds no step 7; it holds 0, 1" in done.stderr


def test_the_steps_of_a_result_are_those_up_to_the_first_that_differs(tmp_path: Path, dump: Path) -> None:
    assert len(opdump.compare(dump, dump).steps) > 1
    result = opdump.compare(dump, dumped(tmp_path, "after", PROGRAM.replace("F.gelu(x)", "F.relu(x)")))
    assert list(result.steps) == [0]


EVALUATES: Final = PROGRAM.replace("for step in", "with torch.no_grad():\n    first(data)\nfor step in")


def test_a_run_that_evaluates_before_it_trains_is_compared_in_the_steps_of_training(tmp_path: Path, dump: Path) -> None:
    result = opdump.compare(dump, dumped(tmp_path, "evaluates", EVALUATES))
    assert (result.verdict, result.introduced) == ("benign", ())
    assert len(result.steps) > 1
    assert "step 0 of B has no counterpart, and was not compared" in result.notes
    faulty = opdump.compare(dump, dumped(tmp_path, "faulty", EVALUATES.replace("F.gelu(x)", "F.relu(x)")))
    assert faulty.introduced[0].b is not None
    assert faulty.introduced[0].b.op_type == "relu"


def test_steps_that_only_one_run_has_are_reported(tmp_path: Path, dump: Path) -> None:
    longer = dumped(tmp_path, "longer", PROGRAM.replace("range(2)", "range(3)"))
    assert "step 2 of B has no counterpart, and was not compared" in opdump.compare(dump, longer).notes
    assert "step 2 of A has no counterpart, and was not compared" in opdump.compare(longer, dump).notes


def test_programs_that_share_an_operator_by_chance_are_incomparable(tmp_path: Path, dump: Path) -> None:
    other = dumped(tmp_path, "other", OTHER)
    done = CliRunner().invoke(main, ["compare", str(dump), str(other)])
    assert done.exit_code == 3, done.output
    assert "INCOMPARABLE: " in done.output
    assert opdump.compare(dump, other).introduced == ()


def test_a_tenth_of_the_smaller_program_is_enough_to_be_compared() -> None:
    assert [are_unrelated_programs(matched, 50) for matched in (0, 4, 5, 6)] == [True, True, False, False]
    assert [are_unrelated_programs(matched, 3) for matched in (0, 1)] == [True, False]


def test_similar_names_are_reported_for_programs_without_common_operators() -> None:
    one, other, another = (
        Trace(0, 0, [node(place, op_type) for place, op_type in enumerate(types)], {})
        for types in (("addmm", "relu", "softmax"), ("sort", "relu_", "addmm_out"), ("sort", "prod"))
    )
    assert nearest_names(one, other) == [
        "Default/addmm-op0 of A has no counterpart in B; the nearest names are Default/addmm_out-op2",
        "Default/relu-op1 of A has no counterpart in B; the nearest names are Default/relu_-op1",
    ]
    assert nearest_names(one, another) == ["A runs addmm, relu, softmax; B runs prod, sort"]


def test_tensors_known_only_by_statistics_are_not_called_bit_identical(tmp_path: Path) -> None:
    path = dumped(tmp_path, "statistics", PROGRAM, "statistic")
    headline = opdump.compare(path, path).headline
    assert headline == "IDENTICAL: the same operators produced the same statistics"


def test_a_file_that_is_gone_is_reported(tmp_path: Path, dump: Path) -> None:
    other = dumped(tmp_path, "again", PROGRAM)
    lost = next(other.rglob("*gelu-op*.output.0.*.npy"))
    lost.unlink()
    result = opdump.compare(dump, other)
    assert result.verdict == "identical"
    assert "the same statistics for outputs without recorded values" in result.headline
    assert [note for note in result.notes if lost.name in note], result.notes


def test_only_the_first_of_many_lost_files_are_reported_and_the_others_counted(tmp_path: Path, dump: Path) -> None:
    other = dumped(tmp_path, "again", PROGRAM)
    for lost in itertools.islice(other.rglob("*-op*.output.0.*.npy"), 6):
        lost.unlink()
    notes = [note for note in opdump.compare(dump, other).notes if "not read" in note]
    assert len(notes) == 4
    assert "opdump show lists them" in notes[-1]


SELECTED = """
import torch

torch.manual_seed(0)
layer, values = torch.nn.Linear(4, 4), torch.randn(3, 4)
layer((values - 1.0).exp()).relu().sum().backward()
"""


@pytest.mark.parametrize("is_selected_first", [True, False])
def test_of_a_selection_and_a_whole_run_only_the_selection_is_compared(
    tmp_path: Path, *, is_selected_first: bool
) -> None:
    some = dumped(tmp_path, "some", SELECTED, kernels=["addmm", "mm"])
    for name, program, verdict in (
        ("same", SELECTED, "identical"),
        ("other", SELECTED.replace("1.0", "1.5"), "divergent"),
    ):
        dumps = some, dumped(tmp_path, name, program)
        result = opdump.compare(*(dumps if is_selected_first else dumps[::-1]))
        assert (result.verdict, result.unmatched) == (verdict, 0)
        sides = "addmm, mm in A; all in B" if is_selected_first else "all in A; addmm, mm in B"
        assert f"only operators that both runs selected were compared: {sides}" in result.notes
