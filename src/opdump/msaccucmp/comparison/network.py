"""Compares all operators of a model: with the results of the framework, by fusion rules, or with the dumps of another run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpFile, DumpTensor
from opdump.msaccucmp.comparison.algorithms import (
    MISSING,
    NOT_A_NUMBER,
    ChosenAlgorithms,
    IncomparableError,
    Row,
    as_floats,
    measure,
    overflow_cell,
    shape_cell,
    shape_text,
)
from opdump.msaccucmp.comparison.fusion_rules import (
    FusionRules,
    Origin,
    RuleGroup,
    RuleOperator,
    origin_of_input,
    origin_of_output,
    quantised_operators,
)
from opdump.msaccucmp.comparison.golden_tensors import (
    DumpKind,
    DumpSide,
    FormatScripts,
    FoundDump,
    GoldenTensor,
    GroundTruth,
    StoredTensor,
    align,
    file_key,
    restore,
    same_shape,
)
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.dump_source import (
    Stored,
    can_convert,
    convert_format,
    decode,
    dtype_name,
    format_of,
    is_known_type,
    original_shape_of,
    read_source,
)
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import OutputFolder, npy_parts

# With the results of the framework, by fusion rules.

_Array = npt.NDArray[Any]
_ONLY_OUTPUTS: Final = "AscendDequant"
_ONLY_OUTPUTS_NAMES: Final = ("_dequant", "_dequant_layer")
_ONLY_INPUTS: Final = "AscendQuant"
_NO_OPERATORS: Final = "The fusion operator list is empty"


@dataclass(frozen=True, slots=True)
class Network:
    """The two sides of the comparison. `most` is the maximum number of elements compared, 0 for all."""

    mine: DumpSide
    truth: GroundTruth
    rules: FusionRules
    algorithms: ChosenAlgorithms
    scripts: FormatScripts = field(default_factory=dict)
    most: int = 0
    with_overflow: bool = False

    def dump_of(self, operator: RuleOperator) -> FoundDump | None:
        key = file_key(operator.name)
        return self.mine.newest(f"{key}.0" if self.is_quantised else key)

    @property
    def is_quantised(self) -> bool:
        """Whether a quantised model of a framework is compared: there is one file for all outputs, the one of output 0."""
        return self.mine.kind == DumpKind.QUANTISED

    def aligned(self, output: DeviceOutput, truth: GoldenTensor) -> tuple[_Array, _Array]:
        """Both sides in one shape. Raises IncomparableError."""
        tensor = stored_tensor(output)
        if self.is_quantised:
            return same_shape(tensor, truth.array, (output.path, truth.path))
        return align(tensor, truth.array, truth.format, self.scripts)

    def known_groups(self) -> Sequence[RuleGroup]:
        """The groups with a counterpart in the ground truth, without the operators that compute with quantised numbers."""
        skipped = quantised_operators(self.rules)
        groups = [
            replace(group, operators=tuple(each for each in group.operators if each.name not in skipped))
            for group in self.truth.known(self.rules.groups)
        ]
        return [group for group in groups if group.operators]

    def golden_names(self, group: RuleGroup) -> str:
        """The names in the table of the operators that a group replaces."""
        return self.truth.names_of(group)


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """A tensor of an operator of the device, and its file."""

    operator: RuleOperator
    tensor: DumpTensor
    array: _Array
    path: str

    @property
    def name(self) -> str:
        return f"{self.operator.name}:{self.tensor.io}:{self.tensor.slot}"


@dataclass(slots=True)
class NetworkOutcome:
    """The rows, and the exit code."""

    rows: list[Row] = field(default_factory=list)
    code: ExitCode = ExitCode.OK
    matched: bool = False


def compare_network(network: Network, groups: Iterable[RuleGroup]) -> NetworkOutcome:
    """Compare the groups. Raises AbortError if the original ends the whole run."""
    outcome = NetworkOutcome()
    for group in groups:
        _compare_group(network, group, outcome)
    outcome.rows.sort(key=lambda row: row.index)
    return outcome


def _compare_group(network: Network, group: RuleGroup, outcome: NetworkOutcome) -> None:
    rows: list[Row] = []
    operators = running_operators(network, group)
    reasons = [] if operators else [_NO_OPERATORS]
    for operator in operators:
        dump = network.dump_of(operator)
        if dump is not None and (file := _read(dump.path)) is not None:
            log("INFO", f"[{operator.name}] {dump.path} is compared")
            outputs = device_outputs(operator, file, dump.path)
            outcome.matched |= bool(outputs)
            rows += [_row(network, group, output) for output in outputs] or [_empty_row(network, group, operator, ())]
            continue
        reason = (
            f'[{operator.name}] There is no dump file for my output operator "{operator.name}". '
            f"The type is {operator.op_type}."
        )
        log("WARNING", reason)
        # A dump of a group in the L1 buffer was there when it was selected, so it cannot be read.
        if group.is_l1 or (dump is not None and network.is_quantised):
            outcome.code = outcome.code or ExitCode.BAD_DUMP
        if group.is_l1:
            rows.append(_empty_row(network, group, group.operators[0], ()))
        else:
            reasons.append(reason)
    if reasons:
        outcome.code = outcome.code or ExitCode.NO_DUMP
    outcome.rows += rows or [_empty_row(network, group, group.operators[0], tuple(reasons))]


def _empty_row(network: Network, group: RuleGroup, operator: RuleOperator, reasons: tuple[str, ...]) -> Row:
    golden = network.golden_names(group) or MISSING
    return Row(group.index, operator.op_type, group.names, golden, operator.number, reasons=reasons)


def running_operators(network: Network, group: RuleGroup) -> Sequence[RuleOperator]:
    """The operators whose dumps are used: of those fused in the L1 buffer, the first and the last to run."""
    if not group.is_l1:
        return group.operators
    found = [(operator, network.dump_of(operator)) for operator in group.operators]
    there = sorted(
        ((operator, dump) for operator, dump in found if dump is not None), key=lambda pair: pair[1].timestamp
    )
    if (
        len({operator.originals for operator in group.operators}) == 1
    ):  # all stand for the same originals, and the last one completes them
        there = there[-1:]
    return [operator for operator, _ in (there if len(there) < 2 else (there[0], there[-1]))]


def _read(path: str) -> DumpFile | None:
    try:
        return read_converted(path)
    except CommandError as error:
        log("ERROR", str(error))
        return None


def device_outputs(operator: RuleOperator, file: DumpFile, path: str) -> Sequence[DeviceOutput]:
    """The comparable tensors of an operator, which excludes quantised ones.

    Raises AbortError if any tensor of the file cannot be decoded.
    """
    found = [DeviceOutput(operator, tensor, decode(tensor), path) for tensor in file.tensors]
    if operator.op_type == _ONLY_OUTPUTS or operator.name.endswith(_ONLY_OUTPUTS_NAMES):
        return [output for output in found if output.tensor.io == "output"]
    if operator.op_type == _ONLY_INPUTS:
        return [output for output in found if output.tensor.io == "input"]
    return found


def origin_of(rules: FusionRules, output: DeviceOutput) -> Origin | None:
    find = origin_of_input if output.tensor.io == "input" else origin_of_output
    return find(rules, output.operator, output.tensor.slot)


def truth_path(network: Network, output: DeviceOutput) -> tuple[Origin, str]:
    """The counterpart of the tensor, and its file. Raises IncomparableError."""
    origin = origin_of(network.rules, output)
    path = None if origin is None else network.truth.path_of(origin)
    if origin is None or path is None:
        raise IncomparableError(
            ExitCode.NO_DUMP,
            f"[{output.operator.name}] There is no the ground truth dump file for {output.name}.",
        )
    log("INFO", f"[{output.operator.name}] {output.name} is compared with {path}")
    return origin, path


def stored_tensor(output: DeviceOutput) -> StoredTensor:
    """The elements of a tensor as the device left them. Raises IncomparableError, and AbortError if they cannot be read."""
    tensor = output.tensor
    try:
        name = format_of(tensor.format)
    except CommandError as error:
        raise IncomparableError(error.code, f"The format({tensor.format}) does not support.") from error
    return StoredTensor(
        output.operator.name,
        name,
        output.array,
        Stored(original_shape_of(tensor), tensor.original_shape, tensor.sub_format),
    )


def _row(network: Network, group: RuleGroup, output: DeviceOutput) -> Row:
    tensor = output.tensor
    golden = network.golden_names(group) or MISSING
    overflow = overflow_cell(tensor, output.array) if network.with_overflow else NOT_A_NUMBER

    def row(shape: tuple[int, ...], types: tuple[str, str], results: tuple[str, ...], reasons: tuple[str, ...]) -> Row:
        return Row(
            group.index,
            output.operator.op_type,
            group.names,
            golden,
            output.operator.number,
            my_type=types[0],
            my_address=str(tensor.address),
            golden_type=types[1],
            tensor=output.name,
            shape=shape_cell(shape),
            overflow=overflow,
            results=results,
            reasons=reasons,
        )

    try:
        origin, path = truth_path(network, output)
        truth = network.truth.read(origin, path)
        mine, right = network.aligned(output, truth)
    except CommandError as error:
        log("WARNING", str(error))
        reason = error.reason if isinstance(error, IncomparableError) else ""
        return row(original_shape_of(tensor), (NOT_A_NUMBER, NOT_A_NUMBER), (), (reason,))
    shape, types = mine.shape, (mine.dtype.name, right.dtype.name)
    most = network.most or None
    measured = measure(
        mine.reshape(-1)[:most], right.reshape(-1)[:most], shape, (output.path, path), network.algorithms
    )
    return row(shape, types, measured.results, measured.reasons)


# Compares the dumps of two runs on devices: operators of the same name, tensor by tensor.


@dataclass(frozen=True, slots=True)
class DumpPairs:
    """Two directories, and the facts about their tensors."""

    mine: DumpSide
    golden: DumpSide
    algorithms: ChosenAlgorithms
    with_overflow: bool = False


@dataclass(slots=True)
class PairsOutcome:
    """The rows and the exit code. `matched`: whether any operator is in both directories and could be read."""

    rows: list[Row] = field(default_factory=list)
    code: ExitCode = ExitCode.OK
    matched: bool = False

    def add(self, rows: list[Row], code: ExitCode) -> None:
        self.rows += rows
        self.code = self.code or code


def compare_pairs(pairs: DumpPairs) -> PairsOutcome:
    """Compare all operators. Raises CommandError if a dump on the right, or the size of a tensor, ends the whole run."""
    outcome = PairsOutcome()
    mine, golden = pairs.mine.in_order(), pairs.golden.in_order()
    for index, (name, dump) in enumerate(mine.items()):
        partner = golden.get(name)
        if partner is None:
            reason = f'[{name}] There is no the ground truth dump file for the op "{name}".'
            log("WARNING", reason)
            outcome.add([Row(index, NOT_A_NUMBER, name, MISSING, reasons=(reason,))], ExitCode.NO_DUMP)
            continue
        try:
            outcome.add(*_Pair(pairs, index, name, dump, partner).compared())
            outcome.matched = True
        except (AbortError, ValueError) as error:
            log("ERROR", f"{name} cannot be compared: {error}")
            outcome.code = outcome.code or ExitCode.UNEXPECTED
    missing = [name for name in golden if name not in mine]
    for index, name in enumerate(missing, len(mine)):
        reason = f'[{name}] There is no the my output dump file for the op "{name}".'
        log("WARNING", reason)
        outcome.add([Row(index, NOT_A_NUMBER, MISSING, name, reasons=(reason,))], ExitCode.NO_DUMP)
    return outcome


@dataclass(frozen=True, slots=True)
class _Pair:
    """One operator of both runs."""

    pairs: DumpPairs
    index: int
    name: str
    mine: FoundDump
    golden: FoundDump

    def compared(self) -> tuple[list[Row], ExitCode]:
        log("INFO", f"[{self.name}] {self.mine.path} is compared with {self.golden.path}")
        try:
            mine = read_converted(self.mine.path)
        except CommandError as error:
            log("ERROR", str(error))
            return [self._empty_row((_reading_failure(self.mine.path, error),))], error.code
        golden = read_converted(self.golden.path)
        reasons: list[str] = []
        arrays = _decoded(mine), _decoded(golden)
        rows = [
            self._row(left, right, (arrays[0][left.name], arrays[1][right.name]))
            for io in ("input", "output")
            for left, right in self._tensors(io, mine, golden, reasons)
        ]
        return (rows, ExitCode.OK) if rows else ([self._empty_row(tuple(reasons))], ExitCode.BAD_DUMP)

    def _tensors(
        self, io: str, mine: DumpFile, golden: DumpFile, reasons: list[str]
    ) -> Sequence[tuple[DumpTensor, DumpTensor]]:
        """The tensors of one side of the operator: all of them, or none where one has another shape."""
        left, right = (file.inputs if io == "input" else file.outputs for file in (mine, golden))
        if not left and not right:
            reasons.append(f"[{self.name}] There is no {io}. Skip the {self.name}:{io}.")
            return ()
        if len(left) != len(right):
            reasons.append(f"[{self.name}] The number of {io} does not match ({len(left)} vs {len(right)}).")
            return ()
        for one, other in zip(left, right, strict=True):
            shapes = original_shape_of(one), original_shape_of(other)
            if shapes[0] != shapes[1]:
                reasons.append(
                    f"[{self.name}] The shape does not match ({shape_text(shapes[0])} vs {shape_text(shapes[1])}) for "
                    f"{self.name}:{io}:{one.slot}."
                )
                return ()
        return tuple(zip(left, right, strict=True))

    def _row(self, mine: DumpTensor, golden: DumpTensor, arrays: tuple[_Array, _Array]) -> Row:
        left, right = (
            restore(restorable(self.name, tensor, array)) for tensor, array in zip((mine, golden), arrays, strict=True)
        )
        if left.size != right.size:
            raise CommandError(
                ExitCode.BAD_SHAPE,
                f"[{self.name}] {mine.name} has {left.size} elements on the left and {right.size} on the right",
            )
        shape = original_shape_of(mine)
        paths = (self.mine.path, self.golden.path)
        measured = measure(as_floats(left), as_floats(right), shape, paths, self.pairs.algorithms)
        return Row(
            self.index,
            self.mine.op_type,
            self.name,
            self.name,
            my_type=dtype_name(mine.data_type),
            my_address=str(mine.address),
            golden_type=dtype_name(golden.data_type),
            golden_address=str(golden.address),
            tensor=f"{self.name}:{mine.io}:{mine.slot}",
            shape=shape_cell(shape),
            overflow=overflow_cell(mine, arrays[0]) if self.pairs.with_overflow else NOT_A_NUMBER,
            results=measured.results,
            reasons=measured.reasons,
        )

    def _empty_row(self, reasons: tuple[str, ...]) -> Row:
        for reason in reasons:
            log("WARNING", reason)
        return Row(self.index, NOT_A_NUMBER, self.name, self.name, overflow=None, reasons=reasons)


def _decoded(file: DumpFile) -> dict[str, _Array]:
    return {tensor.name: decode(tensor) for tensor in file.tensors}


def restorable(name: str, tensor: DumpTensor, array: _Array) -> StoredTensor:
    """The tensor with its known shape in the framework. Raises CommandError if its format has no name."""
    return StoredTensor(
        name,
        format_of(tensor.format),
        array,
        Stored(original_shape_of(tensor), tensor.original_shape, tensor.sub_format),
    )


def _reading_failure(path: str, error: CommandError) -> str:
    """The text of the original's table about a dump that cannot be read; empty for most failures."""
    if error.code == ExitCode.BAD_DUMP and os.path.getsize(path) == 0:
        return f"Failed to parse dump file '{path}'. The file size is zero. Please check the dump file."
    if error.code == ExitCode.BAD_DATA_TYPE:
        file = read_source(path)
        unknown = next(tensor for tensor in (*file.outputs, *file.inputs) if not is_known_type(tensor.data_type))
        return f"The {unknown.io} data type ({unknown.data_type}) does not support."
    return ""


