"""The call orders documented for aclmdlSetDump, with a convnet and a transformer exported from PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from opdump import acl
from opdump.dump_file import read_dump_file
from tests.acl.program import (
    assert_converts_to_the_values_of_the_run,
    config,
    dump_files,
    execute,
    feeds_of,
    load,
    nodes_dumped,
    ok,
    places,
    plain_values,
    write_model,
)

pytestmark = pytest.mark.torch  # the models are exported from PyTorch


class _Files(NamedTuple):
    convnet: Path
    transformer: Path


@pytest.fixture
def files(tmp_path: Path) -> _Files:
    return _Files(
        write_model(tmp_path, "convnet", "conv.net.onnx"), write_model(tmp_path, "transformer", "transformer.onnx")
    )


def test_init_dump_set_dump_load_execute_finalize_unload(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    model_id = load(files.convnet)
    (answer,) = execute(model_id, feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    ok(acl.mdl.unload(model_id))
    ok(acl.finalize())
    assert places(dump) == ["conv_net/1/0"]
    values = plain_values(files.convnet, feeds_of("convnet"))
    (folder,) = dump.glob("*/0/conv_net/1/0")
    compared = assert_converts_to_the_values_of_the_run(
        folder, tmp_path / "npy", files.convnet, feeds_of("convnet"), values
    )
    assert compared > 25
    assert any(answer.tobytes() == value.tobytes() for value in values.values())


def test_two_models_with_two_configurations(files: _Files, dump: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "one.json", dump_list=[{"model_name": "conv.net"}]))))
    one = load(files.convnet)
    execute(one, feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    ok(acl.mdl.unload(one))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, second, "two.json", dump_list=[{"model_name": "transformer"}]))))
    two = load(files.transformer)
    execute(two, feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    ok(acl.mdl.unload(two))
    ok(acl.finalize())
    assert places(dump) == ["conv_net/1/0"]
    assert places(second) == ["transformer/2/0"]
    (folder,) = second.glob("*/0/transformer/2/0")
    assert assert_converts_to_the_values_of_the_run(
        folder, tmp_path / "npy", files.transformer, feeds_of("transformer")
    ) > 25  # fmt: skip


def test_the_same_model_first_with_and_then_without_dump(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    first = load(files.transformer)
    (dumped,) = execute(first, feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    ok(acl.mdl.unload(first))
    before = dump_files(dump)
    second = load(files.transformer)
    (plain,) = execute(second, feeds_of("transformer"))
    ok(acl.mdl.unload(second))
    ok(acl.finalize())
    assert second != first
    assert places(dump) == ["transformer/1/0"]
    assert dump_files(dump) == before
    assert dumped.tobytes() == plain.tobytes()


def test_a_model_that_was_loaded_before_set_dump_is_not_affected(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    one = load(files.convnet)
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    two = load(files.transformer)
    execute(one, feeds_of("convnet"))
    execute(two, feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["transformer/2/0"]
    assert [path.name for path in sorted(dump.rglob("ge_proto_*.txt"))] == ["ge_proto_00002_Build.txt"]


def test_a_model_that_is_loaded_again_after_set_dump_is_dumped(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    one = load(files.convnet)
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    execute(one, feeds_of("convnet"))
    ok(acl.mdl.unload(one))
    execute(load(files.convnet), feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["conv_net/2/0"]


def test_a_second_set_dump_replaces_the_first(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "one.json", dump_list=[{"model_name": "conv.net"}]))))
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "two.json", dump_list=[{"model_name": "transformer"}]))))
    execute(load(files.convnet), feeds_of("convnet"))
    execute(load(files.transformer), feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["transformer/2/0"]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"dump": {}}', '{"dump": {"dump_path": "DUMP", "dump_list": [{"model_name": "x"}]}}']
)
def test_a_second_set_dump_that_enables_nothing_ends_the_first(
    files: _Files, dump: Path, tmp_path: Path, text: str
) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(text.replace("DUMP", str(dump)))
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    ok(acl.mdl.set_dump(str(empty)))
    execute(load(files.convnet), feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    assert list(dump.iterdir()) == []


def test_a_model_keeps_the_configuration_that_it_was_loaded_under(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "one.json", dump_mode="input"))))
    one = load(files.convnet)
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "two.json", dump_mode="output"))))
    two = load(files.convnet)
    execute(two, feeds_of("convnet"))
    execute(one, feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["conv_net/1/0", "conv_net/2/0"]
    for number, side in ((1, "inputs"), (2, "outputs")):
        found = [read_dump_file(path) for path in dump_files(dump) if f"/{number}/0/" in str(path)]
        other = "outputs" if side == "inputs" else "inputs"
        assert found
        assert all(getattr(file, side) and not getattr(file, other) for file in found)


def test_data_index_counts_the_runs_of_a_model(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_step="0|2"))))
    one, two = load(files.convnet), load(files.transformer)
    for _ in range(3):
        execute(one, feeds_of("convnet"))
    execute(two, feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["conv_net/1/0", "conv_net/1/2", "transformer/2/0"]


def test_a_model_runs_on_without_dump_after_finalize_dump(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    model_id = load(files.convnet)
    (dumped,) = execute(model_id, feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    (plain,) = execute(model_id, feeds_of("convnet"))
    assert plain.tobytes() == dumped.tobytes()
    assert places(dump) == ["conv_net/1/0"]


def test_acl_init_with_a_configuration_dumps_until_finalize(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init(str(config(tmp_path, dump))))
    model_id = load(files.convnet)
    execute(model_id, feeds_of("convnet"))
    ok(acl.mdl.unload(model_id))
    execute(load(files.transformer), feeds_of("transformer"))
    ok(acl.finalize())
    assert places(dump) == ["conv_net/1/0", "transformer/2/0"]


def test_set_dump_replaces_the_configuration_of_acl_init(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init(str(config(tmp_path, dump))))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, "two.json", dump_list=[{"model_name": "transformer"}]))))
    execute(load(files.convnet), feeds_of("convnet"))
    execute(load(files.transformer), feeds_of("transformer"))
    ok(acl.mdl.finalize_dump())
    execute(load(files.transformer), feeds_of("transformer"))
    assert places(dump) == ["transformer/2/0"]


def test_a_model_from_memory_is_called_by_its_graph(files: _Files, dump: Path, tmp_path: Path) -> None:
    data = files.transformer.read_bytes()
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[{"model_name": "main_graph"}]))))
    model_id = ok(acl.mdl.load_from_mem(acl.util.bytes_to_ptr(data), len(data)))
    execute(model_id, feeds_of("transformer"))
    execute(load(files.convnet), feeds_of("convnet"))  # also by the name of its graph
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["conv_net/2/0", "main_graph/1/0"]


def test_a_layer_chooses_one_node(files: _Files, dump: Path, tmp_path: Path) -> None:
    (name, *_) = [node.name for node in onnx.load(files.convnet).graph.node if node.op_type == "Conv"]
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[{"model_name": "conv.net", "layer": [name]}]))))
    execute(load(files.convnet), feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    assert nodes_dumped(dump) == {name}


def test_execute_async_is_dumped_as_execute(files: _Files, dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.rt.set_device(0))
    stream = ok(acl.rt.create_stream())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    execute(load(files.transformer), feeds_of("transformer"), stream)
    ok(acl.mdl.finalize_dump())
    ok(acl.rt.destroy_stream(stream))
    ok(acl.rt.reset_device(0))
    assert places(dump) == ["transformer/1/0"]


def test_a_refused_configuration_is_reported_again_when_models_ran_without_a_dump(
    files: _Files, dump: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = config(tmp_path, dump, dump_mode="ALL")
    ok(acl.init())
    ok(acl.mdl.init_dump())
    assert acl.mdl.set_dump(str(refused)) == 100009
    model_id = load(files.convnet)
    caplog.clear()
    ok(acl.mdl.finalize_dump())
    assert "nothing was captured: acl.mdl.set_dump rejected its file, and no other is active: EP0002" in caplog.text
    assert "enables nothing" not in caplog.text
    ok(acl.mdl.unload(model_id))
    ok(acl.finalize())


def test_models_that_run_without_a_configuration_file_report_nothing_about_one(
    files: _Files, caplog: pytest.LogCaptureFixture
) -> None:
    ok(acl.init())
    ok(acl.mdl.unload(load(files.convnet)))
    ok(acl.finalize())
    assert "enables nothing" not in caplog.text
