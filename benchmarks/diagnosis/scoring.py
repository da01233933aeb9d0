"""Whether an answer is correct, and tables of how many are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.diagnosis.suite import KINDS, Pair

CLEAN: Final = ("identical", "benign")
MODES: Final = ("tensors", "statistics")
_AGAINST: Final = {
    "same script": "itself",
    "refactored": "refactored",
    "another mode": "another mode",
    "frameworks": "another framework",
}
"""Rows of a table: what the program with the fault is compared with."""


@dataclass(frozen=True, slots=True)
class Score:
    """The answer of one method for one pair."""

    pair: str
    kind: str
    faulty: bool
    against: str
    method: str
    mode: str
    verdict: str
    rank: int
    """The position of the first exact answer, from 1; 0 if there is none."""
    seconds: float
    said: tuple[str, ...]
    truth: str = ""
    error: str = ""

    @property
    def exact(self) -> bool:
        return self.rank == 1

    @property
    def called_clean(self) -> bool:
        return self.verdict in CLEAN

    @property
    def missed(self) -> bool:
        return not self.exact if self.faulty else not self.called_clean

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Score:
        """The score that `to_json` wrote."""
        return cls(**{**row, "said": tuple(row["said"])})


def scored(pair: Pair, method: str, mode: str, answer: Mapping[str, Any]) -> Score:
    introduced = answer.get("introduced", ())
    ranks = [number for number, one in enumerate(introduced, 1) if is_exact(pair, one)]
    return Score(
        pair=pair.name,
        kind=pair.kind,
        faulty=bool(pair.truth),
        against=pair.against,
        method=method,
        mode=mode,
        verdict=str(answer.get("verdict", "")),
        rank=ranks[0] if ranks else 0,
        seconds=float(answer.get("seconds", 0)),
        said=tuple(shown(one) for one in introduced[:5]),
        truth=pair.text,
        error=str(answer.get("error", "")),
    )


def is_exact(pair: Pair, answer: Mapping[str, Any]) -> bool:
    """Whether one of an answer's operators is one that the truth names, on the same side."""
    return any(answer.get(place.side) and place.has(answer[place.side]) for place in pair.truth)


def shown(answer: Mapping[str, Any]) -> str:
    """`unet.py:30 convolution forward step 0 output`, in both programs if both have it."""

    def one(operator: Mapping[str, Any] | None) -> str:
        if not operator:
            return "nothing"
        source = operator.get("source")
        place = f"{str(source[0]).rpartition('/')[2]}:{source[1]}" if source else operator["name"]
        return f"{place} {operator['op_type']} {operator['phase']} step {operator['step']}"

    return f"{one(answer.get('b'))} {answer.get('io', '')} {answer.get('kind', '')} (a: {one(answer.get('a'))})"


def table(scores: Iterable[Score]) -> list[str]:
    """Lines of one method in one mode: a row for each kind of fault, then the sums, then the clean pairs."""
    scores = list(scores)
    lines = [f"{'kind':14}{'pairs':>6}{'exact':>14}{'top 3':>14}{'called clean':>14}{'seconds':>9}"]
    faulty = [score for score in scores if score.faulty]
    for kind in KINDS:
        lines += _row(kind, [score for score in faulty if score.kind == kind])
    for name, against in _AGAINST.items():
        lines += _row(name, [score for score in faulty if score.against == against])
    lines += _row("all faults", faulty)
    clean = [score for score in scores if not score.faulty]
    if clean:
        alarms = [score for score in clean if not score.called_clean]
        lines.append(f"{'clean':14}{len(clean):6}   false alarms {_share(len(alarms), len(clean))}")
    return lines


def _row(name: str, scores: list[Score]) -> list[str]:
    if not scores:
        return []
    count = len(scores)
    exact = sum(score.exact for score in scores)
    top = sum(0 < score.rank <= 3 for score in scores)
    clean = sum(score.called_clean for score in scores)
    seconds = sum(score.seconds for score in scores) / count
    return [
        f"{name:14}{count:6}{_share(exact, count):>14}{_share(top, count):>14}{_share(clean, count):>14}{seconds:9.2f}"
    ]


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)"
