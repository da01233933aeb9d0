"""Links inside a dump, names that no file system accepts, and dumps of other users are refused or reported, and never
followed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.adapters.program_marks import ModelNames
from opdump.catalog.catalog import open_dump
from opdump.errors import ConfigError, DumpPathError
from opdump.index.writer import RunFacts
from opdump.layouts.base import open_writer
from opdump.plan import DumpPlan
from opdump.records import HostPayload, OpRecord, TensorRecord

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full", "save_kernel_args": True},
    "sync-2.10": {"layout": "mindspore-2.10", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin", "saved_data": "full"},
    "async-npy": {"layout": "mindspore-async", "file_format": "npy"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
    "acl-statistic": {"layout": "acl", "file_format": "bin", "dialect": "acl", "saved_data": "statistic"},
}
SURROGATES = "Default/caf\udce9/half\ud800-op1"
ESCAPED = "Default/caf\\udce9/half\\ud800-op1"


def _file(
    root: Path, settings: Mapping[str, Any], step: int = 0, name: str = "Default/relu-op0", between: Any = None
) -> None:
    """Write one operator of a step, in the order in which a recorder does."""
    plan = DumpPlan(path=root, **settings)
    writer: Any = open_writer(plan, RunFacts(0, "CPU", "torch", "2", "0", ("train\udcff.py",), plan.to_json()))
    op = OpRecord("ReLU", name, 1_732_082_705_016_774 + step, step=step, net_name="Net", arguments={"a": name})
    payload = HostPayload(np.arange(3, dtype=np.float32))
    statistics = {"max": 2.0, "min": 0.0, "l2norm": 2.23607}
    record = TensorRecord(op, "output", 0, "float32", (3,), payload=payload, statistics=statistics, data_size=12)
    try:
        if between is not None:
            between(writer)
        if hasattr(writer, "write_operator"):
            files = writer.write_operator(op, [record]) if plan.saves_tensors else [None]
        else:
            writer.write_kernel_args(op)
            files = [writer.write_payload(record)]
        writer.write_step(step, [op], [record], files, {})
    finally:
        writer.close({})


@pytest.mark.parametrize(
    "place", ["rank_0", "rank_0/Net", "rank_0/Net/0", "rank_0/Net/0/0", "rank_0/.dump_metadata", "rank_0/execution_order",
              "rank_0/.dump_metadata/index.sqlite", "rank_0/Net/0/0/statistic.csv"]
)  # fmt: skip
@pytest.mark.parametrize("dangles", [False, True])
def test_a_link_in_a_dump_is_refused_before_anything_is_written(tmp_path: Path, place: str, dangles: bool) -> None:
    root, elsewhere = tmp_path / "dump", tmp_path / "elsewhere"
    if not dangles:
        elsewhere.mkdir()
    link = root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(DumpPathError, match="is a symbolic link inside the dump"):
        _file(root, LAYOUTS["sync"])
    assert elsewhere.exists() != dangles
    assert dangles or not list(elsewhere.iterdir())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_link_that_appears_later_leads_nowhere(tmp_path: Path, layout: str) -> None:
    root, elsewhere = tmp_path / "dump", tmp_path / "elsewhere"
    elsewhere.mkdir()

    def put_links(writer: Any) -> None:
        if layout.startswith("sync"):
            for name in ("Net", "execution_order"):
                (root / "rank_0" / name).symlink_to(elsewhere)
        else:
            root.mkdir(exist_ok=True)
            (root / writer.time).symlink_to(elsewhere)

    with pytest.raises(DumpPathError, match="is a symbolic link inside the dump"):
        _file(root, LAYOUTS[layout], between=put_links)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("layout", ["acl", "async"])
@pytest.mark.parametrize("place", ["extra-info", "20240101000000", "3"])
def test_a_link_in_the_dump_of_a_device_is_refused(tmp_path: Path, layout: str, place: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DumpPathError, match="is a symbolic link inside the dump"):
        _file(tmp_path / "dump", LAYOUTS[layout])


def test_the_path_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for layout, settings in LAYOUTS.items():
        (tmp_path / "disk" / layout).mkdir()
        (tmp_path / layout).symlink_to(tmp_path / "disk" / layout)
        _file(tmp_path / layout, settings)
        assert len(list(open_dump(tmp_path / layout).ops())) == 1


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "\udce9" * 43])
def test_a_net_name_that_no_directory_can_have_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"net_name has 25[68] bytes"):
        DumpPlan(path=tmp_path, net_name=name)
    DumpPlan(path=tmp_path, net_name=name[: 255 * len(name) // 258])


def test_a_model_gets_no_name_that_no_directory_can_have() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="more than 255 bytes"):
        ModelNames().set(torch.nn.Linear(1, 1), "é" * 128)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lone_surrogate_is_written_as_an_escape_and_read_back(tmp_path: Path, layout: str) -> None:
    root = tmp_path / os.fsdecode(b"d\xfcmp")
    _file(root, LAYOUTS[layout], name=SURROGATES)
    (op,) = open_dump(root).ops()
    assert op.op_name == ESCAPED
    (record,) = open_dump(root)
    if LAYOUTS[layout].get("saved_data") != "statistic":
        assert record.payload is not None
        assert record.payload.to_host().tolist() == [0, 1, 2]
    for path in root.rglob("*"):
        path.relative_to(root).as_posix().encode()
        if path.suffix in (".csv", ".json"):
            assert "half" not in path.read_text(encoding="utf-8") or "ud800" in path.read_text(encoding="utf-8")
    for index in root.rglob("index.sqlite"):
        index.unlink()
    without = open_dump(root)
    assert [each.op_type for each in without.ops()] == ["ReLU"]


_AS_ANOTHER = """
import encodings.ascii, encodings.utf_8_sig, importlib, os, sys
from click.testing import CliRunner
import opdump
from opdump.commands import main
from opdump.dump_file import read_dump_file
root, locked = sys.argv[1:]
for name in ("show", "check", "convert", "overflow"):
    importlib.import_module(f"opdump.commands.{name}")
    CliRunner().invoke(main, [name, root])
if os.geteuid() == 0:
    os.setuid(65534)
else:
    os.chmod(locked, 0)
for what in (opdump.open, read_dump_file):
    try:
        list(what(root))
        print("read")
    except opdump.OpdumpError as error:
        print(type(error).__name__)
for words in (["show"], ["show", "--json"], ["check"], ["overflow"], ["convert", "--recursive", "-o", "/dev/null/x"]):
    for path in (root, f"{root}/rank_0", f"{root}/rank_0/Net"):
        done = CliRunner().invoke(main, [words[0], path, *words[1:]])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            print(words, path, repr(done.exception))
"""


@pytest.mark.parametrize("layout", ["sync", "async", "acl"])
def test_a_dump_of_another_user_is_an_error_and_no_traceback(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "dump"
    _file(root, LAYOUTS[layout])
    (home,) = {path.parent for path in root.rglob(".dump_metadata")}
    for directory in (root, *(path for path in root.rglob("*") if path.is_dir() and path in home.parents)):
        directory.chmod(0o755)
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o755)
    for locked in (home / ".dump_metadata", home, root):
        locked.chmod(0o700)
        done = subprocess.run(
            [sys.executable, "-c", _AS_ANOTHER, str(root), str(locked)],
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        locked.chmod(0o700)
        assert done.returncode == 0, done.stderr
        answers = done.stdout.split("\n")
        assert answers[0] in ("read", "UnknownLayoutError", "CorruptDumpError"), done.stdout
        assert answers[1] == "CorruptDumpError"
        assert answers[2:] == [""], done.stdout
