"""Runs recorded operators again: what an adapter offers for it, and which adapter knows which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from opdump.extensions import Registry
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an operator gave when it was run again."""

    outputs: Mapping[int, Array]
    """By slot; floats in `dtype`, or wider."""
    dtype: str
    """The type of floats that it was run in."""


class Replayer(Protocol):
    """Runs operators of one framework again, on the CPU."""

    def knows(self, op: OpRecord) -> bool:
        """Whether the operator can be run again: its kernel is known, it draws no random numbers, nothing of its arguments is missing."""

    def draws(self, op: OpRecord) -> bool:
        """Whether the operator draws random numbers."""

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed | None:
        """The outputs for these input values by slot; None where the operator cannot run.

        `inputs` say which argument each slot is. Floats are computed in `dtype` ("float64", "float32"), in a narrower one where the
        kernel has no such; `values` are not changed.
        """


REPLAYERS: Final[Registry[Replayer]] = Registry(
    "opdump.replayers",
    {"aten": "opdump.adapters.torch.replay:REPLAYER"},
)
"""By the namespace of the kernel: what stands before `::`."""


def can_replay(namespace: str = "aten") -> bool:
    """Whether operators of that namespace can be run again: its framework is installed."""
    try:
        REPLAYERS.load(namespace)
    except ImportError:
        return False
    return True


def replayer_of(op: OpRecord) -> Replayer | None:
    """Who runs operators of that framework again; None where nobody does, or the framework is not installed."""
    namespace, found, _ = op.kernel.partition("::")
    if not found or namespace not in REPLAYERS:
        return None
    try:
        return REPLAYERS.load(namespace)
    except ImportError:
        return None
