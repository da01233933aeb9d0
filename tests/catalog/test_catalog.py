"""What a catalog finds in dumps of opdump and MindSpore, complete and damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import Catalog, open_dump
from opdump.errors import ConfigError, CorruptDumpError, NotInDumpError, UnknownLayoutError
from opdump.layouts.mindspore_sync.files import parse_file_name
from opdump.npy_header import npy_header
from opdump.plan import DumpPlan
from opdump.records import HostPayload, TensorRecord
from opdump.testing import SampleStep, sample_step
from tests.catalog import archives
from tests.layouts.filing import file_step, file_steps, new_writer


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    file_steps(DumpPlan(path=tmp_path / "dump", saved_data="full"), [sample_step(0), sample_step(7)])
    return tmp_path / "dump"


def _visible(step: SampleStep) -> list[TensorRecord]:
    return [record for record in step.tensors if not record.skip and not record.op.skip]


def _later(step: SampleStep, microseconds: int) -> SampleStep:
    ops = {id(op): replace(op, timestamp=op.timestamp + microseconds) for op in step.ops}
    tensors = tuple(
        replace(
            record,
            op=ops[id(record.op)],
            payload=None if record.payload is None else HostPayload(record.payload.to_host().copy()),
        )
        for record in step.tensors
    )
    return SampleStep(step.step, tuple(ops.values()), tensors)


def test_iterating_gives_every_tensor_that_has_data(dump: Path) -> None:
    catalog = open_dump(dump)
    assert list(catalog) == [*_visible(sample_step(0)), *_visible(sample_step(7))]
    assert catalog.steps == (0, 7)
    assert catalog.graphs == (0,)


def test_skipped_operators_and_tensors_are_shown_when_asked_for(dump: Path) -> None:
    catalog = open_dump(dump)
    reasons = {op.skip for op in catalog.ops(step=0, include_skipped=True)}
    assert reasons == {"", "view"}
    assert {op.skip for op in catalog.ops(step=0)} == {""}
    assert "empty" in {record.skip for record in catalog.tensors(include_skipped=True)}


def test_an_operator_is_found_by_its_full_name_or_its_last_part(dump: Path) -> None:
    catalog = open_dump(dump)
    name = "Default/network-Net/loop-Body/MatMul-op90"
    execution = catalog.op(name, step=7)
    assert execution == catalog.op("MatMul-op90", step=7)
    assert execution.op.step == 7
    assert sorted(execution.inputs) == [0, 2]
    assert sorted(execution.outputs) == [0]
    assert catalog.op(name).op.step == 0
    assert catalog.op(name, step=7, occurrence=2).op.occurrence == 2


def test_a_name_that_does_not_exist_gets_the_nearest(dump: Path) -> None:
    with pytest.raises(NotInDumpError, match=r"'MatMul-op9' in step 7.*Default/network-Net/loop-Body/MatMul-op90"):
        open_dump(dump).op("MatMul-op9", step=7)
    with pytest.raises(NotInDumpError, match="no operator was recorded there"):
        open_dump(dump).op("MatMul-op9", step=3)
    with pytest.raises(NotInDumpError, match="no rank 5; it holds 0"):
        list(open_dump(dump).ops(rank=5))


def test_kernels_are_found_in_the_three_forms_of_the_config(dump: Path) -> None:
    catalog = open_dump(dump)
    by_type = list(catalog.find("matmul", step=0))
    by_regex = list(catalog.find("name-regex(.*MatMul-op9[05])", step=0))
    by_name = list(catalog.find("Default/network-Net/loop-Body/MatMul-op90", step=0, io="output"))
    assert by_type == by_regex
    assert len(by_name) == 3
    assert {record.io for record in by_name} == {"output"}
    assert len(list(catalog.find(step=0))) == len(_visible(sample_step(0)))
    with pytest.raises(ConfigError):
        list(catalog.find("name-regex(()"))


def test_a_line_of_the_program_gives_its_operators(dump: Path) -> None:
    catalog = open_dump(dump)
    everything = list(catalog.ops(step=0))
    assert list(catalog.at_source("train.py:42", step=0)) == everything
    assert list(catalog.at_source("/home/user/train.py:42", step=0)) == everything
    assert list(catalog.at_source("user/train.py", step=0)) == everything
    assert {op.op_type for op in catalog.at_source("model.py:7")} == {"MatMul"}
    assert not list(catalog.at_source("train.py:43"))
    assert not list(catalog.at_source("rain.py:42"))


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path)
    for rank in (1, 0, 10):
        file_steps(plan, [sample_step(rank, rank_id=rank)], rank_id=rank)
    catalog = open_dump(tmp_path)
    assert catalog.ranks == (0, 1, 10)
    assert catalog.steps == (0, 1, 10)
    assert catalog.steps_of(10) == (10,)
    assert {record.op.rank_id for record in catalog.tensors(rank=10)} == {10}
    assert open_dump(tmp_path / "rank_10").ranks == (10,)


def test_of_two_runs_the_last_one_of_each_step_is_taken(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="full")
    first = [sample_step(0), sample_step(1)]
    second = _later(sample_step(1), 3_600_000_000)
    file_steps(plan, first)
    file_steps(plan, [second])
    latest = open_dump(tmp_path)
    assert [run.id for run in latest.runs] == [1, 2]
    assert latest.steps == (0, 1)
    assert list(latest) == [*_visible(first[0]), *_visible(second)]
    assert list(open_dump(tmp_path, run=1)) == [*_visible(first[0]), *_visible(first[1])]
    assert list(open_dump(tmp_path, run=2)) == _visible(second)
    assert open_dump(tmp_path, run=2).steps == (1,)
    assert len(list(open_dump(tmp_path, run="all"))) == 3 * len(_visible(second))


def _run_mindspore_again(rank: Path, step: int, microseconds: int) -> None:
    """Write what a second MindSpore run writes: the same files with later time stamps, and a line of history."""
    for path in list((rank / f"Net/0/{step}").glob("*.npy")):
        name = parse_file_name(path.name)
        assert name is not None
        shutil.copy(path, path.with_name(str(replace(name, timestamp=name.timestamp + microseconds))))
    history = rank / "execution_order/ms_global_execution_order_graph_0.csv"
    history.chmod(0o600)
    with history.open("a") as file:
        file.write(f"{step}\n")


@pytest.mark.parametrize("steps", [(0, 1), (1,), (0,)])
def test_two_runs_of_mindspore_are_distinguished(steps: tuple[int, ...], tmp_path: Path) -> None:
    dump = archives.unpack("net_basic", tmp_path).dump
    assert dump is not None
    once = list(open_dump(dump))
    for step in steps:
        _run_mindspore_again(dump / "rank_0", step, 60_000_000)
    catalog = open_dump(dump)
    assert len(catalog.runs) == 2
    assert len(list(catalog)) == len(once)
    begin = catalog.runs[1].started
    for op in catalog.ops():
        assert (op.timestamp >= begin) == (op.step in steps)
        assert op.occurrence == 0
    assert list(open_dump(dump, run=1)) == once
    assert open_dump(dump, run=2).steps == steps
    assert len(list(open_dump(dump, run="all"))) > len(once)


def test_a_step_that_was_cut_off_is_listed_by_its_files(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    for record in sample_step(1).tensors:
        if record.payload is not None:
            writer.write_payload(record)
    writer.sink.flush()  # the process dies here: no end_step, no close
    catalog = open_dump(tmp_path)
    assert catalog.steps == (0, 1)
    assert not catalog.runs[0].complete
    found, expected = list(catalog.tensors(step=1)), [r for r in sample_step(1).tensors if r.payload is not None]
    assert len(found) == len(expected)
    for record, origin in zip(found, expected, strict=True):
        # The index knows the names from the previous step.
        assert record.op.op_name == origin.op.op_name
        assert (record.io, record.slot, record.shape, record.op.occurrence) == (
            origin.io,
            origin.slot,
            origin.payload_shape,  # the lost row would have marked it as a sample
            origin.op.occurrence,
        )


def test_a_tensor_that_was_not_written_before_the_end_has_no_payload(dump: Path, tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path / "killed"))
    file_step(writer, sample_step(0))
    writer.sink.flush()
    gone = next((tmp_path / "killed").rglob("cat.cat-op94*.npy"))
    gone.unlink()
    execution = open_dump(tmp_path / "killed").op("cat-op94")
    assert execution.outputs[0].payload is None
    assert execution.outputs[0].shape == (3,)


def test_a_file_that_was_deleted_later_is_a_problem_by_name(dump: Path) -> None:
    opened = open_dump(dump)
    (known,) = opened.op("cat-op94", step=0).outputs.values()
    assert known.payload is not None
    next((dump / "rank_0/Net/0/0").glob("cat.cat-op94*.npy")).unlink()
    catalog = open_dump(dump)
    (lost,) = catalog.op("cat-op94", step=0).outputs.values()
    assert lost.payload is None
    (problem,) = catalog.problems
    assert "cat.cat-op94" in str(problem)
    with pytest.raises(CorruptDumpError, match=r"cat\.cat-op94.*cannot be opened"):
        known.payload.to_host()


def test_a_file_of_another_shape_or_type_than_promised_is_refused(dump: Path) -> None:
    path = next((dump / "rank_0/Net/0/0").glob("cat.cat-op94*.npy"))
    path.chmod(0o600)
    for content, message in (
        (npy_header("<i8", (2,)) + bytes(16), "holds shape"),
        (npy_header("<f8", (3,)) + bytes(24), "holds float64"),
    ):
        path.write_bytes(content)
        payload = open_dump(dump).op("cat-op94", step=0).outputs[0].payload
        assert payload is not None
        with pytest.raises(CorruptDumpError, match=message):
            payload.to_host()


def test_statistics_of_a_dump_without_index_are_those_of_the_csv(dump: Path) -> None:
    (dump / "rank_0/.dump_metadata/index.sqlite").unlink()
    record = open_dump(dump).op("cat-op94", step=0).outputs[0]
    assert dict(record.statistics) == {"max": 2.0, "min": 0.0, "l2norm": 2.23607}
    assert record.dtype == "int64"


def test_a_dump_of_only_statistics_opens_without_index(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic", layout="mindspore-2.10"), [sample_step(2)])
    (tmp_path / "rank_0/.dump_metadata/index.sqlite").unlink()
    catalog = open_dump(tmp_path)
    expected = [record for record in sample_step(2).tensors if record.statistics]
    assert [record.name for record in catalog] == [record.name for record in expected]
    assert [record.shape for record in catalog] == [record.shape for record in expected]
    assert all(record.payload is None for record in catalog)


def test_names_of_a_dump_without_index_come_from_its_graph_files(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    file_step(writer, sample_step(0))
    writer.close({})
    (tmp_path / "rank_0/.dump_metadata/index.sqlite").unlink()
    order = tmp_path / "rank_0/execution_order/ms_execution_order_graph_0.csv"
    names = [op.op_name for op in sample_step(0).ops if op.op_type != "Parameter"]
    order.write_text("\n".join(["NodeExecutionOrder-FullNameWithScope", *names, ""]))
    found = {op.op_name for op in open_dump(tmp_path).ops()}
    assert found <= {*names, "fc_weight"}
    assert "Default/network-Net/loop-Body/MatMul-op90" in found


def test_arguments_of_save_kernel_args_are_read_without_index(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, save_kernel_args=True))
    step = sample_step(0)
    for op in step.ops:
        if op.arguments:
            writer.write_kernel_args(op)
    file_step(writer, step)
    writer.close({})
    (tmp_path / "rank_0/.dump_metadata/index.sqlite").unlink()
    arguments = open_dump(tmp_path).op("add-op91").op.arguments
    assert arguments == {"alpha": "1.5", "names": "['a', None, True]"}


def _link(target: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _elsewhere(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "0/0").mkdir(parents=True)
    secret = outside / "0/0/MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy"
    secret.write_bytes(npy_header("<f4", (1,)) + bytes(4))
    return outside


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("rank_7", "outside"),
        ("rank_0/Evil", "outside"),
        ("rank_0/Net/1", "outside/0"),
        ("rank_0/Net/0/9", "outside/0/0"),
        ("rank_0/Net/0/0/A.A-op0.0.0.1.output.0.DefaultFormat.npy", "outside/0/0"),
        ("rank_0/Net/0/0/A.A-op0.0.0.1.output.0.DefaultFormat.npy", "outside/0/0/MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy"),
        ("rank_0/Net/0/0/mapping.csv", "outside/0/0/MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy"),
        ("rank_0/graphs/ms_output_trace_code_graph_0.pb", "outside/0/0/MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy"),
    ],
)  # fmt: skip
def test_a_link_out_of_the_dump_is_refused(place: str, target: str, dump: Path, tmp_path: Path) -> None:
    outside = _elsewhere(tmp_path)
    link = dump / place
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / target if target == "outside" else outside.parent / target)
    if place == "rank_7":
        (outside / ".dump_metadata").mkdir()
    with pytest.raises(CorruptDumpError, match="outside of it"):
        _read_all(open_dump(dump))


def _read_all(catalog: Catalog) -> None:
    for record in catalog.tensors(include_skipped=True):
        if record.payload is not None:
            record.payload.to_host()
    catalog.graph(0)


def test_a_link_within_the_dump_and_to_the_dump_is_followed(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(dump)
    path = next(dump.rglob("cat.cat-op94*.npy"))
    moved = path.with_name("moved.bin")
    path.rename(moved)
    path.symlink_to(moved.name)
    catalog = open_dump(tmp_path / "link")
    _read_all(catalog)
    assert len(list(catalog)) == len(list(open_dump(dump)))


@pytest.mark.parametrize(
    "row",
    [
        "1.npy,../../../../etc/MatMul.x.0.0.1.output.0.DefaultFormat.npy",
        "../../secret.npy,MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy",
        "/etc/passwd,MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy",
        "..,MatMul.MatMul-op0.0.0.1.output.0.DefaultFormat.npy",
        "no comma",
        ",",
        "1.npy,",
        "\x001.npy,a.npy",
    ],
)
def test_a_mapping_that_leads_elsewhere_is_refused(row: str, dump: Path) -> None:
    table = dump / "rank_0/Net/0/0/mapping.csv"
    table.chmod(0o600)
    table.write_text(row + "\n")
    with pytest.raises(CorruptDumpError, match=r"mapping\.csv, line 1"):
        _read_all(open_dump(dump))


def test_paths_in_a_hostile_index_are_refused(dump: Path) -> None:
    import sqlite3

    for file in ("../../../../etc/passwd", "/etc/passwd", "Net/0/0/../../../../x.npy", "Net/\x00.npy"):
        database = sqlite3.connect(dump / "rank_0/.dump_metadata/index.sqlite", isolation_level=None)
        rows = database.execute("SELECT id, files FROM batches WHERE files NOTNULL").fetchall()
        for number, files in rows:
            changed = json.dumps(dict.fromkeys(json.loads(files), file))
            database.execute("UPDATE batches SET files = ? WHERE id = ?", (changed, number))
        database.close()
        payloads = [record.payload for record in open_dump(dump) if record.payload is not None]
        assert payloads
        for payload in payloads:
            with pytest.raises(CorruptDumpError, match="outside of it"):
                payload.to_host()


def _corrupt(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.unlink()
        path.write_bytes(content)

    return write


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a tensor cut off": ("Net/0/0/MatMul.*.npy", lambda path: os.truncate(path, 130)),
    "a tensor of nothing": ("Net/0/0/MatMul.*.npy", _corrupt(b"")),
    "a statistic.csv cut off": ("Net/0/0/statistic.csv", lambda path: os.truncate(path, 500)),
    "a statistic.csv of garbage": ("Net/0/0/statistic.csv", _corrupt(b"\xff\xfe\xfd")),
    "a .pb of garbage": ("graphs/*.pb", _corrupt(b"\xff" * 100)),
    "an order of garbage": ("execution_order/ms_execution*.csv", _corrupt(b"\xff" * 100)),
    "a history of garbage": ("execution_order/ms_global*.csv", _corrupt(b"soon\n")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported_and_the_rest_is_read(name: str, tmp_path: Path) -> None:
    dump = archives.unpack("net_basic", tmp_path).dump
    assert dump is not None
    rank = dump / "rank_0"
    pattern, damage = DAMAGES[name]
    if "statistic" in pattern:
        header = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
        rows = "".join(f'A,B,0,0,{number},input,0,4,bool,"()"\n' for number in range(30))
        (rank / "Net/0/0/statistic.csv").write_text(f"{header}\n{rows}")
    path = min(rank.glob(pattern))
    path.chmod(0o600)
    damage(path)
    catalog = open_dump(dump)
    records = list(catalog)
    assert len(records) == 36
    (problem,) = catalog.problems
    assert path.name in str(problem)
    errors = [str(error) for record in records if (error := _error_of(record)) is not None]
    assert len(errors) == (1 if path.suffix == ".npy" else 0)
    assert all(path.name in error for error in errors)


def _error_of(record: TensorRecord) -> CorruptDumpError | None:
    assert record.payload is not None
    try:
        record.payload.to_host()
    except CorruptDumpError as error:
        return error
    return None


def test_strange_entries_are_left_unchanged(dump: Path) -> None:
    expected = list(open_dump(dump))
    rank = dump / "rank_0"
    (rank / "Net/0/0/notes.txt").write_text("")
    (rank / "Net/0/0/.1-2-3.part").write_bytes(b"half a file")
    (rank / "Net/0/0/deeper").mkdir()
    (rank / "Net/0/12").write_text("a file with a number for a name")
    (rank / "Net/abc").mkdir()
    (rank / ("9" * 40)).mkdir()
    (rank / "Net" / ("9" * 40)).mkdir()
    (dump / "rank_x").mkdir()
    (dump / "rank_5").mkdir()
    os.mkfifo(rank / "Net/0/0/Pipe.Pipe-op0.0.0.1.input.0.DefaultFormat.json")
    assert list(open_dump(dump)) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: path.mkdir(), "it is empty"),
        (lambda path: (path / "20260101000000/0/model/1/0").mkdir(parents=True), "it holds 20260101000000"),
        (lambda path: (path / "rank_0").mkdir(parents=True), "it holds rank_0"),
        (lambda path: (path / "deep/rank_0/graphs").mkdir(parents=True), r"Did you mean .*/deep\?"),
    ],
)
def test_what_is_no_dump_is_refused_with_what_is_there(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(UnknownLayoutError, match=message) as caught:
        open_dump(tmp_path / "x")
    assert ("rank_0/" in str(caught.value)) == (tmp_path / "x").exists(), (
        "what a dump would hold helps only if there is anything"
    )


def test_payloads_are_not_read_before_they_are_asked_for(dump: Path) -> None:
    catalog = open_dump(dump)
    records = list(catalog)
    shutil.rmtree(dump / "rank_0/Net")
    assert records[0].shape == (2, 3)
    assert records[0].payload is not None
    with pytest.raises(CorruptDumpError):
        records[0].payload.to_host()


def test_large_tensors_are_mapped(tmp_path: Path) -> None:
    array = np.arange(1_000_000, dtype="f4")
    record = sample_step(0).tensors[0]
    big = replace(record, shape=array.shape, payload=HostPayload(array), data_size=array.nbytes, statistics={})
    file_steps(DumpPlan(path=tmp_path), [SampleStep(0, (big.op,), (big,))])
    (found,) = open_dump(tmp_path)
    assert found.payload is not None
    host = found.payload.to_host()
    assert not host.flags.owndata
    np.testing.assert_array_equal(host, array)
