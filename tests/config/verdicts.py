"""Run a config as MindSpore saw it, and compare the messages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opdump.configs.mindspore import load_plan
from opdump.errors import OpdumpError
from opdump.plan import DumpPlan

DATA = Path(__file__).parent.parent / "data" / "config"


def load(name: str) -> list[dict[str, Any]]:
    cases = json.loads((DATA / name).read_text(encoding="utf-8"))
    assert isinstance(cases, list)
    return cases


def run(case: Mapping[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> DumpPlan | OpdumpError:
    """The plan of a case, or the error. The file is in the working directory, and `/data` is replaced by `root`."""
    work = root / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    file = Path(case.get("file", "data_dump.json"))
    file.parent.mkdir(parents=True, exist_ok=True)
    if case.get("mkdir"):
        file.mkdir()
    elif case.keys() & {"hex", "text", "config"}:
        file.write_bytes(_content(case).replace(b"/data", os.fsencode(root)))
    environ = {"MINDSPORE_DUMP_CONFIG": case.get("config_env", str(file.absolute()))}
    environ |= {name: value.replace("/data", str(root)) for name, value in case.get("env", {}).items()}
    try:
        return load_plan(None, environ=environ)
    except OpdumpError as error:
        return error


def _content(case: Mapping[str, Any]) -> bytes:
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    if "text" in case:
        return str(case["text"]).encode()
    config = case["config"]
    return (config if isinstance(config, str) else json.dumps(config)).encode()


def gist(exception: str) -> tuple[str, ...]:
    """The words that a message with the meaning of MindSpore's must contain, in any case."""
    for pattern, words in _GISTS:
        if found := re.search(pattern, exception):
            return tuple(word.format(*found.groups()) for word in words)
    raise AssertionError(f"no gist for {exception!r}")


_GISTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # MindSpore names two keys wrongly: it says 'enable' for every boolean, and sample_mode for sample_num
    ("'enable' should be boolean type", ("boolean",)),
    ("sample_mode should be unsigned int type", ("sample_", "unsigned int")),
    (r"(\w+) should be (unsigned int|string|array) type", ("{0}", "{1}")),
    (r"(\w+) not found", ("{0}", "not found")),
    (r"dump_mode should be 0, 1 or 2", ("dump_mode", "0 ", "1 ", "2 ")),
    (r"input_output should be 0, 1, 2", ("input_output", "0 ", "1 ", "2 ")),
    (r"op_debug_mode should be 0, 3, 4", ("op_debug_mode", "0, 3 or 4")),
    (r"sample_mode should be 0, 1", ("sample_mode", "0 ", "1 ")),
    (r"sample_num should be greater than 0", ("sample_num", "greater than 0")),
    (r"(net_name|iteration|saved_data|'\w+') only supports", ("{0}",)),
    (r"Dump path is empty", ("path", "empty", "MS_DIAGNOSTIC_DATA_PATH")),
    (r"Dump path only support absolute path", ("path", "absolute", "'/'")),
    (r"Dump path only support alphabets", ("path may contain only", "digits", "'-', '_'")),
    (r"Get dump config file failed", ("config file not found",)),
    (r"Invalid json file name|suffix only supports json", ("json file name",)),
    (r"overflow_number only need", ("overflow_number", "op_debug_mode is 1 to 3")),
    (r"Parenthesis is not closed", ("regular expression", "parenthesis is not closed")),
    (
        r"in regular expression|[Bb]rac(?:e|ket) expression|special open parenthesis|character class",
        ("regular expression",),
    ),
    (r"type_error.302. type must be number", ("support_device", "number")),
    (r"out_of_range.406", ("64 bits",)),
    (r"Is a directory", ("directory",)),
    (r"invalid string: surrogate", ("surrogate",)),
    (r"Parse dump json failed", ("json",)),
    (r"UnicodeDecodeError", ("data_dump.json",)),  # MindSpore fails while formatting its own message
)


def says(error: OpdumpError, exception: str) -> bool:
    """Whether our message has the gist of MindSpore's."""
    text = str(error).lower()
    return all(word.strip("'").lower() in text for word in gist(exception))
