"""The pairs of programs of the suite: with a planted fault and its truth, or clean."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final, Literal

from benchmarks.diagnosis.programs import ACROSS, FRAMEWORKS, NETWORKS, Edit, Program, networks
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


Against = Literal["itself", "refactored", "another mode", "another framework"]
"""What the program with the fault is compared with."""


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
class Side:
    """A fault in the script of one framework: an edit, and the answer in this script, whether it has the fault or the other script of the pair."""

    mark: str
    find: str
    put: str
    truth: str


@dataclass(frozen=True, slots=True, init=False)
class InEach:
    """The same fault in the scripts of several frameworks."""

    kind: str
    name: str
    sides: Mapping[str, Side]

    def __init__(self, kind: str, name: str, **sides: Side) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sides", sides)


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
    against: Against = "itself"
    rounding: float = 0.0


def mutations(network: str, framework: str = "torch") -> ModuleType:
    """The module of a network's faults, `FAULTS`. Other frameworks than PyTorch also have in it `MODES`, the modes in which the
    script runs, and `CLEAN`, edits that change nothing: the names of pairs and their edits.
    """
    return importlib.import_module(f"benchmarks.diagnosis.mutations.{framework}.{network}")


def faults(network: str, framework: str = "torch") -> tuple[Fault, ...]:
    found: tuple[Fault, ...] = mutations(network, framework).FAULTS
    return found


def modes(network: str, framework: str = "torch") -> tuple[str, ...]:
    """The modes in which a network runs; one empty mode if its framework has no others."""
    found: tuple[str, ...] = getattr(mutations(network, framework), "MODES", ("",))
    return found


def fault_pairs(network: str, framework: str = "torch", *, in_every_mode: bool = True) -> list[Pair]:
    """The faults of a network as pairs: in a mode, in its refactored twin, and in another mode against the first.

    Unless `in_every_mode`, each fault is in one mode, and in one mode against the first: the modes in turn.
    A network of two frameworks has its faults in two orders of frameworks, in turn.
    """
    if framework == ACROSS:
        return list(_across(network))
    used = modes(network, framework)
    found: list[Pair] = []
    for number, fault in enumerate(faults(network, framework)):
        if fault.kind not in KINDS:
            raise ValueError(f"{network}: unknown kind {fault.kind}")
        here = range(len(used)) if in_every_mode else [number % len(used)]
        there = range(1, len(used)) if in_every_mode else [1 + number % (len(used) - 1)] if len(used) > 1 else []
        for mode in here:
            found += _pairs_of(fault, Program(network, framework=framework, mode=used[mode]))
        first = Program(network, framework=framework, mode=used[0])
        found += [_pair_of_modes(fault, first, used[mode]) for mode in there]
    return found


def _pairs_of(fault: Fault, a: Program) -> Iterator[Pair]:
    b = replace(a, edits=(Edit(fault.mark, fault.find, fault.put),))
    yield _pair(fault, a, b, fault.truth, "itself")
    if fault.twin is not None:
        twin = fault.twin
        edit = Edit(twin.mark or fault.mark, twin.find, twin.put)
        b = replace(a, script=f"{a.script}_twin", edits=(edit,))
        yield _pair(fault, a, b, twin.truth or fault.truth, "refactored", "~twin")


def _pair_of_modes(fault: Fault, a: Program, mode: str) -> Pair:
    b = replace(a, edits=(Edit(fault.mark, fault.find, fault.put),), mode=mode)
    return _pair(fault, a, b, fault.truth, "another mode", f"~{mode}")


def _pair(fault: Fault, a: Program, b: Program, truth: str, against: Against, suffix: str = "") -> Pair:
    name = f"{_named(a)}/{fault.name}{suffix}"
    return Pair(name, a.script, fault.kind, a, b, parse(truth, a, b), truth, against)


_ORDERS: Final = 2
"""Each fault is planted for this many orders of two frameworks."""
_STRIDE: Final = 7
"""Orders at this distance have other frameworks on both sides. It has no divisor in common with the numbers of orders, 12 and 20."""


def _across(network: str) -> Iterator[Pair]:
    """The faults of a network in one framework, against the same network without a fault in another one: each order of two in turn."""
    found: tuple[InEach, ...] = mutations(network, ACROSS).FAULTS
    turns: dict[tuple[str, ...], Iterator[int]] = {}
    for fault in found:
        used = tuple(each for each in FRAMEWORKS if each in fault.sides)
        orders = list(itertools.permutations(used, 2))
        for turn in itertools.islice(turns.setdefault(used, itertools.count()), _ORDERS):
            yield _in_two(network, fault, *orders[turn * _STRIDE % len(orders)])


def _in_two(network: str, fault: InEach, one: str, other: str) -> Pair:
    """The network without a fault in one framework, and with it in the other."""
    side = fault.sides[other]
    a, b = (Program(f"{network}_{each}", framework=ACROSS) for each in (one, other))
    b = replace(b, edits=(Edit(side.mark, side.find, side.put),))
    truth = "; ".join([*(f"a {part.strip()}" for part in fault.sides[one].truth.split(";")), side.truth])
    name = f"{network}/{fault.name} {one}-{other}"
    return Pair(name, network, fault.kind, a, b, parse(truth, a, b), truth, "another framework")


def _clean_across(network: str) -> Iterator[Clean]:
    """A network in each two frameworks."""
    used = [each for each in FRAMEWORKS if (NETWORKS / ACROSS / f"{network}_{each}.py").exists()]
    for number, pair in enumerate(itertools.combinations(used, 2)):
        one, other = pair if number % 2 else pair[::-1]
        a, b = (Program(f"{network}_{each}", framework=ACROSS) for each in (one, other))
        yield Clean("another framework", f"{network} {one}-{other}", a, b)


def _named(program: Program) -> str:
    return f"{program.script} {program.mode}".rstrip()


def clean_pairs(framework: str = "torch") -> list[Pair]:
    if framework == "torch":
        from benchmarks.diagnosis.clean import CLEAN

        found = list(CLEAN)
    elif framework == ACROSS:
        found = [pair for network in networks(framework) for pair in _clean_across(network)]
    else:
        found = [pair for network in networks(framework) for pair in _clean_of(network, framework)]
    return [
        Pair(f"clean/{one.name}", one.a.script.removesuffix("_twin"), one.kind, one.a, one.b, rounding=one.rounding)
        for one in found
    ]


def _clean_of(network: str, framework: str) -> Iterator[Clean]:
    """A network again, in another mode, refactored, and with edits that change nothing."""
    used = modes(network, framework)
    edited: tuple[tuple[str, tuple[Edit, ...]], ...] = getattr(mutations(network, framework), "CLEAN", ())
    for mode in used:
        a = Program(network, framework=framework, mode=mode)
        yield Clean("twice", f"{_named(a)} again", a, replace(a, settings=("again",)))
        if (NETWORKS / framework / f"{network}_twin.py").exists():
            yield Clean("refactored", f"{_named(a)} refactored", a, replace(a, script=f"{network}_twin"))
        for name, edits in edited:
            yield Clean("edited", f"{_named(a)} {name}", a, replace(a, edits=edits))
    first = Program(network, framework=framework, mode=used[0])
    for mode in used[1:]:
        yield Clean("another mode", f"{_named(first)} against {mode}", first, replace(first, mode=mode))


def every_pair(framework: str = "torch", *, in_every_mode: bool = True) -> list[Pair]:
    """All pairs of a framework, or each fault in one mode only. Raises ValueError if two have the same name."""
    pairs = [
        pair for network in networks(framework) for pair in fault_pairs(network, framework, in_every_mode=in_every_mode)
    ]
    pairs += clean_pairs(framework)
    names = [pair.name for pair in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two pairs are named {sorted(twice)}")
    return pairs
