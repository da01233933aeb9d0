"""The two sides of a comparison: finds their dumps, reads the ground truth, and converts tensors of the device to its form."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor
from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER, IncomparableError, shape_text
from opdump.msaccucmp.comparison.fusion_rules import FusionRules, Origin, RuleGroup
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.dump_source import (
    FORMATS,
    Stored,
    can_convert,
    convert_format,
    decode,
    effective_format,
    format_of,
    original_shape_of,
    run_script,
    slice_to,
)
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import MAPPING_FILE

# Finds the dumps of one side of a comparison: the files, their kind, and the operator of each.

_DEVICE: Final = re.compile(
    r"(?P<type>[A-Za-z0-9_-]+)\.(?P<name>[A-Za-z0-9_-]+)\.[0-9]+(\.[0-9]+)?\.(?P<time>[0-9]{1,255})"
    r"(\.[0-9]+\.[0-9]+\.[0-9]+)?(\.[0-9]+)?"
)
_FRAMEWORK: Final = r"(?P<name>[A-Za-z0-9_.-]+)\.(?P<index>[0-9]+)\.(?P<time>[0-9]{{1,255}})\.{}$"
_TASK_TYPES: Final = frozenset({"0", "1", "2", "3", "4"})
_FFTS_TASK: Final = "4"
_LONGEST_PLAIN_NAME: Final = 6
_TIME: Final = re.compile(r"[0-9]{16}")


class DumpKind(Enum):
    """The kind of the files of a side; the value is its name in the log."""

    DEVICE = "dumps of a model on a device"
    QUANTISED = "dumps of a quantised model of a framework (.quant)"
    FRAMEWORK = "dumps of a model of a framework (.npy, .pb)"


_SUFFIXES: Final[Mapping[str, DumpKind]] = {
    "npy": DumpKind.FRAMEWORK,
    "pb": DumpKind.FRAMEWORK,
    "quant": DumpKind.QUANTISED,
}
_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    suffix: re.compile(_FRAMEWORK.format(suffix)) for suffix in _SUFFIXES
}


@dataclass(frozen=True, slots=True)
class FoundDump:
    """A file, and the information in its name."""

    path: str
    timestamp: int
    op_type: str = ""


@dataclass(frozen=True, slots=True)
class DumpSide:
    """The dumps of a directory. `files`: by operator, or by `operator.output` if a framework wrote them, newest last."""

    path: str
    kind: DumpKind
    suffix: str
    files: Mapping[str, list[FoundDump]] = field(default_factory=dict)

    @property
    def is_npy(self) -> bool:
        return self.suffix == "npy"

    def in_order(self) -> dict[str, FoundDump]:
        """The newest dump of each operator, the oldest of these first."""
        newest = {name: found[-1] for name, found in self.files.items()}
        return dict(sorted(newest.items(), key=lambda pair: pair[1].timestamp))

    def newest(self, name: str) -> FoundDump | None:
        found = self.files.get(name)
        return found[-1] if found else None


def read_side(path: str) -> DumpSide:
    """The dumps in the directory. Raises CommandError if there are none, or several kinds."""
    if not os.path.isdir(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} is not a directory; a directory of dumps was expected")
    suffixes: set[str] = set()
    files: dict[str, list[FoundDump]] = {}
    names: Mapping[str, str] | None = None
    for entry in os.listdir(path):
        place = os.path.join(path, entry)
        if entry == MAPPING_FILE or not os.path.isfile(place):
            continue
        name = entry
        if entry.isdigit():
            if names is None:
                names = _mapping(path)
            name = names.get(entry, "")
            if not name:
                if os.path.exists(os.path.join(path, MAPPING_FILE)):
                    raise AbortError(f"{place} has no true name in {MAPPING_FILE}")
                log("WARNING", f"{place} has no true name: there is no {MAPPING_FILE}; it is ignored")
                continue
        read = _read_name(name)
        if read is None:
            log(
                "WARNING",
                f"{place} is ignored: {name} is not the name of a dump (op_type.op_name.task_id.stream_id.time)",
            )
            continue
        suffix, key, op_type, time = read
        op_type = op_type if name == entry else NOT_A_NUMBER  # the type is read only from the true file name
        suffixes.add(suffix)
        if len(suffixes) > 1:
            raise CommandError(ExitCode.BAD_FILE_NAME, f"{path} holds dumps of several kinds: {entry} is another one")
        files.setdefault(key, []).append(FoundDump(place, time, op_type))
    if not files:
        raise CommandError(ExitCode.BAD_FILE_NAME, f"{path} holds no dump")
    for found in files.values():
        found.sort(key=lambda file: file.timestamp)
    (suffix,) = suffixes
    return DumpSide(path, _SUFFIXES.get(suffix, DumpKind.DEVICE), suffix, files)


def _read_name(name: str) -> tuple[str, str, str, int] | None:
    """Kind by suffix, key, type of operator and time; None if the name is not that of a dump."""
    suffix = name.rpartition(".")[2]
    if suffix in _PATTERNS:
        match = _PATTERNS[suffix].match(name)
        return None if match is None else (suffix, f"{match['name']}.{match['index']}", "", _time(name, match["time"]))
    match = _DEVICE.match(name)
    if match is None:
        return None
    parts = name.split(".")
    time = parts[-1]
    if len(parts) > _LONGEST_PLAIN_NAME:
        if parts[-4] not in _TASK_TYPES:
            raise CommandError(ExitCode.BAD_TASK_TYPE, f"{name}: {parts[-4]} is not a task type; expected 0 to 4")
        if parts[-4] == _FFTS_TASK:
            time = parts[-5]
    return "", match["name"], match["type"], _time(name, time)


def _time(name: str, text: str) -> int:
    """Microseconds since 1970 in 16 digits; -1, which sorts first, for anything else."""
    if _TIME.fullmatch(text):
        return int(text)
    log("WARNING", f"{name} has no 16-digit time; it counts as the oldest")
    return -1


def _mapping(folder: str) -> Mapping[str, str]:
    """The true names in mapping.csv. Invalid lines are logged; a file that is not text has none."""
    path = os.path.join(folder, MAPPING_FILE)
    names: dict[str, str] = {}
    if not os.path.isfile(path):
        return names
    import csv

    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if len(row) != 2:
                    log("ERROR", f"{path}: {row} is not a pair of a file and its true name")
                    continue
                names[row[0]] = row[1]
    except (OSError, ValueError, csv.Error) as error:
        log("ERROR", f"{path} cannot be read: {error}")
    return names


# Reads the ground truth of one output: an array file of a framework, or a dump.

_REPLACED: Final = re.compile(r"[/.]")


def file_key(name: str) -> str:
    """An operator's name in its form for file names."""
    return _REPLACED.sub("_", name)


