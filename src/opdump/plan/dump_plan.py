"""The modes of a capture, which record the selected operators, those that overflow, the one that fails, or watched memory.

A plan names its mode (`captures`), and `plan.mode` is the object that says what follows from it.

>>> MODES["overflow"].nothing_found
'no operator overflowed'
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from opdump.errors import ConfigError
from opdump.plan.dialects import DIALECTS
from opdump.plan.field_types import Size, check_fields, wrong_value
from opdump.plan.layouts import LayoutFacts, facts_of, layouts_with
from opdump.plan.selection import KernelPattern, ModelSelection, StepSet
from opdump.records import SkipReason, escaped
from opdump.verdict import VerdictKind

_TO: Final = "_To_"


class WatchedLook(NamedTuple):
    """A look of watch mode at the outputs of `node`, after `after` ran."""

    after: str
    node: str

    def __str__(self) -> str:
        return f"{self.after}{_TO}{self.node}"

    @classmethod
    def readings(cls, op_name: str) -> list[WatchedLook]:
        """The possible readings of a name, the longest `node` first; empty if it has another form."""
        parts = op_name.split(_TO)
        return [cls(_TO.join(parts[:place]), _TO.join(parts[place:])) for place in range(1, len(parts))]


Captures = Literal["data", "overflow", "exception", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What a mode records, and what it needs for that."""

    name: Captures
    files_selected: bool = False
    """Records the operators that the configuration selects; other modes record operators because of an event."""
    files_values: bool = False
    """Names and records values that no operator made: constants, parameters, inputs."""
    lists_skipped: bool = False
    """Lists operators that leave no data, each once; modes that record few operators only count them."""
    reads_operators: bool = False
    """Reads the tensors of every selected operator that runs, and their values."""
    detects_overflow: bool = False
    """Records operators that overflow. This is decided by inputs and outputs together, as whole tensors, whatever is recorded of
    them.
    """
    failures_only: bool = False
    """Records operators that fail, and no others."""
    watches: bool = False
    """Records the outputs of watched operators after other operators."""
    dropped: SkipReason = ""
    """Why a selected operator that ran leaves no data."""
    verdict: VerdictKind | None = None
    """The kind of finding if an operator was recorded; None if it is not a finding."""
    nothing_found: str = ""
    """The explanation if operators ran but none was recorded; empty if the mode does not explain it."""


DATA: Final = Mode(name="data", files_selected=True, files_values=True, lists_skipped=True, reads_operators=True)
OVERFLOW: Final = Mode(
    name="overflow",
    reads_operators=True,
    detects_overflow=True,
    dropped="no overflow",
    verdict="overflow",
    nothing_found="no operator overflowed",
)
EXCEPTION: Final = Mode(
    name="exception",
    failures_only=True,
    dropped="no exception",
    verdict="failure",
    nothing_found="no operator failed",
)
WATCH: Final = Mode(name="watch", watches=True, dropped="not watched", nothing_found="no watched operator ran")
MODES: Final[Mapping[str, Mode]] = {mode.name: mode for mode in (DATA, OVERFLOW, EXCEPTION, WATCH)}


# DumpPlan: what to capture, in one frozen object.

SavedData = Literal["tensor", "statistic", "full"]
Selection = Literal["all", "kernels", "marked"]
StatCalcMode = Literal["host", "device"]
StatPrecision = Literal["high", "low"]
SyncLayoutName = Literal["mindspore-2.3", "mindspore-2.10"]
FileFormat = Literal["npy", "bin"]
DumpLevel = Literal["op", "kernel", "all"]
OnError = Literal["continue", "stop"]
ExceptionDetail = Literal["brief", "norm", "detail"]
OverflowKind = Literal["aicore", "atomic"]
Trigger = Literal["nan", "inf", "exception", "signal", "loss-spike"]
TRIGGERS: Final[tuple[Trigger, ...]] = ("nan", "inf", "exception", "signal")
"""The first NaN, the first infinity outside of a mask, an exception that ends the block under capture, SIGUSR1."""

LONGEST_QUEUE: Final = 2**30
"""Maximum number of bytes that wait for the disk, regardless of the available memory."""
_LONGEST_NAME: Final = 255
_DEBUG_MODES: Final = range(5)
_OF_LAYOUTS: Final[Mapping[str, object]] = {
    "file_format": "npy",
    "stream_in_names": True,
    "step_level": False,
    "kernel_by_kernel": False,
}
"""Fields that only some layouts support (`LayoutFacts.fields`), with the value that other layouts require."""

