"""Tables of steps that repeat the previous one have the same text as rows that are made one by one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.catalog.catalog import open_dump
from opdump.index.batch import Batches
from opdump.index.writer import RunFacts
from opdump.kernels import Summary, append_file
from opdump.layouts.ascend import writer as writers
from opdump.layouts.ascend.operator_files import encode_operator_csv, repeated_tables
from opdump.layouts.ascend.writer import AscendWriter
from opdump.layouts.mindspore_sync.statistic_csv import RepeatedRows, StatisticEncoder, StatisticFiles, repeated_rows
from opdump.plan import DumpPlan
from opdump.records import Frame, OpRecord, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import DEVICE_DEFAULT, OWN, Extremes, SummaryStatistics
from tests.layouts.filing import MemorySink, new_writer, rows_of

_TEXTS = st.text(st.sampled_from('aB/%,"\n\r ö%dsg'), max_size=8)
_COUNTS = st.integers(0, 2**53).map(float)
_SUMMARIES = st.builds(
    Summary,
    st.just(0.0) | _COUNTS,
    *[_COUNTS] * 6,
    *[st.floats() | st.integers(-(10**6), 10**6).map(float)] * 3,
    st.floats(min_value=0) | st.just(math.nan),
)
_DIGESTS = st.fixed_dictionaries({}, optional={"md5": _TEXTS, "hash": _TEXTS})
_PLAIN: st.SearchStrategy[Mapping[str, StatisticValue]] = st.fixed_dictionaries(
    {}, optional={"max": st.floats() | st.integers(), "md5": _TEXTS, "count": st.integers(0, 2**53)}
)
_SKIPS: st.SearchStrategy[SkipReason] = st.sampled_from(["", "", "", "empty"])
_OPS = st.builds(
    OpRecord,
    op_type=_TEXTS,
    op_name=_TEXTS,
    timestamp=st.just(0),
    graph_id=st.integers(0, 2),
    task_id=st.integers(0, 2**63 - 1),
    stream_id=st.integers(0, 2**63 - 1),
    skip=_SKIPS,
)


@st.composite
def _tensors(draw: st.DrawFn) -> list[TensorRecord]:
    ops = draw(st.lists(_OPS, min_size=1, max_size=3))
    tensor = st.builds(
        TensorRecord,
        op=st.sampled_from(ops),
        io=st.sampled_from(["input", "output"]),
        slot=st.integers(0, 2**31),
        dtype=st.sampled_from(["float32", "%d"]),
        shape=st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
        data_size=st.integers(0, 2**63 - 1),
        skip=_SKIPS,
    )
    return draw(st.lists(tensor, min_size=1, max_size=5))


@st.composite
def _steps(draw: st.DrawFn) -> list[list[TensorRecord]]:
    """The same operators on the same tensors in every step, with other time stamps and statistics."""
    tensors = draw(_tensors())
    summarised = st.builds(SummaryStatistics, _SUMMARIES, _DIGESTS)
    # A tensor with a summary usually has one again in the next step.
    kinds: list[st.SearchStrategy[Mapping[str, StatisticValue]]] = [
        draw(st.sampled_from([summarised, summarised, summarised, st.just({})])) for _ in tensors
    ]
    if draw(st.integers(0, 4)) == 0:
        kinds = [kind | _PLAIN for kind in kinds]
    steps = []
    for step in range(draw(st.integers(2, 3))):
        owners = {
            number: replace(op, step=step, timestamp=draw(st.integers(0, 2**63 - 1)))
            for number, op in {id(tensor.op): tensor.op for tensor in tensors}.items()
        }
        steps.append(
            [
                replace(tensor, op=owners[id(tensor.op)], statistics=draw(kind))
                for tensor, kind in zip(tensors, kinds, strict=True)
            ]
        )
    return steps


def _directory(op: OpRecord) -> str:
    return f"{op.graph_id}/{op.step}"


def _written_as(op: OpRecord) -> tuple[OpRecord, str]:
    return replace(op, task_id=op.task_id + 1), f"{op.op_name}%"


def _one_by_one(encoder: StatisticEncoder, tensors: Sequence[TensorRecord]) -> dict[str, bytes]:
    files: dict[str, str] = {}
    for tensor in tensors:
        if not tensor.op.skip:
            path = f"{_directory(tensor.op)}/statistic.csv"
            files[path] = files.get(path, encoder.header) + "".join(rows_of(encoder, *_written_as(tensor.op), [tensor]))
    return {path: text.encode() for path, text in files.items() if text != encoder.header}


@given(_steps(), st.permutations(list(OWN)), st.integers(1, len(OWN)), st.booleans())
def test_repeated_rows_are_those_made_one_by_one(
    steps: list[list[TensorRecord]], categories: list[str], many: int, trailing_comma: bool
) -> None:
    plan = DumpPlan(path=Path("/nowhere"), statistic_category=tuple(categories[:many]), trailing_comma=trailing_comma)
    sink = MemorySink()
    files = StatisticFiles(plan, sink, directory_of=_directory, written_as=_written_as)
    batches = Batches()
    expected: dict[str, bytes] = {}
    for tensors in steps:
        ops = list({id(tensor.op): tensor.op for tensor in tensors}.values())
        files.write_batch(batches.of(ops, tensors))
        encoder = StatisticEncoder(categories[:many], trailing_comma=trailing_comma)
        expected.update(_one_by_one(encoder, tensors))
    assert sink.files == expected


@given(_steps(), st.permutations(list(OWN)))
def test_a_template_serves_every_later_step(steps: list[list[TensorRecord]], categories: list[str]) -> None:
    encoder = StatisticEncoder(categories)
    batches = Batches()
    made = [
        [replace(tensor, statistics=tensor.statistics or _SUMMARY) for tensor in tensors]
        for tensors in steps
        if all(not tensor.statistics or isinstance(tensor.statistics, SummaryStatistics) for tensor in tensors)
    ]
    tables: list[RepeatedRows] = []
    for tensors in made:
        batch = batches.of(list({id(tensor.op): tensor.op for tensor in tensors}.values()), tensors)
        if tensors is made[0]:
            tables = repeated_rows(batch, encoder, directory_of=_directory, written_as=_written_as)
        files = {f"{_directory(batch.table.ops[rows.op])}/statistic.csv": rows.text(batch) for rows in tables}
        expected = _one_by_one(encoder, tensors)
        assert {path: encoder.header.encode() + text for path, text in files.items()} == expected


_SUMMARY = SummaryStatistics(Summary(4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0, 1.0, 6.0, 10.0))
_ARGUMENTS = {"stride": 1}
_STACK = (Frame("train.py", 3), Frame("main.py", 7))


def _step(step: int) -> list[TensorRecord]:
    op = OpRecord(
        op_type="Add", op_name="Add-op0", timestamp=10 + step, step=step, stack=_STACK, arguments=_ARGUMENTS, order=1
    )
    summary = Summary(4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0 + step, 1.0, 6.0, 10.0)
    tensor = TensorRecord(
        op=op, io="input", slot=0, dtype="float32", shape=(4,), data_size=16, statistics=SummaryStatistics(summary)
    )
    return [replace(tensor, slot=slot, op=op) for slot in range(2)]


def test_a_step_that_repeats_the_last_has_its_template() -> None:
    batches = Batches()
    first, second = (batches.of([tensors[0].op], tensors) for tensors in (_step(0), _step(1)))
    assert second.template is first.template
    assert second.table.timestamps == [11]
    batches.forget()
    third = _step(2)
    assert batches.of([third[0].op], third).template is not first.template


@pytest.mark.parametrize(
    "changes",
    [
        {"op_type": "Sub"},
        {"op_name": "Add-op1"},
        {"graph_id": 1},
        {"net_name": "Other"},
        {"task_id": 1},
        {"stream_id": 1},
        {"order": 2},
        {"skip": "empty"},
        {"stack": _STACK[:1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_operator_is_another_pattern(changes: dict[str, Any]) -> None:
    batches = Batches()
    first, second = _step(0), _step(1)
    op = replace(second[0].op, **changes)
    second = [replace(tensor, op=op) for tensor in second]
    assert batches.of([second[0].op], second).template is not batches.of([first[0].op], first).template


@pytest.mark.parametrize("arguments", [{"stride": 2}, {}], ids=["others", "none"])
def test_other_arguments_are_reported_by_the_batch(arguments: dict[str, Any]) -> None:
    batches = Batches()
    first, second = _step(0), _step(1)
    op = replace(second[0].op, arguments=arguments)
    second = [replace(tensor, op=op) for tensor in second]
    filed = [batches.of([tensors[0].op], tensors) for tensors in (first, second, _step(2))]
    assert len({id(batch.template) for batch in filed}) == 1
    assert [batch.arguments for batch in filed] == [{}, {0: arguments}, {}]


def test_a_step_that_repeats_one_before_the_last_has_its_pattern() -> None:
    batches = Batches()
    templates = []
    for step, order in enumerate([1, 2, 3, 1, 2, 3]):
        op = replace(_step(step)[0].op, order=order)
        templates.append(batches.of([op], [replace(tensor, op=op) for tensor in _step(step)]).template)
    assert len({*map(id, templates[:3])}) == 3
    assert [*map(id, templates[3:])] == [*map(id, templates[:3])]
    assert {*map(id, batches.recent)} == {*map(id, templates)}


@pytest.mark.parametrize(
    "changes",
    [
        {"io": "output"},
        {"slot": 3},
        {"dtype": "float16"},
        {"shape": (2, 2)},
        {"format": "NCHW"},
        {"data_size": 8},
        {"argument": "other"},
        {"source": "data-1"},
        {"skip": "empty"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_tensor_is_another_pattern(changes: dict[str, Any]) -> None:
    batches = Batches()
    first, second = _step(0), _step(1)
    second[1] = replace(second[1], **changes)
    assert batches.of([second[0].op], second).template is not batches.of([first[0].op], first).template


def test_another_owner_of_a_tensor_is_another_pattern() -> None:
    batches = Batches()
    templates = []
    for step, owner in ((0, 0), (1, 0), (2, 1)):
        tensors = _step(step)
        ops = [tensors[0].op, replace(tensors[0].op, op_name="Add-op1")]
        tensors[1] = replace(tensors[1], op=ops[owner])
        templates.append(batches.of(ops, tensors).template)
    assert templates[0] is templates[1] is not templates[2]
    assert templates[2].places == [0, 1]


def test_operators_of_two_steps_in_one_batch_keep_their_directories() -> None:
    sink = MemorySink()
    files = StatisticFiles(DumpPlan(path=Path("/nowhere")), sink, directory_of=_directory, written_as=_written_as)
    batches = Batches()
    for first, second in ((0, 0), (1, 1), (2, 3), (4, 4), (5, 6)):
        tensors = [_step(first)[0], _step(second)[1]]
        ops = [tensor.op for tensor in tensors]
        files.write_batch(batches.of(ops, tensors))
    assert {path: data.count(b"Add-op0") for path, data in sink.files.items()} == {
        f"0/{step}/statistic.csv": 2 if step in (0, 1, 4) else 1 for step in range(7)
    }


def test_repeated_steps_are_all_in_statistic_csv_and_the_index(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="statistic", net_name="Net")
    writer = new_writer(plan)
    encoder = StatisticEncoder(plan.statistic_category)
    for step in range(4):
        tensors = _step(step)
        writer.write_step(step, [tensors[0].op], tensors, [None, None], {})
        text = (tmp_path / f"rank_0/Net/0/{step}/statistic.csv").read_text()
        assert text == encoder.header + "".join(rows_of(encoder, tensors[0].op, "Add-op0", tensors))
    writer.close({"executed": 4})
    found = list(open_dump(tmp_path).tensors())
    expected = [tensor for step in range(4) for tensor in _step(step)]
    assert [(tensor.op.step, tensor.op.timestamp, tensor.slot, tensor.statistics) for tensor in found] == [
        (tensor.op.step, tensor.op.timestamp, tensor.slot, tensor.statistics) for tensor in expected
    ]


def test_a_dump_has_the_same_bytes_without_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(root: Path) -> dict[Path, bytes]:
        writer = new_writer(DumpPlan(path=root, saved_data="statistic", statistic_category=tuple(OWN), net_name="Net"))
        for step in range(4):
            tensors = _step(step)
            writer.write_step(step, [tensors[0].op], tensors, [None, None], {})
        writer.close({"executed": 4})
        return {path.relative_to(root): path.read_bytes() for path in root.rglob("statistic.csv")}

    compiled = files(tmp_path / "compiled")
    monkeypatch.setattr("opdump.layouts.mindspore_sync.statistic_csv.TableText", append_file.TableText)
    assert files(tmp_path / "twin") == compiled
    assert len(compiled) == 4


_TABLE_TEXTS = st.text(st.sampled_from("aB/%,. ös"), min_size=1, max_size=8)
_BOUNDS = st.floats() | st.integers(-(10**6), 10**6).map(float)
_TABLE_SUMMARIES = st.builds(
    Summary, st.just(0.0) | _COUNTS, *[_COUNTS] * 6, *[_BOUNDS] * 3, st.floats(min_value=0) | st.just(np.nan)
)
_EXTREMES: st.SearchStrategy[Extremes | None] = (
    st.none() | st.tuples(_BOUNDS, _BOUNDS) | st.tuples(st.integers(-(2**63), 2**64), st.integers(-(2**63), 2**64))
)
_TABLE_OPS = st.builds(
    OpRecord,
    op_type=_TABLE_TEXTS,
    op_name=_TABLE_TEXTS,
    timestamp=st.just(0),
    net_name=st.sampled_from(["", "net"]),
    graph_id=st.integers(0, 2),
    task_id=st.integers(0, 9),
    skip=st.sampled_from(["", "", "constant"]),
)


@st.composite
def _steps_of_tables(draw: st.DrawFn) -> list[list[TensorRecord]]:
    """The same operators on the same tensors in every step, with other time stamps and statistics."""
    ops = draw(st.lists(_TABLE_OPS, min_size=1, max_size=3))
    tensor = st.builds(
        TensorRecord,
        op=st.sampled_from(ops),
        io=st.sampled_from(["input", "output"]),
        slot=st.integers(0, 9),
        dtype=st.sampled_from(["float32", "int64", "bool", "bfloat16", "%d"]),
        format=st.sampled_from(["DefaultFormat", "NC1HWC0", "%s"]),
        shape=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
        data_size=st.integers(0, 2),
    )
    tensors = draw(st.lists(tensor, min_size=1, max_size=5))
    bare = draw(st.lists(st.integers(0, 4), max_size=2))
    steps = []
    for step in range(3):
        owners = {
            number: replace(op, step=step, timestamp=draw(st.integers(0, 2**50)))
            for number, op in {id(tensor.op): tensor.op for tensor in tensors}.items()
        }
        statistics = [
            {} if place in bare else SummaryStatistics(draw(_TABLE_SUMMARIES), None, draw(_EXTREMES))
            for place in range(len(tensors))
        ]
        steps.append(
            [
                replace(tensor, op=owners[id(tensor.op)], statistics=each)
                for tensor, each in zip(tensors, statistics, strict=True)
            ]
        )
    return steps


@given(_steps_of_tables())
def test_a_template_of_tables_serves_every_later_step(steps: list[list[TensorRecord]]) -> None:
    batches, found = Batches(), []
    for tensors in steps:
        batch = batches.of(list({id(tensor.op): tensor.op for tensor in tensors}.values()), tensors)
        if tensors is steps[0]:
            tables = repeated_tables(batch, lambda op: op.op_name)
        groups: dict[int, list[TensorRecord]] = {}
        for tensor in tensors:
            if not tensor.op.skip:
                groups.setdefault(id(tensor.op), []).append(tensor)
        whole = [group for group in groups.values() if any(tensor.data_size for tensor in group)]
        expected = [(group[0].op, encode_operator_csv(group, DEVICE_DEFAULT)) for group in whole]
        if tables is None or not batch.table.has_summaries:
            found.append(not expected or not batch.table.has_summaries)
            continue
        assert [*zip([batch.table.ops[place] for place in tables.owners], tables.texts(batch), strict=True)] == expected
        assert [*tables.names] == [op.op_name for op, _ in expected]
        for place, owner in zip(tables.neighbours, tables.owners, strict=True):
            own, other = batch.table.ops[owner], batch.table.ops[place]
            assert (own.net_name, own.graph_id) == (other.net_name, other.graph_id)
    assert all(found)


def _step_of_tables(number: int, names: list[str]) -> tuple[list[OpRecord], list[TensorRecord]]:
    ops, tensors = [], []
    for place, name in enumerate(names):
        op = OpRecord("Relu", name, 100 * number + place, number, "net" if place % 2 else "other", 1, order=place)
        ops.append(op)
        summary = Summary(4.0, 0.0, 0.0, 0.0, 1.0, 0.0, 3.0, 2.0 + number, 0.0, 6.0, 10.0)
        tensors.append(
            TensorRecord(op, "output", 0, "float32", (2, 2), data_size=16, statistics=SummaryStatistics(summary))
        )
    return ops, tensors


NAMES = ["a", "b%d", "layer/" * 60, "c"]
"""The third name is too long for a file."""


def _tree(root: Path, names: Callable[[int], list[str]], settings: dict[str, Any]) -> dict[str, bytes]:
    """All files except the index, from a dump of five steps, which is removed afterwards."""
    plan = DumpPlan(path=root, layout="acl", saved_data="statistic", statistic_category=DEVICE_DEFAULT, **settings)
    writer = AscendWriter(plan, RunFacts(0, "CPU", "fake", "1.2", "0", ("train.py",), "{}"), started=1e9)
    for step in range(5):
        ops, tensors = _step_of_tables(step, names(step))
        writer.write_step(step, ops, tensors, [None] * len(tensors), {})
    writer.close({"executed": 0})
    tree = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.suffix != ".sqlite" and path.is_file()
    }
    catalog = open_dump(root)
    assert [op.op_name for op in catalog.ops()] == [name for step in range(5) for name in names(step)]
    shutil.rmtree(root)
    return tree


@pytest.mark.parametrize(
    ("names", "filled"),
    [(lambda _: NAMES, 4), (lambda step: NAMES[: 2 + (step == 2)], 2)],
    ids=["every step the same", "another one between"],
)
@pytest.mark.parametrize("settings", [{}, {"stream_in_names": False}, {"dialect": "acl"}])
def test_repeated_steps_leave_the_same_files(
    names: Callable[[int], list[str]],
    filled: int,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(*args: Any) -> Any:
        made.append(len(args[0].table.tensors))
        return repeated_tables(*args)

    monkeypatch.setattr(writers, "repeated_tables", counted)
    found = _tree(tmp_path / "dump", names, settings)
    assert made == [len(names(0))] * (1 if filled == 4 else 2)
    monkeypatch.setattr(writers, "form_of", lambda _: None)
    assert _tree(tmp_path / "dump", names, settings) == found
    assert len(made) == (1 if filled == 4 else 2)
    tables = [name for name in found if name.endswith(".csv") and not name.endswith("mapping.csv")]
    long = sum("layer/" in name for step in range(5) for name in names(step))
    assert len(tables) == sum(len(names(step)) for step in range(5)) - long
    assert sum(text.count(b"\n") for name, text in found.items() if name.endswith("mapping.csv")) == long
