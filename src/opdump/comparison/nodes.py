"""One execution of an operator, as a comparison sees it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from opdump.adapters.replay import defaults_of
from opdump.graph import PYNATIVE
from opdump.op_types import bare_name, rows_of
from opdump.records import IO, RUN_FACTS, OpRecord, TensorRecord

_MOVERS: Final = frozenset(
    {"clone", "contiguous", "_reshape_copy", "view_copy", "expand_copy", "permute_copy", "transpose_copy", "alias_copy"}
)

_CLEARERS: Final = frozenset({"zero", "fill", "_foreach_zero"})
_OVERWRITERS: Final = frozenset({"zero", "fill", "copy", "uniform", "normal", "bernoulli", "random", "exponential"})


@dataclass(frozen=True, eq=False)
class Node:
    """One execution of an operator. `makers` names for each input slot the node and the slot that made it, where that is known."""

    index: int
    op: OpRecord
    inputs: Mapping[int, TensorRecord]
    outputs: Mapping[int, TensorRecord]
    makers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    is_rewritten: bool = False
    """Whether the framework ran another operator in its place, with inputs of its own: what it gave does not follow from what it was given."""
    is_added: bool = False
    """Whether the framework put it there, and the program does not know what it gives."""

    @cached_property
    def bare_type(self) -> str:
        """The operator type without namespace, overload and the mark of in-place forms."""
        return bare_name(self.op.op_type)

    @cached_property
    def concepts(self) -> frozenset[str]:
        """The rows of the table of operator types that it stands in, by whichever framework it is of."""
        return frozenset(row.concept for row in rows_of(self.op.kernel or self.op.op_type))

    @cached_property
    def written_arguments(self) -> Mapping[str, Any]:
        """The non-tensor arguments that the program wrote, without the facts that an adapter adds about the run."""
        arguments = self.op.arguments
        if RUN_FACTS.isdisjoint(arguments) or self.op.kernel.startswith("aten::"):
            return arguments
        return {name: value for name, value in arguments.items() if name not in RUN_FACTS}

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The same, with those that the program left out, as far as its framework tells what they are then."""
        defaults = defaults_of(self.op, self.inputs)
        return {**defaults, **self.written_arguments} if defaults else self.written_arguments

    @property
    def moves(self) -> bool:
        """Whether it hands its input on as it is, in other memory."""
        return self.bare_type in _MOVERS or (
            self.bare_type == "_to_copy"
            and len({record.dtype for record in (*self.inputs.values(), *self.outputs.values())}) == 1
        )

    def overwrites(self, slot: int) -> bool:
        """Whether it writes over an input, and does not read it."""
        return slot == 0 and self.bare_type in _OVERWRITERS

    def clears(self, slot: int) -> bool:
        """Whether it writes a constant over an input: what was there, gradients mostly, is needed no more."""
        return self.bare_type in _CLEARERS and slot in self.outputs

    @cached_property
    def module(self) -> str:
        """The scope that it ran in."""
        return scope_of(self.op)

    @cached_property
    def inputs_by_place(self) -> Mapping[str, Sequence[int]]:
        """The slots of inputs by their places in the lists that they are arguments in (`[3]`); those that are in no list are under the empty text."""
        found: dict[str, list[int]] = {}
        for slot in sorted(self.inputs):
            found.setdefault(place_in_list(self.inputs[slot]), []).append(slot)
        return found

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many elements each output has."""
        return tuple(math.prod(record.shape) for record in self.outputs.values())

    @cached_property
    def are_floats(self) -> tuple[bool, ...]:
        """Whether each output holds floats, of any width."""
        return tuple("float" in record.dtype for record in self.outputs.values())

    @cached_property
    def shapes(self) -> tuple[object, ...]:
        """Shapes of inputs and outputs, by slot."""
        return (
            tuple((slot, record.shape) for slot, record in self.inputs.items()),
            tuple((slot, record.shape) for slot, record in self.outputs.items()),
        )


def place_in_list(record: TensorRecord) -> str:
    """The place of a tensor in the list that it is an argument in, `[3]`; empty where it is in none."""
    name, bracket, place = record.argument.rpartition("[")
    return bracket + place if name else ""


def are_of_two_modes(a: Node, b: Node) -> bool:
    """Whether one ran in compiled code of MindSpore, and the other operator by operator.

    Compiled code has attributes of the graph among its arguments, and shapes of memory where a view has another; of the other some are seen
    without all of their inputs.
    """
    return (a.op.graph_id == PYNATIVE) != (b.op.graph_id == PYNATIVE)


def may_leave_results(node: Node) -> bool:
    """Whether what the operator gives is a result of the step where no operator reads it.

    Operators behind the forward pass write their results into memory that lasts; those of JAX, one by one, give the program new arrays.
    """
    is_of_jax = node.op.kernel.startswith(("lax::", "jnp::")) and not node.op.graph_id
    return node.op.phase == "forward" or is_of_jax


def scope_of(op: OpRecord) -> str:
    """The scope that an operator ran in: its name without the last component."""
    return op.op_name.rpartition("/")[0]


# What speaks against operators: one suspect, and those of a step.

Kind = Literal[
    "data",  # an input of the program differs
    "parameter",  # a parameter or a state differs that no operator of the dump wrote
    "random",  # the same draw gave other numbers
    "argument",  # the same operator was given other arguments that are no tensors
    "operator",  # another operator, or other operators, compute it
    "missing",  # an operator of A has no counterpart in B
    "extra",  # an operator of B has no counterpart in A
    "input",  # it reads something else: another tensor, another part, an earlier value
    "memory",  # what it reads is not what was written there
    "kernel",  # the same operator gives other results for the same inputs, further off than rounding
    "precision",  # a cast to a narrower type that the rest of the run does not have
    "result",  # a result of the step differs, and nothing of the above was found: here the runs part
]


@dataclass(frozen=True, slots=True)
class Suspect:
    """One thing that speaks against an operator. `score` is the difference in units of rounding; infinite where the type is exact."""

    kind: Kind
    a: Node | None
    b: Node | None
    io: IO
    slot: int
    score: float
    evidence: str
    amount: str = ""
    """Of data that differ: how many elements of how many."""

    @property
    def place(self) -> tuple[int, int]:
        """What it is about."""
        if self.kind == "missing" and self.a is not None:
            return (self.a.index, -1)
        if self.kind in ("extra", "operator") and self.b is not None:
            return (-1, self.b.index)
        return (-1 if self.a is None else self.a.index, -1 if self.b is None else self.b.index)

    @property
    def name(self) -> Hashable:
        """The same for the same suspect of another step."""
        return (
            self.kind,
            self.io,
            self.slot,
            *(each and (each.op.op_name, each.op.occurrence) for each in (self.a, self.b)),
        )


@dataclass(slots=True)
class Sweep:
    """The suspects of a step, in B's order, and what was seen on the way."""

    suspects: list[Suspect] = field(default_factory=list)
    latent: list[Suspect] = field(default_factory=list)
    """Differences of the programs that made no difference where they stand."""
    permuted: list[Suspect] = field(default_factory=list)
    """Inputs of the program that hold the same elements in another order: they speak against nothing where the results are the same."""
    without_effect: list[str] = field(default_factory=list)
    """Operators of B with other arguments than in A that give the same for the same."""
    idle: list[str] = field(default_factory=list)
    """Data that differ, and that nothing depends on."""
    not_run: set[str] = field(default_factory=set)
    """Kernels that were to be run again and could not be; those that draw random numbers are none of them."""
    reached: dict[tuple[str, tuple[int, int]], set[int]] = field(default_factory=dict)
    """The operators of B in which a suspect of this kind and place was noticed: those that both programs have."""

    def add(self, suspect: Suspect, reached: Node | None = None) -> None:
        """Notes a suspect once, and every operator that it was noticed in."""
        key = suspect.kind, suspect.place
        if key not in self.reached:
            self.reached[key] = set()
            self.suspects.append(suspect)
        if reached is not None:
            self.reached[key].add(reached.index)
