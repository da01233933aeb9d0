"""Capture from Python: `with opdump.capture("data_dump.json") as dump:`, and `start`/`stop` where a block does not fit."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from opdump import amounts
from opdump.adapters.base import (
    Adapter,
    DumpComplete,
    Settings,
    StepController,
    Steps,
    SupportsForks,
    SupportsGroups,
    SupportsMarks,
    SupportsWatch,
)
from opdump.adapters.framework_use import is_used_by_program
from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.adapters.registry import FRAMEWORKS
from opdump.amounts import repr_of
from opdump.capturing.children import FAMILY_VARIABLE, Family, role_here
from opdump.capturing.children.ends import call_at_end, when_it_has_its_work
from opdump.capturing.children.place import Place, are_awaited, family_of, new_token
from opdump.capturing.late_writer import LateWriter
from opdump.capturing.report import CaptureReport
from opdump.configs.acl.path import exception_directory
from opdump.configs.acl.plan import plan_from_environment
from opdump.configs.dialects import load_plan
from opdump.configs.mindspore.plan import CONFIG_VARIABLE, plan_from_keywords
from opdump.configs.shared.keywords import CaptureKeywords, PlanKeywords, show_keywords
from opdump.configs.shared.modes import chosen_mode, plan_in_mode, plan_on_error
from opdump.configs.shared.plan_fields import with_fields
from opdump.configs.shared.program_directory import program_directory
from opdump.errors import CaptureStateError, ConfigError, FrameworkMissingError, OpdumpError
from opdump.html_table import html_line
from opdump.index.writer import RunFacts, own_version
from opdump.interpreter.first_import import stand_down
from opdump.interpreter.process_starts import Start, watch_starts
from opdump.layouts.registry import RankWriter
from opdump.plan import DumpPlan, OnError, StepSet
from opdump.plan.dialect_words import words_of
from opdump.plan.field_types import check_values, is_a, shown
from opdump.recorder import Recorder, make_recorder
from opdump.sink import DirectorySink

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("opdump")


def close_writer(recorder: Recorder, writer: RankWriter) -> None:
    """Wait until everything is on disk. What keeps it from there is raised or noted, as the plan's `on_error` says."""
    with recorder.writing():
        totals = {
            "executed": recorder.tally.executed,
            "captured": recorder.tally.captured,
            "tensors": recorder.tally.tensors,
        }
        # A dump that was given up for another reason than the writer's is not whole either.
        writer.close(totals if recorder.failure is None else None)


class _NotAttached:
    """The controller before an adapter is attached."""

    step = 0

    def manual_step(self) -> None:
        raise CaptureStateError("the capture has not begun; call step() inside `with opdump.capture(...) as dump`")