# `compare -map`: writes which file of the device and which of the framework would be compared for each tensor.

_NAMES: Final = ("OpType", "NPUDump", "GroundTruth", "TensorIndex", "NPUDumpPath", "GroundTruthPath")


def mapping_header(*, with_sequence: bool) -> list[str]:
    return ["Index", *(["OpSequence"] if with_sequence else []), *_NAMES]


def mapping_rows(network: Network, groups: Iterable[RuleGroup], *, with_sequence: bool) -> Iterator[list[str]]:
    """The rows of the table. Raises AbortError if a dump cannot be read."""
    for group in groups:
        golden = network.golden_names(group) or MISSING
        for operator in group.operators:
            number = [str(group.index), *([str(operator.number)] if with_sequence else [])]
            for cells in _tensor_cells(network, operator):
                yield [*number, operator.op_type, group.names, golden, *cells]


def _tensor_cells(network: Network, operator: RuleOperator) -> Iterator[tuple[str, str, str]]:
    """Tensor, file of the device and file of the framework."""
    dump = network.dump_of(operator)
    if dump is None:
        log("WARNING", f"[{operator.name}] there is no dump of the device")
        yield NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER
        return
    try:
        file = read_converted(dump.path)
    except CommandError as error:
        log("ERROR", str(error))
        yield NOT_A_NUMBER, dump.path, NOT_A_NUMBER
        return
    for output in device_outputs(operator, file, dump.path):
        try:
            path = truth_path(network, output)[1]
        except CommandError as error:
            log("WARNING", str(error))
            path = NOT_A_NUMBER
        yield output.name, dump.path, path


