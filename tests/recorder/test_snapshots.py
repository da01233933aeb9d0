"""Snapshots of tensors: each of their attributes has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump
from opdump.kernels import summarise
from opdump.recorder import Elements, TensorSnapshot
from opdump.records import OpRecord

SOURCE = Path(opdump.__file__).parent
OF_RECORDER = {"op", "io", "slot", "argument", "source", "statistics"}
"""Attributes that only `belongs` and the `settle` methods may set."""
MOVED = {"recorder/step_parts.py": {"op"}, "recorder/operator_recorder.py": {"op"}}
"""The exceptions: a held operator may turn out to belong to another step."""
TWIN = "kernels/batch_summarizer.py"


def _assigned(path: Path) -> Iterator[tuple[str, int]]:
    """The attributes that a file sets on snapshots, which are called `taken` or `entry` everywhere, with line numbers."""
    for node in ast.walk(ast.parse(path.read_text())):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and ast.unparse(part.value) in ("taken", "entry"):
                    yield part.attr, part.lineno


def test_only_the_recorder_says_whose_a_tensor_is_and_what_its_statistics_are() -> None:
    found = [
        f"{name}:{line}: {attribute}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in ("recorder/snapshots.py", TWIN)
        for attribute, line in _assigned(path)
        if attribute in OF_RECORDER - MOVED.get(name, set())
    ]
    assert found == []
    assert {attribute for attribute, _ in _assigned(SOURCE / TWIN)} > OF_RECORDER - {"statistics"}


def test_elements_leave_memory_when_they_are_filed() -> None:
    taken = TensorSnapshot("float32", (2, 3), 24)
    taken.belongs(OpRecord("Add", "Default/Add-op0", 1), "input", 0, "self", "")
    assert (taken.file, taken.sample, taken.record().payload) == (None, 0, None)
    elements = taken.elements = Elements(np.arange(6.0, dtype="float32").reshape(2, 3))
    assert taken.held_bytes == 24
    elements.cut(4)
    assert (taken.sample, taken.held_bytes) == (4, 16)
    payload = taken.record().payload
    assert payload is not None
    assert payload.to_host().tolist() == [0, 1, 2, 3]
    elements.filed("a.npy")
    assert (taken.file, taken.sample, elements.are_held, taken.record().payload) == ("a.npy", 4, False, None)
    with pytest.raises(ValueError, match="already written"):
        elements.on_host()


def test_elements_on_their_way_have_to_arrive() -> None:
    class Pending:
        def to_numpy(self) -> Any:
            return np.ones(2)

    elements = Elements(Pending())
    assert elements.are_pending
    assert elements.on_host().tolist() == [1, 1]


def test_statistics_are_settled_once() -> None:
    taken = TensorSnapshot("float32", (2,), 8)
    taken.others = {"md5": "0"}
    taken.table, taken.row = object(), 3
    taken.settle(summarise(np.array([1.0, 2.0], dtype="float32")))
    assert (taken.statistics["max"], taken.statistics["md5"], taken.table, taken.row) == (2.0, "0", None, -1)
    taken.settle_others()
    assert "max" in taken.statistics
    other = TensorSnapshot("complex64", (2,), 16)
    other.settle_others()
    assert not other.statistics
    other.others = {"md5": "1"}
    other.settle_others()
    assert other.statistics == {"md5": "1"}