# Not part of the plan itself: the text that it was read from, and the warnings while reading it.
_NOT_PRINTED = ("config_text", "layout_chosen", "warnings")
# Fields that most configurations do not set: printed only if they differ from the default.
_PRINTED_IF_SET = (
    "captures",
    "overflow_kinds",
    "exception_detail",
    "models",
    "single_operators",
    "single_operator_models",
    "dump_level",
    "file_format",
    "stream_in_names",
    "step_level",
    "kernel_by_kernel",
    "dialect",
    "on_error",
    "checks",
    "ring",
    "triggers",
    "reread",
    "max_disk",
    "min_free_disk",
    "max_memory",
    "max_overhead",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpPlan:
    """What to capture and how to write it. Every field except `path` has the default of data_dump.json.

    Raises ConfigError for a value of the wrong type or outside of a field's closed list.
    """

    path: Path
    net_name: str = "Net"
    steps: StepSet = field(default_factory=StepSet.all)
    saved_data: SavedData = "tensor"
    inputs: bool = True
    outputs: bool = True
    selection: Selection = "all"
    """`kernels`: operators that match `kernels`; `marked`: modules marked by `set_dump`."""
    kernels: tuple[KernelPattern, ...] = ()
    devices: frozenset[int] | None = None
    """Device ids to dump; None for every device. A CPU has no device id and is always dumped."""
    statistic_category: tuple[str, ...] = ("max", "min", "l2norm")
    """Columns of statistic.csv, in this order; spelled as in the config."""
    stat_calc_mode: StatCalcMode = "host"
    device_stat_precision_mode: StatPrecision = "high"
    trans_flag: bool = True
    save_kernel_args: bool = False
    sample_num: int | None = None
    """Maximum number of elements recorded of a larger tensor, from its start; None for whole tensors. Statistics always cover
    whole tensors.
    """
    initial_iteration: int = 0
    """Number of the first step."""
    op_debug_mode: int = 0
    captures: Captures = "data"
    """`data`: the selected operators; `overflow`: operators that overflow; `exception`: the operator that fails; `watch`: the
    outputs of the `watcher_nodes` of `models` after each operator of their `layers`.
    """
    overflow_kinds: frozenset[OverflowKind] = frozenset({"aicore", "atomic"})
    """The kinds of overflow (`op_debug_mode` 1, 2, 3): of operators, of atomic additions."""
    overflow_number: int = 0
    """Overflows to dump; 0 for all."""
    exception_detail: ExceptionDetail = "brief"
    models: tuple[ModelSelection, ...] | None = None
    """`dump_list`; None (every model) in dialects without one."""
    single_operators: bool = True
    """Whether operators that a program calls outside of any model are dumped (single-operator API execution)."""
    single_operator_models: bool = True
    """Whether models of a single operator are dumped (`dump_op_switch`)."""
    dump_level: DumpLevel = "kernel"
    """`op`: the operators that the program called; `kernel`: those that they dispatched; `all`: both."""
    file_format: FileFormat = "npy"
    stream_in_names: bool = True
    """False for the older names `{op_type}.{op_name}.{task_id}.{timestamp}` (acl layout)."""
    step_level: bool = False
    """A `{step_id}` directory above `{time}` (asynchronous layout in the form of ACL)."""
    kernel_by_kernel: bool = False
    """Operators are separate tasks instead of parts of a model: their files are in `{device_id}/` (asynchronous layout in the
    form of ACL, `jit_level` O0 and O1).
    """
    dialect: str = "mindspore"
    """The kind of configuration that the plan was read from."""
    class_names_in_scope: bool = True
    """False for short scopes: `conv1` instead of `conv1-Conv2d`."""
    layout: str = "mindspore-2.3"
    """The name of a layout: one of opdump's own, or one of an installed package (group `opdump.layouts`)."""
    layout_chosen: bool = field(default=True, compare=False)
    """False if the configuration does not select a layout: a framework with a dump of its own then keeps its own layout."""
    on_error: OnError = "continue"
    """What to do if the dump can no longer be written (for example, the disk is full): `continue` the program without it, or
    `stop` it with an exception.
    """
    checks: tuple[str, ...] | None = None
    """Watchpoints checked during the run, in addition to the checks of `opdump check`; None for no checks at all."""
    ring: int = 0
    """The number of last steps that are kept in memory and only written when a trigger fires; 0 writes every step when it ends.
    Elements are kept if `max_memory` limits their size, in layouts that write tensor by tensor.
    """
    triggers: tuple[Trigger, ...] = TRIGGERS
    """The triggers, in addition to `dump.trigger()` in the program."""
    reread: bool = False
    """Read a tensor at every use, even if no write to it was seen since it was last read."""
    max_disk: Size | None = None
    """Maximum number of bytes that the run may write; None for no limit. Near this and the following limits, the dump contains
    less and less (docs/steps.md).
    """
    min_free_disk: Size | None = None
    """Bytes to keep free on the disk of the dump."""
    max_memory: Size | None = None
    """Maximum number of bytes that wait in memory to be written."""
    max_overhead: float | None = None
    """Maximum overhead of the capture, relative to the program's own time: 0.1 for 10 %."""
    trailing_comma: bool = False
    """End the rows of statistic.csv with a comma, as MindSpore does."""
    config_text: str = field(default="", compare=False)
    """The text of the config file, for `.dump_metadata/data_dump.json`; empty if there was no file."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings from reading the config."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dialect not in DIALECTS:
            raise wrong_value("DumpPlan", "dialect", self.dialect, ", ".join(map(repr, DIALECTS.names())))
        if self.net_name in ("", ".", "..") or not {"/", "\0"}.isdisjoint(self.net_name):
            raise wrong_value("DumpPlan", "net_name", self.net_name, "the name of a directory, without '/'")
        if self.op_debug_mode not in _DEBUG_MODES:
            raise wrong_value("DumpPlan", "op_debug_mode", self.op_debug_mode, "0, 1, 2, 3 or 4")
        size = len(escaped(self.net_name).encode())
        if size > _LONGEST_NAME:
            raise ConfigError(
                f"DumpPlan: net_name has {size} bytes, but a directory name may have at most {_LONGEST_NAME} (letters outside of ASCII take several "
                f"bytes): {escaped(self.net_name)[:40]!r}...; give a shorter one"
            )
        if self.sample_num is not None and self.sample_num < 1:
            raise ConfigError(f"DumpPlan: sample_num is {self.sample_num}, expected 1 or more, or None")
        if self.selection == "kernels" and not self.kernels:
            raise ConfigError('DumpPlan: selection is "kernels" but `kernels` is empty; give patterns or write "all"')
        try:
            places = self.layout_facts.fields
        except ConfigError as error:
            raise ConfigError(f"DumpPlan: {error}") from error
        for name, default in _OF_LAYOUTS.items():
            value = getattr(self, name)
            if value != default and name not in places:
                raise ConfigError(
                    f"DumpPlan: {name} is {value!r}, which layout {self.layout!r} does not support, expected {default!r}; "
                    f"or write layout={layouts_with(name)[0]!r}"
                )
        if self.ring:
            self._check_ring()

    def _check_ring(self) -> None:
        begin = f"DumpPlan: ring is {self.ring}, and"
        if not self.mode.files_selected:
            raise ConfigError(
                f'{begin} captures is {self.captures!r}, which writes its findings immediately; write captures="data"'
            )
        if self.save_kernel_args:
            raise ConfigError(f"{begin} arguments of operators are written immediately; write save_kernel_args=False")
        if self.saves_tensors and self.layout_facts.files != "tensors":
            raise ConfigError(
                f"{begin} layout {self.layout!r} writes whole operators immediately; with saved_data={self.saved_data!r} write "
                'layout="packed" or "mindspore-2.3", or write saved_data="statistic"'
            )
        if self.saves_tensors and self.max_memory is None:
            raise ConfigError(
                f"{begin} saved_data is {self.saved_data!r}: the elements of the kept steps wait in memory, which needs a limit; write "
                'max_memory="8GB" (--max-memory 8GB), half of which they may take, or saved_data="statistic"'
            )

    @property
    def mode(self) -> Mode:
        """What `captures` names."""
        return MODES[self.captures]

    @property
    def queue_bytes(self) -> int:
        """Maximum number of bytes that wait for the disk: half of the memory limit; the caller waits, too, if it is faster."""
        return LONGEST_QUEUE if self.max_memory is None else min(LONGEST_QUEUE, max(self.max_memory // 2, 1))

    @property
    def held_bytes(self) -> int | None:
        """Maximum number of other bytes that wait in memory: the other half. None for no limit."""
        return None if self.max_memory is None else self.max_memory // 2

    @property
    def layout_facts(self) -> LayoutFacts:
        """The properties of its layout."""
        return facts_of(self.layout)

    @property
    def saves_values(self) -> bool:
        """Whether values that no operator made (parameters and inputs) are recorded, too."""
        return self.mode.files_values and self.layout_facts.values

    @property
    def takes_device_extremes(self) -> bool:
        """Whether max and min are also computed by the rules of a device."""
        return self.saves_statistics and self.layout_facts.device_extremes

    @property
    def sample_taken(self) -> int | None:
        """Maximum number of elements to copy of a larger tensor; None for all. Overflow is detected in whole tensors, whatever is
        recorded of them.
        """
        return None if self.mode.detects_overflow else self.sample_num

    @property
    def saves_tensors(self) -> bool:
        """Whether elements are written (`tensor`, `full`)."""
        return self.saved_data != "statistic"

    @property
    def saves_statistics(self) -> bool:
        """Whether statistics are written (`statistic`, `full`)."""
        return self.saved_data != "tensor"

    @property
    def takes_statistics(self) -> bool:
        """Whether values are read at all, even if no statistics are written: for overflow, for the verdict of a run, for the
        index.
        """
        return self.saves_statistics or self.mode.reads_operators

    @property
    def files_api_calls(self) -> bool:
        """Whether operators that run outside of any model are recorded under the name of the call (acl.json)."""
        return DIALECTS.load(self.dialect).files_api_calls and self.mode.files_selected

    @property
    def names_models(self) -> bool:
        """Whether the list of operators names models, too (`dump_list`); `dump_layer` of a TensorFlow program only names
        operators.
        """
        return DIALECTS.load(self.dialect).names_models

    @property
    def enables_nothing(self) -> bool:
        """Whether nothing can ever be dumped: no model and no single operator is selected, or no output is watched."""
        if self.models is None:
            return False
        if self.mode.watches:
            return not any(entry.watcher_nodes for entry in self.models)
        return (
            self.mode.files_selected
            and not self.models
            and not self.single_operators
            and not self.single_operator_models
        )

    def selects(self, op_name: str, op_type: str) -> bool:
        """Whether the selection includes this operator. With `marked`, every operator passes here."""
        return self.selection != "kernels" or any(pattern.matches(op_name, op_type) for pattern in self.kernels)

    def matching_kernels(self, op_name: str, op_type: str) -> tuple[str, ...]:
        """The entries of `kernels` that match this operator, for `unused_kernels` later."""
        return tuple(pattern.text for pattern in self.kernels if pattern.matches(op_name, op_type))

    def unused_kernels(self, matched: Collection[str]) -> tuple[str, ...]:
        """The entries of `kernels` that are not in `matched`, sorted: they cause a warning at the end of a run."""
        if self.selection != "kernels":
            return ()
        return tuple(sorted({pattern.text for pattern in self.kernels} - set(matched)))

    def wants_device(self, device_type: str, device_id: int) -> bool:
        """Whether tensors on this device are dumped. `device_type` is "cpu", "cuda", ...; a CPU is always wanted."""
        return device_type == "cpu" or self.devices is None or device_id in self.devices

    @classmethod
    def from_json(cls, text: str) -> DumpPlan:
        """The plan that `to_json` wrote; missing fields get their defaults.

        Raises ConfigError if the text is not a JSON object, has a field that a plan does not have, or a value of the wrong type.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"DumpPlan: expected the JSON text of a plan; {error}") from None
        if not isinstance(given, dict):
            raise ConfigError(
                f"DumpPlan: found JSON of {type(given).__name__}, expected an object with the fields of a plan"
            )
        unknown = sorted(given.keys() - {item.name for item in fields(cls)})
        if unknown:
            raise ConfigError(f"DumpPlan: a plan has no field {unknown[0]!r}; the plan may come from a newer opdump")
        if "path" not in given:
            raise ConfigError("DumpPlan: found no path, expected the directory of the dump")
        hints = get_type_hints(cls)
        return cls(**{name: _field_of_json(name, hints[name], value) for name, value in given.items()})

    def to_json(self) -> str:
        """The plan as JSON text, one field per line, in the order of the fields. `from_json` returns an equal plan.

        `config_text`, `layout_chosen` and `warnings` are not included, because they only describe how the plan was made.
        """
        shown = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in _NOT_PRINTED and not (item.name in _PRINTED_IF_SET and value == item.default):
                shown[item.name] = _as_json(value)
        return json.dumps(shown, indent=2, ensure_ascii=False)


def _as_json(value: object) -> object:
    if isinstance(value, Path | StepSet):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, KernelPattern):
        return value.text
    if isinstance(value, ModelSelection):
        return _as_json(asdict(value))
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return value


def _field_of_json(name: str, kind: Any, value: Any) -> Any:
    try:
        return _of_json(kind, value)
    except (TypeError, AttributeError, LookupError) as error:
        raise wrong_value("DumpPlan", name, value, "what `to_json` writes for this field") from error


def _of_json(kind: Any, value: Any) -> Any:
    """The value of a field annotated with `kind`, from the output of `_as_json`."""
    if value is None:
        return None
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is Path:
        return Path(value)
    if kind in (StepSet, KernelPattern):
        return kind.parse(value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _of_json(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if get_origin(kind) in (tuple, frozenset):
        return get_origin(kind)(_of_json(get_args(kind)[0], item) for item in value)
    return value
