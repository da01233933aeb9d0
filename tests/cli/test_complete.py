"""`opdump complete` on dumps that MindSpore wrote."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.layouts.mindspore_sync.files import parse_file_name
from opdump.plan import DumpPlan
from opdump.records import TensorRecord
from opdump.sink.npy import read_npy
from opdump.testing import sample_step
from tests.catalog import archives
from tests.cli.json_shapes import mistakes
from tests.layouts.filing import file_steps

BFLOAT16_VALUES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def dump_of(name: str, into: Path) -> Path:
    dump = archives.unpack(name, into).dump
    assert dump is not None
    return dump


def complete(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["complete", *map(str, arguments)])


def contents(dump: Path) -> dict[str, str]:
    return {
        path.relative_to(dump).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dump.rglob("*")
        if path.is_file()
    }


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_file_has_a_row_with_the_statistics_of_float64(tmp_path: Path) -> None:
    dump = dump_of("all_lenet", tmp_path)
    done = complete(dump, "--statistics", "max,min,avg,l2norm,zero count,md5")
    assert done.exit_code == 0, done.output
    tables = sorted(dump.rglob("statistic.csv"))
    assert [table.parent.name for table in tables] == ["0", "1", "2"]
    for table in tables:
        files = {
            (name.op_type, name.timestamp, str(name.io), name.slot): path
            for path in table.parent.glob("*.npy")
            if (name := parse_file_name(path.name)) is not None
        }
        found = {(row["Op Type"], int(row["Timestamp"]), row["IO"], int(row["Slot"])): row for row in rows(table)}
        assert found.keys() == files.keys()
        assert len(files) == 152
        for tensor, path in files.items():
            row, array = found[tensor], np.load(path)
            values = array.astype(np.float64)
            assert float(row["Max Value"]) == pytest.approx(values.max(), rel=1e-5)
            assert float(row["Min Value"]) == pytest.approx(values.min(), rel=1e-5)
            assert float(row["L2Norm Value"]) == pytest.approx(math.sqrt((values**2).sum()), rel=1e-5)
            assert int(row["Zero Count"]) == np.count_nonzero(values == 0)
            assert row["MD5"] == hashlib.md5(array.tobytes()).hexdigest()
            assert (row["Data Type"], int(row["Data Size"])) == (array.dtype.name, array.nbytes)


def test_what_mindspore_wrote_stays_as_it_is(tmp_path: Path) -> None:
    dump = dump_of("all_lenet", tmp_path)
    before = contents(dump)
    assert complete(dump).exit_code == 0
    after = contents(dump)
    added = after.keys() - before.keys()
    assert added == {
        "rank_0/.dump_metadata/index.sqlite",
        *(f"rank_0/LeNet/0/{step}/statistic.csv" for step in range(3)),
    }
    assert {name: after[name] for name in before} == before


def test_the_index_has_what_the_files_say(tmp_path: Path) -> None:
    dump = dump_of("all_lenet", tmp_path)
    by_files = {key(record): record.numpy() for record in open_dump(dump).tensors()}
    assert complete(dump).exit_code == 0
    catalog = open_dump(dump)
    by_index = {key(record): record for record in catalog.tensors()}
    assert by_index.keys() == by_files.keys()
    assert len(by_index) == 456
    for name, record in by_index.items():
        np.testing.assert_array_equal(record.numpy(), by_files[name])
        assert record.statistics["max"] == by_files[name].max()
    assert catalog.problems == ()
    (run,) = catalog.runs
    assert run.complete
    assert (run.framework, run.framework_version, run.totals["captured"]) == ("mindspore", "2.10.0", 3 * 36)


def key(record: TensorRecord) -> tuple[object, ...]:
    return record.op.step, record.op.graph_id, record.op.op_name, record.op.occurrence, record.io, record.slot


def test_operators_know_their_line_their_order_and_the_makers_of_their_inputs(tmp_path: Path) -> None:
    dump = dump_of("all_lenet", tmp_path)
    assert complete(dump).exit_code == 0
    catalog = open_dump(dump)
    first, *others = catalog.ops(step=0)
    # The execution order file, written before anything runs, puts it at place 25.
    assert first.op.op_name == "Default/optimizer-Momentum/AssignAdd-op0"
    operators = [each.op for each in (first, *others) if each.op.op_type != "Parameter"]
    assert len(operators) == 36
    assert all(op.stack for op in operators)
    (filter_gradient,) = catalog.ops("conv2-Conv2d/Grad_Conv2D/Conv2DBackpropFilter-op0", step=1)
    # The graph calls this operator -op1.
    assert filter_gradient.op.line == "lenet.py:23"
    assert filter_gradient.op.stack[0].function == "construct"
    assert (
        filter_gradient.inputs[1].source == "Default/network-WithLossCell/_backbone-LeNet/pool-MaxPool2d/MaxPool-op0:0"
    )
    (convolution,) = catalog.ops("conv1-Conv2d/Conv2D-op0", step=1)
    assert [record.source for record in convolution.inputs.values()] == ["Parameter.inputs0", "Parameter.conv1.weight"]


def test_bfloat16_becomes_readable(tmp_path: Path) -> None:
    dump = dump_of("net_dtypes2", tmp_path)
    files = list(dump.rglob("*.BFloat16.npy"))
    assert len(files) == 3
    before = {path: read_npy(path) for path in files}
    for path in files:
        with pytest.raises(ValueError, match="descr"):
            np.load(path)
    done = complete(dump, "--statistics", "max,l2norm,md5", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ranks"][0]["repaired"] == 3
    for path in files:
        found = np.load(path)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, before[path])
        assert path.stat().st_mode & 0o777 == 0o400
    raw = hashlib.md5((np.array(BFLOAT16_VALUES, "<f4").view("<u4") >> 16).astype("<u2").tobytes()).hexdigest()
    table = next(dump.rglob("statistic.csv"))
    (row,) = [row for row in rows(table) if row["Op Name"] == "bf"]
    assert (row["Data Type"], row["Data Size"], row["Max Value"], row["MD5"]) == ("bfloat16", "12", "5", raw)
    (record,) = [record for record in open_dump(dump).tensors() if record.op.op_name == "bf"]
    assert record.dtype == "bfloat16"


def test_executions_of_a_loop_are_distinguished(tmp_path: Path) -> None:
    dump = dump_of("ms270_net_ctl", tmp_path)
    by_files = sorted(key(record) for record in open_dump(dump).tensors())
    assert any(occurrence for _, _, _, occurrence, _, _ in by_files)
    assert complete(dump).exit_code == 0
    catalog = open_dump(dump)
    assert sorted(key(record) for record in catalog.tensors()) == by_files
    assert catalog.problems == ()


def test_long_names_behind_a_mapping_are_completed(tmp_path: Path) -> None:
    dump = dump_of("net_deep", tmp_path)
    assert list(dump.rglob("mapping.csv"))
    before = sum(1 for _ in open_dump(dump).tensors())
    assert complete(dump).exit_code == 0
    catalog = open_dump(dump)
    assert sum(1 for _ in catalog.tensors()) == before
    assert all("l2norm" in record.statistics for record in catalog.tensors())
    assert "complete already" in complete(dump).stdout


@pytest.mark.parametrize(
    "name",
    [
        *("all_lenet", "in_only", "iter_huge", "ms270_net_ctl", "ms270_net_twonets", "mode1_regex", "net_dtypes2"),
        *("net_py_jittrain", "opdebug_4", "regex_with_space", "sample_mode1"),
    ],
)
def test_the_index_gives_the_records_of_the_files_and_completing_again_changes_nothing(
    name: str, tmp_path: Path
) -> None:
    dump = dump_of(name, tmp_path)
    by_files = list(open_dump(dump, run="all").tensors())
    assert complete(dump).exit_code == 0
    first = contents(dump)
    catalog = open_dump(dump, run="all")
    assert [facts(record) for record in catalog.tensors()] == [facts(record) for record in by_files]
    assert catalog.problems == ()
    again = complete(dump)
    assert again.exit_code == 0
    assert "complete already" in again.stdout
    assert contents(dump) == first


def facts(record: TensorRecord) -> tuple[object, ...]:
    """Everything that the files tell about a tensor, and that graphs tell about its operator."""
    return (
        record.op,
        record.io,
        record.slot,
        record.dtype,
        record.shape,
        record.format,
        record.data_size,
        record.source,
    )


@pytest.mark.parametrize("name", ["net_complex64", "net_py_basic", "param_by_regex"])
def test_a_dump_without_tensors_is_reported(name: str, tmp_path: Path) -> None:
    dump = dump_of(name, tmp_path)
    before = contents(dump)
    done = complete(dump)
    assert done.exit_code == 1
    assert "MindSpore left no tensors" in done.stderr
    assert contents(dump) == before


def test_other_statistics_are_added_afterwards(tmp_path: Path) -> None:
    dump = dump_of("net_basic", tmp_path)
    assert complete(dump).exit_code == 0
    assert complete(dump, "--statistics", "nan count,max").exit_code == 0
    table = next(dump.rglob("statistic.csv"))
    assert table.read_text().splitlines()[0].endswith(",Shape,NaN Count,Max Value")


def test_a_second_run_into_the_directory_is_completed_too(tmp_path: Path) -> None:
    dump = dump_of("net_basic", tmp_path)
    assert complete(dump).exit_code == 0
    history = next(dump.rglob("ms_global_execution_order_graph_0.csv"))
    history.chmod(0o600)
    history.write_bytes(history.read_bytes() * 2)
    later = 3_600_000_000
    files = [path for path in dump.rglob("*.npy") if parse_file_name(path.name) is not None]
    for path in files:
        name = parse_file_name(path.name)
        assert name is not None
        shutil.copy(path, path.with_name(path.name.replace(str(name.timestamp), str(name.timestamp + later))))
    assert complete(dump).exit_code == 0
    catalog = open_dump(dump, run="all")
    assert [run.id for run in catalog.runs] == [1, 2]
    assert sum(1 for _ in catalog.tensors()) == 2 * len(files)
    assert sum(1 for _ in open_dump(dump).tensors()) == len(files)
    assert sum(len(rows(table)) for table in dump.rglob("statistic.csv")) == 2 * len(files)
    assert "complete already" in complete(dump).stdout


def test_a_copy_leaves_the_dump_as_it_was(tmp_path: Path) -> None:
    dump = dump_of("net_dtypes2", tmp_path / "in")
    before = contents(dump)
    done = complete(dump, "-o", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    assert mistakes("complete", json.loads(done.stdout)) == []
    assert contents(dump) == before
    assert (tmp_path / "out/rank_0/.dump_metadata/index.sqlite").is_file()
    assert complete(dump, "-o", tmp_path / "out").exit_code == 1


def test_a_damaged_file_is_reported_and_the_rest_completed(tmp_path: Path) -> None:
    dump = dump_of("net_basic", tmp_path)
    files = sorted(dump.rglob("*.npy"))
    files[0].chmod(0o600)
    files[0].write_bytes(files[0].read_bytes()[:-1])
    done = complete(dump)
    assert done.exit_code == 1
    assert files[0].name in done.stderr
    catalog = open_dump(dump)
    records = list(catalog.tensors())
    assert len(records) == len(files)
    assert sum(1 for record in records if record.statistics) == len(files) - 1
    assert any(files[0].name in str(problem) for problem in catalog.problems)


def test_a_dump_that_opdump_captured_is_left_unchanged(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path), [sample_step(0)])
    before = contents(tmp_path)
    done = complete(tmp_path)
    assert done.exit_code == 1
    assert "was captured by opdump" in done.stderr
    assert contents(tmp_path) == before


def test_what_is_no_dump_and_no_statistic_is_refused(tmp_path: Path) -> None:
    assert "holds no dump" in complete(tmp_path).stderr
    dump = dump_of("net_basic", tmp_path)
    done = complete(dump, "--statistics", "maximum")
    assert done.exit_code == 1
    assert "maximum" in done.stderr
    assert not list(dump.rglob("index.sqlite"))


def test_an_interrupt_leaves_a_dump_that_can_be_read(tmp_path: Path) -> None:
    dump = dump_of("all_lenet", tmp_path)
    program = (
        "import sys; from pathlib import Path; from opdump.conversion import completion\n"
        "def stop(what, done, total):\n"
        "    if done == 200: raise KeyboardInterrupt\n"
        "done = completion.complete(Path(sys.argv[1]), progress=stop)\n"
        "print(done.interrupted, done.ranks[0].steps)"
    )
    ended = subprocess.run([sys.executable, "-c", program, dump], capture_output=True, text=True, check=True)
    assert ended.stdout == "True 1\n"
    assert len(list(dump.rglob("statistic.csv"))) == 1
    assert not [path for path in dump.rglob("*") if path.name.endswith(".part")]
    catalog = open_dump(dump)
    assert sum(1 for _ in catalog.tensors()) == 456
    assert catalog.problems == ()
    assert complete(dump).exit_code == 0
    assert len(list(dump.rglob("statistic.csv"))) == 3


def test_check_and_compare_read_a_completed_dump(tmp_path: Path) -> None:
    first, second = dump_of("all_lenet", tmp_path / "a"), dump_of("all_lenet", tmp_path / "b")
    for dump in (first, second):
        assert complete(dump).exit_code == 0
    assert CliRunner().invoke(main, ["check", str(first)]).exit_code == 0
    compared = CliRunner().invoke(main, ["compare", str(first), str(second)])
    assert compared.exit_code == 0, compared.output
