"""No file of the package imports, directly or through others, a file that imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