# `compare -op`: one tensor of one operator, element by element.
#
# Index,N C H W,NPUDump,GroundTruth,AbsoluteError,RelativeError
# 0,0 0 0 0,0.430664      ,0.430335       ,0.000329       ,0.000765

_AXES: Final = {"NCDHW": "N C D H W"}
_DEFAULT_AXES: Final = "N C H W"
_SCALAR_AXES: Final = "ID"


def detail_by_rules(options: argparse.Namespace, output: OutputFolder, network: Network) -> ExitCode:
    """Compare a tensor of `-op` with its counterpart. Raises CommandError and AbortError."""
    name: str = options.op_name
    operator = network.rules.operators.get(name)
    if operator is None:
        raise CommandError(ExitCode.BAD_PARAMETER, f"-op {name} is not in the rules")
    dump = network.dump_of(operator)
    if dump is None:
        raise CommandError(ExitCode.NO_DUMP, f"there is no dump of {name}")
    file = read_converted(dump.path)
    io, index = _chosen(options, file, name)
    arrays = {tensor.name: decode(tensor) for tensor in file.tensors}
    tensor = (file.inputs if io == "input" else file.outputs)[index]
    device = DeviceOutput(operator, tensor, arrays[tensor.name], dump.path)
    origin, path = truth_path(network, device)
    truth = network.truth.read(origin, path)
    stored = stored_tensor(device)
    if network.is_quantised:
        mine, golden = network.aligned(device, truth)
    else:
        mine, golden = align(stored, truth.array, truth.format, network.scripts, flatten=False)
        mine, golden = _in_nchw(mine, truth.format), _in_nchw(golden, truth.format)
    group = network.rules.group_of[name]
    axes = _SCALAR_AXES if not truth.array.shape else _AXES.get(truth.format, _DEFAULT_AXES)
    names = (group.names.replace(",", " "), network.golden_names(group).replace(",", " ") or "*")
    return _write(options, output, f"{file_key(name)}_{io}_{index}", mine, golden, ElementNames(*names, axes))


