"""Steps that are passed in columns write the same bytes as steps operator by operator; snapshots of tensors."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import opdump
from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, GraphRun, NamedOperator, RunEmitter
from opdump.adapters.host import BY_DTYPE, Choice, HostColumns, HostTensor, NumpyReader
from opdump.catalog.catalog import open_dump
from opdump.index.batch import Batches
from opdump.index.writer import RunFacts
from opdump.kernels import summarise
from opdump.layouts.base import open_writer
from opdump.plan import DumpPlan
from opdump.recorder import Elements, Recorder, TensorSnapshot, filing, make_recorder
from opdump.records import Frame, OpRecord, TensorRecord, record_of
from opdump.statistics import DEVICE_DEFAULT
from opdump.step_table import (
    NO_SUMMARY,
    Singles,
    StepTable,
    StepTemplate,
    TemplateRun,
    TensorFacts,
    TensorSlot,
)

_TIME = re.compile(r"/[0-9]{14}/")
"""The directory of a run."""
CALLED_AT = (Frame("train.py", 3, "train"),)
FIRST = Block(
    [
        BlockOperator(NamedOperator("Const", "scale", skip="constant")),
        BlockOperator(
            NamedOperator("Mul", "net/mul", task_id=1, arguments={"axis": 0}, kernel="toy::mul"),
            (BlockSlot(0, "x", "Parameter.x", 0), BlockSlot(1, "key", "", 3)),
            (BlockSlot(0, "product", "", 1), BlockSlot(1, "n", "", 2)),
        ),
        # Two executions with one name.
        BlockOperator(NamedOperator("Halve", "net/halve", task_id=2), (BlockSlot(0, "x", "net/mul:0", 1),), ()),
        BlockOperator(NamedOperator("Halve", "net/halve", task_id=3), (BlockSlot(0, "x", "net/mul:0", 1),), ()),
        BlockOperator(
            NamedOperator("Cast", "net/cast,%d", task_id=4, stack=(Frame("model.py", 7, "forward"),)),
            (BlockSlot(0, "x", "net/mul:0", 1),),
            (BlockSlot(0, "bfloat16", "", 4), BlockSlot(1, "complex", "", 5), BlockSlot(2, "float8", "", 6)),
        ),
    ]
)
BODY = Block(
    [
        BlockOperator(
            NamedOperator("Add", "loop/add", phase="backward"),
            (BlockSlot(0, "a", "", 0), BlockSlot(1, "b", "", 1)),
            (BlockSlot(0, "sum", "", 2),),
        ),
        BlockOperator(NamedOperator("Parameter", "w", phase="optimizer"), (), (BlockSlot(0, "", "", 2),)),
    ]
)
MASK = Block(
    [
        BlockOperator(NamedOperator("BroadcastTo", "net/mask"), (), (BlockSlot(0, "", "", 0),)),
        BlockOperator(
            NamedOperator("Softmax", "net/softmax"), (BlockSlot(0, "x", "net/mask:0", 0),), (BlockSlot(0, "", "", 1),)
        ),
    ]
)
SINGLE = NamedOperator("Mean", "mean", arguments={"keep": 1})


def tensors_of_first(x: npt.NDArray[Any]) -> list[HostTensor | str]:
    product = x * np.float32(2)
    bits = (product.view(np.uint32) >> 16).astype(np.uint16)
    raw = np.arange(len(x), dtype=np.uint8)
    return [
        HostTensor.of_array(x, stays=True),
        HostTensor.of_array(product, stays=True),
        HostTensor.of_array(np.array([], np.int64), stays=True),
        "key<fry>",
        HostTensor.of_array(bits, BY_DTYPE["bfloat16"], stays=True),
        HostTensor.of_array(product.astype(np.complex64), stays=True),
        HostTensor.of_array(raw, BY_DTYPE["float8_e4m3fn"], stays=True),
    ]


class Program:
    """Runs steps of a toy program; its tensors are passed as objects, or in columns if the recorder accepts blocks."""

    def __init__(self, place: Path, *, in_columns: bool, **plan: Any) -> None:
        self.plan = DumpPlan(path=place, **{"saved_data": "statistic", **plan})
        self.in_columns = in_columns
        self.writer = open_writer(self.plan, RunFacts(0, "CPU", "fake", "1.2", "0", ("train.py", "--x"), "{}"))
        self.recorder: Recorder = make_recorder(self.plan, self.writer, NumpyReader.of_plan(self.plan))
        self.emitter = RunEmitter(self.recorder, device_id=2)
        self.kept: list[Any] = []
        self.choices: dict[int, Choice] = {}
        self.blocks = {
            graph: (Block(FIRST.operators), Block(BODY.operators), Block(MASK.operators)) for graph in (1, 2)
        }

    def run(self, step: int, orders: Iterator[int], counts: Counter[str], graph: int = 1) -> GraphRun:
        return GraphRun(self.emitter, "net", graph, step, order=orders, executions=counts, called_at=CALLED_AT)

    def emit(self, run: GraphRun, graph: int, number: int, tensors: list[HostTensor | str]) -> None:
        block = self.blocks[graph][number]
        self.kept += tensors
        if not self.in_columns or not run.takes(block):
            run.emit_block(block, tensors.__getitem__, lambda: tensors)
            return
        # The last one is passed as an object, like tensors of types that numpy lacks.
        places: list[tuple[int, int] | None] = [
            None if each is tensors[-1] or isinstance(each, str) else (int(place > 1), place - 2 * (place > 1))
            for place, each in enumerate(tensors)
        ]
        choice = self.choices.setdefault(number, Choice(tensors, places))
        columns = HostColumns()
        pointers = np.array([0 if isinstance(each, str) else each.pointer for each in tensors], np.int64)
        begins = [columns.extend(pointers[:2]), columns.extend(pointers[2:])]
        if number == 0:
            self.recorder.read_ahead(Choice(tensors[:2], [(0, 0), (0, 1)]).of(columns))
        chosen = choice.of(columns, begins, [tensors[place] for place in choice.objects])
        run.emit_block(block, tensors.__getitem__, lambda: chosen)

    def step(self, step: int, seed: float = 1.0, trips: int = 3, *, single: bool = True, graphs: int = 1) -> None:
        orders, counts = itertools.count(), [Counter[str]() for _ in range(graphs)]
        for graph in range(graphs):
            run = self.run(step, orders, counts[graph], graph + 1)
            x = np.array([seed, -1.0, step], np.float32)
            self.emit(run, graph + 1, 0, tensors_of_first(x))
            for trip in range(trips):
                parts = [np.full(3, step + trip, np.float32), x]
                self.emit(run, graph + 1, 1, [HostTensor.of_array(each, stays=True) for each in (*parts, parts[0] + x)])
                if single:
                    mean = HostTensor.of_array(np.array([x.mean()], np.float32), stays=True)
                    run.emit(SINGLE, [(0, "x", HostTensor.of_array(x, stays=True), "", "")], [(0, "", mean, "", "")])
            run.count_skipped({"not selected": 2})

    def close(self) -> None:
        self.recorder.end_step(99)
        self.writer.close({"executed": self.recorder.tally.executed})


def steps_that_repeat(program: Program) -> None:
    for step in range(5):
        program.step(step)
        program.recorder.end_step(step)


def another_step_between(program: Program) -> None:
    for step in range(7):
        program.step(step, trips=4 if step == 3 else 3, single=step != 5)
        program.recorder.end_step(step)


def nan_in_a_later_step(program: Program) -> None:
    for step in range(6):
        program.step(step, seed=np.nan if step >= 3 else 1.0)
        program.recorder.end_step(step)


def infinities_in_each_step(program: Program) -> None:
    for step in range(4):
        program.step(step, seed=-np.inf)
        program.recorder.end_step(step)


def a_mask_in_each_step(program: Program) -> None:
    """Intended infinities, until a real one is made."""
    for step in range(7):
        program.step(step, seed=np.inf if step == 6 else 1.0)
        orders, counts = itertools.count(100), Counter[str]()
        for made in (np.zeros(2, np.float32), np.full(2, np.nan if step == 5 else 0, np.float32)):
            mask = np.array([0, -np.inf], np.float32)
            run = program.run(step, orders, counts)
            tensors = [HostTensor.of_array(each, stays=True) for each in (mask, made)]
            program.emit(run, 1, 2, [*tensors])
            run.emit(SINGLE, [(0, "x", tensors[0], "net/mask:0", "")], [(0, "", tensors[1], "", "")])
        program.recorder.end_step(step)


def zeros_of_either_sign(program: Program) -> None:
    for step in range(4):
        program.step(step, seed=-0.0 if step % 2 else 0.0)
        program.recorder.end_step(step)


def numbers_that_no_float64_holds(program: Program) -> None:
    """In columns, and as an object."""
    for step in range(9):
        run = program.run(step, itertools.count(), Counter())
        for numbers in (np.array([2**60 + 1, -(2**60) - step]), np.array([step, 2**53 + 1 if step else 0])):
            tensors = [HostTensor.of_array(each, stays=True) for each in (numbers, numbers.view(np.uint64))]
            program.emit(run, 1, 2, [*tensors])
        program.recorder.end_step(step)


def a_step_that_is_cut_off(program: Program) -> None:
    for step in range(3):
        program.step(step)
        program.recorder.end_step(step)
    program.step(3, trips=1)


def two_functions_in_a_step(program: Program) -> None:
    for step in range(4):
        program.step(step, graphs=2)
        program.recorder.end_step(step)


def unread_tails(program: Program) -> None:
    """Operators after the last step belong to no step, to the last one, or to another."""
    for step in range(4):
        program.step(step)
        program.recorder.end_step(step)
        program.recorder.defer()
        program.step(step + 1, trips=1, single=False)
        if step == 0:
            program.recorder.reassign_step(step)
            program.recorder.end_step(step)
        elif step == 1:
            program.recorder.discard()
        else:
            program.recorder.release()


def a_rank_that_is_known_late(program: Program) -> None:
    program.recorder.wait_for_place(lambda: 3)
    for step in range(3):
        program.step(step)
        program.recorder.end_step(step)


def two_steps_at_once(program: Program) -> None:
    for step in range(0, 6, 2):
        program.step(step + 1)
        program.step(step, trips=2)
        program.recorder.end_step(step)


SCENARIOS = [
    steps_that_repeat,
    another_step_between,
    nan_in_a_later_step,
    infinities_in_each_step,
    a_mask_in_each_step,
    zeros_of_either_sign,
    numbers_that_no_float64_holds,
    a_step_that_is_cut_off,
    two_functions_in_a_step,
    unread_tails,
    a_rank_that_is_known_late,
    two_steps_at_once,
]


def dumped(
    place: Path, scenario: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch, *, how: str, **plan: Any
) -> dict[str, Any]:
    """Everything that a program leaves: files, records, totals and the verdict."""
    with monkeypatch.context() as patched:
        patched.setattr("time.time_ns", lambda: 0)
        if how == "one by one":
            patched.setattr(Recorder, "takes_blocks", False)
        program = Program(place, in_columns=how == "columns", **plan)
        scenario(program)
        program.close()
        assert program.recorder.takes_blocks == (how != "one by one")
    catalog = open_dump(place)
    tally = program.recorder.tally
    return {
        "files": {_TIME.sub("/", f"/{path.relative_to(place)}"): path.read_bytes() for path in place.rglob("*.csv")},
        "operators": [*catalog.ops()],
        "tensors": [record_of(tensor) for tensor in catalog.tensors()],
        "totals": (tally.executed, tally.captured, tally.tensors, tally.skipped, tally.tensors_skipped, tally.steps),
        "verdict": program.recorder.verdict,
        "names": dict(sorted(program.recorder.names_seen.items())),
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"statistic_category": ("max", "avg", "nan count", "l2norm"), "trailing_comma": True},
        {"layout": "acl", "file_format": "bin", "dialect": "acl", "statistic_category": DEVICE_DEFAULT},
        {"layout": "acl", "file_format": "bin", "dialect": "acl", "statistic_category": ("max", "l2norm")},
        {"layout": "mindspore-async", "file_format": "npy"},
        {"layout": "mindspore-async", "file_format": "npy", "step_level": True},
    ],
)
def test_columns_leave_what_operators_leave_one_by_one(
    scenario: Callable[[Program], None], plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dumped(tmp_path / "single", scenario, monkeypatch, how="one by one", **plan)
    assert len(expected["files"]) >= 3
    assert len(expected["tensors"]) > 50
    for how in ("objects", "columns"):
        found = dumped(tmp_path / how, scenario, monkeypatch, how=how, **plan)
        assert [part for part in expected if found[part] != expected[part]] == [], how


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_step_of_very_many_operators_is_filed_in_parts(
    scenario: Callable[[Program], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is never split, so a step may be split at other operators than one whose operators come one by one."""
    monkeypatch.setattr(filing, "MOST_OPS", 9)
    single, objects, columns = (
        dumped(tmp_path / how, scenario, monkeypatch, how=how) for how in ("one by one", "objects", "columns")
    )
    assert [part for part in objects if columns[part] != objects[part]] == []
    if scenario not in (unread_tails, a_rank_that_is_known_late):  # those flush what is not written yet
        assert columns["files"] == single["files"]
        assert columns["totals"] == single["totals"]


