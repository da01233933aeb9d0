"""The pairs of programs of the suite: with a planted fault and its truth, or clean."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final

from benchmarks.diagnosis.programs import NAMES, Edit, Program
from benchmarks.diagnosis.truth import Place, parse

KINDS: Final = {
    "formula": "wrong formula or variant of an operator",
    "argument": "an argument other than a tensor: eps, axis, stride, bound, momentum",
    "parameter": "another parameter is used",
    "slice": "wrong slice or index",
    "stale": "a value from an earlier step or from before an update",
    "bit": "a flipped bit in an output, a parameter or a saved tensor",
    "stomp": "memory overwritten by other code",
    "data": "one sample, label or element of the data",
    "in-place": "running statistics and other values updated in place",
    "optimizer": "updates, and state kept between steps",
    "missing": "an operator is left out",
    "order": "operators in another order",
    "cast": "one value loses precision",
    "backward": "backward functions, hooks, detach",
}


@dataclass(frozen=True, slots=True)
class Twin:
    """The same fault in the refactored program. Omitted fields are as in the original."""

    find: str
    put: str
    truth: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one line of a network's script, and the answer that a comparison with the original should give."""

    kind: str
    name: str
    mark: str
    find: str
    put: str
    truth: str
    twin: Twin | None = None


@dataclass(frozen=True, slots=True)
class Clean:
    """Two programs that compute the same up to rounding: nothing is wrong."""

    kind: str
    name: str
    a: Program
    b: Program
    rounding: float = 1e-4
    """The largest allowed relative difference of the numbers that they print."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs to compare. `truth` is empty for a clean pair."""

    name: str
    network: str
    kind: str
    a: Program
    b: Program
    truth: tuple[Place, ...] = ()
    text: str = ""
    refactored: bool = False
    rounding: float = 0.0


def faults(network: str) -> tuple[Fault, ...]:
    found: tuple[Fault, ...] = importlib.import_module(f"benchmarks.diagnosis.mutations.{network}").FAULTS
    return found


def fault_pairs(network: str) -> list[Pair]:
    """The faults of a network as pairs, including those in its twin."""
    pairs = []
    a = Program(network)
    for fault in faults(network):
        if fault.kind not in KINDS:
            raise ValueError(f"{network}: unknown kind {fault.kind}")
        name = f"{network}/{fault.name}"
        b = Program(network, (Edit(fault.mark, fault.find, fault.put),))
        pairs.append(Pair(name, network, fault.kind, a, b, parse(fault.truth, a, b), fault.truth))
        if fault.twin is not None:
            twin, text = fault.twin, fault.twin.truth or fault.truth
            b = Program(f"{network}_twin", (Edit(twin.mark or fault.mark, twin.find, twin.put),))
            pairs.append(Pair(f"{name}~twin", network, fault.kind, a, b, parse(text, a, b), text, refactored=True))
    return pairs


def clean_pairs() -> list[Pair]:
    from benchmarks.diagnosis.clean import CLEAN

    return [
        Pair(f"clean/{one.name}", one.a.script.removesuffix("_twin"), one.kind, one.a, one.b, rounding=one.rounding)
        for one in CLEAN
    ]


def every_pair() -> list[Pair]:
    """All pairs of the suite. Raises ValueError if two have the same name."""
    pairs = [pair for network in NAMES for pair in fault_pairs(network)] + clean_pairs()
    names = [pair.name for pair in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two pairs are named {sorted(twice)}")
    return pairs
