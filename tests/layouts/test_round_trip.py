"""Any record that an adapter can make is written and read back; the registry of layouts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opdump.capturing.rank_assignment import DeferredWriter
from opdump.catalog.catalog import open_dump
from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.errors import ConfigError
from opdump.index.writer import RunFacts
from opdump.kernels import summarise
from opdump.layouts.ascend.writer import AscendWriter
from opdump.layouts.base import LAYOUTS, RankWriter, open_writer
from opdump.plan import DumpPlan
from opdump.records import Frame, HostPayload, Memory, OpRecord, TensorRecord
from opdump.sink import DirectorySink
from opdump.statistics import SummaryStatistics
from opdump.testing.layout_tests import assert_same_bits
from tests.layouts.filing import new_writer

_NAMES = st.text(min_size=1, max_size=80)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_DTYPES = st.sampled_from(["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
_ARRAYS = _DTYPES.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4))
)


_NUMBERS = st.integers(0, 2**63 - 1)
_ANY_NUMBERS = st.integers(-(2**63), 2**63 - 1)


def _memories(rank: int) -> st.SearchStrategy[Memory | None]:
    strides = st.lists(_ANY_NUMBERS, min_size=rank, max_size=rank).map(tuple)
    return st.none() | st.builds(Memory, _NUMBERS, _NUMBERS, strides, _ANY_NUMBERS)


@st.composite
def _steps(draw: st.DrawFn) -> tuple[list[OpRecord], list[TensorRecord]]:
    ops, tensors = [], []
    for order in range(draw(st.integers(1, 3))):
        op = OpRecord(
            op_type=draw(_NAMES),
            op_name=f"{draw(_NAMES)}-op{order}",
            timestamp=1_700_000_000_000_000 + order,
            net_name="Net",
            graph_id=draw(st.integers(0, 3)),
            device_id=draw(st.integers(0, 7)),
            stream_id=draw(st.integers(0, 7)),
            order=order,
            phase=draw(st.sampled_from(["forward", "recomputation", "backward", "optimizer"])),
            kernel=draw(st.text(max_size=9)),
            forward_op=draw(st.text(max_size=9)),
            stack=tuple(draw(st.lists(st.builds(Frame, _NAMES, st.integers(0, 10**6), _NAMES, _NAMES), max_size=3))),
            arguments=draw(st.dictionaries(st.text(max_size=5), _JSON, max_size=3)),
        )
        ops.append(op)
        for slot, array in enumerate(draw(st.lists(_ARRAYS, max_size=3))):
            tensors.append(
                TensorRecord(
                    op=op,
                    io=draw(st.sampled_from(["input", "output"])),
                    slot=slot,
                    dtype=array.dtype.name,
                    shape=array.shape,
                    format=draw(st.sampled_from(["DefaultFormat", "NCHW", "NC1HWC0"])),
                    payload=HostPayload(array),
                    statistics={} if array.dtype.kind == "c" else SummaryStatistics(summarise(array)),
                    argument=draw(st.text(max_size=9)),
                    source=draw(st.text(max_size=9)),
                    data_size=array.nbytes,
                    memory=draw(_memories(array.ndim)),
                )
            )
    return ops, tensors


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10"])
@settings(max_examples=40)
@given(step=_steps())
def test_whatever_an_adapter_makes_comes_back(layout: str, step: tuple[list[OpRecord], list[TensorRecord]]) -> None:
    ops, tensors = step
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        writer = new_writer(DumpPlan(path=root, saved_data="full", layout=layout))
        files = [writer.write_payload(record) for record in tensors]
        writer.write_step(0, ops, tensors, list(files))
        writer.close({})
        catalog = open_dump(root)
        assert [each.op for each in catalog.ops()] == ops
        found = list(catalog)
        assert found == tensors
        for record, origin in zip(found, tensors, strict=True):
            assert record.payload is not None
            assert origin.payload is not None
            assert_same_bits(record.payload.to_host(), origin.payload.to_host())
        assert not catalog.problems


_DEVICE_FORMS: tuple[dict[str, Any], ...] = (
    {"layout": "mindspore-async", "file_format": "npy"},
    {"layout": "mindspore-async", "file_format": "bin"},
    {"layout": "mindspore-async", "file_format": "bin", "step_level": True, "kernel_by_kernel": True},
    {"layout": "acl", "file_format": "bin"},
)


@pytest.mark.parametrize("form", _DEVICE_FORMS, ids=str)
@settings(max_examples=30)
@given(step=_steps())
def test_whatever_an_adapter_makes_comes_back_from_a_device_dump(
    form: dict[str, Any], step: tuple[list[OpRecord], list[TensorRecord]]
) -> None:
    ops, tensors = step
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        writer = open_writer(
            DumpPlan(path=root, saved_data="full", **form), RunFacts(0, "CPU", "fake", "1.2", "0", (), "{}")
        )
        assert isinstance(writer, AscendWriter)
        files: list[str | None] = []
        for op in ops:
            files += writer.write_operator(op, [tensor for tensor in tensors if tensor.op is op])
        writer.write_step(0, ops, tensors, files, {})
        writer.close({})
        catalog = open_dump(root)
        assert [each.op for each in catalog.ops()] == ops
        found = list(catalog)
        assert found == tensors
        for record, origin in zip(found, tensors, strict=True):
            assert record.payload is not None
            assert origin.payload is not None
            assert_same_bits(record.payload.to_host(), origin.payload.to_host())
        assert not catalog.problems


def test_text_that_is_no_unicode_is_kept_readable() -> None:
    op = OpRecord(op_type="A", op_name="Default/A-op0", timestamp=1, stack=(Frame("/home/\udce4/train.py", 1),))
    with tempfile.TemporaryDirectory() as directory:
        writer = new_writer(DumpPlan(path=Path(directory)))
        writer.write_step(0, [op], [], [])
        writer.close({})
        (found,) = open_dump(directory).ops()
    assert found.op == replace(op, stack=(Frame("/home/\\udce4/train.py", 1),))


def test_one_argument_value_is_not_taken_for_another() -> None:
    values = [True, 1, 1.0, "1", None, [1], np.float64(1).item(), (1, 2), -0.0, 0.0]
    ops = [
        OpRecord(op_type="A", op_name=f"Default/A-op{order}", timestamp=order + 1, order=order, arguments={"x": value})
        for order, value in enumerate(values)
    ]
    with tempfile.TemporaryDirectory() as directory:
        writer = new_writer(DumpPlan(path=Path(directory)))
        writer.write_step(0, ops, [], [])
        writer.close({})
        found = [op.arguments["x"] for op in open_dump(directory).ops()]
    assert [repr(value) for value in found] == [repr(list(v) if isinstance(v, tuple) else v) for v in values]


def test_every_layout_has_the_name_under_which_it_is_registered() -> None:
    assert [LAYOUTS.load(name).name for name in LAYOUTS.own] == list(LAYOUTS.own)


def test_a_name_of_no_layout_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DumpPlan: layout is 'mindspor-2.3', expected .*; nearest: 'mindspore-2.3'"):
        DumpPlan(path=tmp_path, layout="mindspor-2.3")
    with pytest.raises(ConfigError, match="DumpPlan: layout is 3, expected text"):
        DumpPlan(path=tmp_path, layout=3)  # type: ignore[arg-type]


def test_naming_a_layout_of_opdump_loads_no_writer_and_searches_no_package() -> None:
    code = """
import sys
from pathlib import Path
from opdump.plan import DumpPlan
for layout in ("mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl"):
    assert DumpPlan(path=Path("/tmp"), layout=layout).layout_facts.files
print(*sorted({"importlib.metadata", "numpy", "sqlite3", "opdump.sink"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


class _Least(RankWriter):
    """A writer that stores nothing."""

    def __init__(self, root: Path) -> None:
        self.sink = DirectorySink(root)


def test_a_deferred_writer_ignores_what_its_layout_cannot_store(tmp_path: Path) -> None:
    writer = DeferredWriter(DumpPlan(path=tmp_path), lambda: _Least(tmp_path))
    op = OpRecord("A", "A-op0", 1)
    writer.write_kernel_args(op)
    writer.graphs_ran(0, [0])
    writer.write_overflow(op, OverflowStatus(0))
    writer.write_degradation(Degradation(step=0, time=0, bound="max_disk", now="off", why=""))
    assert writer.write_exception(op, [], "failed") == []
    assert (writer.metadata, writer.index_bytes) == (None, 0)
    writer.flush()
    writer.close({})