@dataclass(frozen=True, slots=True)
class GoldenTensor:
    """The elements in the shape of the framework, and their file."""

    path: str
    array: npt.NDArray[Any]
    format: str


class GroundTruth(Protocol):
    """The reference side."""

    @property
    def has_addresses(self) -> bool:
        """Whether the table has a column for addresses of this side."""

    def known(self, groups: Sequence[RuleGroup]) -> Sequence[RuleGroup]:
        """The groups that have a counterpart on this side at all; the others have no row."""

    def names_of(self, group: RuleGroup) -> str:
        """The operators that the group replaces, separated by commas."""

    def path_of(self, origin: Origin) -> str | None:
        """The file of the output; None if there is none."""

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        """The output. Raises CommandError."""


@dataclass(frozen=True, slots=True)
class FrameworkTruth:
    """Files of a framework, one for each output: `operator.output.time.npy`, or `.pb`, which is a dump of one output."""

    side: DumpSide

    @property
    def has_addresses(self) -> bool:
        return not self.side.is_npy

    def known(self, groups: Sequence[RuleGroup]) -> Sequence[RuleGroup]:
        return groups

    def names_of(self, group: RuleGroup) -> str:
        return group.original_names

    def path_of(self, origin: Origin) -> str | None:
        found = self.side.newest(f"{file_key(origin.operator)}.{origin.index}")
        return None if found is None else found.path

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        if not self.side.is_npy:
            outputs = read_converted(path).outputs
            if not outputs:
                raise AbortError(f"{path} has no output, and the first was requested")
            return GoldenTensor(path, _shaped(outputs[0]), origin.format)
        array = read_array(path)
        if np.iscomplexobj(array):
            raise AbortError(f"{path} holds complex numbers, which the ground truth of a model may not")
        return GoldenTensor(path, array if array.size else np.zeros(array.shape), origin.format)


