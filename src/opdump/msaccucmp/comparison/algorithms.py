"""The ten built-in measures of the difference between two tensors, in float32 like the original.

No measure treats NaN and infinities specially: two equal infinities produce `nan`, and the relative errors leave out a NaN on the
right. See docs/msaccucmp.md#algorithms.
"""

from __future__ import annotations

import csv
import inspect
import io
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor
from opdump.msaccucmp.dump_source import run_file
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import OutputFolder

NOT_A_NUMBER: Final = "NaN"
"""The cell if there is no result."""
SCALAR: Final = "This tensor is scalar."
_EPSILON: Final = float(np.finfo(np.float64).eps)
_SMALLEST_DENSITY: Final = np.finfo(np.float32).eps

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two one-dimensional tensors with equal numbers of elements, their shape, and their files."""

    mine: _Array
    golden: _Array
    shape: tuple[int, ...]
    my_path: str
    golden_path: str


Result = tuple[str, str]
"""The text of the cell, and a reason if there is one."""
Algorithm = Callable[[Compared], Result]


def _printed(value: Any) -> Result:
    return f"{value:.6f}", ""


def _cosine_similarity(pair: Compared) -> Result:
    if sum(pair.shape) == len(pair.shape):  # all ones; also 0 and 2
        return "1.000000", SCALAR
    my_norm, golden_norm = (np.sqrt(np.sum(np.square(values))) for values in (pair.mine, pair.golden))
    if my_norm <= _EPSILON and golden_norm <= _EPSILON:
        return "1.0", ""
    for norm, path in ((my_norm, pair.my_path), (golden_norm, pair.golden_path)):
        if np.sqrt(norm) <= _EPSILON:
            return NOT_A_NUMBER, f"Cannot compare by Cosine Similarity. All the data is zero in {path}."
    cosine = np.sum((pair.mine / my_norm) * (pair.golden / golden_norm))
    return _printed(1.0 if cosine > 1 else cosine)


def _relative_errors(pair: Compared) -> _Array:
    """|m / g - 1|, and 0 if g counts as 0 or is NaN."""
    counted = np.abs(pair.golden) > _EPSILON
    errors = np.zeros_like(pair.golden)
    errors[counted] = np.abs(pair.mine[counted] / pair.golden[counted] - 1)
    return errors


def _relative_euclidean_distance(pair: Compared) -> Result:
    total = np.sum(np.square(pair.golden))
    if np.sqrt(total) <= _EPSILON:
        return _printed(0.0)
    return _printed(np.sqrt(np.sum(np.square(pair.mine - pair.golden)) / total))


def _density(values: _Array) -> _Array:
    largest, smallest = np.max(values), np.min(values)
    if largest != smallest:
        values = (values - smallest) / (largest - smallest)
    values = np.maximum(values, _SMALLEST_DENSITY)
    density: _Array = values / np.sum(values)
    return density


def _kullback_leibler_divergence(pair: Compared) -> Result:
    mine, golden = _density(pair.mine), _density(pair.golden)
    return _printed(np.sum(mine * np.log(mine / golden)))


def _standard_deviation(pair: Compared) -> Result:
    texts = []
    for values in (pair.mine, pair.golden):
        wide = values.astype(np.float64)
        numbers = [0.0 if abs(number) < 0.001 else number for number in (np.mean(wide), np.std(wide))]
        texts.append(f"({numbers[0]:.3f};{numbers[1]:.3f})")
    return ",".join(texts), ""


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    "CosineSimilarity": _cosine_similarity,
    "MaxAbsoluteError": lambda pair: _printed(np.max(np.abs(pair.mine - pair.golden))),
    "AccumulatedRelativeError": lambda pair: _printed(np.sum(_relative_errors(pair))),
    "RelativeEuclideanDistance": _relative_euclidean_distance,
    "KullbackLeiblerDivergence": _kullback_leibler_divergence,
    "StandardDeviation": _standard_deviation,
    "MeanAbsoluteError": lambda pair: _printed(np.mean(np.abs(pair.mine - pair.golden))),
    "RootMeanSquareError": lambda pair: _printed(np.sqrt(np.mean(np.square(pair.mine - pair.golden)))),
    "MaxRelativeError": lambda pair: _printed(np.max(_relative_errors(pair))),
    "MeanRelativeError": lambda pair: _printed(np.mean(_relative_errors(pair))),
}
"""By name, in the order of their numbers."""
_WITHOUT_BOOLEANS: Final = frozenset(ALGORITHMS) - {"CosineSimilarity", "RelativeEuclideanDistance"}


def run_algorithm(name: str, algorithm: Algorithm, pair: Compared) -> Result:
    """The result of the algorithm; an exception becomes a reason, as in the original."""
    if pair.mine.dtype == np.bool_ and pair.golden.dtype == np.bool_ and name in _WITHOUT_BOOLEANS:
        return NOT_A_NUMBER, f"Algorithm {name} does not support Boolean types."
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about means of empty arrays
            return algorithm(pair)
    except Exception as error:  # noqa: BLE001  # a custom algorithm may raise anything
        return NOT_A_NUMBER, f"Failed to execute 'compare' in '{name}'. {error}"


# Selects the algorithms: `-alg`, `-a`, and the user's own of `-c`.
#
# `DIR/algorithm/alg_<Name>.py` has `compare(my_output, ground_truth, arguments)`, which returns two texts: the cell, and a reason
# or an empty text. The file is executed, which is the purpose of the option. See docs/msaccucmp.md#algorithms.

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
            log("WARNING", f"-alg {part} is not an algorithm and is ignored")
            continue
        chosen[name] = function
    if not chosen and not text.replace(",", "").strip():
        raise CommandError(ExitCode.BAD_PARAMETER, "-alg is empty; expected an algorithm, or all")
    if not chosen:
        raise CommandError(
            ExitCode.BAD_ALGORITHM,
            f"-alg {text}: unknown algorithm; expected some of {', '.join((*ALGORITHMS, *custom))}",
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
            log("WARNING", f"{path} has no function compare and is ignored")
            continue
        count = len(inspect.signature(compare).parameters)
        if count != _ARGUMENTS:
            log("WARNING", f"{path}: compare takes {count} arguments instead of {_ARGUMENTS}; the file is ignored")
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


# Runs the algorithms on two tensors with equal numbers of elements, in float32.

_HALF: Final = 2
"""The number of float16 in dump files."""
_LARGEST_HALF: Final = 65504


@dataclass(frozen=True, slots=True)
class Measured:
    """The cells of the algorithms, and the reasons."""

    results: tuple[str, ...]
    reasons: tuple[str, ...]


def measure(
    mine: _Array, golden: _Array, shape: tuple[int, ...], paths: tuple[str, str], chosen: ChosenAlgorithms
) -> Measured:
    """Compare two flat arrays; booleans stay booleans if both sides are, and imaginary parts are dropped."""
    if not (mine.dtype == np.bool_ and golden.dtype == np.bool_):
        mine, golden = as_floats(mine), as_floats(golden)
    for array, path in zip((mine, golden), paths, strict=True):
        if not array.size:
            log("WARNING", f"{path} has no elements")
    pair = Compared(mine, golden, shape, *paths)
    found = [run_algorithm(name, function, pair) for name, function in chosen.functions.items()]
    for _, reason in found:
        if reason:
            log("WARNING", reason)
    return Measured(tuple(result for result, _ in found), tuple(reason for _, reason in found))


def as_floats(array: _Array) -> _Array:
    with np.errstate(all="ignore"):
        return (array.real if np.iscomplexobj(array) else array).astype(np.float32)


def overflow_cell(tensor: DumpTensor, array: _Array) -> str:
    """YES if a float16 reaches its largest number, which is a valid one; other types are not checked.

    Raises AbortError if there are no elements.
    """
    if tensor.data_type != _HALF:
        return NOT_A_NUMBER
    if not array.size:
        raise AbortError(f"{tensor.name} has no elements, so it has no largest one")
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(array))
    return "YES" if largest >= _LARGEST_HALF else "NO"


# The table of a comparison, `result_<time>.csv`:
#
# Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,CosineSimilarity,...,CompareFailReason
# 1,Conv2D,conv1,float16,0,"conv1,relu1",float32,conv1:output:0,"[1,18,6,6]",1.000000,...,

MISSING: Final = "*"
"""The name of a missing counterpart."""
_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "%")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table."""

    algorithms: tuple[str, ...]
    with_sequence: bool = False
    with_golden_address: bool = False
    with_overflow: bool = False

    @property
    def names(self) -> list[str]:
        return [
            "Index",
            *(["OpSequence"] if self.with_sequence else []),
            *("OpType", "NPUDump", "DataType", "Address", "GroundTruth", "DataType"),
            *(["Address"] if self.with_golden_address else []),
            *("TensorIndex", "Shape"),
            *(["OverFlow"] if self.with_overflow else []),
            *self.algorithms,
            "CompareFailReason",
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor, or an operator that has none to compare; unknown values are NaN.

    `overflow` is None if the original omits the cell, which shifts all following ones one to the left.
    """

    index: int
    op_type: str
    mine: str
    golden: str
    sequence: int = 0
    my_type: str = NOT_A_NUMBER
    my_address: str = NOT_A_NUMBER
    golden_type: str = NOT_A_NUMBER
    golden_address: str = NOT_A_NUMBER
    tensor: str = NOT_A_NUMBER
    shape: str = NOT_A_NUMBER
    overflow: str | None = NOT_A_NUMBER
    results: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def cells(self, columns: Columns) -> list[str]:
        results = self.results or (NOT_A_NUMBER,) * len(columns.algorithms)
        return [
            str(self.index),
            *([str(self.sequence)] if columns.with_sequence else []),
            *(self.op_type, self.mine, self.my_type, self.my_address, self.golden, self.golden_type),
            *([self.golden_address] if columns.with_golden_address else []),
            *(self.tensor, self.shape),
            *([self.overflow] if columns.with_overflow and self.overflow is not None else []),
            *results,
            ",".join(reason for reason in self.reasons if reason),
        ]


def shape_cell(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def write_table(folder: OutputFolder, kind: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write `<kind>_<time>.csv`; returns its path. A cell that a spreadsheet would execute ends the table, and raises AbortError."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    problem: AbortError | None = None
    for cells in rows:
        dangerous = [cell for cell in cells if is_formula(cell)]
        if dangerous:
            problem = AbortError(f"{dangerous[0]!r} begins as a formula of a spreadsheet and is not written to a table")
            break
        writer.writerow(cells)
    name = time.strftime(f"{kind}_%Y%m%d%H%M%S.csv")
    try:
        path = folder.write(name, [text.getvalue().encode("utf-8", "surrogateescape")])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{name} cannot be written ({error.strerror})") from error
    if problem is not None:
        raise problem
    log("INFO", f"the table is in {path}")
    return path


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet would take the cell for a formula: it begins like one and is not a number."""
    if not cell.startswith(_FORMULA_SIGNS):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


# A tensor or an operator that cannot be compared: its row has the reason, and the others continue.


class IncomparableError(CommandError):
    """The text is that of the original's table, which has none for some failures; `message` is for the log."""

    def __init__(self, code: ExitCode, reason: str, message: str = "") -> None:
        super().__init__(code, message or reason)
        self.reason = reason


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape in the form of the reasons: `(2, 3)`, `(6)`, `()`."""
    return f"({', '.join(map(str, shape))})"
