"""match.yaml: which operator of A is which of B, as a comparison found it and as somebody corrects it.

    steps:
    - rank: 0
      step: 0
      pairs:
      - {a: Default/first-Linear/addmm-op1, b: Default/first-Linear/addmm-op1, kind: name, score: 1.0}
      - {a: Default/mul-op5 #2, b: Default/mul-op9, kind: sequence, score: 0.75}
      unmatched:
        a: [Default/gelu-op2]
        b: [Default/tanh-op3]

The second execution of an operator in a step is `NAME #2`. Runs of two frameworks are matched by values; there a list of names stands for
operators that together give what the other side's give, the last of them the value, and an operator may stand in several pairs. Pairs that are read are fixed, and the rest is matched as ever, what stands under
`unmatched` included: to keep two operators apart, give one of them another partner.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opdump.comparison.alignment import Alignment, MatchKind, score
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import ValueKind
from opdump.errors import ConfigError, DumpPathError

_EXECUTION: Final = re.compile(r"(.*) #(\d{1,18})")
_NUMBER: Final = re.compile(r"\d{1,18}")
_HEAD: Final = """\
# Which operator of A is which of B, as opdump compare matched them. Edit pairs and give the file back with --match:
# they are kept as they are here, and all others are matched as ever. score says how much speaks for a pair, from 0 to 1.
"""
_Place = tuple[int, int, int]
"""Rank, step of A, step of B."""


@dataclass(frozen=True, slots=True)
class Match:
    """A pair of operators, by their names."""

    a: str
    b: str
    kind: MatchKind | ValueKind
    score: float
    with_a: Sequence[str] = ()
    """Further operators of A that are matched with it, as a batch norm and the convolution that it is folded into elsewhere."""
    with_b: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StepMatches:
    """What was matched in a step."""

    rank: int
    step: int
    step_b: int
    pairs: Sequence[Match]
    unmatched_a: Sequence[str]
    unmatched_b: Sequence[str]
    unused_a: Sequence[str] = ()
    """Operators that lead to no result of the other program: runs of two frameworks have such."""
    unused_b: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """A pair that somebody wrote, with the line where it stands."""

    a: str
    b: str
    line: int


@dataclass(frozen=True, slots=True)
class GivenMatches:
    """The pairs of a match.yaml."""

    path: Path
    steps: Mapping[_Place, Sequence[_Given]]

    def check_places(self, known: Collection[_Place]) -> None:
        """Raises ConfigError for pairs of a rank or a step that is not in both dumps."""
        for place, pairs in self.steps.items():
            if pairs and place not in known:
                rank, step, step_b = place
                b = "" if step_b == step else f", of B {step_b}"
                raise self._error(pairs[0].line, f"the dumps do not both have rank {rank}, step {step}{b}")

    def of(self, a: Trace, b: Trace) -> dict[int, int]:
        """The pairs of a step, by index.

        Raises ConfigError, with the line and the nearest names, for an operator that the step does not have.
        """
        found: dict[int, int] = {}
        used: set[int] = set()
        for pair, here, there in self._pairs(a, b):
            if here in found or there in used:
                name = pair.a if here in found else pair.b
                raise self._error(pair.line, f"{name} stands in another pair of this step already")
            found[here] = there
            used.add(there)
        return found

    def of_values(self, a: Trace, b: Trace) -> list[tuple[int, int]]:
        """The same of a step of two frameworks, where an operator may stand in several pairs: others hold the same, or it has several outputs."""
        return [(here, there) for _, here, there in self._pairs(a, b)]

    def _pairs(self, a: Trace, b: Trace) -> Iterator[tuple[_Given, int, int]]:
        given = self.steps.get((a.rank, a.step, b.step), ())
        if not given:
            return
        places = [{name: index for index, name in enumerate(names_of(trace))} for trace in (a, b)]
        for pair in given:
            yield pair, self._find(pair.a, places[0], "A", pair.line), self._find(pair.b, places[1], "B", pair.line)

    def _find(self, name: str, places: Mapping[str, int], side: str, line: int) -> int:
        if name not in places:
            near = difflib.get_close_matches(name, list(places), 3)
            more = f"; the nearest are {', '.join(near)}" if near else f"; it has {len(places):,} others"
            raise self._error(line, f"{side} has no operator {name!r} in this step{more}")
        return places[name]

    def _error(self, line: int, what: str) -> ConfigError:
        return ConfigError(f"{self.path}:{line}: {what}")


def names_of(trace: Trace) -> list[str]:
    """The names of the operators of a step, those that ran before with a number."""
    executions: dict[str, int] = {}
    names = []
    for node in trace.nodes:
        count = executions[node.op.op_name] = executions.get(node.op.op_name, 0) + 1
        names.append(node.op.op_name if count == 1 else f"{node.op.op_name} #{count}")
    return names


def matches_of(a: Trace, b: Trace, alignment: Alignment) -> StepMatches:
    """What was matched in a step."""
    names_a, names_b = names_of(a), names_of(b)
    pairs = [
        Match(names_a[here], names_b[there], alignment.kinds[here], round(score(a.nodes[here], b.nodes[there]), 3))
        for here, there in sorted(alignment.b_of.items())
    ]
    return StepMatches(
        a.rank,
        a.step,
        b.step,
        pairs,
        [name for index, name in enumerate(names_a) if index not in alignment.b_of],
        [name for index, name in enumerate(names_b) if index not in alignment.a_of],
    )


def write_matches(path: Path, a: str, b: str, steps: Sequence[StepMatches]) -> None:
    """Writes the file. Raises DumpPathError where it cannot be written."""
    import yaml

    lines = [_HEAD, yaml.safe_dump({"a": a, "b": b}, allow_unicode=True), "steps:\n"]
    for each in steps:
        lines.append(f"- rank: {each.rank}\n  step: {each.step}\n")
        if each.step_b != each.step:
            lines.append(f"  step of b: {each.step_b}\n")
        lines.append("  pairs:\n" if each.pairs else "  pairs: []\n")
        lines += [
            f"  - {_flow({'a': _together(pair.with_a, pair.a), 'b': _together(pair.with_b, pair.b), 'kind': pair.kind, 'score': pair.score})}"
            for pair in each.pairs
        ]
        lines += _listed("unmatched", each.unmatched_a, each.unmatched_b)
        if each.unused_a or each.unused_b:
            lines += _listed("unused", each.unused_a, each.unused_b)
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise DumpPathError(
            f"cannot write {path}: {error.strerror or error}; name a file in a directory that can be written"
        ) from error


def _together(others: Sequence[str], name: str) -> str | list[str]:
    """One name, or a list that ends in it."""
    return [*others, name] if others else name


def _listed(key: str, a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    yield f"  {key}:\n"
    for side, names in (("a", a), ("b", b)):
        yield f"    {side}:\n" if names else f"    {side}: []\n"
        yield from (f"    - {_flow(name)}" for name in names)


def _flow(value: Any) -> str:
    """A value on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=2**31, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n")