def test_no_record_is_made_of_a_step_that_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, in_columns=True)
    made: list[int] = []
    real = TemplateRun.op

    def op(run: TemplateRun, place: int) -> OpRecord:
        made.append(place)
        return real(run, place)

    for step in range(6):
        if step == 3:
            monkeypatch.setattr(TemplateRun, "op", op)
            monkeypatch.setattr(StepTable, "_tensor", lambda *_: pytest.fail("a record was made"))
        program.step(step, single=False)
        program.recorder.end_step(step)
    assert len(made) <= 3  # the first operator of each file needs its directory
    monkeypatch.undo()
    program.close()
    assert [len(found) for found in by_step(tmp_path).values()] == [20] * 6


def test_few_records_are_made_of_a_step_with_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, in_columns=True)
    made: list[int] = []
    real = StepTable.tensor

    def tensor(table: StepTable[Any], place: int, op: OpRecord) -> Any:
        made.append(place)
        return real(table, place, op)

    for step in range(4):
        if step == 3:
            monkeypatch.setattr(StepTable, "tensor", tensor)
        program.step(step, single=False)
        tensors = [HostTensor.of_array(np.array([each, 1], np.float32), stays=True) for each in (-np.inf, 0)]
        program.emit(program.run(step, itertools.count(100), Counter()), 1, 2, [*tensors])
        program.recorder.end_step(step)
    assert made == [22, 23, 24]  # the tensors of the operator that wrote the mask, and of the one that read it
    assert (program.recorder.verdict.kind, program.recorder.verdict.how) == ("none", "net/mask")
    program.close()


