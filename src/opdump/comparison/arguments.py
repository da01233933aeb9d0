"""Compares the non-tensor arguments of matched operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdump.comparison.accuracy import RESULT, distance
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    LEAST_FILL,
    apart,
    coarsest,
    epsilon_of,
    has_elements,
    has_statistics,
    same_statistics,
)
from opdump.comparison.nodes import Node, Place, Suspect, are_of_two_modes, reachable
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.graph import PARAMETER_PREFIX

_OF_NO_VALUE: Final = frozenset(
    {"device", "pin_memory", "layout", "memory_format", "non_blocking", "generator", "dtype", "implicit", "copy"}
)
"""Arguments that do not affect the values. A different dtype is visible in the types of the tensors."""
_DIMENSIONS: Final = frozenset({"axis", "axes", "dim", "dim0", "dim1", "dims"})
"""Arguments that name dimensions of the first input."""
_ADDS_DIMENSIONS: Final = frozenset({"unsqueeze", "stack", "expand_dims", "expanddims", "onehot", "one_hot"})
"""Operators that add a dimension; their arguments name dimensions of the output."""
_CLOSE: Final = 2.0**-23
"""Relative tolerance: numbers that are equal in float32 count as equal, because only one program may have rounded them."""


def differing(
    a: Node, b: Node, scalars_a: Collection[float] = (), scalars_b: Collection[float] = ()
) -> dict[str, tuple[Any, Any]]:
    """The arguments that differ, by name.

    `scalars_a` and `scalars_b` are the numbers that each program read from tensors. An argument that is such a number in both runs is
    left out, because the tensor that it came from is compared.
    """
    if a.op.kernel != b.op.kernel or are_of_two_modes(a, b):
        one, other = a.written_arguments, b.written_arguments
        names: Collection[str] = one.keys() & other.keys()
    else:
        one, other = a.arguments, b.arguments
        names = one.keys() | other.keys()
    return {
        name: (one.get(name), other.get(name))
        for name in names
        if name not in _OF_NO_VALUE
        and not _is_same(_counted_up(a, name, one.get(name)), _counted_up(b, name, other.get(name)))
        and not (_is_among(one.get(name), scalars_a) and _is_among(other.get(name), scalars_b))
    }


def told_of(arguments: Mapping[str, tuple[Any, Any]]) -> str:
    """Format different arguments: `approximate: None in A, tanh in B`. Of lists of strings, such as equations, only the different part is shown."""
    parts = {name: _differing_part(*values) for name, values in arguments.items()}
    return ", ".join(f"{name}: {before} in A, {after} in B" for name, (before, after) in sorted(parts.items()))


def _differing_part(one: Any, other: Any) -> tuple[Any, Any]:
    if not all(
        isinstance(each, (list, tuple)) and all(isinstance(text, str) for text in each) for each in (one, other)
    ):
        return one, other
    shorter = min(len(one), len(other))
    first = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    last = next((place for place in range(shorter - first) if one[-1 - place] != other[-1 - place]), shorter - first)
    before, after = ("; ".join(each[first : len(each) - last]) or "nothing" for each in (one, other))
    return before, after


def _counted_up(node: Node, name: str, value: Any) -> Any:
    """Convert negative dimensions to positive ones; other values are returned unchanged."""
    records = node.outputs if node.bare_type.lower() in _ADDS_DIMENSIONS else node.inputs
    rank = len(records[0].shape) if 0 in records else 0
    if name not in _DIMENSIONS or not rank:
        return value
    if isinstance(value, (list, tuple)):
        return [_counted_up(node, name, each) for each in value]
    return value + rank if isinstance(value, int) and -rank <= value < 0 else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    match one, other:
        case (int() | float(), int() | float()):
            return (
                one == other
                or (math.isnan(one) and math.isnan(other))
                or math.isclose(one, other, rel_tol=_CLOSE, abs_tol=0.0)
            )
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(map(_is_same, one, other))
        case ({"graph": _}, {"graph": _}):
            return True  # the name of a subgraph, which exporters number
        case (Mapping(), Mapping()):
            return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _is_among(value: Any, scalars: Collection[float]) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) in scalars


def scalars_read(nodes: Collection[Node]) -> frozenset[float]:
    """The numbers that a program read from tensors (`item()`)."""
    found = set()
    for node in nodes:
        if node.bare_type in ("_local_scalar_dense", "item"):
            for record in node.inputs.values():
                if has_elements(record):
                    found.add(
                        float(
                            abs(record.numpy().reshape(-1)[0])
                            if record.dtype.startswith("complex")
                            else record.numpy().reshape(-1)[0]
                        )
                    )
    return frozenset(found)


# Finds matched operators with the same inputs and different arguments.

_ARRANGES: Final = frozenset({"roll", "flip", "rot90", "permute_copy", "transpose_copy", "clone"})
"""Operators that only reorder the elements of their input. Statistics do not show the order."""


@dataclass(frozen=True, slots=True)
class OtherArguments:
    """Matched operators with their different arguments. `slot` is the first output that differs; None if none does."""

    one: Node
    other: Node
    arguments: dict[str, tuple[Any, Any]]
    slot: int | None

    @property
    def differs(self) -> bool:
        """Whether an output differs."""
        return self.slot is not None

    @property
    def told(self) -> str:
        """The different arguments, formatted."""
        return told_of(self.arguments)

    def suspect(self) -> Suspect:
        """The difference as a suspect."""
        return Suspect("argument", self.one, self.other, "output", self.slot or 0, math.inf, self.told)


def other_arguments(a: Trace, b: Trace, alignment: Alignment) -> Iterator[OtherArguments]:
    """Matched operators with the same inputs and different arguments, in B's order. An input without statistics agrees only if it is empty."""
    read = b.users().keys()
    for index, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[index]
        if one.written_arguments == other.written_arguments or not (arguments := differing(one, other)):
            continue
        arguments = {name: both for name, both in arguments.items() if not all(map(_fills, both))}
        if not arguments:
            continue  # the fill value of a mask, which may be any large number
        if one.inputs.keys() == other.inputs.keys() and all(_has_same_input(one, other, slot) for slot in other.inputs):
            yield OtherArguments(one, other, arguments, _differing_output(one, other, read))