def detail_of_dumps(options: argparse.Namespace, output: OutputFolder, mine: DumpSide, golden: DumpSide) -> ExitCode:
    """Compare a tensor of `-op` in two dumps of devices, in the stored order. Raises CommandError and AbortError."""
    name: str = options.op_name
    files = []
    for option, side in (("-m", mine), ("-g", golden)):
        found = side.newest(name)
        if found is None:
            raise CommandError(ExitCode.NO_DUMP, f"{option} has no dump of {name}")
        log("INFO", f"{option}: {found.path}")
        files.append(read_converted(found.path))
    arrays = []
    for file in files:
        io, index = _chosen(options, file, name)
        tensor = (file.inputs if io == "input" else file.outputs)[index]
        arrays.append(decode(tensor).reshape(original_shape_of(tensor)))
    left, right = arrays
    if left.shape != right.shape:
        raise CommandError(
            ExitCode.BAD_DUMP, f"{name} has the shape {left.shape} on the left and {right.shape} on the right"
        )
    return _write(options, output, f"{name}_{io}_{index}", left, right, ElementNames(name, name, _DEFAULT_AXES))


def _chosen(options: argparse.Namespace, file: DumpFile, name: str) -> tuple[str, int]:
    """Whether an input or an output is selected, and its number; the default is the first output."""
    io = "output" if options.input is None else "input"
    index = int(options.output or options.input or 0)
    count = len(file.outputs if io == "output" else file.inputs)
    if index >= count:
        raise CommandError(ExitCode.BAD_INDEX, f"{name} has {count} {io}s, but no {index} (counted from 0)")
    return io, index