def by_step(place: Path) -> dict[int, list[TensorRecord]]:
    found: dict[int, list[TensorRecord]] = {}
    for tensor in open_dump(place).tensors():
        found.setdefault(tensor.op.step, []).append(tensor)
    return found


def test_sequences_of_a_step_are_its_records() -> None:
    ops = [OpRecord("Add", f"Add-op{place}", 0, order=place) for place in range(2)]
    slots: list[TensorSlot] = [(0, "input", 0, "x", "", 0), (1, "output", 0, "", "", 1), (1, "output", 1, "", "", 2)]
    facts = (TensorFacts("float32", (2,), 8), TensorFacts("int8", (), 1), TensorFacts("key", (), 0, "opaque"))
    template = StepTemplate(ops, slots)
    on_facts = template.on(facts)
    assert template.on(tuple(facts)) is on_facts
    run = TemplateRun(on_facts, 4, range(10, 12), np.array([1, 0, -1]))
    other = OpRecord("Mul", "Mul-op0", 12, 4)
    single = TensorRecord(other, "output", 0, "float32", (2,), statistics={"max": np.inf})
    summaries = np.array([np.arange(11.0), np.arange(11.0) + 20, NO_SUMMARY])
    table: StepTable[TensorRecord] = StepTable([run, Singles([other], [single])], summaries)
    assert StepTable.of(table.ops, table.tensors) is table
    assert StepTable.of([*table.ops], [*table.tensors]) is not table
    assert table.timestamps == [10, 11, 12]
    assert [table.ops[-1], table.ops[1].timestamp, table.ops[0].step] == [other, 11, 4]
    assert table.ops[1:] == [*table.ops][1:]
    tensors = table.tensors[:]
    assert [(each.op, each.slot, each.dtype, each.skip) for each in tensors] == [
        (table.ops[0], 0, "float32", ""),
        (table.ops[1], 0, "int8", ""),
        (table.ops[1], 1, "key", "opaque"),
        (other, 0, "float32", ""),
    ]
    assert [each.statistics.get("count") for each in tensors] == [20, 0, None, None]
    assert [*table.bare] == [2, 3]
    assert [*table.bare_tensors()] == [facts[2], single]
    assert table.others == {3: {"max": np.inf}}
    assert table.op_types == {"Add", "Mul"}
    assert [*table.not_finite] == [0, 1]
    with pytest.raises(IndexError):
        table.ops[3]