class Dump:
    """A capture in progress; after it ended, its report."""

    def __init__(self, plan: DumpPlan, recorder: Recorder, writer: RankWriter, place: Place) -> None:
        self.plan = plan
        self._place = place
        self.report: CaptureReport | None = None
        self._recorder = recorder
        self._writer = writer
        self._controller: StepController = _NotAttached()
        self._started = time.monotonic()
        self._process = os.getpid()
        self.when_replaced: Callable[[CaptureReport], object] = _log_replaced
        """Told how this capture ended, where the program becomes another one (`os.exec`)."""
        self.when_ended: Callable[[CaptureReport], object] = log_report
        """Says what the report warns of. Whoever prints the report itself puts `told_elsewhere` here."""
        self.may_wait = False
        """Whoever tells the report does that when the interpreter has waited for the processes of the program, and asks `look_again`."""
        self._own_report: CaptureReport | None = None

    def __repr__(self) -> str:
        if self.report is not None:
            return f"Dump(ended: {self.report!r})"
        done = amounts.count(self.operators, "operator")
        return repr_of(
            "Dump",
            str(self.plan.path),
            f"in step {self.current_step}",
            f"{done} so far",
            amounts.size(self.bytes_written),
        )

    def _repr_html_(self) -> str:
        return html_line(repr(self)) if self.report is None else self.report._repr_html_()

    @property
    def rank_id(self) -> int:
        """The number of this process in directories and records, as far as it is known."""
        return self._place.rank

    def started_before(self, unfollowed: Mapping[str, int]) -> None:
        """So many Pythons were started before the capture in a way that nobody can follow, by that."""
        self._place.starts_unfollowed.update(unfollowed)

    def step(self) -> None:
        """Ends the current iteration here; from the first call on nothing else ends one."""
        self._controller.manual_step()

    @property
    def current_step(self) -> int:
        """The iteration that the program is in."""
        return self._controller.step

    @property
    def operators(self) -> int:
        """How many operators were executed under capture in the steps that are complete."""
        return self._recorder.tally.executed

    @property
    def bytes_written(self) -> int:
        """Bytes on disk so far."""
        return self._writer.sink.bytes_written

    def _marked(self, target: Any) -> None:
        """`set_dump` has just marked something."""
        if isinstance(self._controller, SupportsMarks):
            self._controller.marked(target)

    def _named(self, model: Any, name: str) -> None:
        """`name_model` has just named something."""
        if isinstance(self._controller, SupportsMarks):
            self._controller.named(model, name)

    def _finish(self) -> None:
        if os.getpid() != self._process:
            return  # the report is the parent's
        recorder, sink = self._recorder, self._writer.sink
        try:
            close_writer(recorder, self._writer)
        finally:
            self._make_report(recorder, sink)
            assert self.report is not None, "it was just made"
            self.when_ended(self.report)

    def _make_report(self, recorder: Recorder, sink: DirectorySink) -> None:
        around = recorder.circumstances
        around.marks = bool(_SESSION.marks)
        if recorder.tally.executed == 0 and around.framework:
            around.is_framework_used = is_used_by_program(_PACKAGES.get(around.framework, around.framework))
        self._own_report = CaptureReport.of(
            recorder,
            sink,
            rank_id=self.rank_id,
            started=self._started,
            warnings=(
                *recorder.unmatched_kernels(),
                *recorder.warnings,
                *_marks_without_effect(self.plan),
                *self._place.told(),
            ),
        )
        self.report = self._with_children(self._own_report, may_wait=self.may_wait)

    @property
    def awaits_children(self) -> bool:
        """Whether `look_again` is to be asked: processes of the program still ran when the capture ended."""
        return self.may_wait and self.report is not None and are_awaited(self.report.children)

    def look_again(self) -> CaptureReport:
        """The report with what the children have done by now."""
        assert self._own_report is not None, "the capture has ended"
        self.may_wait = False
        self.report = self._with_children(self._own_report)
        self._place.family.release()
        return self.report

    def _with_children(self, report: CaptureReport, *, may_wait: bool = False) -> CaptureReport:
        report = self._place.leave(report, may_wait=may_wait)
        unseen = sum(child.end == "not captured" for child in report.children) + self._place.starts_unfollowed.total()
        if report.nothing is None or not (report.children or unseen):
            return report
        self._recorder.circumstances.in_children = unseen
        is_elsewhere = any(child.captured for child in report.children)
        return replace(report, nothing=None if is_elsewhere else self._recorder.why_nothing())


def _marks_without_effect(plan: DumpPlan) -> Iterator[str]:
    names = [text for _, text in _SESSION.marks.enabled_targets()]
    if names and plan.selection != "marked":
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"set_dump has no effect in this capture, and {shown} is marked; {words_of(plan.dialect).marked}"


class _Session:
    """The one capture of this process, and what the program has marked and named."""

    def __init__(self) -> None:
        self.running: ExitStack | None = None
        self.family: Family | None = None
        self.child: _Child | None = None
        """The capture that began here because the parent is captured."""
        self.awaiting: Family | None = None
        """The family of a program that has imported no framework yet."""
        self.watches_starts = False
        self.inherited: list[object] = []
        """What a forked process has of its parent's capture: it stays, so that nothing ends because it goes."""
        self.dump: Dump | None = None
        self.marks = ProgramMarks()
        self.model_names = ModelNames()
        self.captured = False
        """A capture has begun in this process."""
        self.numbers = itertools.count()
        """Of watched tensors without a name."""


