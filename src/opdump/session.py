"""Capture from Python: `with opdump.capture("data_dump.json") as dump:`, and `start`/`stop` where a block does not fit."""

from __future__ import annotations

import atexit
import importlib
import itertools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from .adapters.settings import Adapter, Clock, DumpComplete, Marks, Settings, Steps, SupportsWatch
from .configs.acl import plan_from_environment
from .configs.acl_path import exception_directory
from .configs.dialects import load_plan
from .configs.mindspore import CONFIG_VARIABLE, plan_from_keywords
from .configs.modes import chosen_mode, plan_in_mode
from .errors import CaptureStateError, ConfigError, FrameworkMissingError, IncompleteCaptureError
from .layouts.mindspore_sync.index_writer import RunFacts, own_version
from .layouts.writing import RankWriter, open_writer
from .plan import DumpPlan
from .recorder import GAPS, Recorder, make_recorder
from .sink import DirectorySink

_LOG = logging.getLogger("opdump")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What a capture did. `skipped` counts operators by reason, `tensors_skipped` single inputs and outputs."""

    executed: int
    captured: int
    skipped: Mapping[str, int]
    tensors: int
    tensors_skipped: Mapping[str, int]
    files: int
    bytes: int
    steps: tuple[int, ...]
    path: Path
    rank_id: int
    seconds: float
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, recorder: Recorder, sink: DirectorySink, *, rank_id: int, started: float, warnings: tuple[str, ...]
    ) -> CaptureReport:
        """The report of a capture whose files are all on disk; `started` is of the monotonic clock."""
        return cls(
            executed=recorder.executed,
            captured=recorder.captured,
            skipped=dict(recorder.skipped),
            tensors=recorder.tensors,
            tensors_skipped=dict(recorder.tensors_skipped),
            files=sink.files_written,
            bytes=sink.bytes_written,
            steps=tuple(recorder.steps),
            path=recorder.plan.path,
            rank_id=rank_id,
            seconds=time.monotonic() - started,
            warnings=warnings,
        )

    def raise_for_gaps(self) -> None:
        """Raises IncompleteCaptureError where operators or tensors that should have left data did not (`strict`)."""
        total = Counter(self.skipped) + Counter(self.tensors_skipped)
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(total.items()) if reason in GAPS)
        if found:
            raise IncompleteCaptureError(
                f"strict: some operators or tensors left no data ({found}); `opdump show {self.path} --skipped` lists them"
            )


class _StoppedClock:
    """The clock before an adapter is attached."""

    step = 0

    def manual_step(self) -> None:
        raise CaptureStateError("the capture has not begun; call step() inside `with opdump.capture(...) as dump`")


class Dump:
    """A capture in progress; after it ended, its report."""

    def __init__(self, plan: DumpPlan, recorder: Recorder, writer: RankWriter, rank_id: int) -> None:
        self.plan = plan
        self.rank_id = rank_id
        self.report: CaptureReport | None = None
        self._recorder = recorder
        self._writer = writer
        self._clock: Clock = _StoppedClock()
        self._started = time.monotonic()

    def step(self) -> None:
        """Ends the current iteration here; from the first call on nothing else ends one."""
        self._clock.manual_step()

    @property
    def current_step(self) -> int:
        """The iteration that the program is in."""
        return self._clock.step

    @property
    def operators(self) -> int:
        """How many operators were executed under capture in the steps that are complete."""
        return self._recorder.executed

    @property
    def bytes_written(self) -> int:
        """Bytes on disk so far."""
        return self._writer.sink.bytes_written

    def _finish(self) -> None:
        recorder, sink = self._recorder, self._writer.sink
        self._writer.close({"executed": recorder.executed, "captured": recorder.captured, "tensors": recorder.tensors})
        unused = self.plan.unused_kernels(recorder.matched_kernels)
        self.report = CaptureReport.of(
            recorder,
            sink,
            rank_id=self.rank_id,
            started=self._started,
            warnings=(*(f"kernels: {text!r} matched no operator" for text in unused), *recorder.warnings),
        )


class _Session:
    """The one capture of this process, and what `set_dump` marked before it began."""

    def __init__(self) -> None:
        self.running: ExitStack | None = None
        self.dump: Dump | None = None
        self.modules: dict[int, Any] = {}
        self.functions: set[CodeType] = set()
        self.numbers = itertools.count()
        """Of watched tensors without a name."""
        self.model_names: dict[int, tuple[Any, str]] = {}
        """Names that the program gave to modules, by their identity, with the module, so that it stays theirs."""

    def marks(self) -> Marks:
        return Marks(tuple(self.modules.values()), frozenset(self.functions))


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
    **settings: Any,
) -> Iterator[Dump]:
    """Records what every operator reads and writes while the block runs.

    `config` is the path of a data_dump.json or an acl.json, a `DumpPlan`, or None: then the keyword arguments are the plan (`path=...`,
    `saved_data="full"`, `iteration="0|5-8"`, `kernels=["conv"]`: every key of the config and every field of `DumpPlan`), and
    without any of them MINDSPORE_DUMP_CONFIG names the file, or ASCEND_DUMP_SCENE asks for failures alone. With a config, keyword arguments override its values.

    eager            capture inside functions that `torch.compile` compiled, by running them eagerly
    stop_after_dump  raise `DumpComplete` once the last wanted step is on disk
    strict           unknown keys, and operators that left no data for another reason than the plan, are errors
    steps            "manual": only `dump.step()` ends an iteration
    overflow         file the operators that overflow, and how, and no others
    on_exception     file the inputs of an operator that raises; without a path, as ASCEND_WORK_PATH says, or here
    watch            file what these tensors, and the outputs of operators with these names, hold after each operator
    device_id        the number of the device in directories and records; without it what torchrun says (RANK), or, for a
                     configuration of TensorFlow, ASCEND_DEVICE_ID and DEVICE_ID
    framework        "torch" or "tensorflow"; "auto": the one of them that the program has imported, else torch

    Raises ConfigError before anything runs, DumpPathError where the directory cannot be written, CaptureStateError where a
    capture is running already.
    """
    if _SESSION.running is not None:
        raise CaptureStateError("a capture is running in this process already; end it (opdump.stop()) before the next")
    chosen = chosen_framework(framework, sys.modules)
    nodes, tensors = _watched_of(watch, _SESSION.numbers)
    mode = chosen_mode(overflow=overflow, on_exception=on_exception, watch=bool(nodes or tensors))
    if mode == "exception" and config is None and "path" not in settings:
        settings["path"] = exception_directory(None, os.environ, Path.cwd(), [])
    plan = resolve_plan(config, strict=strict, **settings)
    plan = plan_in_mode(plan, mode, as_device=config is None and "layout" not in settings, nodes=nodes)
    options = Settings(
        rank_id=_device(plan, os.environ) if device_id is None else device_id,
        eager=eager,
        stop_after_dump=stop_after_dump,
        steps=steps,
        marks=_SESSION.marks(),
        model_names={key: name for key, (_, name) in _SESSION.model_names.items()},
        watch=tensors,
    )
    adapter = _adapter(chosen)
    with ExitStack() as stack:
        _SESSION.running = stack
        stack.callback(_clear_session)
        dump = _open(stack, adapter, plan, options)
        _SESSION.dump = dump
        with suppress(DumpComplete):  # the program was asked to end here
            yield dump
    if strict and dump.report is not None:
        dump.report.raise_for_gaps()


def start(config: str | os.PathLike[str] | DumpPlan | None = None, **settings: Any) -> Dump:
    """Begins a capture that `stop` ends, or the end of the process. Takes what `capture` takes."""
    manager = capture(config, **settings)
    dump = manager.__enter__()
    _STARTED.append(manager)
    return dump


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
    """Selects what `dump_mode` 2 dumps: a module with all its children, a module class, or a function.

    Call it before the capture begins. Their forward and backward operators are dumped, no others.
    Raises TypeError for another kind of target or an `enabled` that is no bool (MindSpore raises ValueError for both;
    this error is both).
    """
    if not isinstance(enabled, bool):
        raise MarkError(f"set_dump: enabled is {enabled!r}, expected True or False")
    if isinstance(target, MethodType):
        target = target.__func__
    if isinstance(target, FunctionType):
        (_SESSION.functions.add if enabled else _SESSION.functions.discard)(target.__code__)
        return
    is_module = hasattr(target, "named_modules")
    if not is_module:
        raise MarkError(f"set_dump: {target!r} is no PyTorch module, module class or Python function")
    if enabled:
        _SESSION.modules[id(target)] = target
    else:
        _SESSION.modules.pop(id(target), None)


def name_model(module: Any, name: str) -> None:
    """Gives a root module the name by which `model_name` in an acl.json means it; without one that is its class's.

    Call it before the capture begins. Raises MarkError for what is no module, and for a name that is no text or empty.
    """
    if not hasattr(module, "named_modules"):
        raise MarkError(f"name_model: {module!r} is no PyTorch module")
    if not name:
        raise MarkError(f"name_model: the name is {name!r}, expected a name")
    _SESSION.model_names[id(module)] = (module, name)


def watch(*what: Any) -> None:
    """Watches memory from now on, in a capture in watch mode that runs: `opdump.capture(watch=..., path=...)`.

    Each of `what` is a tensor, the name of an operator or module, a mapping from names to tensors, or a sequence of these.
    Raises CaptureStateError where no such capture runs.
    """
    if _SESSION.dump is None:
        raise CaptureStateError("watch: no capture runs; begin one with opdump.capture(watch=[...], path=...)")
    clock = _SESSION.dump._clock
    if not isinstance(clock, SupportsWatch):
        raise CaptureStateError(f"watch: captures of {type(clock).__name__} cannot watch memory")
    clock.watch(*_watched_of(what, _SESSION.numbers))


def _watched_of(what: Any, numbers: Iterator[int]) -> tuple[list[str], dict[str, Any]]:
    """The names and the tensors among what is to be watched; tensors without a name are `tensor0`, `tensor1`, ..."""
    nodes: list[str] = []
    tensors: dict[str, Any] = {}

    def add(item: Any) -> None:
        if isinstance(item, str):
            nodes.append(item)
        elif isinstance(item, Mapping):
            tensors.update(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            for each in item:
                add(each)
        elif item is not None:
            tensors[f"tensor{next(numbers)}"] = item

    add(what)
    return nodes, tensors


class MarkError(TypeError, ValueError):
    """`set_dump` was given something that it cannot mark."""


def resolve_plan(
    config: str | os.PathLike[str] | DumpPlan | None, *, strict: bool = False, **settings: Any
) -> DumpPlan:
    """The plan that `capture` would use for these arguments."""
    if isinstance(config, DumpPlan):
        return replace(config, **settings)
    if config is None and not settings and not os.environ.get(CONFIG_VARIABLE):
        asked = plan_from_environment(os.environ)
        if asked is not None:
            return asked
    if config is None and settings:
        return plan_from_keywords(environ=os.environ, strict=strict, **settings)
    return load_plan(config, environ=os.environ, strict=strict, program_directory=_program_directory(), **settings)


def _program_directory() -> str | None:
    """Where the running script lies: what a relative `dump_path` starts from. None in an interactive interpreter."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if file is None else os.path.dirname(os.path.abspath(file))


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
        from .configs.tensorflow import device_of

        return device_of(environ)
    return rank_of(environ)


