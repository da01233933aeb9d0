"""The files that the synchronous writer leaves on disk, in both generations."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.errors import DumpPathError
from opdump.graph import PYNATIVE, Graph, GraphNode, GraphOutput, graph_of_word, graph_word
from opdump.index.runs import METADATA
from opdump.index.writer import RunFacts
from opdump.layouts.base import LAYOUTS, Layout
from opdump.layouts.mindspore_sync.files import parse_file_name, read_mapping
from opdump.layouts.mindspore_sync.statistic_csv import decode_statistic_csv
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan, StepSet
from opdump.records import HostPayload, OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics
from opdump.testing import LayoutTests, SampleStep, sample_step
from tests.layouts.filing import file_in_layout, file_step, file_steps, new_writer

_OP = OpRecord(
    op_type="MatMul", op_name="Default/fc-Dense/MatMul-op7", timestamp=1795247154245448, step=4, net_name="Net"
)
_TENSOR = TensorRecord(
    op=_OP, io="output", slot=0, dtype="float32", shape=(2,), payload=HostPayload(np.ones(2, dtype="f4")), data_size=8
)


def _tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def _graph(*names: str) -> Graph:
    nodes = [GraphNode(op_name=name, op_type="MatMul", outputs=(GraphOutput("float32", (2,)),)) for name in names]
    return Graph(graph_id=0, nodes=tuple(nodes))


def test_the_documented_tree(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="full", net_name="Net", save_kernel_args=True)
    writer = new_writer(plan)
    op = replace(_OP, arguments={"transpose_a": False, "alpha": 0.5})
    record = replace(_TENSOR, op=op, statistics={"max": 1.0, "min": 1.0, "l2norm": 2.0**0.5})
    file = writer.write_payload(record)
    writer.write_constant(3, record)
    writer.write_kernel_args(op)
    writer.write_graph(_graph(_OP.op_name))
    writer.write_step(4, [op], [record], [file])
    writer.close({})
    assert _tree(tmp_path / "rank_0") == {
        ".dump_metadata/config.json",
        ".dump_metadata/data_dump.json",
        ".dump_metadata/index.sqlite",
        "Net/0/4/MatMul.MatMul-op7.0.0.1795247154245448.output.0.DefaultFormat.npy",
        "Net/0/4/MatMul.MatMul-op7.json",
        "Net/0/4/statistic.csv",
        "Net/0/constants/Parameter.data-3.0.0.1795247154245448.output.0.DefaultFormat.npy",
        "execution_order/ms_execution_order_graph_0.csv",
        "execution_order/ms_global_execution_order_graph_0.csv",
        "graphs/ms_output_trace_code_graph_0.ir",
        "graphs/ms_output_trace_code_graph_0.pb",
    }
    assert file == "Net/0/4/MatMul.MatMul-op7.0.0.1795247154245448.output.0.DefaultFormat.npy"
    root = tmp_path / "rank_0"
    assert (root / "Net/0/4/MatMul.MatMul-op7.json").read_text() == (
        '{\n    "alpha": "0.5",\n    "transpose_a": "False"\n}'
    )
    assert (root / "execution_order/ms_global_execution_order_graph_0.csv").read_bytes() == b"4\n"
    assert "MatMul,MatMul-op7,0,0," in (root / "Net/0/4/statistic.csv").read_text()


def test_the_names_of_mindspore_2_10(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, layout="mindspore-2.10", saved_data="full"))
    record = replace(_TENSOR, dtype="bfloat16", statistics={"max": 1.0, "min": 1.0, "l2norm": 2.0**0.5})
    file = writer.write_payload(record)
    constant = writer.write_constant(0, record)
    writer.write_step(4, [_OP], [record], [file])
    writer.close({})
    stem = "0.0.1795247154245448.output.0.DefaultFormat.BFloat16.npy"
    assert file == f"Net/0/4/MatMul.Default_fc-Dense_MatMul-op7.{stem}"
    assert constant == f"Net/0/constants/Parameter.data-0.{stem}"
    (row,) = decode_statistic_csv((tmp_path / "rank_0/Net/0/4/statistic.csv").read_bytes())
    assert (row.op_name, row.dtype) == ("Default/fc-Dense/MatMul-op7", "bfloat16")


def test_every_file_name_of_a_dump_parses(tmp_path: Path) -> None:
    for layout in ("mindspore-2.3", "mindspore-2.10"):
        root = tmp_path / layout
        file_steps(DumpPlan(path=root, layout=layout), [sample_step()])
        for path in root.rglob("*.npy"):
            mapping = path.parent / "mapping.csv"
            assert parse_file_name(read_mapping(mapping).get(path.name, path.name)) is not None


def test_files_are_read_only_and_directories_private(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path / "dump", saved_data="full"), [sample_step()])
    for path in (tmp_path / "dump").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        expected = 0o700 if path.is_dir() else 0o600 if path.name == "index.sqlite" else 0o400
        assert mode == expected, path


def test_statistic_mode_writes_no_tensor_and_tensor_mode_no_statistics(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path / "a", saved_data="statistic"), [sample_step()])
    file_steps(DumpPlan(path=tmp_path / "b", saved_data="tensor"), [sample_step()])
    assert not list((tmp_path / "a").rglob("*.npy"))
    assert list((tmp_path / "a").rglob("statistic.csv"))
    assert not list((tmp_path / "b").rglob("statistic.csv"))
    assert list((tmp_path / "b").rglob("*.npy"))


def test_rows_of_statistic_csv_are_in_execution_order(tmp_path: Path) -> None:
    step = sample_step()
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic"), [step])
    rows = decode_statistic_csv((tmp_path / "rank_0/Net/0/0/statistic.csv").read_bytes())
    expected = [record for record in step.tensors if record.statistics]
    assert [(row.timestamp, row.io, row.slot) for row in rows] == [(r.op.timestamp, r.io, r.slot) for r in expected]
    assert "complex64" not in {row.dtype for row in rows}


def test_a_name_over_255_bytes_goes_to_mapping_csv(tmp_path: Path) -> None:
    name = "Default/" + "long" * 80 + "-op0"
    record = replace(_TENSOR, op=replace(_OP, op_name=name, arguments={"a": 1}))
    writer = new_writer(DumpPlan(path=tmp_path, save_kernel_args=True))
    files = [writer.write_payload(replace(record, slot=slot)) for slot in range(3)]
    writer.write_kernel_args(record.op)
    writer.write_step(4, [record.op], [replace(record, slot=slot) for slot in range(3)], list(files))
    writer.close({})
    mapping = read_mapping(tmp_path / "rank_0/Net/0/4/mapping.csv")
    for slot, file in enumerate(files):
        short = file.rpartition("/")[2]
        assert short.removesuffix(".npy").isdigit()
        assert mapping[short] == f"MatMul.{'long' * 80}-op0.0.0.1795247154245448.output.{slot}.DefaultFormat.npy"
    assert mapping[next(short for short in mapping if short.endswith(".json"))] == f"MatMul.{'long' * 80}-op0.json"
    assert len(set(mapping)) == 4
    assert [record.op.op_name for record in open_dump(tmp_path)] == [name] * 3


def test_the_limit_counts_bytes_not_letters(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    file = writer.write_payload(replace(_TENSOR, op=replace(_OP, op_name="Default/" + "\u0444" * 110)))
    writer.close({})
    assert file.rpartition("/")[2].removesuffix(".npy").isdigit()


def test_the_random_names_leave_the_generators_alone(tmp_path: Path) -> None:
    random.seed(1)
    before = random.getstate()
    writer = new_writer(DumpPlan(path=tmp_path))
    writer.write_payload(replace(_TENSOR, op=replace(_OP, op_name="x" * 300)))
    writer.close({})
    assert random.getstate() == before


def test_end_step_twice_for_a_step_adds(tmp_path: Path) -> None:
    step = sample_step()
    half = len(step.ops) // 2
    kept = {id(op) for op in step.ops[:half]}
    parts = [
        SampleStep(0, step.ops[:half], tuple(r for r in step.tensors if id(r.op) in kept)),
        SampleStep(0, step.ops[half:], tuple(r for r in step.tensors if id(r.op) not in kept)),
    ]
    file_steps(DumpPlan(path=tmp_path / "parts", saved_data="full"), parts)
    file_steps(DumpPlan(path=tmp_path / "whole", saved_data="full"), [step])
    one, other = open_dump(tmp_path / "parts"), open_dump(tmp_path / "whole")
    assert (
        [each.op for each in one.ops(include_skipped=True)]
        == [each.op for each in other.ops(include_skipped=True)]
        == list(step.ops)
    )
    assert list(one) == list(other)
    for name in ("Net/0/0/statistic.csv", "execution_order/ms_global_execution_order_graph_0.csv"):
        assert (tmp_path / "parts/rank_0" / name).read_bytes() == (tmp_path / "whole/rank_0" / name).read_bytes()


def test_a_second_run_adds_and_clears_nothing(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="full")
    first = sample_step()
    later = 3_600_000_000
    ops = {id(op): replace(op, timestamp=op.timestamp + later) for op in first.ops}
    tensors = tuple(replace(record, op=ops[id(record.op)]) for record in first.tensors)
    file_steps(plan, [first])
    once = _tree(tmp_path)
    file_steps(plan, [SampleStep(0, tuple(ops.values()), tensors)])
    assert once < _tree(tmp_path)
    rank = tmp_path / "rank_0"
    assert (rank / "execution_order/ms_global_execution_order_graph_0.csv").read_text() == "0\n0\n"
    rows = decode_statistic_csv((rank / "Net/0/0/statistic.csv").read_bytes())
    assert len(rows) == 2 * len([record for record in first.tensors if record.statistics])
    assert len((rank / "Net/0/0/mapping.csv").read_text().splitlines()) == 4


def test_a_graph_may_be_written_again_when_it_has_grown(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    writer.write_graph(_graph("Default/MatMul-op0"))
    writer.write_graph(_graph("Default/MatMul-op0", "Default/MatMul-op1"))
    writer.close({})
    catalog = open_dump(tmp_path)
    assert catalog.execution_order(0) == ("Default/MatMul-op0", "Default/MatMul-op1")
    graph = catalog.graph(0)
    assert graph is not None
    assert len(graph.nodes) == 2


def test_the_config_is_copied_to_the_byte(tmp_path: Path) -> None:
    text = '{ "common_dump_settings" : {"net_name":"Net","input_output":0},\n\n "e2e_dump_settings":{"enable":false} }'
    new_writer(DumpPlan(path=tmp_path, config_text=text)).close({})
    assert (tmp_path / "rank_0/.dump_metadata/data_dump.json").read_text() == text


def test_enable_is_added_where_readers_would_miss_it(tmp_path: Path) -> None:
    config = {"common_dump_settings": {"net_name": "Net", "input_output": 0}, "e2e_dump_settings": {"trans_flag": True}}
    new_writer(DumpPlan(path=tmp_path, config_text=json.dumps(config))).close({})
    written = json.loads((tmp_path / "rank_0/.dump_metadata/data_dump.json").read_text())
    assert written["e2e_dump_settings"] == {"enable": True, "trans_flag": True}
    assert written["common_dump_settings"] == config["common_dump_settings"]


def test_a_plan_without_a_file_is_written_as_one(tmp_path: Path) -> None:
    plan = DumpPlan(
        path=tmp_path, net_name="ResNet", steps=StepSet.parse("0|5-8"), outputs=False, sample_num=7, initial_iteration=3
    )
    new_writer(plan).close({})
    written = json.loads((tmp_path / "rank_0/.dump_metadata/data_dump.json").read_text())
    common = written["common_dump_settings"]
    assert (common["net_name"], common["iteration"], common["input_output"]) == ("ResNet", "0|5-8", 1)
    assert common["initial_iteration"] == 3
    assert written["e2e_dump_settings"]["enable"] is True
    assert written["e2e_dump_settings"]["sample_num"] == 7


def test_config_json_claims_no_version_of_mindspore(tmp_path: Path) -> None:
    new_writer(DumpPlan(path=tmp_path)).close({})
    facts = json.loads((tmp_path / "rank_0/.dump_metadata/config.json").read_text())
    assert facts["device_target"] == "CPU"
    assert (facts["framework"], facts["framework_version"]) == ("fake", "1.2")
    assert "ms_version" not in facts


def test_constants_are_listed_apart_from_the_steps(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    writer.write_constant(0, _TENSOR)
    file_step(writer, sample_step(4))
    writer.write_constant(11, replace(_TENSOR, dtype="bfloat16"))
    writer.close({})
    catalog = open_dump(tmp_path)
    constants = catalog.constants()
    assert [record.op.op_name for record in constants] == ["data-0", "data-11"]
    assert [record.dtype for record in constants] == ["float32", "bfloat16"]
    assert {record.op.op_type for record in constants} == {"Parameter"}
    for record in constants:
        assert record.payload is not None
        np.testing.assert_array_equal(record.payload.to_host(), np.ones(2))
    assert [each.op for each in catalog.ops(include_skipped=True)] == list(sample_step(4).ops)


def test_totals_of_the_run_are_kept(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    file_step(writer, sample_step())
    writer.close({"executed": 24, "captured": 23})
    (run,) = open_dump(tmp_path).runs
    assert run.totals["executed"] == 24
    assert run.totals["files"] == writer.sink.files_written
    assert run.plan["net_name"] == "Net"
    assert run.command == ("train.py", "--x")
    assert run.complete


def test_a_path_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text("")
    with pytest.raises(DumpPathError, match="dump into a directory that this user can write"):
        new_writer(DumpPlan(path=tmp_path / "dump"))


def test_an_index_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    new_writer(DumpPlan(path=tmp_path)).close({})
    path = tmp_path / "rank_0/.dump_metadata/index.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(DumpPathError, match="version 99"):
        new_writer(DumpPlan(path=tmp_path))
    assert path.read_bytes() == before


def test_an_unreadable_index_is_put_aside(tmp_path: Path) -> None:
    metadata = tmp_path / "rank_0/.dump_metadata"
    metadata.mkdir(parents=True)
    (metadata / "index.sqlite").write_bytes(b"no database at all " * 300)
    file_steps(DumpPlan(path=tmp_path), [sample_step()])
    assert (metadata / "index.sqlite.unreadable").exists()
    assert open_dump(tmp_path).steps == (0,)


def test_the_caller_hears_of_a_failed_file_at_the_next_call(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    (tmp_path / "rank_0/Net").write_text("a file in the way of the net's directory")
    writer.write_payload(_TENSOR)
    with pytest.raises(DumpPathError, match="Net"):
        writer.sink.flush()
    with pytest.raises(DumpPathError, match="Net"):
        writer.write_payload(_TENSOR)
    writer.sink.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_leaves_the_dump_alone(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            file_step(writer, sample_step(1))
            writer.write_graph(_graph("Default/MatMul-op0"))
            writer.close({})
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file_step(writer, sample_step(2))
    writer.close({})
    catalog = open_dump(tmp_path)
    assert catalog.steps == (0, 2)
    assert not catalog.problems


def test_summaries_and_plain_statistics_are_both_kept(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    plain = replace(_TENSOR, payload=None, statistics={"max": float("nan"), "count": 2, "md5": "ab"})
    writer.write_step(4, [_OP], [plain], [None])
    writer.close({})
    (found,) = open_dump(tmp_path)
    assert not isinstance(found.statistics, SummaryStatistics)
    np.testing.assert_equal(dict(found.statistics), dict(plain.statistics))


_FULL_DISK = """
import contextlib, resource, sys
from pathlib import Path
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_step, new_writer
writer = new_writer(DumpPlan(path=Path(sys.argv[1]), saved_data=sys.argv[2]))
file_step(writer, sample_step(0))
writer.sink.flush()
# A limit on the size of a file stands in for the full disk.
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    for step in range(1, 1000):
        file_step(writer, sample_step(step))
