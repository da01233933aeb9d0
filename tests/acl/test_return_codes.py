"""Every return code in the dump specification, and its message."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from opdump import acl
from opdump.acl import Code
from opdump.dump_file import read_dump_file
from tests.acl.program import config, execute, load, numbers, ok, places, small_model, write_small


def _raw(folder: Path, text: str | bytes) -> str:
    path = folder / "raw.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_no_configuration_and_an_empty_path_are_no_dump() -> None:
    assert acl.init() == 0
    assert acl.finalize() == 0
    assert acl.init("") == 0
    assert acl.dump.get_path(4) is None


def test_init_again_is_counted_and_says_so() -> None:
    assert acl.init() == 0
    assert acl.init() == 100002
    assert acl.finalize() == 0
    assert acl.mdl.init_dump() == 0, "one finalize is still missing"
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    assert acl.mdl.init_dump() == 100001


def test_finalize_before_init() -> None:
    assert acl.finalize() == 100037
    assert "acl.init" in acl.get_recent_err_msg()
    assert acl.get_recent_err_msg() == "", "it was requested"


def test_init_after_finalize_with_the_same_configuration(dump: Path, tmp_path: Path) -> None:
    path = config(tmp_path, dump)
    assert acl.init(str(path)) == 0
    assert acl.finalize() == 0
    copy = tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    assert acl.init(str(copy)) == 0


def test_init_after_finalize_with_another_configuration(dump: Path, tmp_path: Path) -> None:
    assert acl.init(str(config(tmp_path, dump))) == 0
    assert acl.finalize() == 0
    assert acl.init(str(config(tmp_path, dump, "other.json", dump_mode="input"))) == 100000
    assert acl.mdl.init_dump() == 100001, "it is not initialised"


_FILES = {
    "no such file": (None, 100003),
    "a directory": ("DIRECTORY", 100003),
    "too large": (b" " * (10 * 1024 * 1024 + 1), 100003),
    "brackets too deep": ('{"a":' * 11 + "1" + "}" * 11, 100006),
    "lists too deep": ('{"a":' + "[" * 11 + "]" * 11 + "}", 100006),
    "no JSON": ("{", 100009),
    "dump is a list": ('{"dump": []}', 100009),
    "dump is null": ('{"dump": null}', 100009),
    "no dump_path": ('{"dump": {"dump_list": [{}]}}', 100009),
    "dump_path is not there": ('{"dump": {"dump_list": [{}], "dump_path": "/nowhere/at/all"}}', 100009),
    "a value that is none": ('{"dump": {"dump_list": [{}], "dump_path": "DUMP", "dump_mode": "both"}}', 100009),
    "two modes": ('{"dump": {"dump_path": "DUMP", "dump_debug": "on", "dump_op_switch": "on"}}', 100009),
    "no bytes": ("", 0),
    "no key": ("{}", 0),
    "an empty section": ('{"dump": {}}', 0),
    "other sections": ('{"profiler": {"switch": "on"}}', 0),
    "an unknown key": ('{"dump": {"dump_list": [{}], "dump_path": "DUMP", "dumb_mode": "all"}}', 0),
}


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("call", ["init", "set_dump"])
def test_a_configuration_file(name: str, call: str, dump: Path, tmp_path: Path) -> None:
    content, code = _FILES[name]
    if content is None:
        path = str(tmp_path / "none.json")
    elif content == "DIRECTORY":
        path = str(tmp_path)
    else:
        path = _raw(tmp_path, content if isinstance(content, bytes) else content.replace("DUMP", str(dump)))
    if call == "init":
        assert acl.init(path) == code
        assert acl.finalize() == (0 if code == 0 else 100037)
    else:
        ok(acl.init())
        ok(acl.mdl.init_dump())
        assert acl.mdl.set_dump(path) == code
    assert list(dump.iterdir()) == []


def test_init_dump_needs_init_and_a_finalize_dump_in_between() -> None:
    assert acl.mdl.init_dump() == 100001
    ok(acl.init())
    assert acl.mdl.init_dump() == 0
    assert acl.mdl.init_dump() == 100002
    assert acl.mdl.finalize_dump() == 0
    assert acl.mdl.init_dump() == 0


def test_the_checks_of_set_dump_come_in_their_order(dump: Path, tmp_path: Path) -> None:
    bad = _raw(tmp_path, "{")
    assert acl.mdl.set_dump(None) == 100001
    assert acl.mdl.set_dump(bad) == 100001
    ok(acl.init())
    assert acl.mdl.set_dump(None) == 100045
    assert acl.mdl.set_dump(bad) == 100045
    ok(acl.mdl.init_dump())
    assert acl.mdl.set_dump(None) == 100000
    assert acl.mdl.set_dump(str(tmp_path / "none.json")) == 100003
    assert acl.mdl.set_dump(bad) == 100009
    assert acl.mdl.set_dump(str(config(tmp_path, dump))) == 0


def test_a_set_dump_that_fails_leaves_what_was_set(dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    assert acl.mdl.set_dump(_raw(tmp_path, "{")) == 100009
    execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert places(dump) == ["small/1/0"]


def test_finalize_dump_needs_init_and_init_dump() -> None:
    assert acl.mdl.finalize_dump() == 100001
    ok(acl.init())
    assert acl.mdl.finalize_dump() == 100045
    ok(acl.mdl.init_dump())
    assert acl.mdl.finalize_dump() == 0
    assert acl.mdl.finalize_dump() == 100045


def test_init_dump_is_allowed_where_init_has_opened_a_dump(dump: Path, tmp_path: Path) -> None:
    # Older systems return 100044 here; newer ones and this one do not.
    ok(acl.init(str(config(tmp_path, dump))))
    assert acl.mdl.init_dump() == 0
    assert acl.mdl.finalize_dump() == 0
    execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    assert list(dump.iterdir()) == [], "finalize_dump also ends the dump that init opened"


def test_models_need_init(tmp_path: Path) -> None:
    path = write_small(tmp_path)
    assert acl.mdl.load_from_file(str(path)) == (0, 100001)
    ok(acl.init())
    model_id = load(path)
    assert model_id == 1
    ok(acl.finalize())
    ok(acl.init())
    assert acl.mdl.unload(model_id) == Code.INVALID_MODEL_ID, "finalize unloaded it"


def test_models_that_are_none(tmp_path: Path) -> None:
    ok(acl.init())
    assert acl.mdl.load_from_file(str(tmp_path / "none.onnx")) == (0, 100003)
    assert acl.mdl.load_from_file(_raw(tmp_path, "no model")) == (0, 100006)
    assert acl.mdl.load_from_mem(12345, 10) == (0, 100000)
    unknown = small_model()
    unknown.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(unknown, tmp_path / "unknown.onnx")
    assert acl.mdl.load_from_file(str(tmp_path / "unknown.onnx")) == (0, 500000)
    assert "NoSuchOperator" in acl.get_recent_err_msg()
    assert acl.mdl.unload(7) == Code.INVALID_MODEL_ID
    assert acl.mdl.execute(7, 0, 0) == Code.INVALID_MODEL_ID
    assert "no model 7" in acl.get_recent_err_msg()


def test_start_dump_args_checks_its_arguments(tmp_path: Path) -> None:
    folder, file = tmp_path / "args", tmp_path / "file"
    file.write_text("")
    assert acl.op.start_dump_args(0, str(folder)) == 500001
    assert acl.op.start_dump_args(2, str(folder)) == 500001
    assert acl.op.start_dump_args(1, None) == 500001
    assert acl.op.start_dump_args(1, str(file)) == 500001
    assert acl.op.start_dump_args(1, str(file / "below")) == 500001
    assert not folder.exists()
    assert acl.op.stop_dump_args(1) == 0, "nothing was started, which is allowed"
    assert acl.op.start_dump_args(3, str(folder)) == 0
    assert folder.is_dir()
    assert acl.op.start_dump_args(1, str(folder)) == 500001
    assert acl.op.stop_dump_args(1) == 0
    assert acl.op.start_dump_args(1, str(folder)) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_start_dump_args_needs_a_directory_that_it_may_use(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert acl.op.start_dump_args(1, str(closed)) == 500001


def test_the_callback_has_to_be_a_function_and_the_flag_zero() -> None:
    assert acl.dump.reg_callback(None, 0) == 500001
    assert acl.dump.reg_callback(lambda chunk, length: 0, 1) == 500001
    assert acl.dump.reg_callback(lambda chunk, length: 0, 0) == 0
    assert acl.dump.reg_callback(lambda chunk, length: 0, 0) == 0, "the second call is ignored"
    acl.dump.unreg_callback()
    acl.dump.unreg_callback()


_SCENES: dict[str, tuple[dict[str, Any], int]] = {
    "lite_exception": ({"dump_scene": "lite_exception"}, 1),
    "brief": ({"dump_scene": "aic_err_brief_dump"}, 1),
    "norm": ({"dump_scene": "aic_err_norm_dump"}, 2),
    "detail": ({"dump_scene": "aic_err_detail_dump"}, 3),
    "data": ({}, 4),
    "overflow": ({"dump_list": None, "dump_mode": None, "dump_debug": "on"}, 5),
}


@pytest.mark.parametrize("name", _SCENES)
def test_get_path_returns_the_path_of_the_active_dump(name: str, dump: Path, tmp_path: Path) -> None:
    keys, own = _SCENES[name]
    ok(acl.init(str(config(tmp_path, dump, **keys))))
    found = {kind: acl.dump.get_path(kind) for kind in range(7)}
    path = found.pop(own)
    assert set(found.values()) == {None}
    assert path is not None
    if own <= 3:
        assert path == f"{dump}/extra-info/data-dump/"
        assert Path(path).is_dir()
    else:
        assert Path(path).parent == dump
        assert len(Path(path).name) == 14
        assert list(dump.iterdir()) == [], "created with the first file"


def test_the_path_of_failures_is_written_into_memory(dump: Path, tmp_path: Path) -> None:
    address = ok(acl.rt.malloc(4096, 0))
    ok(acl.init())
    assert acl.dump.get_exception_info_path(address, 4096) == 500001, "the dump is off"
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_scene="aic_err_norm_dump"))))
    assert acl.dump.get_exception_info_path(0, 4096) == 100000
    assert acl.dump.get_exception_info_path(address, 1) == 100000
    wanted = f"{dump}/extra-info/data-dump/0/"
    assert acl.dump.get_exception_info_path(address, len(wanted)) == 100000, "no room for the zero byte"
    assert acl.dump.get_exception_info_path(address, len(wanted) + 1) == 0
    assert acl.util.ptr_to_bytes(address, len(wanted) + 1) == wanted.encode() + b"\0"


def test_tensors_of_the_program_are_saved_beside_failures(dump: Path, tmp_path: Path) -> None:
    data = numbers(2, 3)
    buffer = acl.create_data_buffer(acl.util.numpy_to_ptr(data), data.nbytes)
    tensor = (acl.create_tensor_desc(0, [2, 3], 2), buffer)
    deep = (acl.create_tensor_desc(0, [1] * 26, 2), buffer)
    empty = (tensor[0], acl.create_data_buffer(0, 0))
    ok(acl.init())
    assert acl.dump.save_exception_info("here/mine", "tag", [tensor]) == 500001, "the dump is off"
    ok(acl.finalize())
    ok(acl.init(str(config(tmp_path, dump, dump_scene="aic_err_norm_dump"))))
    for name in (None, "", "../mine", "a/../../b", "/mine"):
        assert acl.dump.save_exception_info(name, "tag", [tensor]) == 100000
    for tensors in ([], [deep], [empty], [tensor, (0, buffer)]):
        assert acl.dump.save_exception_info("mine", "tag", tensors) == 100000
    assert list(dump.iterdir()) == []
    assert acl.dump.save_exception_info("here/mine", "a tag", [tensor, tensor]) == 0
    (path,) = (dump / "extra-info" / "data-dump" / "0" / "here").iterdir()
    assert re.fullmatch(r"mine\.custom\.[0-9]{17}", path.name)
    assert path.stat().st_mode & 0o777 == 0o400
    file = read_dump_file(path)
    assert (file.op_name, file.attributes) == ("mine", (("user_tag", "a tag"),))
    assert [each.to_host().tobytes() for each in file.inputs] == [data.tobytes()] * 2


def test_finalize_dump_does_not_switch_off_the_detailed_dump_of_failures(dump: Path, tmp_path: Path) -> None:
    for scene, stays in (("aic_err_detail_dump", True), ("aic_err_norm_dump", False)):
        ok(acl.init())
        ok(acl.mdl.init_dump())
        ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_scene=scene))))
        ok(acl.mdl.finalize_dump())
        assert (acl.dump.get_path(3 if stays else 2) is not None) is stays
        ok(acl.finalize())


def test_a_variable_alone_asks_for_the_dump_of_failures(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DUMP_SCENE", "aic_err_norm_dump")
    monkeypatch.setenv("ASCEND_DUMP_PATH", str(dump))
    ok(acl.init())
    assert acl.dump.get_path(2) == f"{dump}/extra-info/data-dump/"


_REFUSED: dict[str, Callable[[], object]] = {
    "a device that there is not": lambda: acl.rt.set_device(7),
    "a buffer of no memory": lambda: acl.create_data_buffer(4096, 16) or 1,
    "a data set that is none": lambda: acl.mdl.destroy_dataset(5),
    "a stream that is none": lambda: acl.rt.synchronize_stream(5),
    "memory of no size": lambda: acl.rt.malloc(0, 0)[1],
    "memory that was not allocated": lambda: acl.rt.free(5),
    "a type that is none": lambda: acl.create_tensor_desc(5, [1], 2) or 1,
}


@pytest.mark.parametrize("name", _REFUSED)
def test_a_call_that_cannot_be_done_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert _REFUSED[name]() != 0
    message = acl.get_recent_err_msg()
    assert message.startswith(("acl.", "malloc", "free"))
    assert message in caplog.text
