"""Selects the algorithms: `-alg`, `-a`, and the user's own of `-c`.

`DIR/algorithm/alg_<Name>.py` has `compare(my_output, ground_truth, arguments)`, which returns two texts: the cell, and a reason
or an empty text. The file is executed, which is the purpose of the option. See docs/msaccucmp.md#algorithms.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from opdump.msaccucmp.comparison.algorithms import ALGORITHMS, Algorithm, Compared, Result
from opdump.msaccucmp.custom_scripts import run_file
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from opdump.msaccucmp.journal import log

_NAME: Final = re.compile(r"alg_(\w+)\.py")
_ARGUMENTS: Final = 3
_ALL: Final = "all"
Arguments = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ChosenAlgorithms:
    """The algorithms of a run, by name, in the order of their columns."""

    functions: Mapping[str, Algorithm]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.functions)


def choose_algorithms(text: str, arguments: str, folder: str) -> ChosenAlgorithms:
    """The algorithms that the options name. Raises CommandError if none is left, AbortError if a script cannot run."""
    parsed = parse_arguments(arguments)
    custom = _custom(folder, parsed) if folder else {}
    if text == _ALL:
        return ChosenAlgorithms(dict(ALGORITHMS))
    builtin = list(ALGORITHMS)
    chosen: dict[str, Algorithm] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name = builtin[int(part)] if part.isdecimal() and int(part) < len(builtin) else part
        function = custom.get(name) or ALGORITHMS.get(name)
        if function is None:
            log("WARNING", f"-alg {part} is no algorithm and is left out")
            continue
        chosen[name] = function
    if not chosen and not text.replace(",", "").strip():
        raise CommandError(ExitCode.BAD_PARAMETER, "-alg names no algorithm; one is needed, or all")
    if not chosen:
        raise CommandError(
            ExitCode.BAD_ALGORITHM, f"-alg {text} names no algorithm that there is: {', '.join((*ALGORITHMS, *custom))}"
        )
    return ChosenAlgorithms(chosen)


def parse_arguments(text: str) -> Arguments:
    """`A:x=1,y=2;B:z=3` as names and values of each algorithm. Raises CommandError."""
    result: dict[str, dict[str, str]] = {}
    for part in filter(None, text.split(";")):
        name, colon, listed = part.partition(":")
        pairs = [pair.split("=") for pair in listed.split(",")]
        if not colon or any(len(pair) != 2 for pair in pairs):
            raise CommandError(
                ExitCode.BAD_PARAMETER, f"-a {part!r} is not of the form algorithm:name1=value1,name2=value2;"
            )
        result.setdefault(name, {}).update((pair[0].strip(), pair[1].strip()) for pair in pairs)
    return result


def _custom(folder: str, arguments: Arguments) -> dict[str, Algorithm]:
    place = os.path.join(folder, "algorithm")
    if not os.path.isdir(place):
        log("WARNING", f"{folder} has no directory algorithm")
        return {}
    found: dict[str, Algorithm] = {}
    for name in sorted(os.listdir(place)):
        match = _NAME.fullmatch(name)
        path = os.path.join(place, name)
        if match is None or not os.path.isfile(path):
            continue
        compare = getattr(run_file(path), "compare", None)
        if not callable(compare):
            log("WARNING", f"{path} has no function compare and is left out")
            continue
        count = len(inspect.signature(compare).parameters)
        if count != _ARGUMENTS:
            log("WARNING", f"{path}: compare takes {count} arguments instead of {_ARGUMENTS}; the file is left out")
            continue
        found[match[1]] = _wrapped(compare, arguments.get(match[1], {}))
    return found


def _wrapped(compare: Callable[..., Any], arguments: Mapping[str, str]) -> Algorithm:
    def algorithm(pair: Compared) -> Result:
        result, reason = compare(pair.mine, pair.golden, _Arguments(arguments, pair))
        if not isinstance(result, str) or not isinstance(reason, str):
            raise TypeError("compare")  # it must return two texts; the original only names the function
        return result, reason

    return algorithm


class _Arguments(SimpleNamespace):
    """The argument of a custom algorithm: its arguments as attributes, the two files, and the meaning of the shape."""

    def __init__(self, arguments: Mapping[str, str], pair: Compared) -> None:
        super().__init__(
            **arguments, my_output_dump_file=pair.my_path, ground_truth_dump_file=pair.golden_path, shape_type=None
        )

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def get_dict(self) -> dict[str, Any]:
        return vars(self)
