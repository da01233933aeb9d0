"""Runs a step of B on the values of A, and finds the operators that deviate from A.

Matched operators pass on the recorded outputs of A, and operators that only B has are computed in float64. If an input or an output then differs
from A's, the cause lies between this operator and the last matched ones, and `causes.py` finds it. Values that differ are replaced by A's, so that no
difference is reported twice and later operators are judged independently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from opdump.adapters.replay import Replayed
from opdump.comparison.accuracy import CONSTANTS, OF_ARGUMENTS, UNPROVEN
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing, narrowed_results, planted_casts, scalars_read, told_of
from opdump.comparison.causes import OF_THE_RUN, Causes, causes_first, ranked
from opdump.comparison.differences import (
    WHOLLY,
    Array,
    Difference,
    coarsest,
    difference,
    epsilon_of,
    in_roundings,
    is_permutation,
    unshaped_difference,
)
from opdump.comparison.end_state import remaining
from opdump.comparison.execution import (
    Constants,
    Execution,
    draws,
    input_of,
    outputs_of_both,
    program_outputs,
    recorded,
    recorded_input,
    recorded_inputs,
    recorded_output,
    recorded_values,
    replay,
    run_reference,
    same_inputs,
)
from opdump.comparison.float64_run import Float64Check, Following
from opdump.comparison.integrity import (
    OTHER_NUMBERS,
    Integrity,
    changed,
    check_integrity,
    data_suspect,
    data_suspects,
    drawn_otherwise,
    maker_of,
    shown_data,
    shows,
    were_left_alike,
)
from opdump.comparison.kernel_accuracy import erring_kernel
from opdump.comparison.memory import StateMapping
from opdump.comparison.nodes import Findings, Node, Place, Suspect, are_of_two_modes, without
from opdump.comparison.substitution import Attribution, attribute
from opdump.comparison.trace import Trace, lasting, leaf_name
from opdump.graph import PARAMETER_PREFIX
from opdump.records import TensorRecord

_TIMES_NOISE: Final = 100.0
_SHARE_OF_NOISE: Final = 0.05

_OF_FLOAT64: Final = 2.0**-40
"""Arguments that move an output by less only change the order in which terms are added in float64."""
_OF_THE_PROGRAM: Final = frozenset({"argument", "operator", "missing", "extra", "input"})
"""Kinds of differences between the programs, as opposed to differences between the runs."""


@dataclass(frozen=True, slots=True)
class _Given:
    """The known inputs of two matched operators, by slot: A's, and B's on A's values."""

    ours: Mapping[int, Array]
    theirs: Mapping[int, Array]
    odd: Mapping[int, Difference]
    """The inputs that differ."""


