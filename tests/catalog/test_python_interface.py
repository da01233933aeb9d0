"""The Python interface of a dump: operators with their tensors, their values, and their repr and HTML."""

from __future__ import annotations

import html.parser
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import Catalog, open_dump
from opdump.errors import ConfigError, NoElementsError, NotInDumpError
from opdump.plan import DumpPlan
from opdump.records import Frame, OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics
from opdump.testing import sample_step
from tests.layouts.filing import file_steps

HOSTILE = "<script>alert('x')</script>&\n\x1b[2J"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    file_steps(DumpPlan(path=tmp_path / "dump", saved_data="full"), [sample_step(0), sample_step(7)])
    return open_dump(tmp_path / "dump")


def test_ops_have_their_tensors_and_say_what_their_records_say(catalog: Catalog) -> None:
    found = list(catalog.ops(step=7))
    assert [each.op for each in found] == [op for op in sample_step(7).ops if not op.skip]
    assert [tensor for each in found for tensor in each.tensors] == list(catalog.tensors(step=7))
    for each in found:
        assert {item.name: getattr(each, item.name) for item in fields(OpRecord)} == {
            item.name: getattr(each.op, item.name) for item in fields(OpRecord)
        }
    assert list(catalog.executions(step=7)) == found


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("Default/network-Net/loop-Body/MatMul-op90", {"MatMul"}),
        ("MatMul-op90", {"MatMul"}),
        ("loop-Body", {"MatMul"}),
        ("matmul", {"MatMul"}),
        ("aten::_to_copy", {"Cast"}),
        ("name-regex(.*/cat-op94)", {"cat"}),
        ("Parameter.fc.weight", {"Parameter"}),
        ("view-op93", {"view"}),
    ],
)
def test_ops_take_a_name_in_the_forms_that_show_takes(name: str, types: set[str], catalog: Catalog) -> None:
    assert {op.op_type for op in catalog.ops(name)} == types
    assert {tensor.op.op_type for tensor in catalog.tensors(name, include_skipped=True)} == types


def test_the_filters_of_ops_hold_together(catalog: Catalog) -> None:
    (every,) = {len(list(catalog.ops(step=step, source="train.py:42"))) for step in (0, 7)}
    assert every == len(list(catalog.ops(step=0)))
    assert {op.op_type for op in catalog.ops(source="model.py:7")} == {"MatMul"}
    assert [op.occurrence for op in catalog.ops("loop-Body", step=7, source="model.py")] == [0, 1, 2]
    assert {op.op_type for op in catalog.ops(op_type="ReLU")} == {"ReLU"}
    assert not list(catalog.ops("loop-Body", source="model.py:8"))
    assert not list(catalog.ops("MatMul-op90", op_type="ReLU"))
    assert {tensor.io for tensor in catalog.tensors("loop-Body", io="output")} == {"output"}
    assert list(catalog.at_source("model.py:7")) == list(catalog.ops(source="model.py:7"))


def test_a_name_that_means_nothing_is_reported_at_once(catalog: Catalog) -> None:
    with pytest.raises(NotInDumpError, match=r"'MatMul-op91' in step 7.*the nearest are .*MatMul-op90"):
        catalog.ops("MatMul-op91", step=7)
    with pytest.raises(ConfigError):
        catalog.ops("name-regex(()")


def test_the_length_is_that_of_the_list(catalog: Catalog) -> None:
    assert len(catalog) == len(list(catalog.tensors())) > 0
    assert len(catalog) == len(list(catalog))
    assert catalog


def test_a_dump_without_a_tensor_is_false_and_of_length_0(tmp_path: Path) -> None:
    step = sample_step(0)
    skipped = tuple(op for op in step.ops if op.skip)
    file_steps(DumpPlan(path=tmp_path), [replace(step, ops=skipped, tensors=())])
    assert len(open_dump(tmp_path)) == 0
    assert not open_dump(tmp_path)


def test_numpy_gives_the_elements_of_the_file(catalog: Catalog) -> None:
    for record in catalog:
        assert record.payload is not None
        array = record.numpy()
        assert array.shape == record.payload_shape
        assert array.tobytes() == record.payload.to_host().tobytes()


