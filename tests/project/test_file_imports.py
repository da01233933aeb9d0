"""The imports of each file, imports that last, and that no module keeps garbage."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdump.interpreter.critical_sections import collected_rarely
from opdump.interpreter.late_imports import imported_for_good

SOURCE = Path(__file__).resolve().parents[2] / "src"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "opdump").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, names: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere: at module level, in functions or only for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            inside = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in names else node.module for name in inside)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            part = [stack.pop()]
            while part[-1] != name:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_file_imports_one_that_imports_it() -> None:
    names = modules()
    assert len(names) > 150
    graph = {name: set(imports(path, names)) - {name} for name, path in names.items()}
    # The root offers the public names, and nothing imports from it (checked by import-linter).
    assert circles({name: others - {"opdump"} for name, others in graph.items() if name != "opdump"}) == []


_PROGRAM = """
import gc
from opdump.interpreter.late_imports import imported_for_good
with imported_for_good("opdump.conversion"):
    during = gc.isenabled()
    import opdump.conversion
print(during, gc.isenabled(), gc.get_freeze_count() > 0)
gc.unfreeze()
gc.disable()
with imported_for_good("opdump.reports"):
    import opdump.reports
print(gc.isenabled())
"""


def test_imports_are_not_searched_and_what_follows_is() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False"]


def test_a_module_that_was_imported_before_changes_nothing() -> None:
    frozen = gc.get_freeze_count()
    with imported_for_good("opdump.interpreter.late_imports"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_garbage_is_looked_for_less_often_in_the_block_alone() -> None:
    before = gc.get_threshold()
    with collected_rarely():
        assert gc.get_threshold()[0] > 10 * before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_a_block_that_fails_leaves_it_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collected_rarely():
        _ = 1 / 0
    assert gc.get_threshold() == before
