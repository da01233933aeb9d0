"""`opdump.onnx.session`: the same dumps from Python, without the acl calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import opdump
from opdump.errors import CaptureStateError, ConfigError, IncompleteCaptureError, ModelFileError
from opdump.layouts.detect import read_ranks
from tests.acl.program import (
    assert_converts_to_the_values_of_the_run,
    config,
    dump_files,
    feeds_of,
    nodes_dumped,
    numbers,
    small_model,
    write_model,
    write_small,
)

pytestmark = pytest.mark.torch  # the models are exported from PyTorch


def test_runs_of_the_block_are_dumped_and_reported(dump: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path, "transformer", "net.onnx")
    with opdump.onnx.session(path, config(tmp_path, dump)) as model:
        assert model.name == "net"
        assert [value.name for value in model.inputs] == ["x"]
        answers = [model.run(None, feeds_of("transformer")) for _ in range(2)]
        assert (model.current_step, model.runs) == (2, 2)
    report = model.report
    assert report is not None
    assert np.array_equal(answers[0][0], answers[1][0])
    assert report.steps == (0, 1)
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert report.files == len(files) > len(dump_files(dump))
    assert report.bytes == sum(file.stat().st_size for file in files)
    assert report.executed == report.captured + sum(report.skipped.values())
    (folder,) = dump.glob("*/0/net/*/1")
    assert assert_converts_to_the_values_of_the_run(folder, tmp_path / "npy", path, feeds_of("transformer")) > 25


def test_keywords_are_a_plan_of_either_dialect(dump: Path, tmp_path: Path) -> None:
    acl_dump, other = dump / "acl", dump / "other"
    with opdump.onnx.session(
        small_model(), path=str(acl_dump), dialect="acl", dump_list=[{}], dump_mode="input"
    ) as model:
        model.run(None, {"x": numbers(2, 3)})
    assert model.plan.layout == "acl"
    assert nodes_dumped(acl_dump) == {"first", "second"}
    with opdump.onnx.session(small_model(), path=str(other), saved_data="full") as model:
        model.run(None, {"x": numbers(2, 3)})
    assert model.plan.layout == "mindspore-2.3"
    (rank,) = read_ranks(other)
    found = {tensor.name: tensor for tensor in rank.step(0).tensors}
    payload = found["second:output:0"].payload
    assert payload is not None
    assert np.array_equal(payload.to_host(), 2 * np.maximum(numbers(2, 3), 0))
    assert found["second:output:0"].statistics["max"] == pytest.approx(2 * numbers(2, 3).max())


def test_a_plan_is_taken_as_it_is_and_keywords_replace_its_fields(dump: Path, tmp_path: Path) -> None:
    plan = opdump.onnx.plan_of(config(tmp_path, dump))
    with opdump.onnx.session(small_model(), plan, inputs=False) as model:
        model.run(["y"], {"x": numbers(2, 3)})
    assert model.plan.inputs is False
    assert len(dump_files(dump)) == 2


def test_what_the_config_names_and_the_model_lacks_is_reported(dump: Path, tmp_path: Path) -> None:
    path = write_small(tmp_path)
    entries: list[dict[str, Any]] = [{"model_name": "smal"}, {"model_name": "small", "layer": ["first", "thrid"]}]
    with opdump.onnx.session(path, dump_path=str(dump), dump_list=entries) as model:
        model.run(None, {"x": numbers(2, 3)})
    assert model.report is not None
    assert [warning.partition(";")[0] for warning in model.report.warnings] == [
        "dump_list.model_name: no loaded model is called 'smal'",
        "dump_list.layer: 'thrid' is not an operator of the model",
    ]
    assert nodes_dumped(dump) == {"first"}


def test_watched_outputs_are_written_after_each_layer(dump: Path) -> None:
    """The documented sample: after A and after B, the outputs of C and of D are written."""
    nodes = [onnx.helper.make_node("Relu", ["x" if place == 0 else f"v{place - 1}"], [f"v{place}"], name)
             for place, name in enumerate("CDAB")]  # fmt: skip
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [onnx.helper.make_tensor_value_info("x", 1, (3,))],
        [onnx.helper.make_tensor_value_info("v3", 1, (3,))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    entry = {"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}
    with opdump.onnx.session(model, dump_path=str(dump), dump_list=[entry], dump_scene="watcher") as dumped:
        dumped.run(None, {"x": numbers(3)})
    names = sorted(path.name.rpartition(".")[0].rpartition(".")[0].rpartition(".")[0] for path in dump_files(dump))
    assert names == ["Relu.A_To_C", "Relu.A_To_D", "Relu.B_To_C", "Relu.B_To_D"]


def test_a_failing_run_is_reported_and_its_node_is_on_disk(dump: Path, tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["x", "i"], ["y"], "pick")],
        "graph",
        [onnx.helper.make_tensor_value_info("x", 1, (3,)), onnx.helper.make_tensor_value_info("i", 7, (1,))],
        [onnx.helper.make_tensor_value_info("y", 1, (1,))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    plan = opdump.onnx.plan_of(config(tmp_path, dump, dump_scene="lite_exception"))
    with pytest.raises(Exception, match="pick"), opdump.onnx.session(model, plan) as dumped:
        dumped.run(None, {"x": numbers(3), "i": np.array([9])})
    assert dumped.report is not None
    assert dumped.report.captured == 1
    (path,) = (dump / "extra-info" / "data-dump" / "0").glob("exception_info.*")
    assert opdump.read_dump_file(path).inputs[1].to_host().tolist() == [9]


def test_strict_ends_with_an_error_where_something_left_no_data(dump: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"], "text")],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, (1,))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, (1,))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": np.array(["a"], object)}
    with opdump.onnx.session(model, dump_path=str(dump), dump_list=[{}], dump_mode="all") as dumped:
        dumped.run(None, feeds)
    assert dumped.report is not None
    assert dumped.report.tensors_skipped == {"opaque": 2}
    with (
        pytest.raises(IncompleteCaptureError, match="2 opaque"),
        opdump.onnx.session(model, dump_path=str(dump), dump_list=[{}], dump_mode="all", strict=True) as dumped,
    ):
        dumped.run(None, feeds)


def test_errors_come_before_anything_is_loaded(dump: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="dump_mode"),
        opdump.onnx.session(tmp_path / "none.onnx", dump_path=str(dump), dump_list=[{}], dump_mode="both"),
    ):
        pytest.fail("the config is wrong")
    with (
        pytest.raises(ModelFileError, match=r"none\.onnx"),
        opdump.onnx.session(tmp_path / "none.onnx", dump_path=str(dump), dump_list=[{}]),
    ):
        pytest.fail("the model does not exist")
    assert list(dump.iterdir()) == []


def test_a_session_that_is_over_runs_no_more(dump: Path) -> None:
    with opdump.onnx.session(small_model(), dump_path=str(dump), dump_list=[{}]) as model:
        model.run(None, {"x": numbers(2, 3)})
    with pytest.raises(CaptureStateError, match="over"):
        model.run(None, {"x": numbers(2, 3)})
    assert model.runs == 1


def test_sessions_of_one_second_are_distinguished_by_their_number(dump: Path) -> None:
    for _ in range(2):
        with opdump.onnx.session(small_model(), dump_path=str(dump), dump_list=[{}]) as model:
            model.run(None, {"x": numbers(2, 3)})
    assert len({path.parent for path in dump_files(dump)}) == 2


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"layer": ["frist"]}, "dump_list.layer: 'frist' is not an operator of the model; nearest: 'first'"),
        (
            {"opname_range": [{"begin": "second", "end": "first"}]},
            "dump_list.opname_range: 'first' runs before 'second', so the range is empty",
        ),
        (
            {"opname_range": [{"begin": "first", "end": "secnd"}]},
            "'secnd' is not an operator of the model; nearest: 'second'",
        ),
        (
            {"opname_blacklist": [{"name": "Second", "pos": ["input0"]}]},
            "dump_list.opname_blacklist: 'Second' is not an operator of the model; nearest: 'second'",
        ),
        (
            {"optype_blacklist": [{"name": "Rleu", "pos": ["input0"]}]},
            "dump_list.optype_blacklist: 'Rleu' is not the type of any",
        ),
    ],
)
def test_each_name_that_matches_nothing_is_reported_with_the_nearest(
    entry: dict[str, Any], text: str, dump: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_small(tmp_path)
    keys: dict[str, Any] = {"dump_list": [{"model_name": "small", **entry}], "dump_level": "op", "dump_mode": "all"}
    with opdump.onnx.session(path, dump_path=str(dump), **keys) as model:
        model.run(None, {"x": numbers(2, 3)})
    assert model.report is not None
    (warning,) = model.report.warnings
    assert text in warning
    assert warning in [record.message for record in caplog.records], (
        "the log reports it too, for programs that do not read the report"
    )


def test_what_a_configuration_warns_of_is_logged(dump: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = config(tmp_path, dump, dump_mod="all")
    with opdump.onnx.session(write_small(tmp_path), path) as model:
        model.run(None, {"x": numbers(2, 3)})
    (told,) = [record.message for record in caplog.records if "dump_mod" in record.message]
    assert "dump_mode" in told


def test_a_file_has_the_name_that_the_program_gives_it(dump: Path, tmp_path: Path) -> None:
    path = write_small(tmp_path)
    opdump.name_model(path, "ResNet-50")
    entry = {"model_name": "ResNet-50", "layer": ["second"]}
    with opdump.onnx.session(path, dump_path=str(dump), dump_list=[entry]) as model:
        model.run(None, {"x": numbers(2, 3)})
    assert model.report is not None
    assert model.report.warnings == ()
    assert nodes_dumped(dump) == {"second"}
    assert {file.parents[2].name for file in dump_files(dump)} == {"ResNet-50"}


def test_a_model_without_a_wanted_execution_says_so_and_strict_is_an_error(dump: Path, tmp_path: Path) -> None:
    path = write_small(tmp_path)
    with (
        pytest.raises(IncompleteCaptureError, match=r"'small' ran once \(0\), but `dump_step` selects 7"),
        opdump.onnx.session(
            path, dump_path=str(dump), dump_list=[{"model_name": "small"}], dump_step="7", strict=True
        ) as model,
    ):
        model.run(None, {"x": numbers(2, 3)})


def test_marks_are_none_of_a_model_file(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match='dump_mode 1 with "kernels"'),
        opdump.onnx.session(write_small(tmp_path), path=str(tmp_path / "dump"), dump_mode=2),
    ):
        pass
