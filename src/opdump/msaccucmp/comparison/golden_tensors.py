"""Reads the ground truth of one output: an array file of a framework, or a dump."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor
from opdump.msaccucmp.comparison.dump_directory import DumpSide
from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleGroup
from opdump.msaccucmp.comparison.origins import Origin
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.original_elements import decode, original_shape_of
from opdump.msaccucmp.original_formats import format_of

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
                raise AbortError(f"{path} has no output, and the first was wanted")
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
            raise CommandError(ExitCode.BAD_INDEX, f"{path} has {len(outputs)} outputs; {index} is none of them")
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