# The interpreter has one stack of dispatch modes, so there is one capture a process.
_SESSION = _Session()


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
    """Records what every operator reads and writes while the block runs.

    `config` is the path of a data_dump.json or an acl.json, a `DumpPlan`, or None: then the keyword arguments are the plan (`path=...`,
    `saved_data="full"`, `iteration="0|5-8"`, `kernels=["conv"]`: every key of the config and every field of `DumpPlan`), and
    without any of them MINDSPORE_DUMP_CONFIG names the file, or ASCEND_DUMP_SCENE asks for failures alone. With a config, keyword arguments override its values.

    eager            capture inside functions that `torch.compile` compiled, by running them eagerly
    stop_after_dump  raise `DumpComplete` once the last wanted step is on disk
    strict           unknown keys, and operators that left no data for another reason than the plan, are errors
    steps            who ends an iteration; "manual": only `dump.step()` (which iterations are dumped is `iteration`)
    overflow         file the operators that overflow, and how, and no others
    on_exception     file the inputs of an operator that raises; without a path, as ASCEND_WORK_PATH says, or here
    watch            file what these tensors, and the outputs of operators with these names, hold after each operator
    device_id        the number of the device in directories and records; without it what torchrun says (RANK), or, for a
                     configuration of TensorFlow, ASCEND_DEVICE_ID and DEVICE_ID
    on_error         where the dump cannot be written any more (a full disk, a directory that is gone): "continue", the default, runs
                     the block on without it, logs the cause at once, and the report has it as `failure`; "stop", the default under
                     `strict`, raises it in the block
    children         False: processes that the program starts are counted and told, and not captured
    framework        "torch", "tensorflow" or one that an installed package adds (`opdump extensions`); "auto": the one of them that
                     the program has imported, else torch

    Raises ConfigError before anything runs, DumpPathError where the directory cannot be written, CaptureStateError where a
    capture is running already.
    """
    arguments = locals()
    if not is_a(steps, Steps):
        meant = str(steps) if is_a(steps, str | int | StepSet) else "0|5-8"
        raise ConfigError(
            f'steps is {shown(steps)}, expected "auto" or "manual": it says who ends an iteration; which iterations are dumped is '
            f"iteration={meant!r}"
        )
    check_values("capture", arguments, _ARGUMENTS)
    if _SESSION.child is not None:
        _SESSION.child.end()  # the program says itself what is captured here
    if _SESSION.running is not None:
        raise CaptureStateError("a capture is running in this process already; end it (opdump.stop()) before the next")
    stand_down()  # the program says itself what is captured
    chosen = chosen_framework(framework, sys.modules)
    nodes, tensors = _watched_of(watch, _SESSION.numbers)
    if watch is not None and not nodes and not tensors:
        raise ConfigError(
            f"capture: watch is {shown(watch)}, which holds nothing to watch; {_WATCHABLE}, or leave it out"
        )
    mode = chosen_mode(overflow=overflow, on_exception=on_exception, watch=bool(nodes or tensors))
    if mode.failures_only and config is None and "path" not in settings:
        settings["path"] = exception_directory(None, os.environ, Path.cwd(), [])
    plan = resolve_plan(config, strict=strict, **settings)
    plan = plan_in_mode(plan, mode, as_device=config is None and "layout" not in settings, nodes=nodes)
    plan = plan_on_error(plan, on_error, strict=strict)
    rank = _device(plan, os.environ) if device_id is None else device_id
    options = Settings(
        rank_id=rank,
        eager=eager,
        stop_after_dump=stop_after_dump,
        steps=steps,
        marks=_SESSION.marks,
        model_names=_SESSION.model_names,
        watch=tensors,
    )
    adapter = _adapter(chosen)
    # A number that a launcher or the program gave is the number; a process by itself may yet join a group.
    known = device_id is not None or bool(os.environ.get("RANK")) or not isinstance(adapter, SupportsGroups)
    facts = {
        "framework": chosen,
        "eager": eager,
        "steps": steps,
        "rank": rank,
        "launched_as": os.environ.get("RANK", ""),
        "captured": children,
    }
    with family_of(plan, facts, _SESSION.awaiting) as family:
        place = Place(family, adapter, rank, known=known, is_first=True)
        ended: SystemExit | None = None
        with _running(adapter, plan, options, place) as dump:
            try:
                yield dump
            except SystemExit as error:
                dump._recorder.circumstances.exited = True
                if error.code:
                    raise
                ended = error  # `sys.exit()` at the end of a program is no failure
    if strict and dump.report is not None and not dump.awaits_children:
        dump.report.raise_for_gaps()
    if ended is not None:
        raise ended


