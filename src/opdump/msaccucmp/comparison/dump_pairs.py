"""Compares the dumps of two runs on devices: operators of the same name, tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from opdump.dump_file import DumpFile, DumpTensor
from opdump.msaccucmp.comparison.algorithm_choice import ChosenAlgorithms
from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER
from opdump.msaccucmp.comparison.alignment import StoredTensor, restore
from opdump.msaccucmp.comparison.dump_directory import DumpSide, FoundDump
from opdump.msaccucmp.comparison.incomparable import shape_text
from opdump.msaccucmp.comparison.measured_pair import as_floats, measure, overflow_cell
from opdump.msaccucmp.comparison.result_table import MISSING, Row, shape_cell
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.dump_source import read_source
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_elements import decode, dtype_name, is_known_type, original_shape_of
from opdump.msaccucmp.original_formats import Stored, format_of

_Array = npt.NDArray[Any]


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