def _stop_at_exit() -> None:
    if _STARTED:
        stop()


atexit.register(_stop_at_exit)


def _clear_session() -> None:
    _SESSION.running = None
    _SESSION.dump = None
    _SESSION.numbers = itertools.count()


_FRAMEWORKS: Final = ("torch", "tensorflow")


def chosen_framework(asked: str, imported: Collection[str]) -> str:
    """The framework whose programs `capture` looks at: the one that was asked for, or the one that is imported.

    Raises ConfigError for a name that is none of them.
    """
    if asked != "auto":
        if asked not in _FRAMEWORKS:
            raise ConfigError(f'framework is {asked!r}, expected "auto", "torch" or "tensorflow"')
        return asked
    found = [name for name in _FRAMEWORKS if name in imported]
    if len(found) > 1:
        _LOG.warning(
            'both torch and tensorflow are imported; torch is captured. For the other: opdump.capture(..., framework="tensorflow")'
        )
    return found[0] if found else "torch"


def _adapter(name: str) -> Adapter:
    try:
        module = importlib.import_module(f"opdump.adapters.{name}.adapter")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FrameworkMissingError(
            f"capture needs {name}, which is not installed here; type: pip install {name} (reading dumps needs nothing more)"
        ) from None
    adapter: Adapter = module.ADAPTER
    return adapter


def _open(stack: ExitStack, adapter: Adapter, plan: DumpPlan, options: Settings) -> Dump:
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
    writer = open_writer(plan, run)
    recorder = make_recorder(plan, writer, adapter.reader(plan))
    dump = Dump(plan, recorder, writer, options.rank_id)
    stack.callback(dump._finish)
    dump._clock = stack.enter_context(adapter.attach(recorder, options))
    return dump