class ReferenceReplay:
    """The comparison of one step of both programs."""

    whole_a: Integrity
    whole_b: Integrity
    float64_check: Float64Check

    def __init__(
        self,
        a: Trace,
        b: Trace,
        alignment: Alignment,
        before: ReferenceReplay | None = None,
        following: Following = lambda: None,
    ) -> None:
        self.a, self.b, self.alignment = a, b, alignment
        self.whole_a = check_integrity(a, None if before is None else before.whole_a)
        self.whole_b = check_integrity(b, None if before is None else before.whole_b)
        self.float64_check = Float64Check() if before is None else before.float64_check
        self.float64_check.then(a, b, alignment, following)
        self._b_of_before = {} if before is None else before.alignment.b_of
        self._is_last = following() is None
        self.reference = run_reference(a, alignment.b_of, lasting(a, is_last=self._is_last))
        self.run = Execution(b)
        self.found = Findings()
        self.scalars = scalars_read(a.nodes), scalars_read(b.nodes)
        self.causes = Causes(self.reference, self.run, alignment)
        self._settled: set[Hashable] = set() if before is None else before._settled
        """Suspects of this or an earlier step that have no effect on the end state, or none beyond the effect of the causes."""
        self._attribution = Attribution()
        """The causes of a different end state, as far as known."""
        self._told: set[Hashable] = set()
        """Parameters and data that differ and were reported at their first read, by name or storage."""
        self._recorded_only: set[int] = set()
        """Operators of B that could not be run again, so that their recorded outputs are used."""
        self._alike: list[tuple[Node, Node]] = []
        """Matched operators with the same inputs and arguments."""
        self._names_in_a: dict[str, str] = {"": ""}
        self._a_of_storage = {there: here for here, there in alignment.storages.items()}

    def sweep(self) -> list[Suspect]:
        """Go through the operators of B. Return the suspects, the most likely first."""
        for node, values in self.run.nodes(self._leaf, lasting(self.b, is_last=self._is_last)):
            one = self._partner(node)
            if one is None or node.moves:
                self._alone(node, one, values)
            else:
                self._matched(one, node, values)
        self._finals()
        for trace, matched, is_b in ((self.a, self.alignment.b_of, False), (self.b, self.alignment.a_of, True)):
            for suspect in planted_casts(trace, matched, is_b=is_b):
                self.found.add(suspect)
        for suspect in narrowed_results(self.a, self.b, self.alignment):
            self.found.add(suspect)
        self.found.latent += self._unread_parameters()
        self._confirm()
        kernel = erring_kernel(self.a, self.b, self.alignment, self._alike, self.found.suspects)
        if kernel is not None:
            self.found.add(kernel)
        found, causes, leading = (
            ranked(suspects, self.found.latent, self.a, self.b)
            for suspects in (self.found.suspects, self._attribution.causes, self._attribution.leading)
        )
        return causes_first(found, causes, leading, self._settled)

    @cached_property
    def _constants(self) -> Constants:
        """The constants of A."""
        return Constants(self.reference)

    @cached_property
    def _outliving(self) -> tuple[set[int], set[int]]:
        """The storages of either program that outlive the step."""
        return self.float64_check.outliving()

    def _confirm(self) -> None:
        """Drop differences of the programs that do not change the end state."""
        accused = [suspect for suspect in self.found.suspects if suspect.kind in _OF_THE_PROGRAM]
        if not accused:
            return
        if self.float64_check.comes_to_the_same():
            self._drop(accused)
            return
        reached = self.found.reached_by(accused)
        unreached = without(accused, [suspect for suspect, _ in reached])
        found = attribute(self.a, self.b, self.alignment, reached, unreached, self._outliving)
        self._drop(found.refuted)
        self._settled.update(suspect.name for suspect in found.doubtful)
        self._attribution = found
        read = {suspect.b.index for suspect in self.found.suspects if suspect.b and suspect.kind in OF_THE_RUN}
        for suspect in (*self._changed_data(), *found.causes):
            # An operator that reads a different parameter has a different output for that reason.
            if suspect.kind in OF_THE_RUN or suspect.b is None or suspect.b.index not in read:
                self.found.add(suspect)

    def _changed_data(self) -> Iterator[Suspect]:
        read_a, read_b = (
            run.leaf_reads - whole.found_again
            for run, whole in ((self.reference, self.whole_a), (self.run, self.whole_b))
        )
        return data_suspects(self.a, self.b, read_a, read_b)

    def _drop(self, refuted: Sequence[Suspect]) -> None:
        self._settled.update(suspect.name for suspect in refuted)
        self.found.suspects = without(self.found.suspects, refuted)

    def release(self) -> None:
        """Drop the values, except those that the next step needs."""
        del self.reference, self.run, self.causes

    def _partner(self, node: Node) -> Node | None:
        """The counterpart in A of an operator of B."""
        index = self.alignment.a_of.get(node.index)
        return None if index is None else self.a.nodes[index]

    def _leaf(self, node: Node, slot: int) -> Array | None:
        """The value of an input of B that no operator of B made: that of A, or B's own value if A's is unknown."""
        one, record = self._partner(node), node.inputs[slot]
        if one is None or node.moves or self._is_another_parameter(one.inputs.get(slot), record):
            known = self._leaf_of_name(record)
            if known is not None:
                return known
        own = recorded(record)
        if one is not None and not node.moves and own is not None:
            place, expected = (one.index, slot), input_of(self.reference, one, slot)
            is_leaf = place in self.reference.leaf_reads or place in self.reference.unwritten
            if is_leaf and expected is not None and own.shape == expected.shape:
                return expected
        is_made = node.makers.get(slot) is not None
        found = None if is_made or self._state_mapping is None else self._state_mapping.of(node, slot)
        return own if found is None else found

    def _leaf_of_name(self, record: TensorRecord) -> Array | None:
        """The value that a tensor with this name had in A when it was first read."""
        known = self.reference.leaves.get(self._name_in_a(leaf_name(record)))
        return None if known is None else known.seen_as(record)

    def _name_in_a(self, name: str) -> str:
        """The name in A of a tensor of B: the same, or the only one with fewer or more parts before it, because a function gets a parameter with others
        or on its own (`Parameter.state.parameters.bias` and `Parameter.parameters.bias`). Empty if A has none.
        """
        if name not in self._names_in_a:
            leaves = self.reference.leaves
            found = [name] if name in leaves else [each for each in leaves if _is_of_one_path(each, name)]
            self._names_in_a[name] = found[0] if len(found) == 1 else ""
        return self._names_in_a[name]

    def _alone(self, node: Node, one: Node | None, values: dict[int, Array]) -> None:
        """Run an operator that only B has, or a matched one that only moves values; then `one` is its counterpart in A."""
        self.run.inputs[node.index] = values
        if one is None:
            self._memory_of_b(node)
        else:
            for slot, record in node.inputs.items():
                known, own = (None, None) if record.skip else (self._leaf_of_name(record), recorded(record))
                if known is not None and own is not None and (one.index, slot) in self.reference.leaf_reads:
                    self._compare_leaf(one, node, slot, known, own)
            self._memory(one, node)
        done = replay(node, values)
        if done is None:
            self._recorded_only.add(node.index)
            self._not_run(node)
            outputs = recorded_values(node.outputs)
        else:
            outputs = dict(done.outputs)
        self.run.outputs[node.index] = outputs
        self.run.write(node, outputs)

    @cached_property
    def _state_mapping(self) -> StateMapping | None:
        """The values with which B would begin the step if an earlier step of A had left them."""
        return self.float64_check.state_mapping()

    def _matched(self, one: Node, other: Node, values: Mapping[int, Array]) -> None:
        given = self._given(one, other, values)
        self._memory(one, other)
        arguments = differing(one, other, *self.scalars)
        slots_differ = one.inputs.keys() != other.inputs.keys() and not are_of_two_modes(one, other)
        if slots_differ or (one.op.kernel != other.op.kernel and not given.odd):
            only_one = one.inputs.keys() ^ other.inputs.keys()
            odd = given.odd or dict.fromkeys(only_one, WHOLLY)
            given = replace(given, odd=odd)
        if given.odd or arguments:
            self._judge(one, other, given, arguments)
        elif draws(other):
            self._draw(one, other)
        else:
            self._alike.append((one, other))
        self.run.write(other, program_outputs(one))

    def _given(self, one: Node, other: Node, theirs: Mapping[int, Array]) -> _Given:
        """Compare the inputs of B's operator, computed from A's values, with the inputs of A's operator."""
        odd: dict[int, Difference] = {}
        ours: dict[int, Array] = {}
        for slot, record in other.inputs.items():
            expected = None if record.skip else input_of(self.reference, one, slot)
            if expected is None:
                continue
            ours[slot] = expected
            self._compare_unmade(one, other, slot, expected)
            if slot not in theirs:
                continue
            found = unshaped_difference(expected, theirs[slot])
            if self._counts(found, record, one.inputs.get(slot)):
                odd[slot] = found
            elif not found:
                self._other_name(one, other, slot)
        return _Given(ours, theirs, odd)

    def _compare_unmade(self, one: Node, other: Node, slot: int, expected: Array) -> None:
        """Compare the recorded elements of an input, as far as no operator made them in either run."""
        here, there = (one.index, slot), (other.index, slot)
        unmade: Any = self.reference.unwritten.get(here)
        if here in self.reference.leaf_reads and there in self.run.leaf_reads:
            unmade = True
        elif unmade is None or not np.array_equal(unmade, self.run.unwritten.get(there, ())):
            return
        own = recorded_input(other, slot)
        if own is not None and own.shape == expected.shape:
            self._compare_leaf(one, other, slot, expected, np.where(unmade, own, expected))

    def _compare_leaf(self, one: Node, other: Node, slot: int, expected: Array, own: Array) -> None:
        """Report an input that no operator made and that differs between the runs."""
        record = other.inputs[slot]
        if other.bare_type == "_local_scalar_dense":
            return  # a number that the program reads, to print it or to compute with it in Python
        if other.overwrites(slot) or self._is_explained((one.index, slot), (other.index, slot)):
            return
        if self._is_another_parameter(one.inputs[slot], record):
            return  # the operator reads another input, which is judged with the others
        found = difference(expected, own)
        if not self._counts(found, record, one.inputs[slot]):
            return
        tensor = leaf_name(record) or (record.memory and record.memory.storage)
        if tensor and tensor in self._told:
            return  # reported at its first read
        suspect = data_suspect(one, other, slot, (expected, own), found)
        if is_permutation(expected, own):
            self.found.permuted.append(
                replace(suspect, evidence=f"{suspect.evidence}; it has the same elements in a different order")
            )
            return
        if suspect.kind == "data" and not shows(self.a, self.b, self.alignment, other):
            self.found.idle.append(shown_data(record))
            return
        self.found.add(suspect)
        if self.found.suspects[-1] is suspect:
            self._told.add(tensor)

    def _is_explained(self, here: Place, there: Place) -> bool:
        """Whether a difference of two inputs comes from the previous step, or is one that `_memory` reports."""
        return (
            (here in self.whole_a.inherited and there in self.whole_b.inherited)
            or were_left_alike(self.whole_a, here, self.whole_b, there, self._b_of_before)
            or here in self.whole_a.violations
            or there in self.whole_b.violations
        )

    def _memory(self, one: Node, other: Node) -> None:
        """Report inputs that do not contain what was written to their memory: in only one of the runs, or in both with different values."""
        for slot, record in other.inputs.items():
            here = self.whole_a.violations.get((one.index, slot))
            there = self.whole_b.violations.get((other.index, slot))
            violation = there or here
            if violation is None or slot not in one.inputs or other.overwrites(slot):
                continue
            first, second = recorded(one.inputs[slot]), recorded(record)
            if first is None or second is None:
                continue
            found = difference(first, second)
            if here is not None and there is not None:
                if self._counts(found, record, one.inputs[slot]):
                    maker = maker_of(there, record, self.b)
                    self.found.add(data_suspect(one, other, slot, (first, second), found, maker))
                continue
            if not found:
                continue
            what = changed(violation, record, self.b) if there else f"{changed(violation, record, self.a)} (in A)"
            self.found.add(
                Suspect(
                    "memory", one, other, "input", slot, in_roundings(found.relative, epsilon_of(record.dtype)), what
                )
            )

    def _memory_of_b(self, node: Node) -> None:
        """The same for an operator that only B has, if A has no similar violation anywhere."""
        for slot, record in node.inputs.items():
            found = self.whole_b.violations.get((node.index, slot))
            if found is None or any(found.is_like(other) for other in self.whole_a.violations.values()):
                continue
            self.found.add(Suspect("memory", None, node, "input", slot, math.inf, changed(found, record, self.b)))

    def _counts(self, found: Difference, record: TensorRecord, other: TensorRecord | None, noise: float = 0.0) -> bool:
        tolerance = CONSTANTS.of(coarsest((record, other)))
        return bool(found) and found.relative > tolerance and found.absolute > _SHARE_OF_NOISE * noise

    def _judge(self, one: Node, other: Node, given: _Given, arguments: Mapping[str, tuple[Any, Any]]) -> None:
        """Judge an operator of B with other inputs or arguments than A's: whether that matters, and why."""
        reference, actual, odd = replay(one, given.ours), replay(other, given.theirs), given.odd
        found: Difference | None = None
        if reference is None or actual is None:
            self._not_run(one if reference is None else other)
            found = self._recorded_difference(one, other) if arguments else None
        elif arguments and not odd:
            self._other_arguments(one, other, arguments, reference, _on_inputs_of_a(other, given) or actual)
            return
        elif not self._differ(one, other, reference.outputs, actual.outputs):
            return
        elif arguments:
            found = self._effect_on_inputs_of_a(one, other, given, reference.outputs)
        if found is not None:
            self._argument(one, other, found, arguments)
        elif odd:
            slot = max(odd, key=lambda each: odd[each].relative)
            suspect = self.causes.of_input(one, other, slot, odd[slot])
            if not self._may_be_rounding(suspect, one, other, slot, odd[slot]):
                self.found.add(suspect, other)

    def _other_arguments(
        self,
        one: Node,
        other: Node,
        arguments: Mapping[str, tuple[Any, Any]],
        reference: Replayed,
        actual: Replayed,
    ) -> None:
        """Judge the effect of other arguments on the same inputs. The programs certainly differ, so the smallest effect counts."""
        found = self._effect(one, reference.outputs, actual.outputs)
        if found is None and same_inputs(one, other):
            found = self._recorded_difference(one, other)
        far = (each for _, each in _differences(reference.outputs, actual.outputs) if each.relative > _OF_FLOAT64)
        self._argument(one, other, found, arguments, is_latent=any(far))

    def _may_be_rounding(self, suspect: Suspect, one: Node, other: Node, slot: int, found: Difference) -> bool:
        """Whether rounding may explain a difference after an operator of B that could not be run again, so that its recorded values are used."""
        accused = suspect.b
        if accused is None or accused.index not in self._recorded_only:
            return False
        if found.relative <= UNPROVEN.of(coarsest((other.inputs[slot], one.inputs.get(slot)))):
            return True
        made = sorted(self.reference.writers.get((one.index, slot), frozenset()) - {-1})
        if not made:
            return False
        noise = [
            difference(done.outputs[place], given).absolute
            for index in made
            if (done := replay(self.a.nodes[index], recorded_inputs(self.a.nodes[index]))) is not None
            for place, record in self.a.nodes[index].outputs.items()
            if place in done.outputs and (given := recorded(record)) is not None
        ]
        return bool(noise) and found.absolute <= _TIMES_NOISE * max(noise)

    def _not_run(self, node: Node) -> None:
        if not draws(node):
            self.found.not_run.add(node.kernel)

    def _recorded_difference(self, one: Node, other: Node) -> Difference | None:
        """The difference of the recorded outputs, for operators that cannot be run again; None if it may be rounding."""
        if draws(other):
            return WHOLLY
        for slot, first, second in outputs_of_both(one, other):
            found = difference(first, second)
            # If the inputs have the same bits, the smallest difference is the operator's.
            least = 0.0 if same_inputs(one, other) else UNPROVEN.of(epsilon_of(other.outputs[slot].dtype))
            return found if found.relative > least else None
        return None

    def _effect(self, one: Node, reference: Mapping[int, Array], actual: Mapping[int, Array]) -> Difference | None:
        """The difference of the outputs, if it exceeds a small part of the element type's rounding."""
        for slot, found in _differences(reference, actual):
            if found.relative > OF_ARGUMENTS.of(epsilon_of(one.outputs[slot].dtype)):
                return found
        return None

    def _effect_on_inputs_of_a(
        self, one: Node, other: Node, given: _Given, reference: Mapping[int, Array]
    ) -> Difference | None:
        """The effect of B's arguments on the inputs of A; None if those of B have different shapes."""
        slots = given.ours.keys() & given.theirs.keys()
        if any(given.ours[slot].shape != given.theirs[slot].shape for slot in slots):
            return None
        alike = replay(other, given.ours)
        return None if alike is None else self._effect(one, reference, alike.outputs)

    def _differ(self, one: Node, other: Node, reference: Mapping[int, Array], actual: Mapping[int, Array]) -> bool:
        """Whether any output differs by more than rounding, of constants and of the kernel of A."""
        for slot, found in _differences(reference, actual):
            own = None if one.is_rewritten else recorded_output(one, slot)
            is_alike = own is not None and own.shape == reference[slot].shape
            noise = difference(reference[slot], own).absolute if own is not None and is_alike else 0.0
            if self._counts(found, one.outputs[slot], other.outputs.get(slot), noise if math.isfinite(noise) else 0.0):
                return True
        return False

    def _other_name(self, one: Node, other: Node, slot: int) -> None:
        """Note an input that is a different parameter than in A and happens to have the same values."""
        record, after = one.inputs[slot], other.inputs[slot]
        made_a, made_b = one.makers.get(slot), other.makers.get(slot)
        if made_a and made_b:
            is_other = self._is_of_another_constant(made_a[0], made_b[0])
            names = (self.a.nodes[made_a[0]].op.op_name, self.b.nodes[made_b[0]].op.op_name)
        else:
            is_other = not (made_a or made_b) and self._is_another_tensor(record, after)
            names = leaf_name(record) or "one", leaf_name(after) or "a different tensor"
        if is_other:
            what = f"reads {names[1]}; in A it reads {names[0]} with the same values"
            self.found.latent.append(Suspect("input", one, other, "input", slot, math.inf, what))

    def _is_of_another_constant(self, made_a: int, made_b: int) -> bool:
        """Whether an input is another constant than in A, and fewer operators read the one of A: a program that creates its parameters in the step
        begins with equal ones, and then uses the wrong one.
        """
        usual, kinds = self.alignment.b_of.get(made_a), self.alignment.kinds
        if usual == made_b or {kinds.get(made_a), kinds.get(self.alignment.a_of.get(made_b, -1))} != {"name"}:
            return False
        assert usual is not None, "it has a counterpart"
        return made_a in self._constants and len(self.b.readers(usual)) < len(self.a.readers(made_a))

    def _unread_parameters(self) -> Iterator[Suspect]:
        """Operators of A without a counterpart that read a parameter, if the forward pass of B reads all other parameters of A, and no others: if the
        parameter is zero, only its gradient shows that the operator is missing.
        """
        in_b = {self._name_in_a(name) for _, _, name in _parameters_read(self.b)}
        in_a = list(_parameters_read(self.a))
        if "" in in_b or any(name not in in_b for node, _, name in in_a if node.index in self.alignment.b_of):
            return
        for node, slot, name in in_a:
            if name not in in_b:
                what = f"{node.op.op_name} of A has no counterpart in B, whose forward pass does not read {name}"
                yield Suspect("missing", node, None, "input", slot, math.inf, what)

    def _is_another_tensor(self, record: TensorRecord, after: TensorRecord) -> bool:
        """Whether two inputs that no operator made are different tensors: in other storages, or else parameters of A with different names."""
        if record.memory is not None and after.memory is not None:
            return self._a_of_storage.get(after.memory.storage, record.memory.storage) != record.memory.storage
        return self._is_another_parameter(record, after)

    def _is_another_parameter(self, record: TensorRecord | None, after: TensorRecord) -> bool:
        """Whether two inputs whose memory is not known are parameters of A with different names."""
        name = leaf_name(after)
        if record is None or record.memory is not None or name == leaf_name(record):
            return False
        # The names of constants are numbers, which mean nothing in another program.
        return name.startswith(PARAMETER_PREFIX) and self._name_in_a(name) not in ("", leaf_name(record))

    def _argument(
        self,
        one: Node,
        other: Node,
        found: Difference | None,
        arguments: Mapping[str, tuple[Any, Any]],
        *,
        is_latent: bool = True,
    ) -> None:
        record = next(iter(other.outputs.values()))
        changes = told_of(arguments)
        if found is None:
            self.found.without_effect.append(f"{other.op.op_name}: {changes}")
            if is_latent:
                self.found.latent.append(Suspect("argument", one, other, "output", record.slot, 0.0, changes))
        else:
            suspect = Suspect(
                "argument",
                one,
                other,
                "output",
                record.slot,
                in_roundings(found.relative, epsilon_of(record.dtype)),
                changes,
            )
            self.found.add(suspect, other)

    def _draw(self, one: Node, other: Node) -> None:
        """Report random numbers that differ: the same generator in the same state produces the same numbers."""
        # Outputs that also depend on floats (attention with dropout) differ by rounding; a different draw differs by much more.
        reads_floats = any(each.dtype.startswith(("float", "bfloat")) for each in other.inputs.values())
        for suspect in drawn_otherwise(self.b, one, other, OTHER_NUMBERS if reads_floats else 0.0):
            if any((other.index, suspect.slot) in later.makers.values() for later in self.b.nodes[other.index + 1 :]):
                self.found.add(suspect)

    def _finals(self) -> None:
        """Report tensors that differ at the end of the step and outlive it."""
        for left in remaining(self.reference, self.run, self.alignment):
            before, record = left.records
            if self._counts(left.difference, record, before) and left.outlives(*self._outliving):
                self.found.add(self.causes.of_final(left.a, left.b, left.writers_a, left.writers_b, left.difference))


