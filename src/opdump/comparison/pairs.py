"""The matched pairs of two runs: match.yaml, which users may edit, and the measurements of paired outputs.

    steps:
    - rank: 0
      step: 0
      pairs:
      - {a: Default/first-Linear/addmm-op1, b: Default/first-Linear/addmm-op1, kind: name, score: 1.0}
      - {a: Default/mul-op5 #2, b: Default/mul-op9, kind: sequence, score: 0.75}
      unmatched:
        a: [Default/gelu-op2]
        b: [Default/tanh-op3]

`NAME #2` is the second execution of an operator in a step. Runs of two frameworks are matched by values: there, a list of names stands for
operators that together correspond to the other side, with the producer of the value last, and an operator may be in several pairs. Pairs in the
file are kept, and all other operators are matched as usual, even those under `unmatched`: to keep two operators apart, pair one of them with another.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from opdump.catalog.catalog import Catalog, Execution
from opdump.catalog.query import nearest_to, selected_among, several
from opdump.comparison.accuracy import RESULT
from opdump.comparison.alignment import Alignment, MatchKind, score
from opdump.comparison.arguments import differing
from opdump.comparison.differences import (
    DIFFERS,
    Array,
    TensorLayout,
    apart,
    are_finite,
    coarsest,
    comparable,
    has_elements,
    same_statistics,
)
from opdump.comparison.nodes import Node
from opdump.comparison.step_statistics import Bools, Floats, Places, rows_apart
from opdump.comparison.trace import Model, RepeatedTrace, Trace, repeated
from opdump.comparison.value_matching import ValueKind
from opdump.errors import ConfigError, DumpPathError
from opdump.kernels import SUMMARY_FIELDS, PairMetrics, compare_pair
from opdump.metrics import AddedMetrics
from opdump.records import OpRecord, TensorRecord
from opdump.step_table import StepTable, StepTemplate

_EXECUTION: Final = re.compile(r"(.*) #(\d{1,18})")
_NUMBER: Final = re.compile(r"\d{1,18}")
_HEAD: Final = """\
# Operators of A and B that opdump compare matched. Edit the pairs and pass the file with --match:
# its pairs are kept, and all other operators are matched as usual. score rates a pair from 0 to 1.
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
    """Further operators of A that are matched with it, such as the convolution before a batch norm that B folded."""
    with_b: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StepMatches:
    """The matches of a step."""

    rank: int
    step: int
    step_b: int
    pairs: Sequence[Match]
    unmatched_a: Sequence[str]
    unmatched_b: Sequence[str]
    unused_a: Sequence[str] = ()
    """Operators that lead to no result of the other program, in runs of two frameworks."""
    unused_b: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """A pair of a match.yaml, with its line."""

    a: str
    b: str
    line: int


@dataclass(frozen=True, slots=True)
class GivenMatches:
    """The pairs of a match.yaml."""

    path: Path
    steps: Mapping[_Place, Sequence[_Given]]

    def check_places(self, known: Collection[_Place]) -> None:
        """Raise ConfigError for pairs of a rank or step that is not in both dumps."""
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
                raise self._error(pair.line, f"{name} is already in another pair of this step")
            found[here] = there
            used.add(there)
        return found

    def of_values(self, a: Trace, b: Trace) -> list[tuple[int, int]]:
        """The pairs of a step of two frameworks. An operator may be in several: it has several outputs, or others have the same values."""
        return [(here, there) for _, here, there in self._pairs(a, b)]

    def _pairs(self, a: Trace, b: Trace) -> Iterator[tuple[_Given, int, int]]:
        given = self.steps.get((a.rank, a.step, b.step), ())
        if not given:
            return
        for pair in given:
            yield pair, self._find(pair.a, a, "A", pair.line), self._find(pair.b, b, "B", pair.line)

    def _find(self, name: str, trace: Trace, side: str, line: int) -> int:
        names = names_of(trace)
        if name in names:
            return names.index(name)
        executions = [Execution(node.op, (*node.inputs.values(), *node.outputs.values())) for node in trace.nodes]
        places = selected_among(name, executions)
        if not places:
            raise self._error(line, f"{side} has no operator {name!r} in this step{nearest_to(name, names)}")
        if len(places) > 1:
            raise self._error(line, f"in {side}, {several(name, [executions[place] for place in places])}")
        return places[0]

    def _error(self, line: int, what: str) -> ConfigError:
        return ConfigError(f"{self.path}:{line}: {what}")


