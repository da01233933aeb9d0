"""The operators of a step as nodes of a data flow, and the suspects found among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

from opdump.adapters.replay import defaults_of
from opdump.checks.operator_classes import OperatorClass, class_of
from opdump.comparison.differences import coarsest
from opdump.graph import PYNATIVE
from opdump.op_types import bare_name, rows_of
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import IO, RUN_FACTS, OpRecord, Phase, TensorRecord

Item = TypeVar("Item", bound=Hashable)
Place = tuple[int, int]
"""A node and a slot of its outputs or inputs. If both are possible, an input has the complement of its slot (`~slot`)."""

_MOVERS: Final = frozenset(
    {"clone", "contiguous", "_reshape_copy", "view_copy", "expand_copy", "permute_copy", "transpose_copy", "alias_copy"}
)

_CLEARERS: Final = frozenset({"zero", "fill", "_foreach_zero"})
_OVERWRITERS: Final = frozenset({"zero", "fill", "copy", "uniform", "normal", "bernoulli", "random", "exponential"})


def storages_of(records: Iterable[TensorRecord]) -> set[int]:
    """The storages of the tensors whose memory is known."""
    return {record.memory.storage for record in records if record.memory is not None}


def reachable(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> set[Item]:
    """Everything that can be reached from `starts`, including these. `following` has what follows directly."""
    found: set[Item] = set()
    waiting = list(starts)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(following(each))
    return found


@dataclass(frozen=True, eq=False)
class Node:
    """One execution of an operator. `makers` has the node and output slot that produced each input, if known."""

    index: int
    op: OpRecord
    inputs: Mapping[int, TensorRecord]
    outputs: Mapping[int, TensorRecord]
    makers: Mapping[int, Place] = field(default_factory=dict)
    is_rewritten: bool = False
    """Whether the framework ran a different operator with different inputs, so that the outputs do not follow from the recorded inputs."""
    is_added: bool = False
    """Whether the framework inserted the operator, so that the program does not see its outputs."""

    @cached_property
    def bare_type(self) -> str:
        """The operator type without namespace, overload and the suffix of in-place forms."""
        return bare_name(self.op.op_type)

    @property
    def kernel(self) -> str:
        """The kernel; the type of an operator if it is unknown."""
        return self.op.kernel or self.op.op_type

    @cached_property
    def operator_class(self) -> OperatorClass:
        """What the operator does with elements, as from `class_of`."""
        return class_of(self.op.op_type)

    @cached_property
    def arranges(self) -> bool:
        """Whether the operator only moves elements. An operator that makes floats of integers, such as a one-hot encoding, or that reads nothing,
        chooses their values.
        """
        if self.operator_class != "moves" or 0 not in self.inputs:
            return False
        return not (self.rounding and self.inputs[0].dtype.startswith(("int", "uint")))

    @cached_property
    def unspecified(self) -> frozenset[int]:
        """The slots of outputs whose contents are unspecified."""
        return unspecified_outputs(self.kernel)

    @cached_property
    def specified_outputs(self) -> Mapping[int, TensorRecord]:
        """The outputs whose contents are specified."""
        unspecified = self.unspecified
        return {slot: record for slot, record in self.outputs.items() if slot not in unspecified}

    @cached_property
    def concepts(self) -> frozenset[str]:
        """The concepts of the operator in the table of operator types, which are the same for all frameworks."""
        return frozenset(row.concept for row in rows_of(self.kernel))

    @cached_property
    def written_arguments(self) -> Mapping[str, Any]:
        """The non-tensor arguments that the program passed, without the facts that an adapter adds."""
        arguments = self.op.arguments
        if RUN_FACTS.isdisjoint(arguments) or self.op.kernel.startswith("aten::"):
            return arguments
        return {name: value for name, value in arguments.items() if name not in RUN_FACTS}

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the program, with the known defaults of omitted ones."""
        defaults = defaults_of(self.op, self.inputs)
        return {**defaults, **self.written_arguments} if defaults else self.written_arguments

    @property
    def moves(self) -> bool:
        """Whether the operator only copies its input to other memory."""
        return self.bare_type in _MOVERS or (
            self.bare_type == "_to_copy"
            and len({record.dtype for record in (*self.inputs.values(), *self.outputs.values())}) == 1
        )

    @property
    def writes_unseen(self) -> bool:
        """Whether the operator writes states in place that are not among its outputs, such as the running mean of a batch norm of MindSpore."""
        return bool(self.op.arguments.get("side_effect_mem"))

    def overwrites(self, slot: int) -> bool:
        """Whether the operator overwrites an input without reading it."""
        return slot == 0 and self.bare_type in _OVERWRITERS

    def clears(self, slot: int) -> bool:
        """Whether the operator overwrites an input with a constant, so that the old value (usually a gradient) is no longer needed."""
        return self.bare_type in _CLEARERS and slot in self.outputs

    @cached_property
    def module(self) -> str:
        """The scope of the operator."""
        return scope_of(self.op)

    @cached_property
    def inputs_by_place(self) -> Mapping[str, Sequence[int]]:
        """The input slots by position in a list argument (`[3]`); inputs outside of lists have the key `""`."""
        found: dict[str, list[int]] = {}
        for slot in sorted(self.inputs):
            found.setdefault(place_in_list(self.inputs[slot]), []).append(slot)
        return found

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each output."""
        return tuple(math.prod(record.shape) for record in self.outputs.values())

    @cached_property
    def rounding(self) -> float:
        """The rounding of the narrowest type of an output; 0 if all are exact: masks and indices."""
        return coarsest(self.outputs.values())

    @cached_property
    def are_floats(self) -> tuple[bool, ...]:
        """Whether each output has a float type of any width."""
        return tuple("float" in record.dtype for record in self.outputs.values())

    @cached_property
    def shapes(self) -> tuple[object, ...]:
        """Shapes of inputs and outputs, by slot."""
        return (
            tuple((slot, record.shape) for slot, record in self.inputs.items()),
            tuple((slot, record.shape) for slot, record in self.outputs.items()),
        )


def place_in_list(record: TensorRecord) -> str:
    """The position of a tensor in a list argument, `[3]`; empty if it is not in a list."""
    name, bracket, place = record.argument.rpartition("[")
    return bracket + place if name else ""


def are_of_two_modes(a: Node, b: Node) -> bool:
    """Whether one operator ran in MindSpore's compiled code and the other in PyNative mode.

    In compiled code, arguments include attributes of the graph, and a view has the shape of its memory. In PyNative mode, some inputs are
    not recorded.
    """
    return (a.op.graph_id == PYNATIVE) != (b.op.graph_id == PYNATIVE)


def may_leave_results(node: Node) -> bool:
    """Whether an output without readers is a result of the step.

    After the forward pass, operators write their results to lasting memory. Only in eager JAX are they new arrays, and MindSpore's compiled code has no
    operator whose output is not used.
    """
    return node.op.phase == "forward" or (is_of_jax(node) and not node.op.graph_id) or is_compiled_by_mindspore(node)


_PASSES: Final[Mapping[Phase, int]] = {"forward": 0, "recomputation": 0, "backward": 1, "optimizer": 2}


def pass_of(node: Node | None) -> int:
    """The place of the operator's pass in a step, for code that may run an operator of a later pass before an earlier one has ended."""
    return 0 if node is None else _PASSES[node.op.phase]