except DumpPathError as error:
    print(error)
# A file that was in the queue meanwhile may have failed too; then closing tells that.
with contextlib.suppress(DumpPathError):
    writer.close({})
"""


@pytest.mark.parametrize(("saved_data", "limit"), [("statistic", 200_000), ("full", 100), ("tensor", 150)])
def test_a_disk_that_fills_up_stops_the_capture_with_a_message(saved_data: str, limit: int, tmp_path: Path) -> None:
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path), saved_data, str(limit)],
        capture_output=True,
        text=True,
        check=False,
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert "free space" in done.stdout
    catalog = open_dump(tmp_path)
    assert not catalog.problems
    assert not catalog.runs[0].complete
    assert [each.op for each in catalog.ops(step=0, include_skipped=True)] == list(sample_step(0).ops)
    assert not list(tmp_path.rglob("*.part"))
    for record in catalog:
        if record.payload is not None:
            record.payload.to_host()


class TestSeedNaming(LayoutTests):
    def layout(self) -> Layout:
        return LAYOUTS.load("mindspore-2.3")


class TestLaterNaming(LayoutTests):
    def layout(self) -> Layout:
        return LAYOUTS.load("mindspore-2.10")


del LayoutTests  # a contract is not a test class of its own


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10"])
def test_a_writer_that_wrote_nothing_leaves_a_dump_that_opens(tmp_path: Path, layout: str) -> None:
    plan = DumpPlan(path=tmp_path, layout=layout)
    writer = SyncWriter(plan, RunFacts(3, "CPU", "fake", "1", "0", ("train.py",), plan.to_json()))
    writer.close({"executed": 0})
    catalog = open_dump(tmp_path)
    assert catalog.ranks == (3,)
    assert catalog.steps == ()
    assert list(catalog) == []
    assert catalog.runs[0].command == ("train.py",)
    assert catalog.runs[0].complete


NAME = "Default/conv1-Conv2d/Conv2D-op0"


def step(number: int) -> SampleStep:
    """The same operator inside and outside a graph."""
    ops, tensors = [], []
    for place, graph_id in enumerate((0, PYNATIVE)):
        op = OpRecord("Conv2D", NAME, 1_700_000_000_000_000 + place, number, "Net", graph_id, order=place)
        ops.append(op)
        array = np.full((2, 3), graph_id, np.float32)
        tensors.append(TensorRecord(op, "output", 0, "float32", (2, 3), payload=HostPayload(array), data_size=24))
    return SampleStep(number, tuple(ops), tuple(tensors))


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl"])
def test_both_are_read_from_their_own_directories(tmp_path: Path, layout: str, has_index: bool) -> None:
    more: dict[str, Any] = {"file_format": "bin"} if layout in ("mindspore-async", "acl") else {}
    more |= {"dialect": "acl"} if layout == "acl" else {}
    file_in_layout(DumpPlan(path=tmp_path, layout=layout, **more), [step(0)])
    assert {path.name for path in tmp_path.rglob("Net/*")} == {"0", "pynative"}
    if not has_index:
        for metadata in list(tmp_path.rglob(METADATA)):
            shutil.rmtree(metadata)
    catalog = open_dump(tmp_path)
    assert {record.op.graph_id: record.numpy().max() for record in catalog} == {0: 0.0, PYNATIVE: -1.0}
    assert [op.graph_id for op in catalog.ops(graph=PYNATIVE)] == [PYNATIVE]
    assert catalog.problems == ()


def test_its_graph_files_do_not_take_the_place_of_those_of_a_graph(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    for graph_id in (0, PYNATIVE):
        writer.write_graph(
            Graph(graph_id=graph_id, nodes=(GraphNode(op_name=f"Default/of{graph_id}-op0", op_type="Add"),))
        )
    writer.graphs_ran(3, (0, PYNATIVE))
    writer.close({"executed": 0})
    catalog = open_dump(tmp_path)
    assert catalog.graphs == (PYNATIVE, 0)
    for graph_id in (0, PYNATIVE):
        graph = catalog.graph(graph_id)
        assert graph is not None
        assert (graph.graph_id, graph.nodes[0].op_name) == (graph_id, f"Default/of{graph_id}-op0")
        assert catalog.history(graph_id) == (3,)
        assert catalog.execution_order(graph_id) == (f"Default/of{graph_id}-op0",)
    (tmp_path / "rank_0" / "graphs" / "ms_output_trace_code_graph_pynative.pb").unlink()
    graph = open_dump(tmp_path).graph(PYNATIVE)
    assert graph is not None
    assert graph.graph_id == PYNATIVE  # from the .ir


def test_words_of_graphs() -> None:
    assert [graph_word(graph_id) for graph_id in (PYNATIVE, 0, 12)] == ["pynative", "0", "12"]
    assert [graph_of_word(word) for word in ("pynative", "12", "constants", "-1", "٣", "9" * 40)] == [
        PYNATIVE,
        12,
        None,
        None,
        None,
        None,
    ]