def names_of(trace: Trace) -> list[str]:
    """The names of the operators of a step; repeated executions have a number."""
    executions: dict[str, int] = {}
    names = []
    for node in trace.nodes:
        count = executions[node.op.op_name] = executions.get(node.op.op_name, 0) + 1
        names.append(node.op.op_name if count == 1 else f"{node.op.op_name} #{count}")
    return names


def matches_of(a: Trace, b: Trace, alignment: Alignment) -> StepMatches:
    """The matches of a step, from its alignment."""
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
    """Write a match.yaml. Raises DumpPathError if it cannot be written."""
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
    """The name, or a list that ends with it."""
    return [*others, name] if others else name


def _listed(key: str, a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    yield f"  {key}:\n"
    for side, names in (("a", a), ("b", b)):
        yield f"    {side}:\n" if names else f"    {side}: []\n"
        yield from (f"    - {_flow(name)}" for name in names)


def _flow(value: Any) -> str:
    """The value as YAML on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=2**31, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n")


def read_matches(path: Path) -> GivenMatches:
    """Read a match.yaml. Raises ConfigError if it is invalid, with the line."""
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
    ) as error:  # not UTF-8, an invalid escaped character, nesting too deep
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
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
    """Reads the nodes of a YAML file, whose line numbers its errors report."""

    path: Path

    def fields(self, node: Any, known: Sequence[str]) -> dict[str, Any]:
        if getattr(node, "id", "") != "mapping":
            raise self._error(node, f"expected keys {', '.join(known)}")
        for key, _ in node.value:
            if key.id != "scalar" or key.value not in known:
                what = repr(key.value) if key.id == "scalar" else "that is not a scalar"
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
        """The name of an operator; the last one if it is a list."""
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


# Measures the distance of paired outputs, for the table of a comparison. The work is split into units (rank, step, range of operators) that any
# process can measure independently. Only one pair is in memory at a time, and large files are mapped.

State = Literal["identical", "noise", "introduced", "inherited"]

_PAIRS_OF_A_UNIT: Final = 512
_ELEMENTS_OF_A_UNIT: Final = 1 << 26
_TOLERANCES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "float64": (1e-7, 1e-7),
        "complex128": (1e-7, 1e-7),
        "float32": (1e-5, 1.3e-6),
        "complex64": (1e-5, 1.3e-6),
        "float16": (1e-5, 1e-3),
        "bfloat16": (1e-5, 1.6e-2),
    }
)
"""Absolute and relative tolerance, as in `torch.testing.assert_close`; 0 for other types."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """An output of an operator in A and the same output in B, with the kind of match of the operators and its score from 0 to 1."""

    a: TensorRecord
    b: TensorRecord
    matched_by: MatchKind | ValueKind = "name"
    match_score: float = 1.0
    layout: TensorLayout | None = None
    """The layout that turns B's tensor into A's; None if both have the same layout."""
    with_a: Sequence[str] = ()
    """Operators of A that are matched together with it: those between the earlier common values and this one."""
    with_b: Sequence[str] = ()
    fails: bool = False
    """Whether the output differs by more than rounding from what the other program computes from the same values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The distance of an output between the two runs. An unknown measure is None; `reason` explains why nothing could be measured."""

    identical: bool
    roundings: float | None = None
    """Relative L2 in units of rounding of the (narrower) element type; None for exact types."""
    max_absolute: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    max_ulp: int | None = None
    """The upper limit of the largest distance in units in the last place: that of the last histogram class, 2^n - 1."""
    out_of_tolerance: int | None = None
    """Elements further apart than `torch.testing.assert_close` allows for the type."""
    by_statistics: float | None = None
    """If values are missing: the largest difference of a statistic, relative to the root mean square of the elements."""
    added: Mapping[str, float] = field(default_factory=dict)
    """The metrics of installed packages, by name."""
    reason: str = ""

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether the distance exceeds accumulated rounding."""
        if self.identical or self.reason == _UNKNOWN:
            return False
        if self.by_statistics is not None:
            return self.by_statistics > DIFFERS
        return self.roundings is None or not self.roundings <= RESULT.units


_UNKNOWN: Final = "the dumps have neither its values nor its statistics"


@dataclass(frozen=True, slots=True)
class PairRow:
    """One output of an operator that both runs have, with its measurements.

    `state` is "identical" (the same bits), "noise" (rounding, or a difference that the verdict explains), "introduced" (by this operator),
    or "inherited" (from its inputs).
    """

    outputs: Outputs
    state: State
    measured: Measured

    @property
    def a(self) -> OpRecord:
        """The operator in A."""
        return self.outputs.a.op

    @property
    def b(self) -> OpRecord:
        """The operator in B."""
        return self.outputs.b.op

    def row(self) -> dict[str, Any]:
        """The pair as a row of a table."""
        found, one, other = self.measured, self.outputs.a, self.outputs.b
        return {
            "rank": self.b.rank_id,
            "step": self.b.step,
            "order_a": self.a.order,
            "order_b": self.b.order,
            "op_type": self.b.op_type,
            "name_a": self.a.op_name,
            "name_b": self.b.op_name,
            "matched_by": self.outputs.matched_by,
            "match_score": self.outputs.match_score,
            "with_a": list(self.outputs.with_a),
            "with_b": list(self.outputs.with_b),
            "source": self.b.line,
            "slot": other.slot,
            "dtype_a": one.dtype,
            "dtype_b": other.dtype,
            "shape": list(other.shape),
            "state": self.state,
            "roundings": found.roundings,
            "max_absolute": found.max_absolute,
            "relative_l2": found.relative_l2,
            "cosine": found.cosine,
            "max_ulp": found.max_ulp,
            "out_of_tolerance": found.out_of_tolerance,
            "by_statistics": found.by_statistics,
            **found.added,
            "reason": found.reason,
        }


def outputs_of(one: Node, other: Node, matched_by: MatchKind = "name") -> Iterator[Outputs]:
    """Pairs of the outputs that both operators have, without those whose contents are unspecified."""
    unspecified = one.unspecified | other.unspecified
    likeness = 1.0 if matched_by == "name" else score(one, other)
    for slot, record in one.outputs.items():
        if slot in other.outputs and slot not in unspecified:
            yield Outputs(record, other.outputs[slot], matched_by, likeness)


def units(pairs: Iterable[Outputs]) -> Iterator[list[Outputs]]:
    """Split pairs into units of work, each a range of operators of one step and rank, in the order of B."""
    for _, step in itertools.groupby(pairs, key=lambda pair: (pair.b.op.rank_id, pair.b.op.step)):
        unit: list[Outputs] = []
        elements = 0
        for pair in step:
            unit.append(pair)
            elements += math.prod(pair.a.shape)
            if len(unit) >= _PAIRS_OF_A_UNIT or elements >= _ELEMENTS_OF_A_UNIT:
                yield unit
                unit, elements = [], 0
        if unit:
            yield unit


def measured(unit: Sequence[Outputs]) -> tuple[list[Measured], dict[str, str]]:
    """The measurements of each pair, and why metrics of installed packages are missing in some, by metric."""
    added = AddedMetrics()
    return [measure(pair.a, pair.b, added, pair.layout) for pair in unit], added.reasons


def measure(
    one: TensorRecord, other: TensorRecord, added: AddedMetrics, layout: TensorLayout | None = None
) -> Measured:
    """Measure the distance of one output, by values, or by statistics if values are missing."""
    if math.prod(one.shape) != math.prod(other.shape):
        return Measured(identical=False, reason=f"shape {one.shape} in A, {other.shape} in B")
    if not (_is_readable(one) and _is_readable(other)):
        distance = apart(one, other)
        if distance is None:
            return Measured(identical=True, reason=_UNKNOWN)
        return Measured(identical=not distance and same_statistics(one, other), by_statistics=distance)
    a, b = one.numpy(), other.numpy()
    same_shape = one.shape == other.shape or layout is not None
    b = b.reshape(a.shape) if layout is None else layout.apply(b)
    found = _metrics(a, one.dtype, b, other.dtype)
    epsilon = coarsest((one, other))
    return Measured(
        identical=same_shape and one.dtype == other.dtype and not found.different,
        roundings=_roundings(found, epsilon) if epsilon else None,
        max_absolute=found.max_absolute,
        relative_l2=found.relative_l2,
        cosine=found.cosine,
        max_ulp=None if found.ulps is None else (1 << max(0, len(found.ulps) - 1)) - 1,
        out_of_tolerance=found.out_of_tolerance,
        added=added.of(a, b) if added else {},
    )


def _is_readable(record: TensorRecord) -> bool:
    return has_elements(record) or 0 in record.shape


def _metrics(a: Array, dtype_a: str, b: Array, dtype_b: str) -> PairMetrics:
    atol, rtol = max(
        _TOLERANCES.get(dtype_a, (0.0, 0.0)), _TOLERANCES.get(dtype_b, (0.0, 0.0)), key=lambda each: each[1]
    )
    if dtype_a == dtype_b == "bfloat16":
        return compare_pair(_bits(a), _bits(b), atol=atol, rtol=rtol, dtype_a="bfloat16", dtype_b="bfloat16")
    return compare_pair(comparable(a), comparable(b), atol=atol, rtol=rtol)


def _bits(widened: Array) -> Array:
    """The bits of bfloat16 values that were widened to float32: a view of the upper halves."""
    bits = np.ascontiguousarray(widened, np.dtype("<f4")).reshape(*widened.shape, 1).view("<u2")
    return bits[..., 1].reshape(widened.shape)


def _roundings(found: PairMetrics, epsilon: float) -> float:
    if not found.different:
        return 0.0
    return found.relative_l2 / epsilon if are_finite(found) else math.inf


# Repeated steps: if two steps with only statistics run the same operators as an earlier pair of steps, its matches are reused and the statistics
# are compared as columns. Rows of the table are created only when they are read.

_COUNTS_AND_ENDS = SUMMARY_FIELDS.index("sum")
"""The number of fields, at the start of a summary, that are statistics themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedPair:
    """Two matched steps that later steps may repeat, and their pairs of outputs."""

    a: Model
    b: Model
    alignment: Alignment
    rows_a: Places
    rows_b: Places
    """The rows of `Trace.columns` for each pair of outputs, in the order of B."""
    always_identical: Places
    """Numbers of the pairs whose tensors are empty and identical."""
    has_other_arguments: bool
    """Whether arguments of any matched operators differ, so that their outputs must be judged in each step."""

    @property
    def unmatched(self) -> int:
        """The number of operators without a counterpart, in both steps."""
        return len(self.a.trace.nodes) + len(self.b.trace.nodes) - 2 * self.alignment.matched

    @classmethod
    def of(cls, a: Model, b: Model, alignment: Alignment) -> RepeatedPair:
        """The pair of two steps with this alignment."""
        pairs = list(_outputs(a.trace, b.trace, alignment))
        places = [
            (a.trace.rows.of_output[one, pair.a.slot], b.trace.rows.of_output[other, pair.b.slot])
            for one, other, pair in pairs
        ]
        rows = np.array(places, np.intp).reshape(-1, 2)
        empty = [number for number, (_, _, pair) in enumerate(pairs) if 0 in pair.a.shape and 0 in pair.b.shape]
        same = [number for number in empty if measure(pairs[number][2].a, pairs[number][2].b, AddedMetrics()).identical]
        nodes = ((a.trace.nodes[one], b.trace.nodes[other]) for one, other in alignment.b_of.items())
        has_others = any(one.op.arguments != other.op.arguments and differing(one, other) for one, other in nodes)
        return cls(a, b, alignment, rows[:, 0], rows[:, 1], np.array(same, np.intp), has_others)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedStep:
    """Two steps that repeat a pair, and in which no operator introduced a difference.

    It is a sequence of rows, which each iteration creates anew.
    """

    pair: RepeatedPair
    a: StepTable[TensorRecord]
    b: StepTable[TensorRecord]
    identical: Bools
    """For each pair of outputs, whether they are identical."""
    by_statistics: int
    """The number of pairs that were compared by statistics."""

    @property
    def differing(self) -> int:
        """The number of pairs that are not identical."""
        return int(np.count_nonzero(~self.identical))

    @classmethod
    def of(cls, pair: RepeatedPair, a: RepeatedTrace, b: RepeatedTrace) -> RepeatedStep:
        """Compare all outputs of two steps that repeat the pair."""
        one, other = a.columns.at(pair.rows_a), b.columns.at(pair.rows_b)
        summaries_a = a.table.summaries[pair.a.rows[pair.rows_a]]
        summaries_b = b.table.summaries[pair.b.rows[pair.rows_b]]
        distances = rows_apart(one, other)
        same = _same(summaries_a[:, :_COUNTS_AND_ENDS], summaries_b[:, :_COUNTS_AND_ENDS])
        identical = np.isnan(distances) | ((distances == 0) & same & _same(one.numbers, other.numbers))
        identical[pair.always_identical] = True
        told = ~np.isnan(distances) & (one.sizes == other.sizes) & (one.sizes > 0)
        return cls(pair, a.table, b.table, identical, int(np.count_nonzero(told)))

    def __len__(self) -> int:
        return len(self.identical)

    def __iter__(self) -> Iterator[PairRow]:
        """Create the rows of the table."""
        added = AddedMetrics()
        for _, _, pair in _outputs(*self._traces(), self.pair.alignment):
            found = measure(pair.a, pair.b, added, pair.layout)
            state: State = "identical" if found.identical else "noise"
            yield PairRow(pair, state, found)

    def matches(self) -> StepMatches:
        """The matches of the step."""
        return matches_of(*self._traces(), self.pair.alignment)

    def _traces(self) -> tuple[Trace, Trace]:
        return repeated(self.pair.a, self.a), repeated(self.pair.b, self.b)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedMatches:
    """The matches of a repeated step, as a part of a `Chain` with one item."""

    step: RepeatedStep

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[StepMatches]:
        yield self.step.matches()


class Repeats:
    """Finds the steps of a rank that repeat others."""

    def __init__(self, a: Catalog, b: Catalog, rank: int) -> None:
        self._a, self._b, self._rank = a, b, rank
        self._pairs: dict[tuple[StepTemplate | None, StepTemplate | None], RepeatedPair] = {}
        self._read: tuple[StepTable[TensorRecord], StepTable[TensorRecord]] | None = None
        """The steps of the last call of `of`."""

    def of(self, step_a: int, step_b: int) -> tuple[RepeatedPair, RepeatedTrace, RepeatedTrace] | None:
        """The pair that two steps repeat, with their traces; None if they repeat none."""
        a, b = self._a.table(step_a, self._rank), self._b.table(step_b, self._rank)
        self._read = (a, b) if _has_only_summaries(a) and _has_only_summaries(b) else None
        pair = None if self._read is None else self._pairs.get((a.template, b.template))
        if pair is None:
            return None
        return pair, repeated(pair.a, a), repeated(pair.b, b)

    def add(self, a: Trace, b: Trace, alignment: Alignment) -> RepeatedStep | None:
        """Register the steps of the last call of `of`, in which no operator introduced a difference, so that later steps may repeat them. None if
        steps like these cannot be repeated.
        """
        if self._read is None:
            return None
        one, other = self._read
        model_a, model_b = Model.of(a, one), Model.of(b, other)
        if model_a is None or model_b is None:
            return None
        pair = RepeatedPair.of(model_a, model_b, alignment)
        self._pairs[one.template, other.template] = pair
        return RepeatedStep.of(pair, repeated(model_a, one), repeated(model_b, other))


def _has_only_summaries(table: StepTable[TensorRecord]) -> bool:
    """Whether a step is one run of a template, and has nothing besides summaries."""
    return table.template is not None and not table.files and not table.others


def _outputs(a: Trace, b: Trace, alignment: Alignment) -> Iterator[tuple[int, int, Outputs]]:
    """The pairs of outputs of matched nodes, each with the index of its node in A and in B."""
    for other, one in sorted(alignment.a_of.items()):
        for pair in outputs_of(a.nodes[one], b.nodes[other], alignment.kinds[one]):
            yield one, other, pair


def _same(one: Floats, other: Floats) -> Bools:
    """For each row, whether all numbers are equal; NaN equals NaN."""
    found: Bools = np.all((one == other) | (np.isnan(one) & np.isnan(other)), axis=1)
    return found