# The keywords of a plan are checked where they become one.
_ARGUMENTS: Final = {
    name: hint
    for name, hint in get_type_hints(capture, localns={"Unpack": type}).items()
    if name not in ("settings", "return")
}
show_keywords(capture, PlanKeywords)


@contextmanager
def _running(adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Iterator[Dump]:
    """The one capture of this process, while the block runs."""
    _SESSION.captured = True
    _watch_starts()
    with ExitStack() as stack:
        _SESSION.running, _SESSION.family = stack, place.family
        stack.callback(_clear_session, stack)
        dump = _open(stack, adapter, plan, options, place)
        _SESSION.dump = dump
        with suppress(DumpComplete):  # the program was asked to end here
            yield dump


def start(config: str | os.PathLike[str] | DumpPlan | None = None, **settings: Unpack[CaptureKeywords]) -> Dump:
    """Begins a capture that `stop` ends, or the end of the process. Takes what `capture` takes."""
    manager = capture(config, **settings)
    dump = manager.__enter__()
    _STARTED.append(manager)
    # After what the capture made registered its own end, so that this runs before it.
    atexit.unregister(_stop_at_exit)
    atexit.register(_stop_at_exit)
    return dump


start.__signature__ = signature(capture).replace(return_annotation=Dump)  # type: ignore[attr-defined]


def stop() -> CaptureReport:
    """Ends the capture that `start` began and returns its report.

    Raises CaptureStateError where none is running.
    """
    if not _STARTED:
        raise CaptureStateError("no capture was started; call opdump.start(config) before opdump.stop()")
    dump = _SESSION.dump
    _STARTED.pop().__exit__(None, None, None)
    if dump is None or dump.report is None:
        raise CaptureStateError("the capture ended before it was stopped")
    return dump.report


def set_dump(target: Any, enabled: bool = True) -> None:
    """Selects what `dump_mode` 2 dumps: a module with all its children, a module class, a function, or a method of an object.

    Their forward and backward operators are dumped, no others. A mark counts from now on, in a capture that runs too; what it comes
    too late for in the running step is said at the end. Raises MarkError (a TypeError and a ValueError) for another kind of target or
    an `enabled` that is no bool.
    """
    meant = _SESSION.marks.set(target, enabled=enabled)
    if enabled and _SESSION.dump is not None:
        _SESSION.dump._marked(meant)


def name_model(module: Any, name: str) -> None:
    """Gives a root module the name by which `model_name` in an acl.json means it; without one that is its class's.

    `module` may also be the path of an ONNX file, which has that name beside its own when it is loaded the next time. A name counts from
    now on, in a capture that runs too. Raises MarkError for anything else, and for a name that is no text or empty.
    """
    meant = _SESSION.model_names.set(module, name)
    if _SESSION.dump is not None and not isinstance(meant, str | os.PathLike):
        _SESSION.dump._named(meant, name)


def name_of_file(path: str | os.PathLike[str]) -> str | None:
    """The name that the program gave to the model of a file; None where it gave none."""
    return _SESSION.model_names.of_file(path)


def watch(*what: Any) -> None:
    """Watches memory from now on, in a capture in watch mode that runs: `opdump.capture(watch=..., path=...)`.

    Each of `what` is a tensor, the name of an operator or module, a mapping from names to tensors, or a sequence of these.
    Raises CaptureStateError where no such capture runs.
    """
    if _SESSION.dump is None:
        raise CaptureStateError("watch: no capture runs; begin one with opdump.capture(watch=[...], path=...)")
    controller = _SESSION.dump._controller
    if not isinstance(controller, SupportsWatch):
        raise CaptureStateError(f"watch: captures of {type(controller).__name__} cannot watch memory")
    controller.watch(*_watched_of(what, _SESSION.numbers))


_WATCHABLE: Final = "expected tensors, a mapping from names to tensors, or names of operators and modules"


def _watched_of(what: Any, numbers: Iterator[int]) -> tuple[list[str], dict[str, Any]]:
    """The names and the tensors among what is to be watched; tensors without a name are `tensor0`, `tensor1`, ..."""
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
    return nodes, tensors


def _is_tensor(item: Any) -> bool:
    # Of its class: to ask the tensor would run through the modes and subclasses of the program.
    return hasattr(type(item), "shape") and hasattr(type(item), "dtype")


def resolve_plan(
    config: str | os.PathLike[str] | DumpPlan | None, *, strict: bool = False, **settings: Any
) -> DumpPlan:
    """The plan that `capture` would use for these arguments."""
    if isinstance(config, DumpPlan):
        return with_fields(config, settings)
    if config is None and not settings and not os.environ.get(CONFIG_VARIABLE):
        asked = plan_from_environment(os.environ)
        if asked is not None:
            return asked
    if config is None and settings:
        return plan_from_keywords(environ=os.environ, strict=strict, **settings)
    return load_plan(config, environ=os.environ, strict=strict, program_directory=program_directory(), **settings)


def rank_of(environ: Mapping[str, str]) -> int:
    """The logical card number: RANK, which torchrun sets, else 0."""
    text = environ.get("RANK", "0")
    if not text.isdecimal():
        raise ConfigError(f"the environment variable RANK is {text!r}, expected a number (torchrun sets it)")
    return int(text)


# Captures begun by `start`, for `stop`: a list of at most one.
_STARTED: list[Any] = []


def _device(plan: DumpPlan, environ: Mapping[str, str]) -> int:
    if plan.dialect == "tensorflow":
        from opdump.configs.tensorflow.plan import device_of

        return device_of(environ)
    return rank_of(environ)


def _stop_at_exit() -> None:
    if _STARTED:
        stop()
    names = [text for _, text in _SESSION.marks.enabled_targets()]
    if names and not _SESSION.captured:
        _LOG.warning(
            "set_dump marked %s, and nothing was captured in this process; type: opdump run -c data_dump.json SCRIPT, "
            'with "dump_mode": 2 in the file',
            names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
        )


atexit.register(_stop_at_exit)


def _clear_session(stack: ExitStack) -> None:
    if _SESSION.running is not stack:
        return  # a forked process leaves a block of its parent's
    _SESSION.running = _SESSION.family = None
    _SESSION.dump = None
    _SESSION.numbers = itertools.count()


_PACKAGES: Final = {"PyTorch": "torch", "TensorFlow": "tensorflow"}


def chosen_framework(asked: str, imported: Collection[str]) -> str:
    """The framework whose programs `capture` looks at: the one that was asked for, or the one that is imported.

    Raises ConfigError for a name that is none of them.
    """
    known = FRAMEWORKS.names()
    if asked != "auto":
        if asked not in known:
            expected = ", ".join(f'"{name}"' for name in ("auto", *known[:-1]))
            raise ConfigError(f'framework is {shown(asked)}, expected {expected} or "{known[-1]}"')
        return asked
    found = [name for name in known if name in imported]
    if len(found) > 1:
        both = "both " if len(found) == 2 else ""
        _LOG.warning(
            f"{both}{' and '.join(found)} are imported; {found[0]} is captured. "
            f'For the other: opdump.capture(..., framework="{found[1]}")'
        )
    return found[0] if found else "torch"


def _adapter(name: str) -> Adapter:
    try:
        return FRAMEWORKS.load(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FrameworkMissingError(
            f"capture needs {name}, which is not installed here; type: pip install {name} (reading dumps needs nothing more)"
        ) from None


def _open(stack: ExitStack, adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Dump:
    for text in plan.warnings:
        _LOG.warning("%s", text)
    run = RunFacts(
        options.rank_id,
        adapter.device_target,
        adapter.framework,
        adapter.framework_version,
        own_version(),
        tuple(sys.argv),
        plan.to_json(),
    )
    writer = place.writer(plan, run)
    recorder = make_recorder(plan, writer, adapter.reader(plan))
    if isinstance(writer, LateWriter):
        recorder.wait_for_place(lambda: place.settled(writer))
    dump = Dump(plan, recorder, writer, place)
    stack.callback(dump._finish)
    dump._controller = stack.enter_context(adapter.attach(recorder, options))
    return dump


@contextmanager
def awaiting_children(plan: DumpPlan, *, framework: str, eager: bool, children: bool) -> Iterator[Family]:
    """Captures processes that this one starts, which has imported no framework itself, while the block runs.

    `framework` is "" where it is that which they import. A capture that begins here in the block goes on with them.
    """
    facts = {
        "framework": framework,
        "eager": eager,
        "steps": "auto",
        "rank": rank_of(os.environ),
        "launched_as": os.environ.get("RANK", ""),
        "captured": children,
    }
    with family_of(plan, facts) as family:
        _SESSION.awaiting = family
        try:
            yield family
        finally:
            _SESSION.awaiting = None


_OTHERS: Final = frozenset({"torch", "tensorflow", "onnxruntime"})
_OTHER: Final = "other"
"""The token of the note of a process that has imported another framework so far."""


class _Child:
    """The capture of a process that was started under capture."""

    def __init__(self, family: Family, place: Place, manager: AbstractContextManager[Dump]) -> None:
        self._family = family
        self._place = place
        self._manager = manager
        self._process = os.getpid()
        self._loaded = frozenset(_OTHERS & sys.modules.keys())
        """What the process had imported before: a forked one has that of its parent."""

    def end(self) -> None:
        """Files what was begun, and says so. Once, and in no process that was forked from this one."""
        if _SESSION.child is not self or os.getpid() != self._process:
            return
        _SESSION.child = None
        dump = _SESSION.dump
        self._manager.__exit__(None, None, None)
        others = (_OTHERS & sys.modules.keys()) - self._loaded - {self._place.framework}
        if others and dump is not None and dump.report is not None and not dump.report.executed:
            reason = f"they import {' and '.join(sorted(others))} and ran nothing of {self._place.framework}, which this run captures"
            self._place.leave_out(reason)


def begin_child(family: Family, framework: str) -> None:
    """Captures this process, which was started under capture, to its end. What hinders that is told, and the program goes on."""
    try:
        _begin_child(family, framework)
    except OpdumpError as error:
        _not_captured(family, str(error))
    except Exception as error:  # noqa: BLE001  whoever calls this says nothing of errors
        traceback.print_exc()
        _not_captured(family, f"{type(error).__name__}: {error}; the error comes from opdump, please report it")


def _not_captured(family: Family, reason: str) -> None:
    print(f"opdump: error: process {os.getpid()} is not captured: {reason}", file=sys.stderr)  # noqa: T201
    family.note(new_token(), {"end": "not captured", "reason": reason})


def _leave_out(family: Family, reason: str, token: str = "") -> None:
    """Counts this process among those that are not captured, where it does work of the program."""
    if role_here() == "program":
        family.note(token or new_token(), {"end": "not captured", "reason": reason})


def leave_out_for(family: Family, framework: str) -> None:
    """Counts this process, which has imported another framework than the run is of; until it imports that one too."""
    if _SESSION.running is None:
        wanted = family.facts["framework"]
        _leave_out(family, f"they import {framework}, and this run captures {wanted}: --framework chooses", _OTHER)


def _begin_child(family: Family, framework: str) -> None:
    if _SESSION.running is not None or role_here() != "program":
        return
    facts = family.facts
    family.take_back(_OTHER)
    if not facts["captured"]:
        _leave_out(family, "children are left out")
        return
    adapter = _adapter(framework)
    launched = os.environ.get("RANK", "")
    rank = int(launched) if launched.isdecimal() and launched != facts["launched_as"] else None
    place = Place(family, adapter, rank, known=rank is not None, is_first=False)
    options = Settings(
        rank_id=place.rank,
        eager=bool(facts["eager"]),
        steps=facts["steps"],
        marks=_SESSION.marks,
        model_names=_SESSION.model_names,
    )
    manager = _running(adapter, replace(family.plan, warnings=()), options, place)
    dump = manager.__enter__()
    dump.when_ended = told_elsewhere  # by the first process
    dump._recorder.when_filed = lambda: place.filed(dump._recorder, dump._writer.sink)
    child = _SESSION.child = _Child(family, place, manager)
    call_at_end(child.end)
    # Only now: one that its pool ends before its work began ran nothing, and is no process that was lost.
    place.begun()


def _watch_starts() -> None:
    if not _SESSION.watches_starts:
        _SESSION.watches_starts = True
        watch_starts(_starts)


def _starts(start: Start) -> None:
    """A process is about to begin, or to take the place of this one."""
    dump = _SESSION.dump
    if dump is None or os.getpid() != dump._process:
        return
    dump._place.starts(start)
    if start.kind != "replaced" or not _is_executable(start.file):
        return
    if _SESSION.child is not None:
        _SESSION.child.end()
    else:
        _end_before(start, dump)


def _is_executable(file: str) -> bool:
    """Whether the system would run it: who looks for a program in many places tries each."""
    return not file or (os.path.isfile(file) and os.access(file, os.X_OK))


def _end_before(start: Start, dump: Dump) -> None:
    """Ends the capture of the first process, which becomes another program."""
    running = _SESSION.running
    assert running is not None, "it has a dump"
    running.close()
    os.environ.pop(FAMILY_VARIABLE, None)
    dump._place.family.end()
    if dump.report is not None:
        command = " ".join(start.command[:6]) + (" ..." if len(start.command) > 6 else "")
        text = (
            f"this process became another program (os.exec): {command}; what that runs is not in this report, and is captured as "
            "a run of its own where OPDUMP_START asks for it"
        )
        dump.report = replace(dump.report, warnings=(*dump.report.warnings, text))
        dump.when_replaced(dump.report)


def log_report(report: CaptureReport) -> None:
    """Logs what a report warns of, and why nothing was captured where something should have been."""
    for text in report.warnings:
        _LOG.warning("%s", text)
    if report.nothing is not None and report.nothing.is_gap:
        _LOG.warning("nothing was captured: %s", report.nothing.reason)


def told_elsewhere(_: CaptureReport) -> None:
    """For captures whose report is printed, or logged, by who began them."""


def _log_replaced(report: CaptureReport) -> None:
    _LOG.warning("%d operators captured in %s; %s", report.captured, report.path, report.warnings[-1])


def _forked() -> None:
    """In a forked process: the capture stays the parent's, and another one begins for what is to run here."""
    if _SESSION.running is None:
        return
    _SESSION.inherited += [_SESSION.running, _SESSION.dump, _SESSION.child, list(_STARTED)]
    dump, family = _SESSION.dump, _SESSION.family
    _SESSION.running = _SESSION.dump = _SESSION.family = _SESSION.child = _SESSION.awaiting = None
    _STARTED.clear()
    if dump is None or not isinstance(dump._controller, SupportsForks):
        return
    obstacle = dump._controller.abandon()
    if family is not None:
        framework = dump._place.framework
        when_it_has_its_work(lambda: _leave_out(family, obstacle) if obstacle else begin_child(family, framework))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
