"""Reads the ground truth of one output: an array file of a framework, or a dump."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from opdump.msaccucmp.comparison.dump_directory import DumpSide
from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleGroup
from opdump.msaccucmp.comparison.origins import Origin
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.original_elements import decode, original_shape_of

_REPLACED: Final = re.compile(r"[/.]")


def file_key(name: str) -> str:
    """An operator's name as files have it."""
    return _REPLACED.sub("_", name)


@dataclass(frozen=True, slots=True)
class GoldenTensor:
    """The elements in the shape of the framework, and the file that they come from."""

    path: str
    array: npt.NDArray[Any]


class GroundTruth(Protocol):
    """The side that is right."""

    @property
    def has_addresses(self) -> bool:
        """Whether the table has a column for addresses of this side."""

    def knows(self, group: RuleGroup) -> bool:
        """Whether the group has a partner on this side at all; without one it has no row."""

    def names_of(self, group: RuleGroup) -> tuple[str, ...]:
        """The operators that the group stands for."""

    def path_of(self, origin: Origin) -> str | None:
        """The file that has the output; None where there is none."""

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        """The output. Raises CommandError."""


@dataclass(frozen=True, slots=True)
class FrameworkTruth:
    """Files of a framework, one for each output: `operator.output.time.npy`, or `.pb`, which is a dump of one output."""

    side: DumpSide

    @property
    def has_addresses(self) -> bool:
        return not self.side.is_npy

    def knows(self, group: RuleGroup) -> bool:
        del group
        return True

    def names_of(self, group: RuleGroup) -> tuple[str, ...]:
        return group.originals

    def path_of(self, origin: Origin) -> str | None:
        found = self.side.newest(f"{file_key(origin.operator)}.{origin.index}")
        return None if found is None else found.path

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        if self.side.is_npy:
            return GoldenTensor(path, read_array(path))
        return GoldenTensor(path, _output(path, 0))


@dataclass(frozen=True, slots=True)
class UnfusedTruth:
    """Dumps of the same model, compiled without fusion (`-cf`): `rules` say which of its outputs stands for what."""

    side: DumpSide
    rules: FusionRules

    @property
    def has_addresses(self) -> bool:
        return True

    def knows(self, group: RuleGroup) -> bool:
        return group.key in self.groups

    def names_of(self, group: RuleGroup) -> tuple[str, ...]:
        return tuple(operator.name for operator in self.groups[group.key].operators)

    @property
    def groups(self) -> dict[str, RuleGroup]:
        return {group.key: group for group in self.rules.groups}

    def _place(self, origin: Origin) -> tuple[str, int]:
        for operator in self.rules.operators.values():
            for index, output in enumerate(operator.outputs):
                if output.name == origin.operator and (output.index or 0) == origin.index:
                    return operator.name, index
        return origin.operator, origin.index

    def path_of(self, origin: Origin) -> str | None:
        found = self.side.newest(file_key(self._place(origin)[0]))
        return None if found is None else found.path

    def read(self, origin: Origin, path: str) -> GoldenTensor:
        return GoldenTensor(path, _output(path, self._place(origin)[1]))


def _output(path: str, index: int) -> npt.NDArray[Any]:
    outputs = read_converted(path).outputs
    if index >= len(outputs):
        raise AbortError(f"{path} has {len(outputs)} outputs; {index} is none of them")
    tensor = outputs[index]
    return decode(tensor).reshape(original_shape_of(tensor))


def read_array(path: str) -> npt.NDArray[Any]:
    """The array of a `.npy` file, or of a `.txt` file; never a pickled object. Raises CommandError.

    An array without elements is one of float64, whatever its type was.
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
