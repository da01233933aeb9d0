"""Names of pyACL that are not simulated: the reason, the alternative, and the nearest name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opdump import acl
from opdump.acl.handles import calls_of

_PARTS = {"": acl, "mdl": acl.mdl, "rt": acl.rt, "op": acl.op, "util": acl.util, "dump": acl.dump}
_ABSENT = {
    "media": "OpenCV",
    "himpi": "OpenCV",
    "blas": "acl.op.execute_v2",
    "prof": "profiling is not simulated",
    "mdl.set_input_aipp": "AIPP",
    "mdl.create_aipp": "numpy",
    "mdl.load_from_file_with_q": "queues are not simulated",
    "mdl.bundle_load_from_file": "acl.mdl.load_from_file",
    "op.compile_and_execute": "acl.op.execute_v2",
    "op.create_handle": "acl.op.execute_v2",
    "op.cast": "Cast of ONNX",
    "rt.set_exception_info_callback": "dump_scene",
    "rt.memcpy2d": "acl.rt.memcpy",
}
_MEANT = {
    "int": "'init'",
    "get_tensor_desc_dims": "'get_tensor_desc_dim'",
    "mdl.set_dynamic_batchsize": "'set_dynamic_batch_size'",
    "mdl.load_form_file": "'load_from_file'",
    "rt.memcopy": "'memcpy'",
    "rt.sync_stream": "'synchronize_stream'",
    "util.bytes_to_pointer": "'bytes_to_ptr'",
    "op.execute_v3": "'execute_v2'",
    "dump.get_paths": "'get_path'",
}


def _message(name: str) -> str:
    part, _, own = name.rpartition(".")
    with pytest.raises(AttributeError) as caught:
        getattr(_PARTS[part], own)
    return str(caught.value)


@pytest.mark.parametrize("name", _ABSENT)
def test_what_is_not_simulated_is_named_with_what_to_do_instead(name: str) -> None:
    message = _message(name)
    assert message.startswith(f"acl.{name} is not here: ")
    assert _ABSENT[name] in message
    assert message.endswith("docs/acl.md lists every call")


@pytest.mark.parametrize("name", _MEANT)
def test_a_wrong_name_is_answered_with_the_nearest(name: str) -> None:
    message = _message(name)
    assert f"acl.{name} is not here" in message
    assert f"nearest: {_MEANT[name]}" in message
    assert "docs/acl.md" in message


def test_programs_may_ask_what_there_is() -> None:
    assert hasattr(acl.mdl, "set_dynamic_batch_size")
    assert not hasattr(acl, "media")
    assert not hasattr(acl.util, "vector_to_ptr")
    assert "bytes_to_ptr" in dir(acl.util)


@pytest.mark.parametrize("part", _PARTS)
def test_a_name_of_the_language_is_simply_missing(part: str) -> None:
    module: Any = _PARTS[part]
    missing = "__missing_path__"
    with pytest.raises(AttributeError, match=f"has no attribute '{missing}'"):
        getattr(module, missing)


@pytest.mark.parametrize("part", _PARTS)
def test_the_page_of_calls_has_every_name_and_no_other(part: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "acl.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `acl{'.' if part else ''}{part}` |"))
    _, _, same, other, missing, _ = (cell.strip() for cell in row.split("|"))
    here = set(calls_of(_PARTS[part].__name__))
    told = set(re.findall(r"`([a-z][a-z0-9_]*)`", f"{same} {other}"))
    assert told == here
    absent = set(re.findall(r"`([a-z][a-z0-9_]*)`", missing))
    assert not [name for name in absent if hasattr(_PARTS[part], name)]
