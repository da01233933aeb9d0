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

from opdump.plan import DumpPlan
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
    chose_nothing: ChoseNothing = ""
    """The configuration names operators, and none that ran has any of the names, or lies in any of the ranges."""
    models_seen: tuple[str, ...] = ()
    exited: bool = False
    """The program ended by `sys.exit`, as one does that was asked for its help."""
    in_children: int = 0
    """Processes that the program started and nobody looks into."""
    bound_met: str = ""
    """What bound was met before anything was recorded, in words."""


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
    text, reason = next((text, reason) for reason in _REASONS if (text := reason(case)))
    wanted_so = reason in (_other_device, _no_trigger) or (reason is _another_mode and not plan.mode.watches)
    return Nothing(text, not wanted_so)


# Each gives the words of a reason, and none where it does not hold.


def _nothing_enabled(case: _Case) -> str:
    if not case.plan.enables_nothing:
        return ""
    words = words_of(case.plan.dialect)
    return f"the {words.file} is valid and enables nothing: it chooses no model and no operator"


def _bound_met(case: _Case) -> str:
    return case.around.bound_met


def _no_trigger(case: _Case) -> str:
    if not case.skipped.get("not triggered"):
        return ""
    return f"no trigger fired ({', '.join(case.plan.triggers) or 'dump.trigger()'}), and steps are filed only then (ring={case.plan.ring})"


def _unable(case: _Case) -> str:
    return case.around.unable


def _not_imported(case: _Case) -> str:
    if case.executed or case.around.is_framework_used:
        return ""
    return f"the program imported no {case.around.framework}"


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
    asked = f"`{words_of(case.plan.dialect).steps}` asks for {steps}"
    if steps.reaches(around.first_step, around.next_step):
        return ""
    if around.next_step == around.first_step:
        if around.exited:
            return "the program exited before a step had ended"
        return (
            f"no wanted step was reached: the program ended no step and was in step {around.first_step} to the end, and {asked}; "
            "opdump.capture's dump.step() ends one by hand"
        )
    if around.next_step - 1 > around.first_step:
        ended = f"the steps {around.first_step} to {around.next_step - 1}"
    else:
        ended = f"step {around.first_step} alone"
    return f"no wanted step was reached: the program ended {ended}, and {asked}"


def _single_operators_alone(case: _Case) -> str:
    """Nodes of a loaded model are none that a program starts one by one."""
    around = case.around
    if case.executed or case.plan.models != () or not case.plan.single_operators or not around.models_seen:
        return ""
    seen = ", ".join(map(repr, around.models_seen[:5]))
    return f"`dump_op_switch` dumps single operators, and `dump_list` chooses no model; those that were loaded are called {seen}"


def _nothing_ran(case: _Case) -> str:
    if case.executed or case.around.executions:
        return ""
    framework = f" of {case.around.framework}" if case.around.framework else ""
    where = "" if case.plan.steps.are_all or case.around.exited else " in a wanted step"
    return f"no operator{framework} ran{where}"


def _another_mode(case: _Case) -> str:
    """Where operators ran, the other modes may well find nothing to file."""
    return case.plan.mode.nothing_found


def _no_marks(case: _Case) -> str:
    if case.plan.selection != "marked":
        return ""
    if not case.around.marks:
        return "dump_mode is 2 and nothing is marked; call opdump.set_dump(net) in the program"
    return "dump_mode is 2 and no operator ran in what set_dump marked"


def _no_model(case: _Case) -> str:
    around, models = case.around, case.plan.models
    if around.executions is None or around.executions or not models or not around.models_seen:
        return ""
    if any(entry.model_name is None for entry in models):
        return ""
    return f"no model of dump_list ran; those that ran are called {', '.join(map(repr, around.models_seen[:5]))}"


def _no_names(case: _Case) -> str:
    found = case.around.chose_nothing
    if not found or not case.plan.mode.files_selected:
        return ""
    key = "kernels" if case.plan.selection == "kernels" else words_of(case.plan.dialect).operators
    said = f"has a name that `{key}` gives" if found == "names" else f"lies in an `opname_range` of `{key}`"
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
    asked = f"`{words_of(case.plan.dialect).steps}` asks for {steps}"
    return f"no wanted execution of a model was reached: {ran}, and {asked}"


def _other_device(case: _Case) -> str:
    left = {reason for reason, count in case.skipped.items() if count} - WITHOUT_KERNEL
    return "support_device leaves this device out" if left == {"device not selected"} else ""


def _no_kernels(case: _Case) -> str:
    left = {reason for reason, count in case.skipped.items() if count}
    if not left or not left <= WITHOUT_KERNEL:
        return ""
    return f"only operators ran that compute nothing ({', '.join(sorted(left))})"


def _left_out(case: _Case) -> str:
    if not case.skipped:
        return "no operator that ran was chosen"
    by_count = sorted(case.skipped.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{count:,} {reason}" for reason, count in by_count)
    return f"all operators that ran were left out ({shown})"


# In this order: a reason is told only where those before it do not hold.
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