def other_writes(a: Trace, b: Trace) -> list[Suspect]:
    """The first operator that writes states in place with other arguments than in A, if the dump does not have the states at the operator. None if
    both runs have the same states at the end of the step.
    """
    writers = dict(_writers(a))
    for key, other in _writers(b):
        one = writers.get(key)
        arguments = {} if one is None else differing(one, other)
        if arguments and not _leave_the_same(a, b, key[1]):
            what = f"{told_of(arguments)}; the dump does not have the states that it writes"
            return [Suspect("argument", one, other, "output", 0, math.inf, what)]
    return []


_Writer = tuple[str, tuple[str, ...], int]
"""The kernel of an operator, the names of the states that it reads, and how many such operators ran before."""


def _writers(trace: Trace) -> Iterator[tuple[_Writer, Node]]:
    """The operators that write states that are not among their outputs, in order."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for node in trace.nodes:
        states = tuple(name for record in node.inputs.values() if names_a_state(name := leaf_name(record)))
        if node.writes_unseen and states:
            yield (node.kernel, states, counts[node.kernel, states]), node
            counts[node.kernel, states] += 1


def _leave_the_same(a: Trace, b: Trace, states: Sequence[str]) -> bool:
    """Whether both runs have the states at the end of the step, and these are the same within rounding."""
    for name in states:
        records = [trace.finals.get(name.removeprefix(PARAMETER_PREFIX)) for trace in (a, b)]
        off = None if None in records else distance(*filter(None, records))
        if off is None or off > RESULT.of(coarsest(filter(None, records))):
            return False
    return True


def does_the_same(one: Node, other: Node) -> bool:
    """Whether two operators have the same kernel, arguments and input statistics."""
    return (
        one.op.kernel == other.op.kernel
        and bool(other.inputs)
        and one.inputs.keys() == other.inputs.keys()
        and all(same_statistics(one.inputs[slot], record) for slot, record in other.inputs.items())
        and not differing(one, other)
    )


def _has_same_input(one: Node, other: Node, slot: int) -> bool:
    before, after = one.inputs[slot], other.inputs[slot]
    if before.skip and after.skip:
        return before.skip == after.skip == "empty"
    if before.shape != after.shape or not (has_statistics(before) and has_statistics(after)):
        return 0 in before.shape and before.shape == after.shape
    return same_statistics(before, after)


def _fills(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("float") in ("inf", "-inf")  # the index stores infinities in this form, because JSON has none
    return isinstance(value, (int, float)) and abs(value) >= LEAST_FILL


def _differing_output(one: Node, other: Node, read: Collection[Place]) -> int | None:
    unspecified = other.unspecified
    for slot, record in other.outputs.items():
        before = one.outputs.get(slot)
        if before is None or slot in unspecified:
            continue
        if _without_ones(before.shape) != _without_ones(record.shape) or apart(before, record):
            return slot
        if (
            other.bare_type in _ARRANGES
            and (other.index, slot) not in read
            and record.statistics.get("max") != record.statistics.get("min")
        ):
            return slot
    return None


def _without_ones(shape: Sequence[int]) -> list[int]:
    """The lengths of the axes, except those of length 1, which `keepdim` adds without changing a value."""
    return [length for length in shape if length != 1]


# Finds isolated casts to a narrower type. A network that computes in a narrower type throughout is a choice. A single narrow operator among
# wider ones of its kind, or a value that is rounded and widened again at once, is a fault. Matrix products and convolutions are one kind,
# because autocast and users choose the type of all of them together.

_MOST: Final = 0.5
"""If at least this share of the operators of a kind has the narrower type, the type is a choice."""
_PRODUCTS: Final = frozenset(
    {"addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "convolution", "dot", "linear", "matmul", "mm", "mv"}
)


def narrowing_casts(trace: Trace, matched: Mapping[int, int]) -> Iterator[Node]:
    """Casts to a narrower float that only this run has. Casts of gradients are left out, because they follow from casts in the forward pass."""
    for node in trace.nodes:
        # A cast of input data is not a fault.
        if node.index not in matched and node.op.phase != "backward" and node.makers and _narrows(node):
            yield node


def planted_casts(trace: Trace, matched: Mapping[int, int], *, is_b: bool) -> Iterator[Suspect]:
    """The isolated ones of these casts: all readers widen the result again, or compute in a type that most of their kind, or most matrix
    products, do not have.
    """
    casts = list(narrowing_casts(trace, matched))
    if not casts:
        return
    by_kind: dict[str, list[bool]] = {}
    for node in trace.nodes:
        by_kind.setdefault(_kind(node), []).append(_is_narrow(node))
    floats = [_is_narrow(node) for node in trace.nodes if node.rounding]
    for node in casts:
        beside = [reader for reader in _readers(trace, node) if reader.op.phase == node.op.phase]
        why = _why_isolated(beside, by_kind, floats) if beside else ""
        if not why:
            continue
        record = next(iter(node.outputs.values()))
        source = next(iter(node.inputs.values()))
        score = epsilon_of(record.dtype) / (epsilon_of(source.dtype) or math.inf)
        what = f"{source.dtype} is cast to {record.dtype} and {why}; the other run has no such cast"
        yield Suspect("precision", None if is_b else node, node if is_b else None, "output", record.slot, score, what)


def _why_isolated(readers: Sequence[Node], by_kind: Mapping[str, list[bool]], floats: list[bool]) -> str:
    """Why a narrowing cast with these readers is isolated; empty if it is not. `by_kind` has for the operators of each kind whether they are
    narrow, `floats` for all operators with float outputs.
    """
    others = [reader for reader in readers if not _widens(reader)]
    if not others:
        return "widened again at once"
    if all(_share(by_kind[_kind(reader)]) < _MOST for reader in others):
        return f"the operator {readers[0].op.op_type} computes in it, although most operators of its kind do not"
    if _share(by_kind.get("product") or floats) < _MOST:
        what = "matrix products" if "product" in by_kind else "operators"
        return f"used in that type, although most {what} have a wider one"
    return ""


def _readers(trace: Trace, node: Node) -> list[Node]:
    """The readers of a node's outputs. A reader that only moves elements is replaced by its own readers."""

    def moves(index: int) -> bool:
        return trace.nodes[index].operator_class == "moves"

    found = reachable([node.index], lambda index: trace.readers(index) if index == node.index or moves(index) else ())
    return [trace.nodes[index] for index in sorted(found - {node.index}) if not moves(index)]


