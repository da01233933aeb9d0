"""ONNX models under capture: one model for the duration of a block, or all that are loaded under one plan."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from opdump.capturing.dump import Recording
from opdump.capturing.processes import STATE
from opdump.capturing.rank_assignment import rank_of
from opdump.capturing.report import CaptureReport, log_report
from opdump.configs.dialects import resolve_plan
from opdump.configs.plan_fields import plan_on_error
from opdump.errors import CaptureStateError, ConfigError, FrameworkMissingError, ModelInputError
from opdump.index.writer import RunFacts
from opdump.layouts.base import RankWriter, open_writer
from opdump.plan import DumpPlan, OnError
from opdump.plan.field_types import check_values

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.loaded_models import LoadedModels
    from opdump.adapters.onnxruntime.model_file import ModelSource
    from opdump.adapters.onnxruntime.session import OnnxSession


class ModelRecording:
    """One capture of ONNX models: its recording, and the models loaded under it.

    The `{time}` of its directory is its creation time. `open_it` creates another writer than the plan's layout; `may_write`
    decides, before the graph of a model is written, whether anything may go to disk. Raises FrameworkMissingError if ONNX Runtime
    is not installed, and ConfigError for a plan that selects by marks.
    """

    def __init__(
        self,
        plan: DumpPlan,
        *,
        open_it: Callable[[DumpPlan, RunFacts], RankWriter] = open_writer,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        if plan.selection == "marked":
            raise ConfigError(
                "dump_mode 2 dumps what set_dump marks, modules and functions of PyTorch; of an ONNX model choose operators by name: "
                'dump_mode 1 with "kernels"'
            )
        self.plan = plan
        self.rank_id = rank_of(os.environ)
        self._recording = Recording(plan, self.rank_id, adapter_module("tensors_of_run").RUNTIME, open_it)
        self.recorder = self._recording.recorder
        self.writer = self._recording.writer
        self.report: CaptureReport | None = None
        self._models: LoadedModels = adapter_module("loaded_models").LoadedModels(self.recorder, may_write=may_write)

    def load(self, model: ModelSource, model_id: int, **options: Any) -> OnnxSession:
        """A session of the model whose runs are recorded. `options` are those of `OnnxSession`.

        Raises ModelFileError for an invalid model, and the runtime's own errors unchanged.
        """
        if isinstance(model, str | os.PathLike):
            options.setdefault("given_name", STATE.model_names.of_file(model))
        return self._models.load(model, model_id, **options)

    def run(
        self,
        model_id: int,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: Any | None = None,
    ) -> list[Any]:
        """The result of `OnnxSession.run`. The graph of a model is written after the first run with recorded data."""
        with self._models.running(model_id) as session:
            return session.run(output_names, feeds, run_options)

    def unload(self, model_id: int) -> None:
        """Unload a model; its part of the report is kept."""
        self._models.unload(model_id)

    def close(self) -> CaptureReport:
        """Wait until everything is on disk. Models stay loaded, and run without a dump. May be called twice."""
        if self.report is not None:
            return self.report
        self._recording.close()
        notes = self._models.notes()
        self._models.tell_circumstances("ONNX")
        self.report = self._recording.report(self.rank_id, notes)
        return self.report


def adapter_module(name: str) -> Any:
    """A module of the adapter of ONNX Runtime. Raises FrameworkMissingError if ONNX Runtime or onnx is not installed."""
    try:
        return importlib.import_module(f"opdump.adapters.onnxruntime.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("onnx", "onnxruntime"):
            raise
        raise FrameworkMissingError(
            f"ONNX models need {missing}, which is not installed here; run: pip install onnx onnxruntime "
            "(reading dumps needs neither)"
        ) from None


# One ONNX model under capture, for the duration of a block.

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
    memory_limit  maximum bytes of tensors in memory at a time; if there are more, the model runs several times
    strict        unknown keys are errors, and so are operators that left no data although the plan selects them
    on_error      if the dump can no longer be written: "continue" runs the model without it, and the report has the cause as
                  `failure`; "stop", the default with `strict`, raises the error

    Raises ConfigError before anything is loaded, ModelFileError for an invalid model, FrameworkMissingError without ONNX
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


# Inputs of a model, read from a file or random with the right element type and shape; and its outputs.

Array = npt.NDArray[Any]

_NARROW: Final = ("bfloat16", "float8_")
_INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def random_feed(value: Any, shape: Sequence[int] | None, seed: tuple[int, ...]) -> Any:
    """Random values for an input of a session: standard normal floats, integers that are 0 or 1, booleans.

    Integers are mostly indices or lengths, for which 0 and 1 are usually valid. An open dimension of the model is 1, unless
    `shape` sets it. Raises ModelInputError for a shape that does not fit, and for text and sequences.
    """
    dtype, dims = adapter_module("tensors_of_run").dtype_and_dims(value)
    wanted = tuple(1 if dim < 0 else dim for dim in dims) if shape is None else tuple(shape)
    _check_shape(value.name, dims, wanted)
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, wanted).astype(np.bool_)
    if dtype in _INTEGERS:
        return generator.integers(0, 2, wanted).astype(dtype)
    if dtype in ("complex64", "complex128"):
        return (generator.standard_normal(wanted) + 1j * generator.standard_normal(wanted)).astype(dtype)
    if dtype in ("float16", "float32", "float64"):
        return generator.standard_normal(wanted).astype(dtype)
    if dtype.startswith(_NARROW):
        return _narrow(generator.standard_normal(wanted), dtype)
    raise ModelInputError(
        f"{value.name}: no random input of type {value.type}; give one with --input {value.name}=FILE.npy"
    )


def load_input(value: Any, path: Path) -> Any:
    """An input from an npy file, in the model's element type if that can represent all its values exactly.

    Raises ModelInputError for a file that cannot be read, another shape, and elements that the type cannot represent.
    """
    array = _loaded(path)
    dtype, dims = adapter_module("tensors_of_run").dtype_and_dims(value)
    if dtype.startswith(_NARROW):
        _check_shape(value.name, dims, array.shape)
        return _narrow(array, dtype)
    if array.dtype.name != dtype and not (dtype == "string" and array.dtype.kind in "US"):
        try:
            fits = np.can_cast(array.dtype, np.dtype(dtype), "safe")
        except TypeError:
            fits = False
        if not fits:
            raise ModelInputError(
                f"{path}: elements are {array.dtype.name}, and {value.name} is {dtype}; save it as that: "
                f"numpy.save({str(path)!r}, array.astype({dtype!r}))"
            )
        array = array.astype(dtype)
    _check_shape(value.name, dims, array.shape)
    return array


def _loaded(path: Path) -> Array:
    try:
        with np.errstate(all="ignore"):  # numpy multiplies the dimensions in the header, whatever they are
            # Mapped first, so that the size of the file is checked against the header before memory is allocated.
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if isinstance(found, np.ndarray):
                return np.array(found)
    except Exception as error:  # numpy evaluates the header, and does not catch all resulting exceptions
        raise ModelInputError(f"{path}: cannot be read as an npy file: {error}") from error
    found.close()
    raise ModelInputError(f"{path}: contains several arrays; expected the npy file of one")


def outputs_for_numpy(values: Sequence[Any]) -> list[str] | None:
    """Names of the outputs that ONNX Runtime returns as arrays; None, which requests all, if there are none."""
    known = adapter_module("tensors_of_run").dtype_and_dims
    return [
        value.name for value in values if not known(value)[0].startswith((*_NARROW, "int4", "uint4", "float4"))
    ] or None


def _check_shape(name: str, dims: Sequence[int], shape: Sequence[int]) -> None:
    if len(dims) != len(shape) or any(wanted not in (-1, given) for wanted, given in zip(dims, shape, strict=True)):
        shown = ", ".join("any" if dim < 0 else str(dim) for dim in dims)
        raise ModelInputError(f"{name}: the shape is {tuple(shape)}, and the model has ({shown}) there")


def _narrow(array: Array, dtype: str) -> Any:
    import ml_dtypes

    narrow = array.astype(getattr(ml_dtypes, dtype))
    bits = narrow.view(np.uint16 if dtype == "bfloat16" else np.uint8)
    return adapter_module("tensors_of_run").feed_of(bits, dtype)
