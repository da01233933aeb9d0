"""The modes of a dump that code selects without a file: overflow, failures, watched memory.

A plan from keyword arguments gets the layout of devices, which has files for these modes, unless the caller selects another; the
plan of a file keeps its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opdump.errors import ConfigError
from opdump.plan import DATA, EXCEPTION, OVERFLOW, WATCH, DumpPlan, Mode, ModelSelection, OnError


def chosen_mode(*, overflow: bool, on_exception: bool, watch: bool) -> Mode:
    """The mode that these arguments of `opdump.capture` select. Raises ConfigError for more than one."""
    chosen: list[tuple[str, Mode]] = []
    if overflow:
        chosen.append(("overflow=True", OVERFLOW))
    if on_exception:
        chosen.append(("on_exception=True", EXCEPTION))
    if watch:
        chosen.append(("watch=...", WATCH))
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(name for name, _ in chosen)} were given; a capture has one mode, choose one")
    return chosen[0][1] if chosen else DATA


def plan_in_mode(plan: DumpPlan, mode: Mode, *, as_device: bool, nodes: Sequence[str] = ()) -> DumpPlan:
    """The plan in a mode; `as_device` changes to the layout of devices. `nodes` are the names of watched operators.

    Raises ConfigError for a file of another mode, and for watch mode in a layout without files for it.
    """
    if mode is DATA:
        return plan
    if plan.mode not in (DATA, mode):
        raise ConfigError(
            f"the configuration asks for the mode {plan.captures!r}, the arguments for {mode.name!r}; choose one"
        )
    if as_device:
        plan = replace(plan, layout="acl", layout_chosen=True, file_format="bin")
    if mode.watches:
        if not plan.layout_facts.watch:
            raise ConfigError(
                f'watch mode writes files of the layout "acl", not of {plan.layout!r}; choose that layout, or leave `layout` out'
            )
        models = (*(plan.models or ()), *((ModelSelection(watcher_nodes=tuple(nodes)),) if nodes else ()))
        return replace(plan, captures=mode.name, models=models, saved_data="tensor", inputs=False, outputs=True)
    return replace(plan, captures=mode.name, models=None, inputs=True, outputs=mode.detects_overflow)


def plan_on_error(plan: DumpPlan, on_error: OnError | None, *, strict: bool) -> DumpPlan:
    """The plan with the action for a dump that can no longer be written: the requested one, otherwise "stop" under `strict`."""
    chosen = on_error or ("stop" if strict else None)
    return plan if chosen is None else replace(plan, on_error=chosen)
