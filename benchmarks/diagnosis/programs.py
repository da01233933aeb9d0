"""The programs of the suite: a network's script, with edits of its marked lines and settings of the process that runs it.

A comment at the end of a line, `# <name>`, marks it. An edit replaces text within one marked line, so all other lines keep their numbers.

A script that runs in several modes of its framework (eager or compiled) has the line `MODE = "NAME"  # <mode>`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NETWORKS: Final = Path(__file__).parent / "networks"
SHARED: Final = {"torch": "faults", "tensorflow": "modes", "onnx": "model"}
"""The module of a framework that its scripts import; it lies beside them when they run."""
FRAMEWORKS: Final = ("torch", "jax", "tensorflow", "mindspore", "onnx")
ACROSS: Final = "across"
"""Networks that are each written in several frameworks: NETWORK_FRAMEWORK.py."""
_MARK: Final = re.compile(r"  # <([\w-]+)>$")
_MODE: Final = re.compile(r'MODE = "(\w+)"')


def networks(framework: str = "torch") -> tuple[str, ...]:
    """The names of the networks of a framework, without their refactored twins."""
    stems = [path.stem for path in (NETWORKS / framework).glob("*.py")]
    if framework == ACROSS:
        return tuple(sorted({stem.rpartition("_")[0] for stem in stems}))
    return tuple(sorted(stem for stem in stems if not stem.endswith("_twin") and stem != SHARED.get(framework)))


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `find`, which occurs once in the marked line, with `put`. The mark "*" replaces it anywhere in the script."""

    mark: str
    find: str
    put: str


@dataclass(frozen=True, slots=True)
class Program:
    script: str
    """The name of a file in networks/FRAMEWORK/, without its suffix."""
    edits: tuple[Edit, ...] = ()
    settings: tuple[str, ...] = ()
    """Settings applied to the process first: `threads=2`, `mkldnn=off`, `sdpa=math`, `deterministic`."""
    framework: str = "torch"
    mode: str = ""
    """The mode of the framework; empty: the one in the script."""

    @property
    def file(self) -> str:
        return f"{self.script}.py"

    @property
    def runs_in(self) -> str:
        """The framework in whose environment it runs."""
        return self.script.rpartition("_")[2] if self.framework == ACROSS else self.framework

    @property
    def key(self) -> str:
        """An identifier of what runs: only equal programs share it."""
        digest = hashlib.sha256("\0".join([self.source(), *self.settings]).encode()).hexdigest()
        return f"{self.framework}-{self.script}-{digest[:16]}"

    def source(self) -> str:
        """The text that runs. Raises ValueError if an edit does not apply exactly once."""
        lines = original(self).splitlines()
        places = marks(self)
        for edit in self._all_edits(lines, places):
            numbers = range(len(lines)) if edit.mark == "*" else [places[edit.mark] - 1]
            found = sum(lines[number].count(edit.find) for number in numbers)
            if not found or (found > 1 and edit.mark != "*"):
                raise ValueError(f"{self.file}: {edit.find!r} occurs {found} times in line <{edit.mark}>")
            for number in numbers:
                lines[number] = lines[number].replace(edit.find, edit.put)
        return "\n".join(lines) + "\n"

    def _all_edits(self, lines: list[str], places: dict[str, int]) -> Iterator[Edit]:
        if self.mode:
            match = _MODE.search(lines[places["mode"] - 1])
            if match is None:
                raise ValueError(f'{self.file}: expected MODE = "NAME" in line <mode>')
            yield Edit("mode", match[0], f'MODE = "{self.mode}"')
        yield from self.edits


def original(program: Program) -> str:
    """The script of a program before its edits."""
    return (NETWORKS / program.framework / program.file).read_text()


def marks(program: Program) -> dict[str, int]:
    """The line of each mark. Raises ValueError if a mark occurs twice."""
    found: dict[str, int] = {}
    for number, line in enumerate(original(program).splitlines(), 1):
        match = _MARK.search(line)
        if match and match[1] in found:
            raise ValueError(f"{program.file}: the mark <{match[1]}> occurs twice")
        if match:
            found[match[1]] = number
    return found