def _parameters_read(trace: Trace) -> Iterator[tuple[Node, int, str]]:
    """The operators before the backward pass that read parameters by their names, the slots and the names."""
    for node in itertools.takewhile(lambda node: node.op.phase != "backward", trace.nodes):
        for slot, record in node.inputs.items():
            if leaf_name(record).startswith(PARAMETER_PREFIX):
                yield node, slot, leaf_name(record)


def _is_of_one_path(one: str, other: str) -> bool:
    """Whether the parts of a parameter's name, of which there are several, end those of another."""
    long, short = sorted(
        (one.removeprefix(PARAMETER_PREFIX), other.removeprefix(PARAMETER_PREFIX)), key=len, reverse=True
    )
    return "." in short and long.endswith(f".{short}")


def _on_inputs_of_a(other: Node, given: _Given) -> Replayed | None:
    """What B's operator computes from A's inputs in B's shapes, if the elements are in the same order; None if the inputs have other sizes."""
    inputs = {
        slot: value if slot not in given.theirs else value.reshape(given.theirs[slot].shape)
        for slot, value in given.ours.items()
        if slot not in given.theirs or value.size == given.theirs[slot].size
    }
    return replay(other, inputs) if len(inputs) == len(given.ours) else None


def _differences(one: Mapping[int, Array], other: Mapping[int, Array]) -> Iterator[tuple[int, Difference]]:
    """The differences of the outputs of two operators, by slot."""
    return ((slot, unshaped_difference(value, other[slot])) for slot, value in one.items() if slot in other)