@dataclass(frozen=True, slots=True)
class UnfusedTruth:
    """Dumps of the same model, compiled without fusion (`-cf`); `rules` map its outputs."""

    side: DumpSide
    rules: FusionRules

    @property
    def has_addresses(self) -> bool:
        return True

    @property
    def _operators(self) -> dict[str, str]:
        """The operator for each of the framework; the last if there are several."""
        return {
            original: operator.name for operator in self.rules.operators.values() for original in operator.originals
        }

    def known(self, groups: Sequence[RuleGroup]) -> Sequence[RuleGroup]:
        """One operator of each group; the last of the groups with the same operator."""
        chosen: dict[str, RuleGroup] = {}
        for group in groups:
            partner = next(iter(self._partners(group)), None)
            key = f"own {group.index}" if partner is None else partner
            chosen[key] = group if group.is_l1 else replace(group, operators=group.operators[:1])
        return sorted(chosen.values(), key=lambda group: group.index)

    def names_of(self, group: RuleGroup) -> str:
        return ",".join(self._partners(group))

    def _partners(self, group: RuleGroup) -> tuple[str, ...]:
        there = self._operators
        return tuple(dict.fromkeys(there[original] for original in group.originals if original in there))

    def _place(self, origin: Origin) -> tuple[str, int]:
        for operator in self.rules.operators.values():
            for index, output in enumerate(operator.outputs):
                if output.name == origin.operator and (output.index or 0) == origin.index:
                    return operator.name, index
        return self._operators.get(origin.operator, origin.operator), origin.index

    def path_of(self, origin: Origin) -> str | None:
        found = self.side.newest(file_key(self._place(origin)[0]))
        return None if found is None else found.path

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        outputs = read_converted(path).outputs
        index = self._place(origin)[1]
        if index >= len(outputs):
            raise CommandError(ExitCode.BAD_INDEX, f"{path} has {len(outputs)} outputs, but no {index}")
        return GoldenTensor(path, _shaped(outputs[index]), format_of(outputs[index].format))


def _shaped(tensor: DumpTensor) -> npt.NDArray[Any]:
    array = decode(tensor)
    shape = original_shape_of(tensor)
    return array.reshape(shape) if array.size == math.prod(shape) else array