def narrowed_results(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Suspect]:
    """Matched operators with the same input types, whose output is narrower than the inputs in only one run."""
    for index, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[index]
        given = [record.dtype for record in one.inputs.values()]
        if one.op.phase == "backward" or given != [record.dtype for record in other.inputs.values()]:
            continue
        widest = coarsest(one.inputs.values())
        for slot, record in other.outputs.items():
            before = one.outputs.get(slot)
            if before is None or not widest or before.dtype == record.dtype:
                continue
            epsilons = epsilon_of(before.dtype), epsilon_of(record.dtype)
            if max(epsilons) > widest >= min(epsilons) > 0:
                what = f"the output is {before.dtype} in A and {record.dtype} in B, for inputs of type {', '.join(dict.fromkeys(given))}"

                yield Suspect("precision", one, other, "output", slot, max(epsilons) / min(epsilons), what)
                break


def accepted_rounding(a: Trace, b: Trace, alignment: Alignment) -> float:
    """The coarsest rounding that is a choice: of float32, of `chosen_rounding`, or of matched outputs with the same type in both runs."""
    both = (
        epsilon_of(record.dtype)
        for here, there in alignment.b_of.items()
        for slot, record in a.nodes[here].outputs.items()
        if slot in b.nodes[there].outputs and b.nodes[there].outputs[slot].dtype == record.dtype
    )
    return max(epsilon_of("float32"), chosen_rounding(a), chosen_rounding(b), *both)


