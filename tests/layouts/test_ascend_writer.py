"""Dumps that opdump writes in the form of devices can be read, with the index and without."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.checks import OverflowStatus, overflow_kind
from opdump.dump_file import read_dump_file
from opdump.dump_file.names import parse_dump_name, read_mapping
from opdump.dump_file.opdebug import decode_opdebug
from opdump.errors import DumpPathError
from opdump.graph import PYNATIVE
from opdump.index.runs import METADATA
from opdump.index.writer import RunFacts
from opdump.kernels import summarise
from opdump.layouts.ascend.writer import AscendWriter, hashed_name
from opdump.layouts.base import LAYOUTS, Layout, open_writer
from opdump.plan import DumpPlan, KernelPattern
from opdump.records import HostPayload, OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics
from opdump.testing import LayoutTests, SampleStep, sample_step
from opdump.testing.layout_tests import assert_same_bits

ASYNC: Mapping[str, Any] = {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"}
BIN: Mapping[str, Any] = {"layout": "mindspore-async", "file_format": "bin"}
ACL_FORM: Mapping[str, Any] = {**ASYNC, "step_level": True}
OPERATOR_BY_OPERATOR: Mapping[str, Any] = {**BIN, "step_level": True, "kernel_by_kernel": True}
ACL: Mapping[str, Any] = {"layout": "acl", "file_format": "bin", "dialect": "acl"}
FORMS = pytest.mark.parametrize("settings", [ASYNC, BIN, ACL_FORM, OPERATOR_BY_OPERATOR, ACL])


def _writer(root: Path, settings: Mapping[str, Any], *, rank_id: int = 0) -> AscendWriter:
    run = RunFacts(rank_id, "CPU", "fake", "1.2", "0", ("train.py", "--x"), "{}")
    writer = open_writer(DumpPlan(path=root, **settings), run)
    assert isinstance(writer, AscendWriter)
    return writer


def _file_step(writer: AscendWriter, step: SampleStep) -> None:
    files: list[str | None] = []
    for op in step.ops:
        own = [tensor for tensor in step.tensors if tensor.op is op]
        files += writer.write_operator(op, own) if writer.plan.saves_tensors and not op.skip else [None] * len(own)
    writer.write_step(step.step, step.ops, step.tensors, files, {})


def _file(root: Path, settings: Mapping[str, Any], *steps: SampleStep, rank_id: int = 0) -> None:
    writer = _writer(root, settings, rank_id=rank_id)
    for step in steps:
        _file_step(writer, step)
    writer.close({"executed": sum(len(step.ops) for step in steps)})


class _Device(LayoutTests):
    settings: Mapping[str, Any]

    def layout(self) -> Layout:
        return LAYOUTS.load(self.settings["layout"])

    def plan(self, root: Path) -> DumpPlan:
        return DumpPlan(path=root, **self.settings)


class TestAsyncNpy(_Device):
    settings = ASYNC


class TestAsyncBin(_Device):
    settings = BIN


class TestAsyncInTheFormOfAcl(_Device):
    settings = ACL_FORM


class TestAsyncOperatorByOperator(_Device):
    settings = OPERATOR_BY_OPERATOR


class TestAcl(_Device):
    settings = ACL


def _op(**fields: Any) -> OpRecord:
    known = {"op_type": "MatMul", "op_name": "Default/fc-Dense/MatMul-op0", "timestamp": 1_732_082_705_016_774}
    return OpRecord(**{**known, "net_name": "Net", **fields})


def _tensor(op: OpRecord, io: Any, slot: int, array: Any, **fields: Any) -> TensorRecord:
    elements = np.asarray(array)
    return TensorRecord(
        op=op,
        io=io,
        slot=slot,
        dtype=fields.pop("dtype", elements.dtype.name),
        shape=elements.shape,
        payload=HostPayload(elements),
        statistics=SummaryStatistics(summarise(elements)),
        data_size=elements.nbytes,
        **fields,
    )


def _step(op: OpRecord, *tensors: TensorRecord) -> SampleStep:
    return SampleStep(op.step, (op,), tensors)


def _small(**fields: Any) -> SampleStep:
    op = _op(**fields)
    one, other = np.arange(6, dtype="float32").reshape(2, 3), np.ones((3, 2), "float32")
    return _step(
        op, _tensor(op, "input", 0, one), _tensor(op, "input", 1, other), _tensor(op, "output", 0, one @ other)
    )


def _tree(root: Path) -> list[str]:
    """Files below a directory, with the {time} replaced by TIME. The hidden index is excluded."""
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and METADATA not in path.parts]
    times = [part for path in found for part in path.parts[:-1] if len(part) == 14 and part.isdigit()]
    return sorted(str(path).replace(times[0], "TIME") if times else str(path) for path in found)


_STEM = "MatMul.Default_fc-Dense_MatMul-op0.65535.65535.1732082705016774"
_NPY = [f"{_STEM}.{part}.DefaultFormat.npy" for part in ("input.0", "input.1", "output.0")]


def test_npy_files_lie_under_the_model_and_the_iteration(tmp_path: Path) -> None:
    _file(tmp_path, ASYNC, _small(step=3, graph_id=1))
    assert _tree(tmp_path) == [f"TIME/0/Net/1/3/{name}" for name in (*_NPY, "statistic.csv")]


def test_a_dump_file_holds_the_whole_operator(tmp_path: Path) -> None:
    step = _small()
    _file(tmp_path, BIN, step)
    (name,) = _tree(tmp_path)
    assert name == f"TIME/0/Net/0/0/{_STEM}"
    (path,) = tmp_path.rglob(_STEM)
    file = read_dump_file(path)
    assert (file.version, file.op_name, file.dump_time) == ("2.0", "Default/fc-Dense/MatMul-op0", 1_732_082_705_016_774)
    for found, expected in zip(file.tensors, step.tensors, strict=True):
        assert (found.io, found.slot, found.format_name) == (expected.io, expected.slot, "ND")
        assert expected.payload is not None
        assert_same_bits(found.to_host(), expected.payload.to_host())


def test_the_form_of_acl_has_a_level_of_steps(tmp_path: Path) -> None:
    _file(tmp_path, {**BIN, "step_level": True}, _small(step=0), _small(step=5, timestamp=1_732_082_705_016_775))
    later = _STEM.replace("774", "775")
    assert _tree(tmp_path) == [f"0/TIME/0/Net/0/0/{_STEM}", f"5/TIME/0/Net/0/5/{later}", "acl_dump_0.json"]
    assert open_dump(tmp_path).steps == (0, 5)


def test_operators_on_their_own_lie_in_the_device_name_first_and_collectives_in_the_model(tmp_path: Path) -> None:
    op = _op(op_type="all_reduce_", op_name="Default/all_reduce_-op0", kernel="c10d::allreduce_")
    collective = _step(op, _tensor(op, "input", 0, np.ones(3)))
    _file(tmp_path, {**ASYNC, "step_level": True, "kernel_by_kernel": True}, _small(), collective)
    stem = "Default_fc-Dense_MatMul-op0.MatMul.65535.65535.1732082705016774"
    assert _tree(tmp_path) == [
        *(f"0/TIME/0/{name.replace(_STEM, stem)}" for name in _NPY),
        "0/TIME/0/Net/0/0/all_reduce_.Default_all_reduce_-op0.65535.65535.1732082705016774.input.0.DefaultFormat.npy",
        "0/TIME/0/Net/0/0/statistic.csv",
        "0/TIME/0/statistic.csv",
        "acl_dump_0.json",
    ]


@pytest.mark.parametrize(
    ("settings", "dump"),
    [
        ({}, {"dump_list": [], "dump_mode": "all", "dump_op_switch": "on", "dump_path": "{root}/2"}),
        (
            {
                "selection": "kernels",
                "kernels": (KernelPattern.parse("Default/a-op0"), KernelPattern.parse("name-regex(a)")),
                "inputs": False,
            },
            {
                "dump_list": [{"layer": ["Default/a-op0"]}],
                "dump_mode": "output",
                "dump_op_switch": "on",
                "dump_path": "{root}/2",
            },
        ),
        ({"outputs": False}, {"dump_list": [], "dump_mode": "input", "dump_op_switch": "on", "dump_path": "{root}/2"}),
        ({"captures": "overflow"}, {"dump_debug": "on", "dump_path": "{root}/2"}),
        ({"captures": "exception"}, {"dump_scene": "lite_exception"}),
    ],
)
def test_the_form_of_acl_leaves_its_json(tmp_path: Path, settings: Any, dump: Mapping[str, Any]) -> None:
    _file(tmp_path, {**BIN, "step_level": True, **settings}, _small(step=2))
    text = (tmp_path / "acl_dump_0.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"dump": json.loads(json.dumps(dump).replace("{root}", str(tmp_path)))}


def test_known_tasks_and_streams_are_in_the_names(tmp_path: Path) -> None:
    _file(tmp_path, BIN, _small(task_id=2, stream_id=7))
    assert _tree(tmp_path)[0].endswith("MatMul-op0.2.7.1732082705016774")


def test_names_that_are_too_long_become_digits(tmp_path: Path) -> None:
    name = "Default/" + "x" * 300
    for settings, suffix in ((BIN, ""), (ASYNC, ".npy"), (ACL, "")):
        root = tmp_path / str(settings["file_format"]) / str(settings["layout"])
        _file(root, settings, _small(op_name=name))
        (table,) = root.rglob("mapping.csv")
        for stored, true in read_mapping(table).names.items():
            assert (table.parent / stored).is_file()
            assert stored == hashed_name(f"{table.parent}/{true}") + suffix
            parsed = parse_dump_name(true.removesuffix(".npy").partition(".input")[0].partition(".output")[0])
            assert parsed is not None
            assert parsed.op_name == name.replace("/", "_")
        assert {op.op_name for op in open_dump(root).ops()} == {name}


@pytest.mark.parametrize(
    ("path", "digits"),
    [
        ("", "6142509188972423790"),
        ("a", "4993892634952068459"),
        ("abc", "3663726644998027833"),
        ("/data/dump/20240101120000/0/m/1/0/Add.add.1.2.1700000000000000", "581480205314557328"),
    ],
)
def test_digits_are_those_of_devices(path: str, digits: str) -> None:
    assert hashed_name(path) == digits


@FORMS
def test_without_its_index_a_dump_opens_from_its_files_with_the_same_tensors(
    tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    step = sample_step(4)
    _file(tmp_path, settings, step)
    for directory in list(tmp_path.rglob(METADATA)):
        shutil.rmtree(directory)
    catalog = open_dump(tmp_path)
    assert catalog.steps == (4,)
    assert not catalog.problems
    found = [record for record in catalog.tensors() if record.data_size]
    expected = [record for record in step.tensors if record.payload is not None]
    for one, other in zip(found, expected, strict=True):
        assert (one.op.op_name, one.op.op_type, one.io) == (other.op.op_name, _written_type(other.op), other.io)
        assert one.payload is not None
        assert other.payload is not None
        assert_same_bits(one.payload.to_host(), other.payload.to_host())


def _written_type(op: OpRecord) -> str:
    return op.op_type.replace(".", "_").replace(" ", "_")


def test_statistics_without_files_come_from_the_csv(tmp_path: Path) -> None:
    step = _small()
    _file(tmp_path, {**ASYNC, "saved_data": "statistic", "statistic_category": ("max", "nan count")}, step)
    assert _tree(tmp_path) == ["TIME/0/Net/0/0/statistic.csv"]
    for directory in list(tmp_path.rglob(METADATA)):
        shutil.rmtree(directory)
    found = list(open_dump(tmp_path))
    assert [(each.op.op_name, each.shape, dict(each.statistics)) for each in found] == [
        ("Default/fc-Dense/MatMul-op0", each.shape, {name: each.statistics[name] for name in ("max", "nan count")})
        for each in step.tensors
    ]


@FORMS
def test_the_run_is_described_by_the_index(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    _file(tmp_path, settings, sample_step(0), sample_step(1))
    (run,) = open_dump(tmp_path).runs
    assert (run.framework, run.framework_version, run.device_target) == ("fake", "1.2", "CPU")
    assert (run.command, run.complete) == (("train.py", "--x"), True)
    assert run.totals["executed"] == 2 * len(sample_step(0).ops)


@FORMS
def test_two_runs_within_a_second_stay_apart(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    _file(tmp_path, settings, _small())
    _file(tmp_path, settings, _small(timestamp=1_732_082_705_999_999))
    assert [run.id for run in open_dump(tmp_path).runs] == [1, 2]
    assert [op.timestamp for op in open_dump(tmp_path).ops()] == [1_732_082_705_999_999]
    assert [op.timestamp for op in open_dump(tmp_path, run=1).ops()] == [1_732_082_705_016_774]


@FORMS
def test_two_runs_that_begin_at_once_stay_apart(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    writers = [_writer(tmp_path, settings) for _ in range(2)]
    for writer in writers:
        _file_step(writer, _small())
    for writer in writers:
        writer.close({"executed": 1})
    assert writers[0].time != writers[1].time
    assert [run.id for run in open_dump(tmp_path).runs] == [1, 2]
    assert [run.complete for run in open_dump(tmp_path).runs] == [True, True]


@FORMS
def test_ranks_are_devices(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    for rank_id in (0, 1):
        _file(tmp_path, settings, sample_step(0, rank_id=rank_id), rank_id=rank_id)
    catalog = open_dump(tmp_path)
    assert catalog.ranks == (0, 1)
    assert {op.rank_id for op in catalog.ops(rank=1)} == {1}


@FORMS
def test_a_killed_run_leaves_what_was_filed_after_its_last_step(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    writer = _writer(tmp_path, settings)
    _file_step(writer, _small(step=0))
    late = _small(step=1, timestamp=1_732_082_706_000_000)
    writer.write_operator(late.ops[0], late.tensors)
    writer.flush()  # the process ends here
    catalog = open_dump(tmp_path)
    assert catalog.steps == (0, 1)
    assert [(op.timestamp, op.step) for op in catalog.ops()] == [
        (1_732_082_705_016_774, 0),
        (1_732_082_706_000_000, 1),
    ]
    assert not catalog.runs[0].complete


@FORMS
def test_a_damaged_index_is_reported_and_the_files_are_read(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    _file(tmp_path, settings, _small())
    for index in tmp_path.rglob("index.sqlite"):
        index.write_bytes(index.read_bytes()[:100])
    catalog = open_dump(tmp_path)
    assert [op.op_name for op in catalog.ops()] == ["Default/fc-Dense/MatMul-op0"]
    assert catalog.problems


def _overflow(root: Path, settings: Mapping[str, Any], step: SampleStep, status: int = 0x100) -> list[OpRecord]:
    writer = _writer(root, {**settings, "captures": "overflow", "saved_data": "tensor"})
    files = writer.write_operator(step.ops[0], step.tensors)
    op = step.ops[0]
    writer.write_overflow(op, OverflowStatus(status, overflow_kind(op.op_type, op.arguments)))
    writer.write_step(step.step, step.ops, step.tensors, files, {})
    writer.close({})
    return [each.op for each in open_dump(root).ops()]


@pytest.mark.parametrize("settings", [BIN, OPERATOR_BY_OPERATOR, ACL])
def test_an_overflow_is_reported_in_the_bytes_of_a_device(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    ops = _overflow(tmp_path, settings, _small(step=2, graph_id=3, task_id=57, stream_id=4))
    assert [(op.op_type, op.step) for op in ops] == [("MatMul", 2), ("Opdebug", 2)]
    (path,) = tmp_path.rglob("Opdebug.*")
    assert path.name == "Opdebug.Node_OpDebug.65535.4.1732082705016774"
    (report,) = decode_opdebug(read_dump_file(path).outputs[0].data.read()).overflows
    assert (report.accelerator, report.model_id, report.stream_id, report.task_id) == ("AI Core", 3, 4, 57)
    assert report.statuses == (0x100,)


@pytest.mark.parametrize("settings", [ASYNC, BIN, ACL])
def test_an_overflow_outside_of_every_graph_has_the_model_0(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    ops = _overflow(tmp_path, settings, _small(graph_id=PYNATIVE, net_name=""))
    assert [op.op_type for op in ops] == ["MatMul", "Opdebug"]
    (path,) = tmp_path.rglob("Opdebug.*")
    if path.suffix == ".json":
        assert json.loads(path.read_text(encoding="utf-8"))["AI Core"]["model_id"] == 0
    else:
        (report,) = decode_opdebug(read_dump_file(path).outputs[0].data.read()).overflows
        assert (report.model_id, report.statuses) == (0, (0x100,))


def test_beside_npy_an_overflow_is_json(tmp_path: Path) -> None:
    ops = _overflow(tmp_path, ASYNC, _small(step=2, graph_id=3))
    assert [(op.op_type, op.step) for op in ops] == [("MatMul", 2), ("Opdebug", 2)]
    (path,) = tmp_path.rglob("Opdebug.*")
    assert path.name == "Opdebug.Node_OpDebug.65535.65535.1732082705016774.output.0.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content) == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]
    told = content["AI Core"]
    assert (told["model_id"], told["task_id"], told["status"], told["pc_start"]) == (3, 65535, 256, "0x0")


def test_an_overflow_of_single_operators_is_found_in_its_step(tmp_path: Path) -> None:
    ops = _overflow(tmp_path, ACL, _small(step=2, net_name=""))
    assert [(op.op_type, op.step) for op in ops] == [("MatMul", 2), ("Opdebug", 2)]
    assert open_dump(tmp_path).steps == (2,)


def test_an_atomic_addition_is_reported_by_another_accelerator(tmp_path: Path) -> None:
    _overflow(tmp_path, BIN, _small(op_type="scatter_add", arguments={"dim": 0}), 0x20)
    (path,) = tmp_path.rglob("Opdebug.*")
    (report,) = decode_opdebug(read_dump_file(path).outputs[0].data.read()).overflows
    assert (report.accelerator, report.statuses) == ("DHA Atomic Add", (0x900,))


@pytest.mark.parametrize("settings", [ASYNC, BIN, ACL])
def test_what_failed_is_on_disk_at_once(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    writer = _writer(tmp_path, {**settings, "captures": "exception", "saved_data": "tensor"})
    step = _small(task_id=12, stream_id=7)
    inputs = [record for record in step.tensors if record.io == "input"]
    for _ in range(2):
        writer.write_exception(step.ops[0], inputs, "RuntimeError: size mismatch")
    found = sorted((tmp_path / "extra-info/data-dump/0").glob("exception_info.7.12.*"))
    assert len(found) == len({path.name for path in found}) == 2, "failures in the same millisecond are kept apart"
    for path in found:
        assert path.stat().st_mode & 0o777 == 0o400
        file = read_dump_file(path)
        assert file.dfx_message == "MatMul Default/fc-Dense/MatMul-op0: RuntimeError: size mismatch"
        assert [tensor.shape for tensor in file.inputs] == [(2, 3), (3, 2)]
    writer.close({})


@FORMS
def test_nothing_to_file_leaves_nothing(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    root = tmp_path / "dump"
    writer = _writer(root, settings)
    writer.write_step(0, [], [], [], {"no overflow": 7})
    writer.close({})
    left = sorted(path.name for path in root.iterdir()) if root.exists() else []
    assert left == (["acl_dump_0.json"] if settings.get("step_level") else [])


@FORMS
def test_an_operator_of_empty_tensors_has_no_file_and_is_listed(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    op = _op()
    empty = TensorRecord(op=op, io="input", slot=0, dtype="float32", shape=(0, 3), skip="empty")
    _file(tmp_path, settings, _step(op, empty))
    assert not [name for name in _tree(tmp_path) if "MatMul" in name]
    assert list(open_dump(tmp_path).tensors(include_skipped=True)) == [empty]


def test_what_comes_after_a_tensor_without_elements_moves_up_in_the_file_alone(tmp_path: Path) -> None:
    op = _op()
    gap = TensorRecord(op=op, io="input", slot=0, dtype="float4_e2m1fn_x2", shape=(2,), skip="opaque")
    after = _tensor(op, "input", 2, np.arange(3.0))
    _file(tmp_path, BIN, _step(op, gap, after))
    (path,) = tmp_path.rglob("MatMul.*")
    assert [tensor.slot for tensor in read_dump_file(path).tensors] == [0]
    found = list(open_dump(tmp_path).tensors(include_skipped=True))
    assert found == [gap, after]
    assert found[1].payload is not None
    np.testing.assert_array_equal(found[1].payload.to_host(), np.arange(3.0))


@FORMS
def test_names_that_break_csv_files_and_paths_are_written_in_other_characters(
    tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    name = 'Default/a,b"c\nd\0e#input:0/é-op0'
    _file(tmp_path, settings, _small(op_name=name, op_type="x\ny"))
    catalog = open_dump(tmp_path)
    assert not catalog.problems
    assert {op.op_type for op in catalog.ops()} == {"x\ny"}
    for record in catalog:
        assert record.payload is not None
        assert record.payload.to_host().shape == record.shape
    assert not [path for path in _tree(tmp_path) if "\n" in path]


@FORMS
def test_a_directory_that_cannot_be_written_stops_at_once(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("here", encoding="utf-8")
    with pytest.raises(DumpPathError, match="file"):
        _file(blocked / "dump", settings, _small())


@FORMS
def test_a_forked_process_writes_nothing(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    writer = _writer(tmp_path, settings)
    _file_step(writer, _small())
    writer.flush()
    before = _tree(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            _file_step(writer, _small(timestamp=1_732_082_706_000_000))
            writer.close({})
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert _tree(tmp_path) == before
    writer.close({})


def test_many_steps_of_the_form_of_acl_keep_little_in_memory(tmp_path: Path) -> None:
    writer = _writer(tmp_path, {**BIN, "step_level": True})
    for step in range(6):
        _file_step(writer, replace(_small(step=step, timestamp=1_732_082_705_016_774 + step)))
    known = [len(index._operators) for index in writer._indexes.values()]
    assert known[:-2] == [0] * (len(known) - 2)
    writer.close({})
    assert open_dump(tmp_path).steps == tuple(range(6))
