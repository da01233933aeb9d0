"""`--layout mindspore`: an asynchronous dump becomes the tree of a synchronous one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.conversion import ConversionPlan, convert
from opdump.conversion.plan import ConversionError
from tests.conversion.dump_files import TIME, dump, overflow_file, tensor, tree

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


def test_a_device_or_a_model_of_a_dump_will_do_and_another_directory_is_told(tmp_path: Path) -> None:
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
