"""Links inside a dump, names that no file system accepts, removed files, and stacks of a recursion."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import opdump
from opdump.adapters.program_marks import ModelNames
from opdump.call_stacks import Frame, Stack, Stacks, WalkedStacks, linked, shortened
from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.errors import ConfigError, CorruptDumpError, DumpPathError
from opdump.graph import Graph, GraphNode
from opdump.index.writer import RunFacts
from opdump.layouts.base import open_writer
from opdump.layouts.graph_files.mindspore import encode_ir, encode_pb
from opdump.layouts.graph_files.mindspore.ir import decode_ir
from opdump.layouts.graph_files.mindspore.pb import decode_pb
from opdump.plan import DumpPlan
from opdump.records import HostPayload, OpRecord, TensorRecord
from opdump.reports.json_format import dump_json
from opdump.testing import sample_step
from tests.layouts.filing import file_in_layout, index_file, new_writer

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


SETTINGS = {
    "sync 2.3": {"layout": "mindspore-2.3", "saved_data": "full"},
    "sync 2.10": {"layout": "mindspore-2.10", "saved_data": "tensor"},
    "async bin": {"layout": "mindspore-async", "file_format": "bin"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}


def _swap_for_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut to nothing": lambda file: file.write_bytes(b""),
    "cut to half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "other bytes": lambda file: file.write_bytes(b"\xff" * file.stat().st_size),
    "a directory": _swap_for_directory,
}


def _dump(root: Path, layout: str) -> list[TensorRecord]:
    """A complete dump of two steps; the tensors of the first step that have files."""
    settings: dict[str, str] = SETTINGS[layout]
    file_in_layout(DumpPlan(path=root, **settings), [sample_step(0), sample_step(1)])  # type: ignore[arg-type]
    catalog = opdump.open(root)
    assert all(run.complete for run in catalog.runs)
    return [record for record in catalog.tensors(step=0) if record.payload is not None]


def _commands(root: Path) -> list[tuple[int, str]]:
    done = []
    for words in (
        ["show", str(root), "--limit", "0"],
        ["show", str(root), "--json"],
        ["show", str(root), "--op", "add"],
        ["check", str(root)],
        ["overflow", str(root)],
        ["convert", str(root), "-o", f"{root} converted", "--recursive"],
    ):
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        done.append((result.exit_code, result.output))
    return done


@pytest.mark.parametrize("layout", SETTINGS)
def test_a_removed_file_is_a_record_without_a_payload_and_a_problem(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    file: Path = whole[0].payload.path  # type: ignore[union-attr]
    file.unlink()
    catalog = opdump.open(root)
    found = list(catalog.tensors(step=0))
    lost = [record for record in found if record.payload is None]
    assert {record.name for record in lost} >= {whole[0].name}
    assert len(found) >= len(whole)
    kept = [record for record in found if record.payload is not None]
    assert len(kept) == len([each for each in whole if each.payload.path != file])  # type: ignore[union-attr]
    for record in kept:
        assert record.payload is not None
        record.payload.to_host()
    told = [str(problem) for problem in catalog.problems]
    assert told == [f"{file}: is in the index but not on disk: it was removed after the run"]
    shown = _commands(root)
    assert str(file) in shown[0][1]
    assert shown[0][0] == 1


@pytest.mark.parametrize("layout", SETTINGS)
def test_a_removed_directory_is_one_problem(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    directories = {record.payload.path.parent for record in whole}  # type: ignore[union-attr]
    for directory in directories:
        for file in directory.iterdir():
            if file.is_file():
                file.unlink()
    if layout == "acl":
        return  # without files it is no longer a dump of a device
    catalog = opdump.open(root)
    assert all(record.payload is None for record in catalog.tensors(step=0))
    told = [str(problem) for problem in catalog.problems]
    assert sorted(told) == sorted(
        f"{directory}: is empty or missing, and the index lists "
        f"{len([each for each in whole if each.payload.path.parent == directory])} tensors in it: it was removed after the run"  # type: ignore[union-attr]
        for directory in directories
    )
    _commands(root)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("layout", SETTINGS)
def test_a_damaged_file_is_reported_by_its_name_and_spoils_no_command(layout: str, damage: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    file: Path = whole[0].payload.path  # type: ignore[union-attr]
    DAMAGES[damage](file)
    catalog = opdump.open(root)
    found = list(catalog.tensors(step=0))
    assert [record.name for record in found if record.payload is not None] == [record.name for record in whole]
    for record in found:
        if record.payload is not None and record.payload.path == file:  # type: ignore[attr-defined]
            with pytest.raises(CorruptDumpError, match=f"{file.name}: "):
                record.payload.to_host()
    (_, text), (_, json_text), *_ = _commands(root)
    for shown in (text, json_text):
        assert all(record.op.op_name.rpartition("/")[2] in shown for record in whole), "the others are shown"
    if not whole[0].statistics:
        assert file.name in text.partition("problem: ")[2]


OUTER = Frame("/home/user/train.py", 20, "<module>", "descend(x, 900)")
INNER = Frame("/home/user/train.py", 7, "descend", "return descend(x + 1, levels - 1)")


def levels(count: int) -> list[Stack]:
    """The stack of each level of a recursion."""
    found = [Stack(OUTER)]
    for _ in range(count - 1):
        found.append(Stack(INNER, found[-1]))
    return found


def ops_of(stacks: list[Stack]) -> list[OpRecord]:
    return [
        OpRecord(op_type="Add", op_name=f"Default/Add-op{place}", timestamp=place + 1, order=place, stack=stack)
        for place, stack in enumerate(stacks)
    ]


def filed(path: Path, stacks: list[Stack]) -> int:
    """The size in bytes of an index of operators with these stacks."""
    writer = new_writer(DumpPlan(path=path, saved_data="statistic"))
    writer.write_step(0, ops_of(stacks), [], [])
    writer.close({})
    return index_file(path).stat().st_size


@pytest.mark.parametrize("as_tuples", [False, True])
def test_an_index_has_one_row_for_each_level_of_a_recursion(as_tuples: bool, tmp_path: Path) -> None:
    nested = levels(300)
    given = [tuple(stack) for stack in nested] if as_tuples else nested
    size = filed(tmp_path / "nested", given)  # type: ignore[arg-type]
    assert size <= 1.3 * filed(tmp_path / "flat", nested[:1] * 300)
    with closing(sqlite3.connect(index_file(tmp_path / "nested"))) as database:
        assert database.execute("SELECT COUNT(*) FROM stacks").fetchone() == (300,)
        assert database.execute("SELECT COUNT(*) FROM lines").fetchone() == (2,)
    found = [each.op.stack for each in open_dump(tmp_path / "nested").ops()]
    assert found == nested
    assert all(isinstance(one, Stack) and one.callers is other for one, other in zip(found[1:], found, strict=False))


def test_steps_that_come_later_share_the_rows_of_those_before(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    nested = levels(40)
    writer.write_step(0, ops_of(nested[:20]), [], [])
    writer.write_step(1, ops_of(nested[20:]), [], [])
    writer.close({})
    with closing(sqlite3.connect(index_file(tmp_path))) as database:
        assert database.execute("SELECT COUNT(*) FROM stacks").fetchone() == (40,)
    catalog = open_dump(tmp_path)
    assert [each.op.stack for step in (0, 1) for each in catalog.ops(step=step)] == nested


def test_a_line_far_out_on_the_stack_is_found_for_all_operators_within(tmp_path: Path) -> None:
    filed(tmp_path, levels(5_000))
    catalog = open_dump(tmp_path)
    assert sum(1 for _ in catalog.ops(source="train.py:20")) == 5_000
    assert sum(1 for _ in catalog.ops(source="train.py:7")) == 4_999
    assert [each.op.op_name for each in catalog.at_source("train.py:8")] == []


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10"])
def test_graph_files_have_the_innermost_and_the_outermost_lines(layout: str) -> None:
    def graph(stacks: list[Stack]) -> Graph:
        nodes = [
            GraphNode(op_name=f"Default/Add-op{place}", op_type="Add", stack=stack)
            for place, stack in enumerate(stacks)
        ]
        return Graph(graph_id=0, nodes=tuple(nodes))

    nested = levels(900)
    text = encode_ir(graph(nested), layout=layout)  # type: ignore[arg-type]
    protocol_buffer = encode_pb(graph(nested))
    for written in (text, protocol_buffer):
        assert b"# ... 888 lines of the stack are left out" in written
        assert len(written) < 2_500 * len(nested)
    for read in (decode_ir(text), decode_pb(protocol_buffer)):
        assert [len(node.stack) for node in read.nodes[34:38]] == [35, 36, 13, 13]
        stack = read.nodes[-1].stack
        assert [frame.line for frame in stack] == [7] * 8 + [0] + [7] * 3 + [20]
        assert (stack[8].file, stack[8].code) == ("", "... 888 lines of the stack are left out")


def test_json_of_operators_has_as_many_lines_and_counts_the_missing_ones(tmp_path: Path) -> None:
    filed(tmp_path, levels(100))
    catalog = open_dump(tmp_path)
    told = json.loads("".join(dump_json(catalog, catalog.ops(), damaged=[])))
    last = told["operators"][-1]
    assert (len(last["stack"]), last["stack_left_out"]) == (12, 88)
    assert last["stack"][-1]["line"] == 20
    assert (len(told["operators"][4]["stack"]), told["operators"][4]["stack_left_out"]) == (5, 0)


def test_a_stack_is_a_sequence_that_compares_as_a_tuple() -> None:
    *_, stack = levels(3)
    assert stack == (INNER, INNER, OUTER)
    assert stack != (INNER, OUTER)
    assert stack != levels(2)[-1]
    assert hash(stack) == hash((INNER, INNER, OUTER))
    assert (len(stack), stack[0], stack[-1], stack[:2]) == (3, INNER, OUTER, (INNER, INNER))
    assert [*reversed(stack)] == [OUTER, INNER, INNER]
    with pytest.raises(IndexError):
        stack[3]
    assert linked(()) == ()
    assert linked((INNER, OUTER)) == levels(2)[-1]


def test_a_deep_stack_is_compared_copied_and_pickled_without_recursion() -> None:
    deep = levels(20_000)[-1]
    assert deep == levels(20_000)[-1]
    for other in (pickle.loads(pickle.dumps(deep)), copy.deepcopy(deep)):
        assert other == deep
    assert shortened(deep).outer == (INNER, INNER, INNER, OUTER)


def test_walks_of_a_recursion_share_all_but_the_last_line() -> None:
    frames: dict[tuple[int, int], Frame] = {}
    walked = WalkedStacks(Stacks(), lambda code, line: frames.setdefault((code, line), Frame(f"{code}.py", line)))

    def walk(depth: int, line: int) -> list[int]:
        return [1, line, *[1, 7] * (depth - 1), 2, 20]

    stacks = [walked.of(walk(depth, 5)) for depth in range(1, 1_000)]
    assert [len(stack) for stack in stacks] == [*range(2, 1_001)]
    assert len(walked) < 100, "no deep walk is kept as a key"
    assert all(walked.of(walk(depth, 5)) is stacks[depth - 1] for depth in (999, 3, 500, 501, 100))
    other = walked.of(walk(999, 6))
    one = stacks[-1]
    assert isinstance(one, Stack)
    assert isinstance(other, Stack)
    assert other is not one
    assert other.callers is one.callers


def test_walks_that_begin_elsewhere_are_not_taken_for_each_other() -> None:
    walked = WalkedStacks(Stacks(), lambda code, line: Frame(f"{code}.py", line))
    one, other = walked.of([3, 1]), walked.of([3, 2])
    lines = [1, 7] * 200
    assert walked.of(list(lines), one)[-1].line == 1
    assert walked.of(list(lines), other)[-1].line == 2
    assert len(walked.of(list(lines))) == 200
    assert walked.of([]) == ()
    assert walked.of([], one) is one
