"""Captures from Python: `with opdump.capture("data_dump.json") as dump:`, or `start` and `stop` without a block."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from opdump.adapters.base import Settings, Steps, SupportsGroups, SupportsMarks, SupportsOwnLayout, SupportsWatch
from opdump.capturing.dump import Dump
from opdump.capturing.processes import STATE, adapter_of, chosen_framework, first_process
from opdump.capturing.rank_assignment import rank_under
from opdump.capturing.report import CaptureReport
from opdump.configs.dialects import plan_of_capture
from opdump.configs.plan_fields import CaptureKeywords, PlanKeywords, chosen_mode, show_keywords
from opdump.errors import CaptureStateError, ConfigError
from opdump.interpreter.imports import stand_down
from opdump.plan import DumpPlan, OnError, StepSet
from opdump.plan.field_types import check_values, is_a, shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("opdump")
_WATCHABLE: Final = "expected tensors, a mapping from names to tensors, or names of operators and modules"


@contextmanager
def capture(
    config: str | os.PathLike[str] | DumpPlan | None = None,
    *,
    eager: bool = False,
    stop_after_dump: bool = False,
    strict: bool = False,
    steps: Steps = "auto",
    overflow: bool = False,
    on_exception: bool = False,
    watch: Any = None,
    framework: str = "auto",
    device_id: int | None = None,
    on_error: OnError | None = None,
    children: bool = True,
    **settings: Unpack[PlanKeywords],
) -> Iterator[Dump]:
    """Record what every operator reads and writes during the block.

    `config` is the path of a data_dump.json or an acl.json, a `DumpPlan`, or None. Without a config, the keyword arguments are the plan (`path=...`,
    `saved_data="full"`, `iteration="0|5-8"`, `kernels=["conv"]`: every key of the config and every field of `DumpPlan`). If there are none, the
    environment decides: MINDSPORE_DUMP_CONFIG names a file, and ASCEND_DUMP_SCENE selects failures only. With a config, keyword arguments override
    its values.

    eager            capture inside functions compiled with `torch.compile`, by running them eagerly
    stop_after_dump  raise `DumpComplete` once the last selected step is on disk
    strict           raise an error for unknown keys, and for operators that left no data for another reason than the plan
    steps            what ends an iteration: "auto", or "manual" for only `dump.step()` (`iteration` selects the iterations to record)
    overflow         record only the operators that overflow, and how
    on_exception     record the inputs of an operator that raises; without a path, into ASCEND_WORK_PATH or the current directory
    watch            record these tensors, and the outputs of operators with these names, after each operator
    device_id        the number of the device in directories and records. The default is RANK, which torchrun sets, or, for a configuration
                     of TensorFlow, ASCEND_DEVICE_ID and DEVICE_ID
    on_error         what to do if the dump can no longer be written (a full disk, a removed directory): "continue" (the default) goes on
                     without it, logs the cause at once, and reports it as `failure`; "stop" (the default with `strict`) raises it in the block
    children         False: count and report the processes that the program starts, but do not capture them
    framework        "torch", "tensorflow", "jax", "mindspore", "onnxruntime", or the name of an installed extension (`opdump extensions`);
                     "auto": the one that the program has imported, else torch. Sessions of ONNX Runtime are also recorded beside each of the others

    Raises ConfigError before anything runs, DumpPathError if the directory cannot be written, and CaptureStateError if a capture is already running.
    """
    _check_arguments(locals())
    _stand_alone()
    chosen = chosen_framework(framework, sys.modules)
    nodes, tensors = _watched_of(watch, STATE.numbers)
    mode = chosen_mode(overflow=overflow, on_exception=on_exception, watch=bool(nodes or tensors))
    plan = plan_of_capture(config, settings, mode=mode, nodes=nodes, on_error=on_error, strict=strict)
    options = Settings(
        rank_id=rank_under(plan, os.environ) if device_id is None else device_id,
        eager=eager,
        stop_after_dump=stop_after_dump,
        steps=steps,
        marks=STATE.marks,
        model_names=STATE.model_names,
        watch=tensors,
    )
    adapter = adapter_of(chosen)
    if isinstance(adapter, SupportsOwnLayout) and not plan.layout_chosen:
        plan = replace(plan, layout=adapter.own_layout, layout_chosen=True)
    # A rank from a launcher or from the program is final; a single process may still join a group.
    known = device_id is not None or bool(os.environ.get("RANK")) or not isinstance(adapter, SupportsGroups)
    ended: SystemExit | None = None
    with first_process(chosen, adapter, plan, options, known=known, children=children) as dump:
        try:
            yield dump
        except SystemExit as error:
            if STATE.parts is not None:
                STATE.parts.recording.recorder.circumstances.exited = True
            if error.code:
                raise
            ended = error  # `sys.exit()` at the end of a program is not a failure
    if strict and dump.report is not None and not dump.awaits_children:
        dump.report.raise_for_gaps()
    if ended is not None:
        raise ended


# The keywords of a plan are checked when the plan is made.
_ARGUMENTS: Final = {
    name: hint
    for name, hint in get_type_hints(capture, localns={"Unpack": type}).items()
    if name not in ("settings", "return")
}
show_keywords(capture, PlanKeywords)


def _check_arguments(arguments: dict[str, Any]) -> None:
    steps = arguments["steps"]
    if not is_a(steps, Steps):
        meant = str(steps) if is_a(steps, str | int | StepSet) else "0|5-8"
        raise ConfigError(
            f'steps is {shown(steps)}, expected "auto" or "manual": it sets what ends an iteration; to select the iterations to dump, use '
            f"iteration={meant!r}"
        )
    check_values("capture", arguments, _ARGUMENTS)


def _stand_alone() -> None:
    """End the capture that opdump began for the program, which now begins its own. Raises CaptureStateError if the program has begun one already."""
    if STATE.end_child is not None:
        STATE.end_child()
    if STATE.running is not None:
        raise CaptureStateError("a capture is already running in this process; end it (opdump.stop()) before the next")
    stand_down()


def start(config: str | os.PathLike[str] | DumpPlan | None = None, **settings: Unpack[CaptureKeywords]) -> Dump:
    """Begin a capture that ends with `stop` or with the process. Takes the arguments of `capture`."""
    manager = capture(config, **settings)
    dump = manager.__enter__()
    STATE.started.append(manager)
    # Exit functions run in reverse order: this one has to run before those that the capture registered.
    atexit.unregister(_stop_at_exit)
    atexit.register(_stop_at_exit)
    return dump


start.__signature__ = signature(capture).replace(return_annotation=Dump)  # type: ignore[attr-defined]


def stop() -> CaptureReport:
    """End the capture that `start` began, and return its report.

    Raises CaptureStateError if none is running.
    """
    if not STATE.started:
        raise CaptureStateError("no capture was started; call opdump.start(config) before opdump.stop()")
    dump = STATE.dump
    STATE.started.pop().__exit__(None, None, None)
    if dump is None or dump.report is None:
        raise CaptureStateError("the capture ended before it was stopped")
    return dump.report


def set_dump(target: Any, enabled: bool = True) -> None:
    """Select what `dump_mode` 2 dumps: a module with all its children, a module class, a function, or a method of an object.

    Only forward and backward operators of these are dumped. The mark is effective from now on, also in a running capture. If it is too late for a
    part of the running step, a warning at the end reports it. Raises MarkError (a TypeError and a ValueError) for any other target, and if `enabled`
    is not a bool.
    """
    meant = STATE.marks.set(target, enabled=enabled)
    controller = STATE.controller
    if enabled and isinstance(controller, SupportsMarks):
        controller.marked(meant)


def name_model(module: Any, name: str) -> None:
    """Set the name by which `model_name` in an acl.json refers to a root module or a root Cell of MindSpore. The default is the name of its class.

    `module` may also be the path of an ONNX file, which has this name beside its own when it is loaded the next time. The name is effective from
    now on, also in a running capture. Raises MarkError for anything else, and for a name that is empty or not a string.
    """
    meant = STATE.model_names.set(module, name)
    controller = STATE.controller
    if isinstance(controller, SupportsMarks) and not isinstance(meant, str | os.PathLike):
        controller.named(meant, name)


def watch(*what: Any) -> None:
    """Watch memory from now on, in a running capture in watch mode: `opdump.capture(watch=..., path=...)`.

    Each argument is a tensor, the name of an operator or module, a mapping from names to tensors, or a sequence of these.
    Raises CaptureStateError if no such capture is running.
    """
    controller = STATE.controller
    if controller is None:
        raise CaptureStateError("watch: no capture is running; begin one with opdump.capture(watch=[...], path=...)")
    if not isinstance(controller, SupportsWatch):
        raise CaptureStateError(f"watch: captures of {type(controller).__name__} cannot watch memory")
    controller.watch(*_watched_of(what, STATE.numbers))


def _watched_of(what: Any, numbers: Iterator[int]) -> tuple[list[str], dict[str, Any]]:
    """Split what is to be watched into names and tensors. Tensors without a name are `tensor0`, `tensor1`, ..."""
    nodes: list[str] = []
    tensors: dict[str, Any] = {}

    def add(item: Any) -> None:
        if isinstance(item, str) and item:
            nodes.append(item)
        elif isinstance(item, Mapping) and all(
            isinstance(name, str) and name and _is_tensor(item[name]) for name in item
        ):
            tensors.update(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            for each in item:
                add(each)
        elif _is_tensor(item):
            tensors[f"tensor{next(numbers)}"] = item
        elif item is not None:
            raise ConfigError(f"watch: found {shown(item)}, {_WATCHABLE}")

    add(what)
    if what is not None and not nodes and not tensors:
        raise ConfigError(
            f"capture: watch is {shown(what)}, which contains nothing to watch; {_WATCHABLE}, or leave it out"
        )
    return nodes, tensors


def _is_tensor(item: Any) -> bool:
    # Ask the class: attributes of the tensor itself would go through the modes and subclasses of the program.
    return hasattr(type(item), "shape") and hasattr(type(item), "dtype")


def _stop_at_exit() -> None:
    if STATE.started:
        stop()
    names = [text for _, text in STATE.marks.enabled_targets()]
    if names and not STATE.captured:
        _LOG.warning(
            "set_dump marked %s, but nothing was captured in this process; run: opdump run -c data_dump.json SCRIPT, "
            'with "dump_mode": 2 in the file',
            names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
        )


atexit.register(_stop_at_exit)
