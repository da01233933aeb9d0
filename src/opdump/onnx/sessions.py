"""One ONNX model under capture, for the duration of a block."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from opdump.capturing.report import CaptureReport, log_report
from opdump.configs.shared.modes import plan_on_error
from opdump.errors import CaptureStateError
from opdump.onnx.recording import ModelRecording
from opdump.plan import DumpPlan, OnError
from opdump.plan.field_types import check_values

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.model_file import ModelSource
    from opdump.adapters.onnxruntime.session import OnnxSession


from opdump.configs.plans import resolve_plan

# Words that only a dump of an offline model has; `dump_mode` is in both dialects.
_ACL_WORDS: Final = frozenset(
    {"dump_path", "dump_list", "dump_data", "dump_stats", "dump_step", "dump_scene", "dump_debug", "dump_op_switch"}
)


def plan_of(
    config: str | os.PathLike[str] | DumpPlan | None,
    *,
    dialect: str | None = None,
    strict: bool = False,
    beside: Path | None = None,
    **settings: Any,
) -> DumpPlan:
    """The plan of a config file of any dialect, with its values replaced by keyword arguments.

    Without a config, the keyword arguments are the plan: keys of acl.json if one of them exists only there
    (`dump_path="/tmp/dump"`) or `dialect` is "acl", otherwise those of data_dump.json (`path="/tmp/dump"`). Without keyword
    arguments, MINDSPORE_DUMP_CONFIG names the file. A relative path in an acl.json is below the directory `beside`, or below the
    one of the running script.

    Raises ConfigError for invalid settings, and DumpPathError if the directory cannot be written.
    """
    if config is None and dialect is None and not _ACL_WORDS.isdisjoint(settings):
        dialect = "acl"
    return resolve_plan(config, settings, dialect=dialect, strict=strict, beside=beside)


_LOG = logging.getLogger("opdump")
Level = Literal["disable", "basic", "extended", "all"]
_ARGUMENTS: Final[dict[str, Any]] = {"optimize": Level, "strict": bool, "on_error": OnError | None}

# Models started in the same second share a directory, and have different numbers.
_MODEL_IDS: Final = itertools.count(1)


class ModelDump:
    """A model whose runs are dumped; after the block, its report."""

    def __init__(self, recording: ModelRecording, model: OnnxSession) -> None:
        self.plan = recording.plan
        self.report: CaptureReport | None = None
        self.runs = 0
        """The number of runs of the model, dumped or not."""
        self.when_ended: Callable[[CaptureReport], object] = log_report
        """Returns the warnings for the report."""
        self._recording = recording
        self._model = model

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any | None = None
    ) -> list[Any]:
        """The result of `InferenceSession.run` for the same arguments. The run is dumped if the plan includes this step.

        Raises CaptureStateError after the block.
        """
        if self.report is not None:
            raise CaptureStateError(
                f"the session of {self.name!r} is over; call run inside `with opdump.onnx.session(...) as s`"
            )
        try:
            return self._recording.run(self._model.model_id, output_names, feeds, run_options)
        finally:
            self.runs += 1

    @property
    def name(self) -> str:
        """The name of the model in a `dump_list`: the stem of its file, or the name of its graph."""
        return self._model.model.name

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Names, types and shapes from ONNX Runtime."""
        return self._model.inputs

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Names, types and shapes from ONNX Runtime."""
        return self._model.outputs

    @property
    def largest_difference(self) -> float | None:
        """The largest difference between the outputs of dumped runs and of plain runs; None if they were not compared."""
        return self._model.largest_difference

    @property
    def current_step(self) -> int:
        """The number of the next run, or of the one in progress."""
        return self.plan.initial_iteration + self.runs

    @property
    def operators(self) -> int:
        """The number of operators executed under capture in completed runs."""
        return self._recording.recorder.tally.executed

    @property
    def bytes_written(self) -> int:
        """Bytes on disk so far."""
        return self._recording.writer.sink.bytes_written


@contextmanager
def session(
    model: ModelSource | os.PathLike[str],
    config: str | os.PathLike[str] | DumpPlan | None = None,
    *,
    optimize: Level = "disable",
    providers: Sequence[Any] | None = None,
    session_options: Any | None = None,
    memory_limit: int | None = None,
    strict: bool = False,
    dialect: str | None = None,
    on_error: OnError | None = None,
    **settings: Any,
) -> Iterator[ModelDump]:
    """Loads an ONNX model and dumps its runs while the block runs.

    `model` is a path, the bytes of a file, or a ModelProto. `config` is the path of an acl.json or data_dump.json, a
    `DumpPlan`, or None: then the keyword arguments are the plan (see `plan_of`).

    optimize      the level of ONNX Runtime's graph optimisation. At "disable" the nodes are the model's own; at other levels
                  those of the optimised model, which `dump_list` finds by their original names too
    memory_limit  bytes of tensors that are held at a time; more of them cost further runs of the model
    strict        unknown keys, and operators that left no data for another reason than the plan, are errors
    on_error      where the dump cannot be written any more: "continue" runs the model without it, and the report has the cause as
                  `failure`; "stop", the default under `strict`, raises it

    Raises ConfigError before anything is loaded, ModelFileError for what is no model, FrameworkMissingError without ONNX
    Runtime, and the runtime's own errors, unchanged.
    """
    check_values("session", {"optimize": optimize, "strict": strict, "on_error": on_error}, _ARGUMENTS)
    plan = plan_on_error(plan_of(config, dialect=dialect, strict=strict, **settings), on_error, strict=strict)
    for text in plan.warnings:
        _LOG.warning("%s", text)
    recording = ModelRecording(plan)
    options: dict[str, Any] = {
        "level": optimize,
        "providers": providers,
        "session_options": session_options,
        "memory_limit": memory_limit,
    }
    source: Any = Path(model) if isinstance(model, str | os.PathLike) else model
    model_id = next(_MODEL_IDS)
    dump = None
    try:
        dump = ModelDump(recording, recording.load(source, model_id, **options))
        yield dump
    finally:
        report = recording.close()
        recording.unload(model_id)
        if dump is not None:
            dump.report = report
            dump.when_ended(report)
    if strict:
        report.raise_for_gaps()