def chosen_rounding(trace: Trace) -> float:
    """The rounding of the narrowest type that at least half of a run's matrix products have; without matrix products, of its operators."""
    return epsilon_of(_chosen(trace)[0])


def told_choices(a: Trace, b: Trace) -> str:
    """A note about the types that the runs chose; empty if their rounding is the same or unknown."""
    (type_a, of_a), (type_b, of_b) = _chosen(a), _chosen(b)
    if not type_a or not type_b or epsilon_of(type_a) == epsilon_of(type_b):
        return ""
    again = "" if of_a == of_b else f"{of_b} are "
    return f"{of_a} are {type_a} in A, {again}{type_b} in B; differences within this precision are accepted"


def _chosen(trace: Trace) -> tuple[str, str]:
    """The type behind `chosen_rounding`, empty if there is none, and a description of the operators that have it."""
    products = [node for node in trace.nodes if _kind(node) == "product"]
    counts: dict[float, int] = {0.0: 0}
    names = {0.0: ""}
    for node in products or trace.nodes:
        name = max((record.dtype for record in node.outputs.values()), key=epsilon_of, default="")
        epsilon = epsilon_of(name)
        if epsilon:
            counts[epsilon] = counts.get(epsilon, 0) + 1
            names.setdefault(epsilon, name)
    most = _MOST * sum(counts.values())
    chosen = max((each for each, count in counts.items() if count >= most), default=0.0)
    return names[chosen], "most matrix products" if products else "most outputs"


def _kind(node: Node) -> str:
    return "product" if node.bare_type in _PRODUCTS else node.bare_type


def _dtypes(node: Node) -> tuple[str, str] | None:
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    return next(iter(node.inputs.values())).dtype, next(iter(node.outputs.values())).dtype


def _narrows(node: Node) -> bool:
    kinds = _dtypes(node)
    return kinds is not None and 0 < epsilon_of(kinds[0]) < epsilon_of(kinds[1])


def _widens(node: Node) -> bool:
    kinds = _dtypes(node)
    return kinds is not None and epsilon_of(kinds[0]) > epsilon_of(kinds[1]) > 0


def _is_narrow(node: Node) -> bool:
    return node.rounding > epsilon_of("float32")


def _share(narrow: list[bool]) -> float:
    return sum(narrow) / len(narrow)