def read_array(path: str) -> npt.NDArray[Any]:
    """The array of a `.npy` file, or of a `.txt` file; never a pickled object. Raises CommandError.

    An array without elements is returned as float64, whatever its type was.
    """
    try:
        if os.path.getsize(path) == 0:
            raise CommandError(ExitCode.BAD_DUMP, f"{path} is empty; an array was expected")
        array = np.loadtxt(path) if path.endswith(".txt") else np.load(path, allow_pickle=False, mmap_mode=None)
    except CommandError:
        raise
    except MemoryError as error:
        raise AbortError(f"{path} does not fit into memory") from error
    except Exception as error:
        raise CommandError(ExitCode.BAD_DUMP, f"{path} cannot be read as an array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise CommandError(ExitCode.BAD_DUMP, f"{path} holds several arrays; one was expected")
    return array


# Converts a tensor of the device to the format and the shape of the ground truth.
#
# Against ND, both sides are flattened, unless there is a conversion to ND; otherwise the device's data are converted and then cut
# to the shape of the ground truth. See docs/msaccucmp.md#what-is-compared-with-what.

_Array = npt.NDArray[Any]
FormatScripts = Mapping[tuple[str, str], Callable[..., Any]]
_FEWEST_DIMENSIONS: Final = 4
_CUT_DIMENSIONS: Final = frozenset({4, 5})
_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the device left it: `array` is flat and may have fewer elements than `shape`."""

    name: str
    format: str
    array: _Array
    stored: Stored


def align(
    tensor: StoredTensor, golden: _Array, golden_format: str, scripts: FormatScripts, *, flatten: bool = True
) -> tuple[_Array, _Array]:
    """Both sides, with equal numbers of elements; the shape of the first is that of the row. Raises IncomparableError.

    With `flatten` False, ND is treated as NCHW, which keeps the dimensions.
    """
    target = golden_format or tensor.format
    if target not in FORMATS.values():
        raise IncomparableError(ExitCode.BAD_FORMAT_PAIR, f'The format " {target} " is not supported.')
    if tensor.array.size == 1 and all(size == 1 for size in tensor.stored.shape):
        return _scalar(tensor, golden, golden_format)
    if target == "ND" and not can_convert(tensor.format, "ND"):
        if flatten:
            mine = tensor.array if tensor.array.size else tensor.array.reshape(tensor.stored.shape)
            if not mine.size and not golden.size:
                return mine, golden
            return _cut(tensor.name, mine, golden.reshape(-1) if golden.size else golden)
        target = "NCHW"
    mine = _converted(tensor, target, golden.shape, scripts)
    if tensor.format == "ND" and mine.size == golden.size:
        return mine, golden
    return _cut(tensor.name, mine, golden)


def _scalar(tensor: StoredTensor, golden: _Array, golden_format: str) -> tuple[_Array, _Array]:
    """A single element, whose format has no meaning, with the ground truth, flat."""
    if golden_format and golden.size != 1:
        raise _different(tensor.name, (1,), (golden.size,))
    return _cut(tensor.name, tensor.array, golden.reshape(-1))


def _converted(tensor: StoredTensor, target: str, wanted: tuple[int, ...], scripts: FormatScripts) -> _Array:
    stored = Stored(tensor.stored.shape, wanted, tensor.stored.groups)
    source = effective_format(tensor.format, stored.shape)
    script = scripts.get((source, target))
    if script is None and source in {target, "ND"}:
        return _reshaped(tensor)
    if script is None and not can_convert(source, target):
        raise IncomparableError(ExitCode.BAD_FORMAT_PAIR, "", f"there is no conversion from {source} to {target}")
    if source == "FRACTAL_NZ" and not _is_nz_shape(tensor.name, stored):
        log("WARNING", f"[{tensor.name}] FRACTAL_NZ data of shape {stored.shape} are not {wanted}; they stay unchanged")
        return _reshaped(tensor)
    try:
        if script is not None:
            return run_script(script, source, target, tensor.array, stored)
        return convert_format(source, target, tensor.array, stored)
    except AbortError:
        raise
    except Exception as error:
        raise IncomparableError(
            ExitCode.SCRIPT_FAILED,
            "",
            f"the conversion from {source} to {target} failed: {type(error).__name__}: {error}",
        ) from error


def _reshaped(tensor: StoredTensor) -> _Array:
    try:
        return tensor.array.reshape(tensor.stored.shape)
    except (ValueError, OverflowError) as error:
        raise IncomparableError(
            ExitCode.BAD_DUMP, "", f"{tensor.array.size} elements do not have the shape {tensor.stored.shape}"
        ) from error


def _is_nz_shape(name: str, stored: Stored) -> bool:
    """Whether FRACTAL_NZ data can be cut to the target shape. Raises IncomparableError if the original recommends a better shape.

    If the target has more dimensions than the data represent, it checks only one of them.
    """
    *leading, c1, no, ni, c0 = stored.shape
    wanted = stored.wanted
    if not wanted:
        raise IncomparableError(
            ExitCode.BAD_PARAMETER, f"[{name}] The format before transfer is FRACTAL_NZ. Please enter a valid shape."
        )
    rows, columns = no * ni, c1 * c0
    ends = wanted[len(leading) :]
    fits = len(ends) >= 2 and rows - _BLOCK < ends[0] <= rows
    if not fits or (len(ends) == 2 and not columns - _BLOCK < ends[1] <= columns):
        raise IncomparableError(
            ExitCode.BAD_NZ_SHAPE,
            f"[{name}] The target shape {shape_text(wanted)} is invalid. "
            f"The recommended shape is {shape_text((*leading, rows, columns))}.",
        )
    cut = math.prod(leading) * min(rows, wanted[-2]) * min(columns, wanted[-1])
    return cut == math.prod(wanted)


def _cut(name: str, mine: _Array, golden: _Array) -> tuple[_Array, _Array]:
    """The corner of `mine` with the shape of `golden`, or `mine` if the shapes are equivalent."""
    sizes, wanted_sizes = ([size for size in shape if size != 1] for shape in (mine.shape, golden.shape))
    if mine.ndim < golden.ndim and sizes != wanted_sizes:
        raise _different(name, tuple(sizes), tuple(wanted_sizes))
    if mine.ndim < golden.ndim or mine.shape == golden.shape or (mine.size == golden.size and len(sizes) <= 1):
        return mine, golden
    dimensions = max(mine.ndim, _FEWEST_DIMENSIONS)
    have = (*mine.shape, *(1,) * (dimensions - mine.ndim))
    wanted = (*golden.shape, *(1,) * (dimensions - golden.ndim))
    if have < wanted:  # the first dimension that differs decides
        raise _different(name, have, wanted)
    result = mine
    if dimensions in _CUT_DIMENSIONS:
        result = mine.reshape(have)[tuple(slice(size) for size in wanted)]
    log("INFO", f"[{name}] the data of shape {mine.shape} are cut to {wanted}")
    if result.size != golden.size:
        raise _different(name, (result.size,), (golden.size,))
    return result, golden


def same_shape(tensor: StoredTensor, golden: _Array, paths: tuple[str, str]) -> tuple[_Array, _Array]:
    """Both sides, if their shapes are equal, as the original compares quantised models. Raises IncomparableError."""
    shape = tensor.stored.shape
    if shape != golden.shape:
        raise _different(tensor.name, shape, golden.shape)
    if tensor.array.size != golden.size:
        raise IncomparableError(
            ExitCode.BAD_SHAPE,
            f"The my output dump data size ({tensor.array.size}) in ''{paths[0]}'' does not match the ground truth dump data "
            f"size ({golden.size}) in ''{paths[1]}''.",
        )
    return tensor.array.reshape(shape), golden


def _different(name: str, mine: tuple[int, ...], golden: tuple[int, ...]) -> IncomparableError:
    return IncomparableError(
        ExitCode.BAD_SHAPE,
        f"[{name}] Due to the different shapes on the left and right,the left dump data{shape_text(mine)} can not be "
        f"compared to the right dump data{shape_text(golden)}. Please check the batch of the dump data or the shape may be "
        "changed due to optimization.",
    )


def restore(tensor: StoredTensor) -> _Array:
    """The elements in the framework's order (NCHW or ND), cut to its shape if that is known; flat.

    Two dumps of devices are compared in this way. A tensor that cannot be restored stays in the device's order.
    """
    wanted = tensor.stored.wanted
    source = effective_format(tensor.format, tensor.stored.shape)
    array = tensor.array
    if not array.size:
        return array.reshape(-1)
    try:
        array = _reshaped(tensor)
        if wanted:
            array = _restored(source, array, tensor.stored)
    except (CommandError, AbortError, ValueError, ArithmeticError, LookupError) as error:
        log("ERROR", f"[{tensor.name}] the data stay in the order of the device: {error}")
    return np.ascontiguousarray(array).reshape(-1)


def _restored(source: str, array: _Array, stored: Stored) -> _Array:
    if source == "ND":
        return array
    target = "ND" if source == "FRACTAL_NZ" else "NCHW"
    if source != target:
        if not can_convert(source, target):
            raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"there is no conversion from {source} to {target}")
        array = convert_format(source, target, array, stored)
    return slice_to(array, stored.wanted)