@pytest.mark.parametrize(
    ("dtype", "widened"),
    [
        ("float16", "float16"),
        ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"),
        ("hifloat8", "float32"),
        ("float4_e2m1", "float32"),
        ("int4", "int8"),
        ("uint1", "uint8"),
        ("complex32", "complex64"),
        ("bool", "bool"),
    ],
)
def test_a_tensor_of_no_elements_is_an_empty_array(dtype: str, widened: str) -> None:
    op = OpRecord(op_type="cat", op_name="cat-op0", timestamp=1)
    array = TensorRecord(op, "input", 0, dtype, (3, 0), skip="empty").numpy()
    assert (array.shape, array.dtype) == ((3, 0), np.dtype(widened))


def test_elements_that_were_not_dumped_are_an_error_that_says_why(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic"), [sample_step(0)])
    catalog = open_dump(tmp_path)
    with pytest.raises(
        NoElementsError, match=r"cat-op94:output:0 in step 0: .*only its statistics.*saved_data \"full\""
    ):
        catalog.op("cat-op94").outputs[0].numpy()
    view = next(catalog.tensors("view-op93", include_skipped=True))
    with pytest.raises(NoElementsError, match=r"left no data \(view\)"):
        view.numpy()


def test_every_repr_is_one_line_of_about_100_characters(catalog: Catalog) -> None:
    records = list(catalog.tensors(include_skipped=True))
    ops = list(catalog.ops(include_skipped=True))
    every = [catalog, *catalog.runs, *records, *ops, *(each.op for each in ops)]
    assert all(len(repr(each)) <= 110 and repr(each).isprintable() for each in every), max(map(repr, every), key=len)
    (conv,) = [each for each in ops if each.op_name.endswith("MatMul-op90") and (each.step, each.occurrence) == (7, 2)]
    assert (
        repr(conv)
        == "Execution(…et/loop-Body/MatMul-op90, step 7, rank 0, forward, execution 3, 2 in, 1 out, model.py:7)"
    )
    assert (
        repr(conv.op)
        == "OpRecord(…ault/network-Net/loop-Body/MatMul-op90, step 7, rank 0, forward, execution 3, model.py:7)"
    )
    assert re.fullmatch(r"Catalog\(\S+/dump, steps 0, 7, rank 0\)", repr(catalog))
    odd = catalog.op("add-op91", step=0).outputs[0]
    assert re.fullmatch(
        r"TensorRecord\(…\S* of\\net/add-op91:output:0, float32 \(6\), step 0, max nan min nan nan 1 inf 2\)",
        repr(odd),
    )
    assert isinstance(odd.statistics, SummaryStatistics)
    assert repr(odd.statistics) == (
        "SummaryStatistics(max nan, min nan, avg nan, l2norm nan, count 6, "
        "nan count 1, negative inf count 1, positive inf count 1)"
    )


def test_a_repr_of_a_hostile_name_stays_one_line() -> None:
    op = OpRecord(op_type="a", op_name=HOSTILE * 50, timestamp=1, stack=(Frame(HOSTILE, 3),))
    tensor = TensorRecord(op, "output", 0, "float32", (1,) * 200)
    assert all("\n" not in repr(each) and "\x1b" not in repr(each) and len(repr(each)) < 300 for each in (op, tensor))


class _Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_of_hostile_names_is_escaped() -> None:
    op = OpRecord(
        op_type=HOSTILE,
        op_name=HOSTILE,
        timestamp=1,
        kernel=HOSTILE,
        forward_op=HOSTILE,
        stack=(Frame(HOSTILE, 3, HOSTILE, HOSTILE),),
        arguments={HOSTILE: [HOSTILE] * 1000},
    )
    tensor = TensorRecord(
        op, "output", 0, HOSTILE, (1,), HOSTILE, argument=HOSTILE, source=HOSTILE, statistics={HOSTILE: HOSTILE}
    )
    from opdump.catalog.catalog import Execution

    for each in (op, tensor, Execution(op, (tensor,))):
        tags = _Tags(each._repr_html_())
        assert tags.seen <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
        assert tags.open == []
        assert len(each._repr_html_()) < 5000


def test_html_shows_the_tensors_of_an_operator_and_the_runs_of_a_dump(catalog: Catalog) -> None:
    text = catalog.op("MatMul-op90", step=7)._repr_html_()
    for part in (
        "loop-Body/MatMul-op90",
        "model.py:7",
        "loss = network(images).mean()",
        "input.0",
        "mat1",
        "(4,5)",
        "fc.weight",
    ):
        assert part in text
    assert str(catalog.path) in catalog._repr_html_()
    assert "run" in catalog._repr_html_()
    assert "zero count" in catalog.op("add-op91").outputs[0]._repr_html_()