def test_a_tensor_of_an_operator_that_was_filed_before_brings_it_along() -> None:
    run = TemplateRun(StepTemplate([], []), 0, (), np.empty(0, np.intp))
    op = OpRecord("Add", "Add-op0", 1)
    table: StepTable[TensorRecord] = StepTable(
        [run, Singles([], [TensorRecord(op, "output", 0, "int8", ())])], np.array([NO_SUMMARY])
    )
    batch = Batches().of(table.ops, table.tensors)
    assert [*batch.table.ops] == [op]
    assert [*batch.template.places] == [0]


SOURCE = Path(opdump.__file__).parent
OF_RECORDER = {"op", "io", "slot", "argument", "source", "statistics"}
"""Attributes that only `belongs` and the `settle` methods may set."""
SUMMARIZER = Path(__file__).parents[1] / "kernels" / "summarizer_twin.py"
MOVED = {"recorder/filing.py": {"op"}, "recorder/operator_recorder.py": {"op"}}
"""The exceptions: a held operator may turn out to belong to another step."""


def _assigned(path: Path) -> Iterator[tuple[str, int]]:
    """The attributes that a file sets on snapshots, which are called `taken` or `entry` everywhere, with line numbers."""
    for node in ast.walk(ast.parse(path.read_text())):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and ast.unparse(part.value) in ("taken", "entry"):
                    yield part.attr, part.lineno


