"""`--layout mindspore` makes the tree of a synchronous dump, and an exported table has the rows of the records."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdump
from opdump.catalog.catalog import FACTS, open_dump
from opdump.conversion import ConversionPlan, convert
from opdump.conversion.formatted import ConversionError
from opdump.conversion.table_export import Selection, export_table
from opdump.plan import DumpPlan
from opdump.records import StatisticValue
from opdump.testing import sample_step
from tests.checks.generated_dumps import kinds, operators, write
from tests.conversion.dump_files import TIME, dump, overflow_file, tensor, tree
from tests.layouts.filing import file_steps, index_file
from tests.layouts.hostile_indexes import all_kinds

PLAN = ConversionPlan(layout="mindspore")
PLACE = "20240101120000/3/ResNet50/1/7"


def asynchronous(root: Path, place: str = PLACE) -> Path:
    device = np.arange(2 * 2 * 3 * 4 * 16, dtype=np.float16).reshape(2, 2, 3, 4, 16)
    convolution = tensor(device, format_name="NC1HWC0", original_shape=(2, 19, 3, 4))
    unknown = tensor(device, format_name="NC1HWC0", slot=1)
    name = f"Conv2D.Default_net_conv1-Conv2d_Conv2D-op12.2.7.{TIME}"
    path = dump(root / place, name, convolution, unknown)
    path.chmod(0o600)
    return root


def test_the_tree_is_that_of_a_synchronous_dump(tmp_path: Path) -> None:
    asynchronous(tmp_path / "in")
    overflow_file(tmp_path / "in" / PLACE, f"Opdebug.Node_OpDebug.9.7.{TIME}", task=2, stream=7, status=32)
    (tmp_path / "in" / "graphs").mkdir()
    (tmp_path / "in" / "graphs" / "ms_output_trace_code_graph_1.ir").write_text("# a graph\n")
    (tmp_path / "in" / "graphs" / "notes.txt").write_text("of a person\n")
    done = convert([str(tmp_path / "in")], tmp_path / "out", PLAN)
    assert done.failures == []
    assert done.skipped == [str(tmp_path / "in" / "graphs" / "notes.txt")]
    files = tree(tmp_path / "out")
    rank = "rank_3"
    assert sorted(files) == [
        f"{rank}/.dump_metadata/config.json",
        f"{rank}/.dump_metadata/data_dump.json",
        f"{rank}/ResNet50/1/7/Conv2D.add.2.7.{TIME}.output.0.NCHW.npy",
        f"{rank}/ResNet50/1/7/Conv2D.add.2.7.{TIME}.output.1.NC1HWC0.npy",
        f"{rank}/ResNet50/1/7/Opdebug.Node_OpDebug.9.7.{TIME}.output.0.json",
        f"{rank}/graphs/ms_output_trace_code_graph_1.ir",
    ]
    settings = json.loads(files[f"{rank}/.dump_metadata/data_dump.json"])
    assert settings["common_dump_settings"]["net_name"] == "ResNet50"
    assert settings["common_dump_settings"]["input_output"] == 0
    assert settings["e2e_dump_settings"]["enable"] is True


def test_opdump_reads_the_tree(tmp_path: Path) -> None:
    convert([str(asynchronous(tmp_path / "in", "5/" + PLACE))], tmp_path / "out", PLAN)
    catalog = open_dump(tmp_path / "out")
    records = list(catalog)
    assert [(each.op.op_type, each.op.step, each.op.rank_id, each.shape, each.format) for each in records] == [
        ("Conv2D", 5, 3, (2, 19, 3, 4), "NCHW"),
        ("Conv2D", 5, 3, (2, 2, 3, 4, 16), "NC1HWC0"),
    ]
    assert catalog.problems == ()


def test_a_device_or_a_model_of_a_dump_is_accepted_and_another_directory_is_reported(tmp_path: Path) -> None:
    asynchronous(tmp_path / "in")
    for number, part in enumerate(("20240101120000", "20240101120000/3", PLACE)):
        done = convert([str(tmp_path / "in" / part)], tmp_path / f"out{number}", PLAN)
        assert done.failures == []
        assert (tmp_path / f"out{number}" / "rank_3" / "ResNet50" / "1" / "7").is_dir()
    dump(tmp_path / "in" / "not" / "of" / "a" / "dump" / "at" / "all")
    done = convert([str(tmp_path / "in")], tmp_path / "out", PLAN)
    assert [(Path(each.path).parent.name, each.error) for each in done.failures] == [("all", "ConversionError")]
    assert done.tensors == 2


def test_the_model_is_the_net_and_not_the_operators_beside_it(tmp_path: Path) -> None:
    for place in ("20240101120000/3", "20240101120000/3/resnet/1/7", "20240101120000/3/vgg/2/7"):
        dump(tmp_path / "in" / place)
    done = convert([str(tmp_path / "in")], tmp_path / "out", PLAN)
    assert (done.failures, done.tensors) == ([], 3)
    settings = json.loads((tmp_path / "out/rank_3/.dump_metadata/data_dump.json").read_text())
    assert settings["common_dump_settings"]["net_name"] == "resnet"
    assert (tmp_path / "out/rank_3/Net/0/0").is_dir()


def test_long_names_are_read_back_through_mapping_csv(tmp_path: Path) -> None:
    long = f"{'T' * 230}.add.2.7.{TIME}"
    dump(tmp_path / "in" / PLACE, long, tensor(np.ones(3, np.float32)))
    done = convert([str(tmp_path / "in")], tmp_path / "out", PLAN)
    assert done.failures == []
    (record,) = open_dump(tmp_path / "out")
    assert (record.op.op_type, record.shape) == ("T" * 230, (3,))


def test_other_kinds_of_file_have_no_such_tree(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="npy files of all tensors"):
        convert([str(tmp_path)], tmp_path / "out", ConversionPlan("txt", layout="mindspore"))


pl = pytest.importorskip("polars")


def table_of(path: Path, selection: Selection) -> Any:
    export_table(opdump.open(path), path / "table.parquet", "parquet", selection, overwrite=True)
    return pl.read_parquet(path / "table.parquet")


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    facts = ("step", "operator", "io", "slot", "dtype", "shape")
    rows = []
    for row in table.to_dicts():
        statistics = {name: row[name] for name in row if name not in FACTS and row[name] is not None}
        rows.append((*(row[name] for name in facts), texts_of(statistics)))
    return rows


def texts_of(statistics: Mapping[str, StatisticValue]) -> list[str]:
    """The statistics as text: a column with numbers beyond 64 bits, or with some text, has all of its numbers in another type."""
    return sorted(f"{name} {each if isinstance(each, str) else float(each)}" for name, each in statistics.items())


def rows_of_records(path: Path, selection: Selection) -> list[tuple[Any, ...]]:
    return [
        (
            each.op.step,
            each.op.op_name,
            each.io,
            each.slot,
            each.dtype,
            [*each.shape],
            texts_of(each.statistics),
        )
        for each in opdump.open(path).tensors(**selection._asdict())
    ]


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(), io=st.sampled_from([None, "input", "output"]), include_skipped=st.booleans(), digests=st.booleans()
)
def test_the_table_is_that_of_the_records(data: st.DataObject, io: Any, include_skipped: bool, digests: bool) -> None:
    program = data.draw(st.lists(operators, min_size=1, max_size=5))
    count = sum(len(each["tensors"]) for each in program)
    steps = data.draw(st.lists(st.lists(kinds, min_size=count, max_size=count), min_size=1, max_size=4))
    selection = Selection(io=io, include_skipped=include_skipped)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump")
        write(path, program, steps, digests=digests)
        assert rows_of(table_of(path, selection)) == rows_of_records(path, selection)


@pytest.mark.parametrize(
    "kind", ["a statistic of thousands of digits", "a count beyond 64 bits", "a surrogate in a digest"]
)
def test_a_statistic_that_no_table_holds_is_refused_and_reported(kind: str, tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic"), [sample_step(0)])
    all_kinds()[kind](index_file(tmp_path))
    catalog = opdump.open(tmp_path)
    export_table(catalog, tmp_path / "table.csv", "csv")
    assert any("expected a statistic" in str(each) for each in catalog.problems)


def test_a_training_with_a_line_chosen(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with opdump.capture(path=tmp_path / "dump", saved_data="statistic") as dump:
        for step in range(4):
            x = torch.ones(3)
            x.log()
            x[step % 3 : 2].exp()  # empty in the third
            dump.step()
    line = Path(__file__).read_text().splitlines().index("            x.log()") + 1
    for selection in (Selection(), Selection(source=f"{Path(__file__).name}:{line}"), Selection(source="elsewhere.py")):
        found = table_of(tmp_path / "dump", selection)
        assert rows_of(found) == rows_of_records(tmp_path / "dump", selection)
        assert (found.height == 0) == (selection.source == "elsewhere.py")
