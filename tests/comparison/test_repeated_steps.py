"""Steps that repeat others are compared without creating their records, with the same result."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import opdump
from opdump.catalog.catalog import Catalog
from opdump.comparison import memory, trace
from opdump.comparison.judgement import Chain, judge
from opdump.comparison.pairs import RepeatedStep
from opdump.index.writer import RunFacts
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import IO, Frame, Memory, OpRecord, Phase, TensorRecord
from opdump.reports.comparison import print_comparison
from opdump.reports.table import Printer
from opdump.statistics import SummaryStatistics
from opdump.step_table import StepTable

STEPS = 5
LINE = (Frame("train.py", 3, "step", "y = f(x)"),)
Factor = Callable[[int, str], float]
"""The factor by which the values of an operator are off in a step."""


def exactly(_step: int, _name: str) -> float:
    return 1.0


def rounded(step: int, name: str) -> float:
    return 1 + 1e-7 * ((step + len(name)) % 3)


def off_from(first: int, *names: str) -> Factor:
    """Wrong values for some operators, from a step on."""
    return lambda step, name: 1.01 if step >= first and name in names else 1.0


class Step:
    """A step to be written: inputs, sums, products, and what is kept for the next step."""

    def __init__(self, step: int, factor: Factor) -> None:
        self.step, self.factor = step, factor
        self.ops: list[OpRecord] = []
        self.tensors: list[TensorRecord] = []

    def op(self, kind: str, name: str, phase: Phase = "forward", **arguments: float) -> OpRecord:
        number = len(self.ops)
        time = 1_795_247_154_000_000 + self.step * 1000 + number
        kernel = "" if kind == "Parameter" else f"aten::{kind}"
        op = OpRecord(
            kind,
            name,
            time,
            step=self.step,
            net_name="Net",
            order=number,
            kernel=kernel,
            stack=LINE,
            phase=phase,
            arguments=arguments,
        )
        self.ops.append(op)
        return op

    def tensor(
        self,
        op: OpRecord,
        io: IO,
        value: float,
        *,
        slot: int = 0,
        storage: int,
        source: str = "",
        dtype: str = "float32",
    ) -> None:
        largest = value * self.factor(self.step, op.op_name)
        summary = Summary(8.0, 0.0, 0.0, 0.0, 1.0, 3.0, 4.0, largest, -largest / 3, largest / 7, largest**2)
        statistics = SummaryStatistics(summary)
        memory = Memory(storage, 0, (1,))
        self.tensors.append(
            TensorRecord(op, io, slot, dtype, (8,), statistics=statistics, source=source, memory=memory, data_size=32)
        )


def step_of(number: int, factor: Factor) -> Step:
    step = Step(number, factor)
    value = 2.0 + number / 7
    read = step.op("mul", "Default/mul-op0", scale=0.5 + number)
    step.tensor(read, "input", value, storage=0, source="Parameter.w")
    step.tensor(read, "output", value * 3, storage=1)
    added = step.op("add", "Default/add-op1")
    step.tensor(added, "input", value * 3, storage=1, source="Default/mul-op0:0")
    step.tensor(added, "input", value * 3, slot=1, storage=1, source="Default/mul-op0:0")
    step.tensor(added, "output", 1e-7 * value, storage=2)  # the remainder after a cancellation
    masked = step.op("gt", "Default/gt-op2")
    step.tensor(masked, "input", value * 3, storage=1, source="Default/mul-op0:0")
    step.tensor(masked, "output", 1.0, storage=3, dtype="bool")
    nothing = step.op("nonzero", "Default/nonzero-op3")
    step.tensor(nothing, "input", 1.0, storage=3, source="Default/gt-op2:0", dtype="bool")
    empty = TensorRecord(nothing, "output", 0, "int64", (0, 1), skip="empty")
    step.tensors.append(empty)
    complicated = step.op("fft", "Default/fft-op4")
    step.tensor(complicated, "input", value * 3, storage=1, source="Default/mul-op0:0")
    step.tensors.append(TensorRecord(complicated, "output", 0, "complex64", (8,), data_size=64))
    broken = step.op("log", "Default/log-op5")
    step.tensor(broken, "input", value * 3, storage=1, source="Default/mul-op0:0")
    infinite = Summary(8.0, 1.0, 0.0, 0.0, 1.0, 3.0, 3.0, math.nan, math.nan, math.nan, math.nan)
    step.tensors.append(
        TensorRecord(broken, "output", 0, "float32", (8,), statistics=SummaryStatistics(infinite), data_size=32)
    )
    update = step.op("sub_", "Default/sub-op6", "optimizer")
    step.tensor(update, "input", value, storage=0, source="Parameter.w")
    step.tensor(update, "input", 1e-7 * value, slot=1, storage=2, source="Default/add-op1:0")
    step.tensor(update, "output", 2.0 + (number + 1) / 7, storage=0)
    left = step.op("Parameter", "w")
    step.tensor(left, "output", 2.0 + (number + 1) / 7, storage=0)
    return step


def written(path: Path, factor: Factor, steps: int = STEPS) -> Path:
    plan = DumpPlan(path=path, saved_data="statistic")
    writer = SyncWriter(plan, RunFacts(0, "CPU", "none", "0", "0", ("test",), plan.to_json()))
    for number in range(steps):
        step = step_of(number, factor)
        writer.write_step(number, step.ops, step.tensors, [None] * len(step.tensors))
    writer.close({"executed": 7 * steps})
    return path


@pytest.fixture
def read_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose operators were all read."""
    steps: list[int] = []
    read = trace.read_traces

    def told(catalog: Catalog, step: int, rank: int | None = None) -> list[trace.Trace]:
        steps.append(step)
        return read(catalog, step, rank)

    monkeypatch.setattr(memory, "read_traces", told)
    return steps


