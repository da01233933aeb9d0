"""Stacks of a recursion: each level is stored once, texts of operators are limited, and nothing is expanded unless
requested.
"""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from opdump.call_stacks import Frame, Stack, Stacks, WalkedStacks, linked, shortened
from opdump.catalog.catalog import open_dump
from opdump.graph import Graph, GraphNode
from opdump.layouts.graph_files.mindspore import encode_ir, encode_pb
from opdump.layouts.graph_files.mindspore.ir import decode_ir
from opdump.layouts.graph_files.mindspore.pb import decode_pb
from opdump.plan import DumpPlan
from opdump.records import OpRecord
from opdump.reports.json_format import dump_json
from tests.layouts.filing import new_writer
from tests.layouts.index_files import index_file

OUTER = Frame("/home/somebody/train.py", 20, "<module>", "descend(x, 900)")
INNER = Frame("/home/somebody/train.py", 7, "descend", "return descend(x + 1, levels - 1)")


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
def test_graph_files_tell_the_innermost_and_the_outermost_lines(layout: str) -> None:
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


def test_json_of_operators_tells_as_many_lines_and_how_many_are_missing(tmp_path: Path) -> None:
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
