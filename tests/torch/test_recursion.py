"""A deeply recursive program takes little more disk space than the same operators in a loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opdump
from opdump.plan import DumpPlan

LEVELS = 150


def descend(x: torch.Tensor, levels: int) -> torch.Tensor:
    x = x + 1
    return descend(x, levels - 1) if levels > 1 else x


def climb(x: torch.Tensor, levels: int) -> torch.Tensor:
    """The operator runs on the way back, the deepest first."""
    return (climb(x, levels - 1) if levels > 1 else x) + 1


def one_of_two(x: torch.Tensor, levels: int) -> torch.Tensor:
    return other_of_two(x + 1, levels - 1) if levels else x


def other_of_two(x: torch.Tensor, levels: int) -> torch.Tensor:
    return one_of_two(x + 1, levels - 1) if levels else x


def loop(x: torch.Tensor, levels: int) -> torch.Tensor:
    for _ in range(levels):
        x = x + 1
    return x


class Nested(torch.nn.Module):
    """Modules that call each other, as many as `levels`."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.inner = Nested(levels - 1) if levels > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.inner is None else self.inner(x + 1)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10", "packed", "acl", "mindspore-async"])
def test_a_recursion_takes_at_most_three_times_the_bytes_of_a_loop(layout: str, tmp_path: Path) -> None:
    sizes = {}
    for program in (loop, descend, climb, one_of_two):
        path = tmp_path / program.__name__
        with opdump.capture(DumpPlan(path=path, layout=layout, saved_data="statistic")):
            result = program(torch.zeros(4), LEVELS)
        assert result.tolist() == [LEVELS] * 4
        sizes[program.__name__] = size_of(path)
    assert {name for name, size in sizes.items() if size > 3 * sizes["loop"]} == set(), sizes


def test_stacks_are_whole_in_the_index_and_share_their_callers(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="statistic", statistic_category=["max"]):
        descend(torch.zeros(4), LEVELS)
    stacks = [each.op.stack for each in opdump.open(tmp_path).ops(op_type="add")]
    assert [len(stack) - len(stacks[0]) for stack in stacks] == [*range(LEVELS)]
    assert all(
        [frame.function for frame in stack].count("descend") == level for level, stack in enumerate(stacks, start=1)
    )
    assert stacks[-1][1:] == (stacks[-1][1], *stacks[-2][1:])


def test_modules_that_call_each_other_deeply_take_little_disk_space(tmp_path: Path) -> None:
    sizes = []
    for levels in (30, 60):
        with opdump.capture(path=tmp_path / str(levels), saved_data="statistic", statistic_category=["max"]):
            Nested(levels)(torch.zeros(4)).sum()
        sizes.append((tmp_path / str(levels) / "rank_0/.dump_metadata/index.sqlite").stat().st_size)
    # Scope names grow with the depth, and the files for MindSpore's tools contain them in full.
    assert sizes[1] < 3.5 * sizes[0]


@pytest.mark.parametrize(
    ("layout", "most"), [("mindspore-2.3", 300_000), ("mindspore-2.3", 500_000), ("packed", 500_000), ("acl", 300_000)]
)
def test_a_disk_bound_holds_for_the_first_step_too(layout: str, most: int, tmp_path: Path) -> None:
    """Its graph files, tables and rows exceed the limit."""
    plan = DumpPlan(path=tmp_path, layout=layout, saved_data="statistic", max_disk=most)
    with opdump.capture(plan) as dump:
        result = descend(torch.zeros(4), 600)
        dump.step()
        loop(result, 10)
    assert result.tolist() == [600] * 4
    assert size_of(tmp_path) <= most
    report = dump.report
    assert report is not None
    assert report.degraded[-1].now == "off"
    assert report.degraded[-1].bound == "max_disk"
    if not report.captured:
        assert report.degraded[-1].step == 0
        assert report.nothing is not None
        assert "step 0 needs more" in report.nothing.reason
        return
    catalog = opdump.open(tmp_path)
    assert not catalog.problems
    assert catalog.runs[0].degraded == report.degraded
    assert sum(1 for _ in catalog.ops(op_type="add", step=0)) == 600


def test_files_that_fit_are_written_beside_those_that_do_not(tmp_path: Path) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3", saved_data="statistic", max_disk=700_000)):
        descend(torch.zeros(4), 600)
    assert opdump.open(tmp_path).op("add-op600").outputs[0].statistics["max"] == 600
    assert (tmp_path / "rank_0/Net/0/0/statistic.csv").read_bytes().count(b"\n") > 600
    assert not (tmp_path / "rank_0/graphs/ms_output_trace_code_graph_0.ir").exists()
    assert size_of(tmp_path) <= 700_000
