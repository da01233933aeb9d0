"""Every rule of acl.json, with files that follow it and files that break it (tests/data/config/acl_vectors.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from opdump.configs.acl.error import INVALID_DUMP_CONFIG, AclConfigError
from opdump.configs.acl.keys import LARGEST_FILE
from opdump.configs.acl.plan import load_acl_plan, plan_from_acl_text
from opdump.plan import DumpPlan
from tests.config.verdicts import load

VECTORS = load("acl_vectors.json")
# A plan omits these if they have their default.
DEFAULTS = MappingProxyType(
    {"captures": "data", "exception_detail": "brief", "models": None, "single_operators": True, "dump_level": "kernel"}
)


def _name(vector: Mapping[str, Any]) -> str:
    return f"{vector['rule']} {vector['text'][:60]}"


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a dump directory, a file, a home directory, and a directory with an unusual name."""
    for name in ("dump", "home/output", "odd-=[];,!@#%^&()_+{}:?"):
        (root / name).mkdir(parents=True)
    (root / "file").touch()
    monkeypatch.chdir(root)
    return root


def _load(vector: Mapping[str, Any], root: Path, *, strict: bool = False) -> DumpPlan:
    file = root / "acl.json"
    file.write_text(vector["text"], encoding="utf-8")
    environ = {"HOME": str(root / "home")}
    return load_acl_plan(file, environ=environ, dialect_version=vector.get("version", "seed"), strict=strict)


@pytest.mark.parametrize("vector", [each for each in VECTORS if "code" in each], ids=_name)
def test_a_broken_rule_gives_its_code(vector: Mapping[str, Any], place: Path) -> None:
    with pytest.raises(AclConfigError) as caught:
        _load(vector, place)
    assert (caught.value.code, caught.value.error_code) == (
        vector["code"],
        vector.get("error_code", INVALID_DUMP_CONFIG),
    )
    message = str(caught.value)
    assert message.startswith(f"{vector['code']} (100009): " if vector["code"] else f"{caught.value.error_code}: ")
    assert str(place / "acl.json") in message
    assert vector.get("says", "") in message


@pytest.mark.parametrize("vector", [each for each in VECTORS if "code" not in each], ids=_name)
def test_a_kept_rule_gives_its_plan(vector: Mapping[str, Any], place: Path) -> None:
    plan = _load(vector, place)
    facts = dict(vector.get("plan", {}))
    if "path" in facts:
        assert plan.path == place / facts.pop("path")
    if "enables_nothing" in facts:
        assert plan.enables_nothing is facts.pop("enables_nothing")
    shown = {**DEFAULTS, **json.loads(plan.to_json())}
    assert {name: shown[name] for name in facts} == facts
    assert plan.config_text == vector["text"]
    assert plan.enables_nothing == any("valid, but enables nothing: " in warning for warning in plan.warnings)
    if vector.get("warns", "") is None:
        assert plan.warnings == ()
    else:
        assert vector.get("warns", "") in "\n".join(plan.warnings)


@pytest.mark.parametrize("vector", [each for each in VECTORS if "strict" in each], ids=_name)
def test_strict_makes_an_unknown_key_an_error(vector: Mapping[str, Any], place: Path) -> None:
    with pytest.raises(AclConfigError, match=vector["strict"]) as caught:
        _load(vector, place, strict=True)
    assert caught.value.error_code == INVALID_DUMP_CONFIG


@pytest.mark.parametrize(
    "vector", [each for each in VECTORS if each.get("warns", "") is None], ids=lambda each: str(each["rule"])
)
def test_strict_has_nothing_against_known_keys(vector: Mapping[str, Any], place: Path) -> None:
    assert _load(vector, place, strict=True) == _load(vector, place)


class TestHostileFiles:
    def test_ten_mebibytes_may_be_and_one_byte_more_not(self, place: Path) -> None:
        text = json.dumps({"dump": {"dump_path": "dump", "dump_list": [{}]}})
        file = place / "acl.json"
        file.write_text(text.ljust(LARGEST_FILE), encoding="utf-8")
        assert load_acl_plan(file, environ={}).captures == "data"
        file.write_text(text.ljust(LARGEST_FILE + 1), encoding="utf-8")
        with pytest.raises(AclConfigError, match="10 MiB") as caught:
            load_acl_plan(file, environ={})
        assert (caught.value.code, caught.value.error_code) == (None, 100003)

    def test_the_size_comes_before_the_depth(self, place: Path) -> None:
        (place / "acl.json").write_bytes(b"[" * (LARGEST_FILE + 1))
        with pytest.raises(AclConfigError) as caught:
            load_acl_plan(place / "acl.json", environ={})
        assert caught.value.error_code == 100003

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("absent.json", "No such file"),
            ("dump", "is a directory"),
            ("pipe", "device, pipe or socket"),
            ("", "No such file"),
            ("a\0b", "embedded null"),
            ("x" * 300, "name too long"),
        ],
    )
    def test_what_is_no_regular_file_is_100003(self, name: str, message: str, place: Path) -> None:
        os.mkfifo(place / "pipe")
        with pytest.raises(AclConfigError, match=message) as caught:
            load_acl_plan(name, environ={})
        assert (caught.value.code, caught.value.error_code) == (None, 100003)

    @pytest.mark.parametrize("data", [b"\xff\xfe{", b'{"dump": "\xe9"}', b"\x00", b"\x00" * 9, b"PK\x03\x04"])
    def test_bytes_that_are_no_text_are_ep0004(self, data: bytes, place: Path) -> None:
        (place / "acl.json").write_bytes(data)
        with pytest.raises(AclConfigError) as caught:
            load_acl_plan(place / "acl.json", environ={})
        assert (caught.value.code, caught.value.error_code) == ("EP0004", 100009)

    def test_a_link_to_a_file_and_any_name_will_do(self, place: Path) -> None:
        (place / "real.txt").write_text('{"dump": {"dump_path": "dump", "dump_list": [{}]}}', encoding="utf-8")
        (place / "acl").symlink_to("real.txt")
        assert load_acl_plan("acl", environ={}).path == place / "dump"

    def test_brackets_hidden_from_the_count_are_survived(self) -> None:
        for depth in range(800, 1010):  # around the depth that the interpreter can parse
            text = '{"dump": {"dump_list": [' + '["]", ' * depth + "1" + "]" * depth + "]}}"
            with pytest.raises(AclConfigError) as caught:
                plan_from_acl_text(text, environ={})
            assert caught.value.code in ("EP0001", "EP0004"), depth

    def test_many_unknown_keys_are_summarised(self, place: Path) -> None:
        keys = {f"key{number}": 0 for number in range(100_000)}
        text = json.dumps({"dump": {"dump_path": "dump", "dump_list": [{}], "x" * 1000: 0, **keys}})
        plan = plan_from_acl_text(text[:-2] + ', "key1": 0}}', environ={})
        assert len(plan.warnings) == 22
        assert plan.warnings[0] == "acl.json: keys given more than once, of which the last one is used: key1"
        assert plan.warnings[-1] == "acl.json: 99981 more unknown keys are ignored"
        assert max(map(len, plan.warnings)) < 300
