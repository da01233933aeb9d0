"""Counts what was recorded and what was not, and explains why a capture recorded nothing.

recorder.circumstances.next_step = 4
explain_empty_capture(recorder.plan, recorder.circumstances, executed=0, skipped={})
Nothing("no selected step was reached: the program ended steps 0 to 3, and `iteration` asks for 5-8", is_gap=True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from opdump.plan import DumpPlan, StepSet
from opdump.plan.dialects import words_of
from opdump.plan.unmatched_names import ChoseNothing, with_nearest
from opdump.recorder.snapshots import TensorSnapshot
from opdump.records import WITHOUT_KERNEL, OpRecord, SkipReason
from opdump.step_table import VALUE, StepTemplate

# Counts the operators that ran, those that left data, and why the others did not.

GAPS: frozenset[SkipReason] = frozenset(
    {"no storage", "unsupported layout", "opaque", "device graph", "not observed", "not written"}
)
"""Reasons that leave a gap in a dump; `strict` makes them an error."""


class Tally:
    """Counts what was written, left out and lost. `steps` are the selected steps."""

    def __init__(self, steps: StepSet) -> None:
        self.executed = 0
        self.captured = 0
        self.tensors = 0
        self.skipped: Counter[str] = Counter()
        """Number of operators without data, by reason."""
        self.tensors_skipped: Counter[str] = Counter()
        self.steps: list[int] = []
        self._wanted = steps
        self._known_steps: set[int] = set()

    def filed(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        self.executed += sum(1 for op in ops if op.op_type != VALUE)
        for op in ops:
            if op.skip:
                self.skipped[op.skip] += 1
            elif op.op_type != VALUE:
                self.captured += 1
        left_out = [entry.skip for entry in entries if entry.skip]
        self.tensors_skipped.update(left_out)
        self.tensors += len(entries) - len(left_out)
        self.steps.extend(sorted(step for step in steps - self._known_steps if step in self._wanted))
        self._known_steps.update(steps)

    def filed_run(self, template: StepTemplate) -> None:
        """Count a run of a template, in a step that was passed to `filed`."""
        ran = template.op_types.total() - template.op_types[VALUE]
        self.executed += ran
        self.captured += ran
        self.tensors_skipped.update(template.left_out)
        self.tensors += len(template.tensor_places) - template.left_out.total()

    def left_out(self, reasons: Counter[SkipReason]) -> None:
        """Count operators that left no data and are not listed, by reason."""
        self.executed += reasons.total()
        self.skipped.update(reasons)

    def dropped(self, ops: Iterable[OpRecord]) -> None:
        """Count operators that were kept in memory and never written, because no trigger fired."""
        for op in ops:
            if op.op_type != VALUE:
                self.executed += 1
                self.skipped[op.skip or "not triggered"] += 1

    def lost(self, ops: Iterable[OpRecord], tensors: int) -> None:
        """Count operators, and a number of tensors, that were recorded and can no longer be written."""
        for op in ops:
            if op.op_type != VALUE:
                self.executed += 1
                self.skipped[op.skip or "not written"] += 1
        if tensors:
            self.tensors_skipped["not written"] += tensors

    @property
    def gaps(self) -> dict[str, int]:
        """Number of operators and tensors that should have left data and did not, by reason."""
        total = self.skipped + self.tensors_skipped
        return {reason: count for reason, count in total.items() if reason in GAPS}


# Explains why a capture recorded nothing: the first reason that applies, in the words of the configuration.
#
# Adapters fill in what only they know. Facts that are not filled in are not mentioned.


@dataclass(slots=True, kw_only=True)
class ProgramFacts:
    """What an adapter knows about the program besides its operators."""

    framework: str = ""
    """The usual name of the framework that the program uses."""
    unable: str = ""
    """Why no operator can be recorded with the installed packages."""
    is_framework_used: bool = True
    """Whether the program imported the framework."""
    others_used: tuple[str, ...] = ()
    """The usual names of other frameworks that it imported instead."""
    first_step: int = 0
    next_step: int | None = None
    """The step that was running when the program ended, that is, the first that did not end. None if steps are not counted."""
    counts_every_step: bool = False
    """Whether operators in steps that are not selected also count as executed."""
    executions: Mapping[str, int] | None = None
    """How often each model that the configuration names ran. None if the configuration does not select models."""
    elsewhere: int = 0
    """Number of network calls in threads that are not captured."""
    marks: bool = False
    chose_nothing: ChoseNothing = ""
    """The configuration lists operator names or ranges, and no operator that ran matches any of them."""
    models_seen: tuple[str, ...] = ()
    exited: bool = False
    """The program ended with `sys.exit`, as after `--help`."""
    in_children: int = 0
    """Number of processes that the program started and that are not captured."""
    bound_met: str = ""
    """The limit that was reached before anything was recorded, in words."""


class Nothing(NamedTuple):
    """Why nothing was captured. `is_gap` is False if the configuration requested it."""

    reason: str
    is_gap: bool


class _Case(NamedTuple):
    plan: DumpPlan
    around: ProgramFacts
    executed: int
    skipped: Mapping[str, int]


def explain_empty_capture(
    plan: DumpPlan, around: ProgramFacts, *, executed: int, skipped: Mapping[str, int]
) -> Nothing:
    """Return the first reason in the table that applies. Call it only if nothing was captured."""
    case = _Case(plan, around, executed, skipped)
    text, reason = next((text, reason) for reason in _REASONS if (text := reason(case)))
    wanted_so = reason in (_other_device, _no_trigger) or (reason is _another_mode and not plan.mode.watches)
    return Nothing(text, not wanted_so)


# Each function returns the words of its reason, or an empty string if the reason does not apply.


def _nothing_enabled(case: _Case) -> str:
    if not case.plan.enables_nothing:
        return ""
    words = words_of(case.plan.dialect)
    return f"the {words.file} is valid but enables nothing: it selects no model and no operator"


def _bound_met(case: _Case) -> str:
    return case.around.bound_met


def _no_trigger(case: _Case) -> str:
    if not case.skipped.get("not triggered"):
        return ""
    return f"no trigger fired ({', '.join(case.plan.triggers) or 'dump.trigger()'}), and steps are written only then (ring={case.plan.ring})"


def _unable(case: _Case) -> str:
    return case.around.unable


def _not_imported(case: _Case) -> str:
    if case.executed or case.around.is_framework_used:
        return ""
    others = " and ".join(case.around.others_used)
    return f"the program imported no {case.around.framework}" + (
        f"; it imported {others}, which `--framework` selects" if others else ""
    )


def _children(case: _Case) -> str:
    number = case.around.in_children
    if case.executed or not number:
        return ""
    return f"nothing ran in this process; it started {number} others, and they were not captured"


def _threads(case: _Case) -> str:
    number = case.around.elsewhere
    if case.executed or not number:
        return ""
    return (
        f"nothing ran in a thread that is captured: networks were called {number} times in threads that were running before the "
        "capture began. Begin it before they start"
    )


def _steps_not_reached(case: _Case) -> str:
    around, steps = case.around, case.plan.steps
    if around.next_step is None or steps.are_all:
        return ""
    # A model has executions; steps are those of what belongs to no model.
    if case.executed and not around.counts_every_step:
        return ""
    if around.counts_every_step and (around.executions or not case.plan.single_operators):
        return ""
    asked = f"`{words_of(case.plan.dialect).steps}` selects {steps}"
    if steps.reaches(around.first_step, around.next_step):
        return ""
    if around.next_step == around.first_step:
        if around.exited:
            return "the program exited before a step had ended"
        return (
            f"no selected step was reached: the program ended no step and remained in step {around.first_step}, but {asked}; "
            "opdump.capture's dump.step() ends one explicitly"
        )
    if around.next_step - 1 > around.first_step:
        ended = f"steps {around.first_step} to {around.next_step - 1}"
    else:
        ended = f"only step {around.first_step}"
    return f"no selected step was reached: the program ended {ended}, but {asked}"


def _single_operators_alone(case: _Case) -> str:
    """Nodes of a loaded model are not single operators."""
    around = case.around
    if case.executed or case.plan.models != () or not case.plan.single_operators or not around.models_seen:
        return ""
    seen = ", ".join(map(repr, around.models_seen[:5]))
    return f"`dump_op_switch` selects only single operators, and `dump_list` selects no model; the loaded models are {seen}"


def _nothing_ran(case: _Case) -> str:
    if case.executed or case.around.executions:
        return ""
    framework = f" of {case.around.framework}" if case.around.framework else ""
    where = "" if case.plan.steps.are_all or case.around.exited else " in a selected step"
    return f"no operator{framework} ran{where}"


def _another_mode(case: _Case) -> str:
    """In the other modes, operators may run without anything to record."""
    return case.plan.mode.nothing_found


def _no_marks(case: _Case) -> str:
    if case.plan.selection != "marked":
        return ""
    if not case.around.marks:
        return "dump_mode is 2 and nothing is marked; call opdump.set_dump(net) in the program"
    return "dump_mode is 2 and no operator ran in the targets that set_dump marked"


def _no_model(case: _Case) -> str:
    around, models = case.around, case.plan.models
    if around.executions is None or around.executions or not models or not around.models_seen:
        return ""
    if any(entry.model_name is None for entry in models):
        return ""
    return f"no model in dump_list ran; the models that ran are {', '.join(map(repr, around.models_seen[:5]))}"


def _no_names(case: _Case) -> str:
    found = case.around.chose_nothing
    if not found or not case.plan.mode.files_selected:
        return ""
    key = "kernels" if case.plan.selection == "kernels" else words_of(case.plan.dialect).operators
    said = f"matches a name in `{key}`" if found == "names" else f"lies in an `opname_range` of `{key}`"
    return f"no operator that ran {said}"


def _not_this_execution(case: _Case) -> str:
    executions, steps = case.around.executions, case.plan.steps
    if not executions or steps.are_all:
        return ""
    first = case.around.first_step
    if any(times and steps.reaches(first, first + times - 1) for times in executions.values()):
        return ""
    ran = ", ".join(
        f"{name!r} ran {'once' if times == 1 else f'{times} times'} ({first}{f' to {first + times - 1}' if times > 1 else ''})"
        for name, times in sorted(executions.items())
    )
    asked = f"`{words_of(case.plan.dialect).steps}` selects {steps}"
    return f"no selected execution of a model was reached: {ran}, but {asked}"


def _other_device(case: _Case) -> str:
    left = {reason for reason, count in case.skipped.items() if count} - WITHOUT_KERNEL
    return "support_device excludes this device" if left == {"device not selected"} else ""


def _no_kernels(case: _Case) -> str:
    left = {reason for reason, count in case.skipped.items() if count}
    if not left or not left <= WITHOUT_KERNEL:
        return ""
    return f"only operators that compute nothing ran ({', '.join(sorted(left))})"


def _left_out(case: _Case) -> str:
    if not case.skipped and not case.executed and case.around.executions:
        return "no run of a model reached its end"
    if not case.skipped:
        return "the selection excluded every operator that ran"
    by_count = sorted(case.skipped.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{count:,} {reason}" for reason, count in by_count)
    return f"all operators that ran were left out ({shown})"


# The order matters: a reason is given only if none before it applies.
_REASONS: Final[tuple[Callable[[_Case], str], ...]] = (
    _nothing_enabled,
    _bound_met,
    _no_trigger,
    _unable,
    _children,
    _not_imported,
    _steps_not_reached,
    _threads,
    _no_model,
    _not_this_execution,
    _no_names,
    _single_operators_alone,
    _nothing_ran,
    _another_mode,
    _no_marks,
    _other_device,
    _no_kernels,
    _left_out,
)


def unmatched_kernels(plan: DumpPlan, matched: Collection[str], seen: Mapping[str, str]) -> list[str]:
    """Return a message for each entry of `kernels` that is not in `matched`, with the nearest names in `seen` (operators and their types)."""
    if not seen:
        return []  # no operator ran: another reason covers that
    candidates: dict[str, None] = {}
    for op_name, op_type in seen.items():
        candidates[op_type] = None
        candidates[op_name] = None
        candidates[op_name.rpartition("/")[2].rpartition("-op")[0]] = None
    return [
        with_nearest(f"kernels: {text!r} matched no operator", text, candidates)
        for text in plan.unused_kernels(matched)
    ]