def _in_nchw(array: _Array, format_name: str) -> _Array:
    if array.ndim == 4 and can_convert(format_name, "NCHW"):
        return convert_format(format_name, "NCHW", array, Stored(array.shape))
    return array


def _write(
    options: argparse.Namespace, output: OutputFolder, base: str, mine: _Array, golden: _Array, names: ElementNames
) -> ExitCode:
    try:
        output.write(f"{base}.npy", npy_parts(np.ascontiguousarray(mine)))
        table = ElementTable.of(np.ascontiguousarray(mine), golden)
        write_element_table(
            output, base, table, names, top=options.topn, lines=None if options.ignore_result else options.max_line
        )
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{base} cannot be written ({error.strerror})") from error
    log("INFO", f"the elements are in {output.path}")
    return ExitCode.OK


# The files about one tensor, element by element: all elements, the largest errors, and a summary.

_NONE: Final = "-"
_FEWEST_AXES: Final = 4
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class ElementNames:
    """The names of the operators and the axes in the summary."""

    mine: str
    golden: str
    axes: str

    @property
    def header(self) -> str:
        return f"Index,{self.axes},NPUDump,GroundTruth,AbsoluteError,RelativeError\n"


@dataclass(frozen=True, slots=True)
class ElementTable:
    """Two tensors and their errors, flat. An undefined error is NaN; booleans have none."""

    shape: tuple[int, ...]
    mine: _Array
    golden: _Array
    absolute: _Array
    relative: _Array
    are_booleans: bool

    @classmethod
    def of(cls, mine: _Array, golden: _Array) -> ElementTable:
        are_booleans = mine.dtype == np.bool_ and golden.dtype == np.bool_
        shape = mine.shape
        mine, golden = mine.reshape(-1), golden.reshape(-1)
        if are_booleans:
            nothing = np.full(mine.shape, np.nan, np.float32)
            return cls(shape, mine, golden, nothing, nothing, are_booleans)
        mine, golden = np.real(mine), np.real(golden)
        with np.errstate(all="ignore"):
            absolute = np.abs(mine - golden)  # in the common type that numpy selects
            relative = np.abs(absolute / golden)
        if absolute.dtype.kind == "f":
            absolute[~np.isfinite(absolute)] = np.nan
        return cls(shape, mine, golden, absolute, relative, are_booleans)


