"""The tables of operators that repeat the previous step are the same files as tables that are made one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
from opdump.kernels import Summary
from opdump.layouts.ascend import writer as writers
from opdump.layouts.ascend.operator_files import encode_operator_csv, repeated_tables
from opdump.layouts.ascend.writer import AscendWriter
from opdump.plan import DumpPlan
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import DEVICE_DEFAULT, Extremes, SummaryStatistics

_TEXTS = st.text(st.sampled_from("aB/%,. ös"), min_size=1, max_size=8)
_COUNTS = st.integers(0, 2**53).map(float)
_BOUNDS = st.floats() | st.integers(-(10**6), 10**6).map(float)
_SUMMARIES = st.builds(
    Summary, st.just(0.0) | _COUNTS, *[_COUNTS] * 6, *[_BOUNDS] * 3, st.floats(min_value=0) | st.just(np.nan)
)
_EXTREMES: st.SearchStrategy[Extremes | None] = (
    st.none() | st.tuples(_BOUNDS, _BOUNDS) | st.tuples(st.integers(-(2**63), 2**64), st.integers(-(2**63), 2**64))
)
_OPS = st.builds(
    OpRecord,
    op_type=_TEXTS,
    op_name=_TEXTS,
    timestamp=st.just(0),
    net_name=st.sampled_from(["", "net"]),
    graph_id=st.integers(0, 2),
    task_id=st.integers(0, 9),
    skip=st.sampled_from(["", "", "constant"]),
)


@st.composite
def _steps(draw: st.DrawFn) -> list[list[TensorRecord]]:
    """The same operators on the same tensors in every step, with other time stamps and statistics."""
    ops = draw(st.lists(_OPS, min_size=1, max_size=3))
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
            {} if place in bare else SummaryStatistics(draw(_SUMMARIES), None, draw(_EXTREMES))
            for place in range(len(tensors))
        ]
        steps.append(
            [
                replace(tensor, op=owners[id(tensor.op)], statistics=each)
                for tensor, each in zip(tensors, statistics, strict=True)
            ]
        )
    return steps


@given(_steps())
def test_a_template_serves_every_later_step(steps: list[list[TensorRecord]]) -> None:
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


def _step(number: int, names: list[str]) -> tuple[list[OpRecord], list[TensorRecord]]:
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
        ops, tensors = _step(step, names(step))
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