def said(result: Any) -> tuple[Any, ...]:
    matches = [(each.step, list(each.pairs), list(each.unmatched_a), list(each.unmatched_b)) for each in result.matches]
    return result.to_json(), result.rows(), matches, result.headline, result.differing, result.by_statistics


@pytest.mark.parametrize(
    ("factor", "verdict", "records"),
    [
        (exactly, "identical", [0]),
        (rounded, "benign", [0]),
        (off_from(0, "Default/add-op1"), "benign", [0]),
        (off_from(3, "Default/add-op1"), "benign", [0]),
        (off_from(2, "Default/gt-op2"), "benign", [0]),
        (off_from(3, "Default/sub-op6"), "divergent", [0, 3]),
        (off_from(4, "Default/mul-op0", "Default/sub-op6"), "divergent", [0, 4]),
        (off_from(0, "Default/sub-op6"), "divergent", [0]),
    ],
    ids=["same", "rounded", "noise", "noise-later", "mask", "update", "read-and-update", "first"],
)
def test_repeated_steps_are_judged_without_their_records(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_steps: list[int],
    factor: Factor,
    verdict: str,
    records: list[int],
) -> None:
    a, b = written(tmp_path / "a", exactly), written(tmp_path / "b", factor)
    found = opdump.compare(a, b)
    assert (found.verdict, sorted(set(read_steps))) == (verdict, records)
    whole = Catalog.table

    def single_records(catalog: Catalog, step: int, rank: int | None = None) -> StepTable[TensorRecord]:
        table = whole(catalog, step, rank)
        return StepTable.of([*table.ops], [*table.tensors], table.counted)

    monkeypatch.setattr(Catalog, "table", single_records)
    assert said(found) == said(opdump.compare(a, b))


def test_arguments_of_a_repeated_step_are_its_own(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", exactly), written(tmp_path / "b", rounded)
    rows = [pair for pair in opdump.compare(a, b).pairs if pair.b.op_type == "mul"]
    assert [pair.a.arguments["scale"] for pair in rows] == [0.5 + step for step in range(STEPS)]


def test_row_of_the_table_is_found_by_its_number(tmp_path: Path) -> None:
    result = opdump.compare(written(tmp_path / "a", exactly), written(tmp_path / "b", rounded))
    rows = [pair.row() for pair in result.pairs]
    assert len(result.pairs) == len(rows) == 7 * STEPS
    for number in (0, 7, len(rows) - 1, -1):
        assert result.pairs[number].row() == rows[number]
    assert [pair.row() for pair in result.pairs[5:9]] == rows[5:9]


def test_judgement_of_repeated_steps_goes_to_another_process(tmp_path: Path) -> None:
    a, b = opdump.open(written(tmp_path / "a", exactly)), opdump.open(written(tmp_path / "b", rounded))
    judged = judge(a, b, [(step, step) for step in range(STEPS)], 0)
    received = pickle.loads(pickle.dumps(judged))
    parts = [part for part in judged.outputs if isinstance(part, RepeatedStep)]
    sent = [part for part in received.outputs if isinstance(part, RepeatedStep)]
    assert len(parts) == STEPS
    assert [[pair.row() for pair in part] for part in sent] == [[pair.row() for pair in part] for part in parts]


def test_step_with_rows_that_the_index_lacks_is_read_as_records(tmp_path: Path, read_steps: list[int]) -> None:
    a, b = written(tmp_path / "a", exactly), written(tmp_path / "b", exactly)
    table = next(b.glob("**/2/statistic.csv"))
    text = table.read_text()
    table.write_text(text + text.splitlines()[-1].replace("w,", "v,") + "\n")
    opdump.compare(a, b)
    assert sorted(set(read_steps)) == [0, 2]


def test_chain_is_one_sequence_of_its_parts() -> None:
    chain = Chain([[1, 2], [], [3]])
    assert (list(chain), len(chain), chain[-1], chain[1], chain[1:]) == ([1, 2, 3], 3, 3, 2, [2, 3])
    with pytest.raises(IndexError):
        chain[3]


def test_report_makes_no_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: RepeatedStep) -> NoReturn:
        raise AssertionError("rows were made")

    monkeypatch.setattr(RepeatedStep, "__iter__", made)
    result = opdump.compare(written(tmp_path / "a", exactly), written(tmp_path / "b", rounded))
    text = io.StringIO()
    print_comparison(Printer(text), result, limit=10)
    assert result.headline in text.getvalue()
    assert result.to_json()["verdict"] == "benign"
    assert f"{result.differing} outputs not identical" in result._repr_html_()
    with pytest.raises(AssertionError, match="rows were made"):
        result.rows()
