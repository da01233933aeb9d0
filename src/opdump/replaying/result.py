"""What running an operator again gave: for people, for programs (docs/json/replay.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opdump.records import OpRecord


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the recorded output is from what the operator gave in floats of `dtype`."""

    dtype: str
    max_absolute: float
    max_relative: float
    ulps: int | None
    """At most so many numbers of the output's type apart, as a power of two less one; None for types of fewer than 16 bits and complex ones."""
    roundings: float
    """The largest difference in units of rounding: of the distance of 1 to the next number of the output's type, times the largest element or
    sum of absolute summands. Of exact types the number of elements that differ."""

    def to_json(self) -> dict[str, Any]:
        return {name: _json(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ReplayedOutput:
    """One output of the operator."""

    slot: int
    argument: str
    dtype: str
    shape: tuple[int, ...]
    distances: Sequence[Distance] = ()
    """From what was asked for, and last from float64, or the widest type that the kernel has. Empty where nothing was compared."""
    allowed: float = 0.0
    """So many units of rounding are within what the output's type allows, or a narrower one that the operator reads."""
    beyond: int = 0
    """Elements that are infinite since float64 gives what the type cannot hold."""
    agrees: bool | None = None
    """None where nothing was compared."""
    reason: str = ""
    """Why nothing was compared."""

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "argument": self.argument,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "distances": [distance.to_json() for distance in self.distances],
            "allowed": self.allowed,
            "beyond": self.beyond,
            "agrees": self.agrees,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """What `opdump.replay` gives."""

    dump: str
    op: OpRecord
    outputs: Sequence[ReplayedOutput]
    files: Sequence[str] = ()
    """What `emit` wrote."""

    @property
    def verdict(self) -> Literal["agrees", "differs"]:
        """Whether every recorded output that was compared is what its inputs give."""
        return "differs" if any(output.agrees is False for output in self.outputs) else "agrees"

    def to_json(self) -> Mapping[str, Any]:
        """The result as JSON values, after the schema in docs/json/replay.json."""
        op = self.op
        return {
            "verdict": self.verdict,
            "dump": self.dump,
            "op": {
                "name": op.op_name,
                "kernel": op.kernel,
                "step": op.step,
                "rank": op.rank_id,
                "occurrence": op.occurrence,
                "phase": op.phase,
                "line": op.line,
            },
            "outputs": [output.to_json() for output in self.outputs],
            "files": list(self.files),
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