def write_element_table(
    output: OutputFolder, base: str, table: ElementTable, names: ElementNames, *, top: int, lines: int | None
) -> None:
    """Write the files whose names begin with `base`; `lines` per file, and no list of all elements if it is None. Raises OSError."""
    count = table.mine.size
    for start in range(0, count, lines) if lines else ():
        end = min(start + (lines or 0), count)
        output.write(f"{base}_{start}.csv", _encoded([names.header], _lines(table, range(start, end), detail=True)))
    for kind, errors in (("absolute", table.absolute), ("relative", table.relative)):
        rows = list(_lines(table, largest(errors, top, are_booleans=table.are_booleans), detail=False))
        output.write(f"{base}_{kind}_error_topn.csv", _encoded([names.header], rows))
        for row in rows:
            log("INFO", row.replace("\t", "").strip())
    summary = [f"TotalCount:{count}\n", f"NPUDump:{names.mine}\n", f"GroundTruth:{names.golden}\n"]
    summary.append(f"Format:{names.axes}\n")
    for kind, errors in (("Absolute", table.absolute), ("Relative", table.relative)):
        numbers = np.where(np.isfinite(errors), errors, 0)
        ends = (numbers.min(), numbers.max()) if numbers.size else (0.0, 0.0)
        for name, value in zip(("Min", "Max"), ends, strict=True):
            summary.append(f"{name}{kind}Error:{_NONE if table.are_booleans else f'{value:.6f}'}\n")
    output.write(f"{base}_summary.txt", _encoded(summary))