def read_matches(path: Path) -> GivenMatches:
    """Reads a match.yaml. Raises ConfigError, with the line, for what is none."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:  # no UTF-8, a number of no character, brackets too deep
        raise ConfigError(f"{path}: is no YAML: {error}") from error
    reader = _Reader(path)
    steps: dict[_Place, list[_Given]] = {}
    for each in reader.items(reader.fields(root, ("a", "b", "steps")).get("steps")):
        step = reader.fields(each, ("rank", "step", "step of b", "pairs", "unmatched", "unused"))
        number = reader.number(step.get("step"), each)
        there = number if "step of b" not in step else reader.number(step["step of b"], each)
        rank = 0 if "rank" not in step else reader.number(step["rank"], each)
        given = steps.setdefault((rank, number, there), [])
        for pair in reader.items(step.get("pairs")):
            names = reader.fields(pair, ("a", "b", "kind", "score"))
            given.append(_Given(reader.name(names.get("a"), pair), reader.name(names.get("b"), pair), _line(pair)))
    return GivenMatches(path, steps)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes the nodes of a YAML file apart, which know their lines."""

    path: Path

    def fields(self, node: Any, known: Sequence[str]) -> dict[str, Any]:
        if getattr(node, "id", "") != "mapping":
            raise self._error(node, f"expected keys {', '.join(known)}")
        for key, _ in node.value:
            if key.id != "scalar" or key.value not in known:
                what = repr(key.value) if key.id == "scalar" else "that is no word"
                raise self._error(key, f"unknown key {what}; known are {', '.join(known)}")
        return {key.value: value for key, value in node.value}

    def items(self, node: Any) -> list[Any]:
        if node is None or (node.id == "scalar" and node.value in ("", "null", "~")):
            return []
        if node.id != "sequence":
            raise self._error(node, "expected a list")
        return list(node.value)

    def number(self, node: Any, around: Any) -> int:
        if node is None or node.id != "scalar" or _NUMBER.fullmatch(node.value) is None:
            raise self._error(node or around, "expected step and rank as numbers")
        return int(node.value)

    def name(self, node: Any, around: Any) -> str:
        """The name of an operator; of a list of those that are matched together the last."""
        if node is not None and node.id == "sequence" and node.value:
            node = node.value[-1]
        if node is None or node.id != "scalar":
            raise self._error(node or around, "expected the name of an operator of A under a, of B under b")
        text = str(node.value)
        number = _EXECUTION.fullmatch(text)
        return number[1] if number is not None and int(number[2]) == 1 else text

    def _error(self, node: Any, what: str) -> ConfigError:
        return ConfigError(f"{self.path}:{_line(node)}: {what}")


def _line(node: Any) -> int:
    return 1 if node is None else int(node.start_mark.line) + 1
