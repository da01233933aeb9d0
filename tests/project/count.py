"""The size of the code base: `make count`. With `--check`, which `make lint` runs, a room over its budget and a function
above complexity 15 are errors.

Code lines are lines without docstrings, comments and blanks. The complexity of a function is 1, plus 1 for each branch,
loop, handler, comprehension, condition of a comprehension, and further operand of `and` and `or` (McCabe's number as
radon counts it); nested functions count separately.

tests/project/budget.json has the budget of each room in code lines. A commit that needs more raises the number there,
and its message says why.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUDGET: Final = Path(__file__).with_name("budget.json")
MOST_COMPLEX: Final = 15
_NOT_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
_BRANCHES: Final = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert),
    *(ast.comprehension, ast.match_case),
)


@dataclass
class Count:
    """The counts of some files."""

    files: int = 0
    code: int = 0
    characters: int = 0
    imports: int = 0
    comments: int = 0
    lengths: list[int] = field(default_factory=list)
    """All lines of each file."""
    complex: list[tuple[int, str]] = field(default_factory=list)
    """Functions above the limit: complexity, and location."""

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def counted(paths: list[Path]) -> Count:
    """Count Python files."""
    count = Count()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines, comments = _lines_of_code(text, tree)
        source = text.splitlines()
        count.files += 1
        count.code += len(lines)
        count.characters += sum(len(source[line - 1].strip()) for line in lines)
        count.comments += comments
        count.lengths.append(len(source))
        imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
        count.imports += sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)
        for name, line, number in _functions(tree):
            if number > MOST_COMPLEX:
                count.complex.append((number, f"{path.relative_to(ROOT)}:{line} {name}"))
    return count


def _lines_of_code(text: str, tree: ast.Module) -> tuple[set[int], int]:
    """The numbers of the code lines, and the number of comments."""
    lines: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comments += token.type == tokenize.COMMENT
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines, comments


def _functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, 1 + sum(map(_weight, _own_nodes(node)))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    waiting = [function]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child
                waiting.append(child)


def _weight(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return isinstance(node, _BRANCHES) + (len(node.ifs) if isinstance(node, ast.comprehension) else 0)


def rooms() -> dict[str, list[Path]]:
    """The Python files of each room; each adapter is a room of its own."""
    found: dict[str, list[Path]] = {}
    package = ROOT / "src" / "opdump"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts[:-1]
        if not path.name.endswith("_pb2.py"):
            room = "/".join(parts[: 2 if parts and parts[0] == "adapters" else 1]) or "(root)"
            found.setdefault(room, []).append(path)
    return found


def _native_lines() -> int:
    found = subprocess.run(["git", "ls-files", "native"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in found.stdout.split())
    return sum(1 for text in texts for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//"))


def main() -> int:
    """Print the counts, or with `--check` only what is over budget."""
    by_room = {room: counted(paths) for room, paths in rooms().items()}
    if "--check" in sys.argv:
        budget = json.loads(BUDGET.read_text())
        over = [
            f"{room}: {count.code} code lines, budget {budget.get(room, 0)}; make it smaller, or raise tests/project/budget.json and say why"
            for room, count in by_room.items()
            if count.code > budget.get(room, 0)
        ]
        over += [
            f"{where}: complexity {number}, limit {MOST_COMPLEX}; split it by what is rare or by what it decides"
            for count in by_room.values()
            for number, where in count.complex
        ]
        print(*over, sep="\n", end="\n" if over else "")
        return int(bool(over))
    print(f"{'room':<24}{'files':>6}{'code lines':>12}{'largest file':>14}{'above ' + str(MOST_COMPLEX):>10}")
    for room, count in sorted(by_room.items(), key=lambda each: -each[1].code):
        print(f"{room:<24}{count.files:>6}{count.code:>12,}{max(count.lengths):>14}{len(count.complex):>10}")
    whole = sum(by_room.values(), Count())
    tests = counted(sorted((ROOT / "tests").rglob("*.py")))
    print()
    print(f"files                 {whole.files:>9,}")
    print(f"code lines            {whole.code:>9,}   ({whole.characters:,} characters)")
    print(f"median, largest file  {median(whole.lengths):>9,.0f}   {max(whole.lengths):,} lines")
    print(f"import lines          {whole.imports / whole.code:>9.1%}")
    print(f"comments per 100      {100 * whole.comments / whole.code:>9.1f}")
    print(f"functions above {MOST_COMPLEX}    {len(whole.complex):>9,}")
    print(f"native code lines     {_native_lines():>9,}")
    print(f"test code lines       {tests.code:>9,}   in {tests.files:,} files")
    for number, where in sorted(whole.complex, reverse=True)[:10]:
        print(f"  {number:>3}  {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