def _encoded(*parts: Iterable[str]) -> Iterator[bytes]:
    for part in parts:
        held: list[str] = []
        for text in part:
            held.append(text)
            if len(held) >= _AT_ONCE:
                yield "".join(held).encode()
                held = []
        yield "".join(held).encode()


def _lines(table: ElementTable, chosen: Sequence[int], *, detail: bool) -> Iterator[str]:
    """One line for each element; in the list of all elements, non-finite numbers are written by name."""
    axes = max(len(table.shape), _FEWEST_AXES)
    shape = (*table.shape, *(1,) * (axes - len(table.shape)))
    for index in chosen:
        place = " ".join(map(str, np.unravel_index(index, shape)))
        values = [_value(values[index], detail=detail) for values in (table.mine, table.golden)]
        absolute = _value(table.absolute[index], detail=detail and not table.are_booleans)
        relative = _value(table.relative[index], detail=False)
        if detail and relative == _NONE:
            yield f"{index},{place},{values[0]}\t,{values[1]}\t,{absolute}\t,{_NONE}\n"
        else:
            yield f"{index},{place},{values[0]}\t,{values[1]}\t,{absolute}\t,{relative}\t\n"


def _value(value: Any, *, detail: bool) -> str:
    if isinstance(value, np.bool_):
        return str(value)
    return f"{value:.6f}" if detail or np.isfinite(value) else _NONE


def largest(errors: _Array, top: int, *, are_booleans: bool) -> Sequence[int]:
    """The indices of the largest errors, the largest first. Undefined errors count as 0 but still come first.

    If more are requested than exist, the smallest is left out. Among equal errors, numpy decides.
    """
    top = top if top <= errors.size else max(errors.size - 1, 1)
    if are_booleans:
        return range(top)
    known = np.isfinite(errors)
    if not errors.size:
        return ()
    chosen = np.argpartition(np.where(known, errors, 0), -top)[-top:]
    there = known[chosen]
    if not there.all() and not errors[chosen][there].any():  # there is nothing to sort by
        return [int(index) for index in np.sort(chosen)] if there.any() else [int(index) for index in chosen]
    numbers = np.sort(chosen[there])
    ordered = numbers[np.argsort(errors[numbers], kind="stable")[::-1]]
    return [int(index) for index in (*chosen[~there], *ordered)]
