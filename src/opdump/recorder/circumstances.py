"""Why a capture captured nothing: the one reason that is true, in the words of the configuration.

    recorder.circumstances.last_step = 3
    why_nothing(recorder.plan, recorder.circumstances, executed=0, skipped={})
    Nothing("no wanted step was reached: the program ended step 3, and `iteration` asks for 5-8; ...", is_gap=True)

Adapters fill in what they alone know; what nobody filled in is not spoken of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from opdump.plan import DumpPlan, StepSet
from opdump.plan.dialects import words_of
from opdump.plan.list_matches import ChoseNothing
from opdump.plan.nearest import with_nearest
from opdump.records import WITHOUT_KERNEL


@dataclass(slots=True, kw_only=True)
class Circumstances:
    """What an adapter knows of the program beside its operators."""

    framework: str = ""
    """What the program is written for, as people call it."""
    unable: str = ""
    """Why no operator can be recorded with what is installed."""
    is_framework_used: bool = True
    """Whether the program imported it at all."""
    first_step: int = 0
    next_step: int | None = None
    """The step that the program was in when it ended: the first that did not end. None where steps are not counted."""
    counts_every_step: bool = False
    """Operators of steps that nobody asks for are counted as executed too."""
    executions: Mapping[str, int] | None = None
    """How often each model that the configuration names ran; None where models are no matter."""
    elsewhere: int = 0
    """Calls of networks in threads that nobody looks into."""
    marks: bool = False
    """Something is marked (`dump_mode` 2)."""
    chose_nothing: ChoseNothing = ""
    """The configuration names operators, and none that ran has any of the names, or lies in any of the ranges."""
    models_seen: tuple[str, ...] = ()
    """Names of the models that ran."""
    exited: bool = False
    """The program ended by `sys.exit`, as one does that was asked for its help."""
    in_children: int = 0
    """Processes that the program started and nobody looks into."""


class Nothing(NamedTuple):
    """Why nothing was captured. `is_gap`: not because the configuration wanted it so."""

    reason: str
    is_gap: bool


class _Case(NamedTuple):
    plan: DumpPlan
    around: Circumstances
    executed: int
    skipped: Mapping[str, int]


def why_nothing(plan: DumpPlan, around: Circumstances, *, executed: int, skipped: Mapping[str, int]) -> Nothing:
    """The first reason of the table that holds. To be asked where nothing was captured."""
    case = _Case(plan, around, executed, skipped)
    for reason in _REASONS:
        found = reason(case)
        if found is not None:
            return found
    raise AssertionError("the last reason always holds")


def _nothing_enabled(case: _Case) -> Nothing | None:
    if not case.plan.enables_nothing:
        return None
    words = words_of(case.plan.dialect)
    return Nothing(f"the {words.file} is valid and enables nothing: it chooses no model and no operator", True)


def _unable(case: _Case) -> Nothing | None:
    return Nothing(case.around.unable, True) if case.around.unable else None


def _not_imported(case: _Case) -> Nothing | None:
    if case.executed or case.around.is_framework_used:
        return None
    return Nothing(f"the program imported no {case.around.framework}", True)


def _children(case: _Case) -> Nothing | None:
    number = case.around.in_children
    if case.executed or not number:
        return None
    return Nothing(f"nothing ran in this process; it started {number} others, and they were not captured", True)


def _threads(case: _Case) -> Nothing | None:
    number = case.around.elsewhere
    if case.executed or not number:
        return None
    return Nothing(
        f"nothing ran in a thread that is captured: networks were called {number} times in threads that were running before the "
        "capture began. Begin it before they start",
        True,
    )


def _steps_not_reached(case: _Case) -> Nothing | None:
    around, steps = case.around, case.plan.steps
    if around.next_step is None or steps.ranges is None:
        return None
    # A model has executions; steps are those of what belongs to no model.
    if case.executed and not around.counts_every_step:
        return None
    if around.counts_every_step and (around.executions or not case.plan.single_operators):
        return None
    asked = f"`{words_of(case.plan.dialect).steps}` asks for {steps}"
    if _any_in(steps, around.first_step, around.next_step):
        return None
    if around.next_step == around.first_step:
        if around.exited:
            return Nothing("the program exited before a step had ended", True)
        return Nothing(
            f"no wanted step was reached: the program ended no step and was in step {around.first_step} to the end, and {asked}; "
            "opdump.capture's dump.step() ends one by hand",
            True,
        )
    return Nothing(
        f"no wanted step was reached: the program ended the steps {around.first_step} to {around.next_step - 1}, and {asked}"
        if around.next_step - 1 > around.first_step
        else f"no wanted step was reached: the program ended step {around.first_step} alone, and {asked}",
        True,
    )


def _single_operators_alone(case: _Case) -> Nothing | None:
    """Nodes of a loaded model are none that a program starts one by one."""
    around = case.around
    if case.executed or case.plan.models != () or not case.plan.single_operators or not around.models_seen:
        return None
    seen = ", ".join(map(repr, around.models_seen[:5]))
    return Nothing(
        f"`dump_op_switch` dumps single operators, and `dump_list` chooses no model; those that were loaded are called {seen}",
        True,
    )


def _nothing_ran(case: _Case) -> Nothing | None:
    if case.executed or case.around.executions:
        return None
    framework = f" of {case.around.framework}" if case.around.framework else ""
    where = "" if case.plan.steps.ranges is None or case.around.exited else " in a wanted step"
    return Nothing(f"no operator{framework} ran{where}", True)


def _another_mode(case: _Case) -> Nothing | None:
    """Where operators ran, the other modes may well find nothing to file."""
    mode = case.plan.mode
    return Nothing(mode.nothing_found, mode.watches) if mode.nothing_found else None


def _no_marks(case: _Case) -> Nothing | None:
    if case.plan.selection != "marked":
        return None
    if not case.around.marks:
        return Nothing("dump_mode is 2 and nothing is marked; call opdump.set_dump(net) in the program", True)
    return Nothing("dump_mode is 2 and no operator ran in what set_dump marked", True)


def _no_model(case: _Case) -> Nothing | None:
    executions, models = case.around.executions, case.plan.models
    if (
        executions is None
        or not models
        or not case.around.models_seen
        or any(entry.model_name is None for entry in models)
    ):
        return None
    if executions:
        return None
    seen = ", ".join(map(repr, case.around.models_seen[:5])) or "none"
    return Nothing(f"no model of dump_list ran; those that ran are called {seen}", True)


def _no_names(case: _Case) -> Nothing | None:
    found = case.around.chose_nothing
    if not found or not case.plan.mode.files_selected:
        return None
    key = "kernels" if case.plan.selection == "kernels" else words_of(case.plan.dialect).operators
    said = f"has a name that `{key}` gives" if found == "names" else f"lies in an `opname_range` of `{key}`"
    return Nothing(f"no operator that ran {said}", True)


def _not_this_execution(case: _Case) -> Nothing | None:
    executions, steps = case.around.executions, case.plan.steps
    if not executions or steps.ranges is None:
        return None
    first = case.around.first_step
    if any(times and _any_in(steps, first, first + times - 1) for times in executions.values()):
        return None
    ran = ", ".join(
        f"{name!r} ran {'once' if times == 1 else f'{times} times'} ({first}{f' to {first + times - 1}' if times > 1 else ''})"
        for name, times in sorted(executions.items())
    )
    return Nothing(
        f"no wanted execution of a model was reached: {ran}, and `{words_of(case.plan.dialect).steps}` asks for {steps}",
        True,
    )


def _other_device(case: _Case) -> Nothing | None:
    left = {reason for reason, count in case.skipped.items() if count} - WITHOUT_KERNEL
    if left != {"device not selected"}:
        return None
    return Nothing("support_device leaves this device out", False)


def _no_kernels(case: _Case) -> Nothing | None:
    left = {reason for reason, count in case.skipped.items() if count}
    if not left or not left <= WITHOUT_KERNEL:
        return None
    return Nothing(f"only operators ran that compute nothing ({', '.join(sorted(left))})", True)


def _left_out(case: _Case) -> Nothing | None:
    if not case.skipped:
        return Nothing("no operator that ran was chosen", True)
    by_count = sorted(case.skipped.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{count:,} {reason}" for reason, count in by_count)
    return Nothing(f"all operators that ran were left out ({shown})", True)


def _any_in(steps: StepSet, first: int, last: int) -> bool:
    """Whether one of these steps, the last among them, is wanted."""
    return steps.ranges is None or any(low <= last and high >= first for low, high in steps.ranges)


# In this order: a reason is told only where those before it do not hold.
_REASONS: Final[tuple[Callable[[_Case], Nothing | None], ...]] = (
    _nothing_enabled,
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
    """What `kernels` names and is not among `matched`, in words, with the nearest names of what was there: `seen`, operators and their types."""
    if not seen:
        return []  # nothing was there at all: that is another reason
    candidates: dict[str, None] = {}
    for op_name, op_type in seen.items():
        candidates[op_type] = None
        candidates[op_name] = None
        candidates[op_name.rpartition("/")[2].rpartition("-op")[0]] = None
    return [
        with_nearest(f"kernels: {text!r} matched no operator", text, candidates)
        for text in plan.unused_kernels(matched)
    ]