def test_only_the_recorder_says_whose_a_tensor_is_and_what_its_statistics_are() -> None:
    found = [
        f"{name}:{line}: {attribute}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) != "recorder/snapshots.py"
        for attribute, line in _assigned(path)
        if attribute in OF_RECORDER - MOVED.get(name, set())
    ]
    assert found == []
    assert {attribute for attribute, _ in _assigned(SUMMARIZER)} > OF_RECORDER - {"statistics"}


def test_elements_leave_memory_when_they_are_filed() -> None:
    taken = TensorSnapshot("float32", (2, 3), 24)
    taken.belongs(OpRecord("Add", "Default/Add-op0", 1), "input", 0, "self", "")
    assert (taken.file, taken.sample, taken.record().payload) == (None, 0, None)
    elements = taken.elements = Elements(np.arange(6.0, dtype="float32").reshape(2, 3))
    assert taken.held_bytes == 24
    elements.cut(4)
    assert (taken.sample, taken.held_bytes) == (4, 16)
    payload = taken.record().payload
    assert payload is not None
    assert payload.to_host().tolist() == [0, 1, 2, 3]
    elements.filed("a.npy")
    assert (taken.file, taken.sample, elements.are_held, taken.record().payload) == ("a.npy", 4, False, None)
    with pytest.raises(ValueError, match="already written"):
        elements.on_host()


def test_elements_on_their_way_have_to_arrive() -> None:
    class Pending:
        def to_numpy(self) -> Any:
            return np.ones(2)

    elements = Elements(Pending())
    assert elements.are_pending
    assert elements.on_host().tolist() == [1, 1]


def test_statistics_are_settled_once() -> None:
    taken = TensorSnapshot("float32", (2,), 8)
    taken.others = {"md5": "0"}
    taken.table, taken.row = object(), 3
    taken.settle(summarise(np.array([1.0, 2.0], dtype="float32")))
    assert (taken.statistics["max"], taken.statistics["md5"], taken.table, taken.row) == (2.0, "0", None, -1)
    taken.settle_others()
    assert "max" in taken.statistics
    other = TensorSnapshot("complex64", (2,), 16)
    other.settle_others()
    assert not other.statistics
    other.others = {"md5": "1"}
    other.settle_others()
    assert other.statistics == {"md5": "1"}