def runs_in_any_order(node: Node) -> bool:
    """Whether the operator ran in code that may run operators of all phases in any order that their data allows: MindSpore's compiled code, or TensorFlow."""
    return is_compiled_by_mindspore(node) or node.op.kernel.startswith("tf::")


def is_compiled_by_mindspore(node: Node) -> bool:
    return is_of_mindspore(node) and node.op.graph_id != PYNATIVE


def is_of_jax(node: Node) -> bool:
    return node.op.kernel.startswith(("lax::", "jnp::"))


def is_of_mindspore(node: Node) -> bool:
    return node.op.kernel.startswith("mindspore::")


def scope_of(op: OpRecord) -> str:
    """The scope of an operator: its name without the last component."""
    return op.op_name.rpartition("/")[0]


Kind = Literal[
    "data",  # an input of the program differs
    "parameter",  # a parameter or state that no operator of the dump wrote differs
    "random",  # the same random operator produced different numbers
    "argument",  # the same operator has different non-tensor arguments
    "operator",  # different operators compute the value
    "missing",  # an operator of A has no counterpart in B
    "extra",  # an operator of B has no counterpart in A
    "input",  # the operator reads a different tensor, a different part of it, or an earlier value
    "memory",  # an input does not contain what was written to it
    "kernel",  # the same inputs lead to different outputs, by more than rounding
    "precision",  # a cast to a narrower type that the rest of the run does not have
    "result",  # a result of the step differs, and none of the above was found; the runs diverge here
]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A possible cause of the divergence. `score` is the difference in units of rounding; infinite for exact types."""

    kind: Kind
    a: Node | None
    b: Node | None
    io: IO
    slot: int
    score: float
    evidence: str
    amount: str = ""
    """For data: how many elements differ (`1 of 8 elements`)."""

    @property
    def place(self) -> tuple[int, int]:
        """The indices of the operators in A and B; -1 stands for no operator."""
        if self.kind == "missing" and self.a is not None:
            return (self.a.index, -1)
        if self.kind in ("extra", "operator") and self.b is not None:
            return (-1, self.b.index)
        return (-1 if self.a is None else self.a.index, -1 if self.b is None else self.b.index)

    def turned(self) -> Suspect:
        """The suspect with A and B exchanged."""
        kind: Kind = "extra" if self.kind == "missing" else "missing" if self.kind == "extra" else self.kind
        return replace(self, kind=kind, a=self.b, b=self.a)

    @property
    def name(self) -> Hashable:
        """A key that the same suspect has in every step."""
        return (
            self.kind,
            self.io,
            self.slot,
            *(each and (each.op.op_name, each.op.occurrence) for each in (self.a, self.b)),
        )


def without(suspects: Iterable[Suspect], others: Sequence[Suspect]) -> list[Suspect]:
    """The suspects that are not among the others. Equal suspects count as different."""
    return [each for each in suspects if all(each is not other for other in others)]


@dataclass(slots=True)
class Findings:
    """The suspects of a step, in B's order, and other findings."""

    suspects: list[Suspect] = field(default_factory=list)
    latent: list[Suspect] = field(default_factory=list)
    """Differences between the programs with no noticeable effect at their own operator. They count if a suspect follows from them."""
    permuted: list[Suspect] = field(default_factory=list)
    """Inputs of the program with the same elements in a different order. They count only if the results differ."""
    without_effect: list[str] = field(default_factory=list)
    """Operators of B whose arguments differ from A without changing the result."""
    idle: list[str] = field(default_factory=list)
    """Data that differ without affecting any result."""
    not_run: set[str] = field(default_factory=set)
    """Kernels that could not be replayed, except those that draw random numbers."""
    reached: dict[tuple[str, tuple[int, int]], set[int]] = field(default_factory=dict)
    """By kind and place of a suspect: the matched operators of B where it was noticed."""

    def add(self, suspect: Suspect, reached: Node | None = None) -> None:
        """Add a suspect unless it is known, and note the operator where it was noticed. The call of a compiled function only returns what its operators
        made, so what is noticed there is noticed at the end.
        """
        key = suspect.kind, suspect.place
        if key not in self.reached:
            self.reached[key] = set()
            self.suspects.append(suspect)
        if reached is not None and not reached.op.repeats_operators:
            self.reached[key].add(reached.index)

    def reached_by(self, suspects: Iterable[Suspect]) -> list[tuple[Suspect, set[int]]]:
        """The suspects that were noticed in matched operators of B, each with these."""
        return [(each, nodes) for each in suspects if (nodes := self.reached[each.kind, each.place])]
