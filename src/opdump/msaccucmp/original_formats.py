"""Converts formats like the original: eighteen pairs, including its errors.

`opdump.formats` has the right conversions. Here FRACTAL_Z with more groups than one device block overwrites elements, FRACTAL_NZ
of more than two dimensions is returned with three, and a slice that fails leaves the data unchanged. See
docs/msaccucmp.md#where-opdump-convert-differs.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import FORMAT_NAMES
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log

_RENAMED: Final = {
    15: "DECONV_SP_STRIDE8_TRANS",
    20: "LOOKUP_LOOKUPS",
    21: "LOOKUP_KEYS",
    22: "LOOKUP_VALUE",
    23: "LOOKUP_OUTPUT",
    24: "LOOKUP_HITS",
}
_NAMELESS: Final = frozenset({28, 35, 47, 48, 49})
FORMATS: Final[Mapping[int, str]] = MappingProxyType(
    {number: _RENAMED.get(number, name) for number, name in FORMAT_NAMES.items() if number not in _NAMELESS}
)
"""The formats that have names in the original."""
_FOUR_DIMENSIONS: Final = frozenset({"NCHW", "NHWC", "HWCN"})
_BLOCK: Final = 16

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """How a tensor is stored: its shape, the shape in the framework (empty if unknown), and the groups of a convolution."""

    shape: tuple[int, ...]
    wanted: tuple[int, ...] = ()
    groups: int = 0


_Conversion = Callable[[_Array, Stored], _Array]


def format_of(number: int) -> str:
    """The name of a format. Raises CommandError if the original has none."""
    name = FORMATS.get(number)
    if name is None:
        raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"format {number} has no name in this command")
    return name


def effective_format(name: str, shape: tuple[int, ...]) -> str:
    """ND for NCHW, NHWC and HWCN of a shape without four dimensions."""
    return "ND" if name in _FOUR_DIMENSIONS and len(shape) != 4 else name


def can_convert(source: str, target: str) -> bool:
    """Whether the original has a function for the pair."""
    return (source, target) in _PAIRS


def convert_format(source: str, target: str, array: _Array, stored: Stored) -> _Array:
    """The elements in another format.

    Raises CommandError, and ValueError, IndexError or ZeroDivisionError if the shapes do not fit.
    """
    return _PAIRS[source, target](array, stored)


def _transposed(*order: int) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        result: _Array = array.reshape(stored.shape).transpose(order)
        return result

    return convert


def _from_nc1hwc0(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        n, c1, h, w, c0 = stored.shape
        order, shape = {
            "NCHW": ((0, 1, 4, 2, 3), (n, c1 * c0, h, w)),
            "NHWC": ((0, 2, 3, 1, 4), (n, h, w, c1 * c0)),
            "HWCN": ((2, 3, 1, 4, 0), (h, w, c1 * c0, n)),
        }[target]
        result: _Array = array.reshape(stored.shape).transpose(order).reshape(shape)
        return result

    return convert


def _cut(there: int, wanted: int) -> slice:
    """What the original leaves of a padded dimension: if more is requested than exists, the difference of the two."""
    return slice(None, wanted - there) if wanted != there else slice(None)


def _from_fractal_z(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        if stored.groups > 1:
            raise ValueError(f"{stored.groups} groups, and only one is read back")
        first, no, ni, c0 = stored.shape
        wanted = stored.wanted
        n, c, h, w = wanted if target == "NCHW" else (wanted[3], wanted[2], wanted[0], wanted[1])
        c1 = first // (h * w)
        six = array.reshape(c1, h, w, no, ni, c0)
        cut_n, cut_c = _cut(no * ni, n), _cut(c1 * c0, c)
        if target == "NCHW":
            padded: _Array = six.transpose(3, 4, 0, 5, 1, 2).reshape(no * ni, c1 * c0, h, w)
            return padded[cut_n, cut_c]
        padded = six.transpose(1, 2, 0, 5, 3, 4).reshape(h, w, c1 * c0, no * ni)
        return padded[:, :, cut_c, cut_n]

    return convert


def _from_fractal_nz(array: _Array, stored: Stored) -> _Array:
    wanted = stored.wanted
    check_nz_shape(stored.shape, wanted)
    *leading, c1, no, ni, c0 = stored.shape
    batch = math.prod(leading)
    rows, columns = wanted[-2:]
    matrices: _Array = array.reshape(batch, c1, no, ni, c0).transpose(0, 2, 3, 1, 4).reshape(batch, no * ni, c1 * c0)
    cut = matrices[:, :rows, :columns]
    return cut.reshape(rows, columns) if len(wanted) <= 2 else cut


def check_nz_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise CommandError if `wanted` cannot be the plain shape of FRACTAL_NZ data of `shape`."""
    if not wanted:
        raise CommandError(ExitCode.BAD_PARAMETER, "FRACTAL_NZ data without an original shape: give it with -s")
    if len(wanted) < 2:
        raise AbortError(f"FRACTAL_NZ data with the shape {wanted}; it has at least two dimensions")
    *leading, c1, no, ni, c0 = shape
    rows, columns = no * ni, c1 * c0
    fits = (
        len(wanted) == len(shape) - 2
        and list(wanted[:-2]) == leading
        and rows - _BLOCK < wanted[-2] <= rows
        and columns - _BLOCK < wanted[-1] <= columns
    )
    if not fits:
        raise CommandError(
            ExitCode.BAD_PARAMETER, f"the shape {wanted} does not belong to FRACTAL_NZ data of shape {shape}"
        )


def _from_ndc1hwc0(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        n, d, c1, h, w, c0 = stored.shape
        five: _Array = array.reshape(stored.shape).transpose(0, 2, 5, 1, 3, 4).reshape(n, c1 * c0, d, h, w)
        if target == "ND" and len(stored.wanted) != 5:
            return five
        return five[:, _cut(c1 * c0, stored.wanted[1])]

    return convert


def _to_fractal_z(*from_source: int) -> _Conversion:
    """Weights to FRACTAL_Z; `from_source`: the axes N, C, H and W in the source."""

    def convert(array: _Array, stored: Stored) -> _Array:
        weights: _Array = array.reshape(stored.shape).transpose(from_source)
        return _fractal_z(weights, max(stored.groups, 1))

    return convert


def _fractal_z(weights: _Array, groups: int) -> _Array:
    n_all, c, h, w = weights.shape
    n = n_all // groups
    joined = min(math.lcm(math.lcm(c, _BLOCK) // c, math.lcm(n, _BLOCK) // n), groups)
    c1 = -(-joined * c // _BLOCK)
    n1 = -(-joined * n // _BLOCK)
    blocks = -(-groups // joined)
    result = np.zeros((blocks * c1 * h * w, n1, _BLOCK, _BLOCK), weights.dtype)
    rows = np.arange(h * w).reshape(h, w)
    for group in range(groups):
        for channel in range(c):
            dc = group % joined * c + channel
            # The block of the group is multiplied by dc // 16 where C1 belongs: later groups overwrite earlier ones.
            place = (group // joined) * (dc // _BLOCK) * h * w + (dc // _BLOCK) * h * w + rows
            for number in range(n):
                dn = group % joined * n + number
                result[place, dn // _BLOCK, dn % _BLOCK, dc % _BLOCK] = weights[group * n + number, channel]
    return result


_PAIRS: Final[Mapping[tuple[str, str], _Conversion]] = MappingProxyType(
    {
        **{("NC1HWC0", target): _from_nc1hwc0(target) for target in ("NCHW", "NHWC", "HWCN")},
        **{("FRACTAL_Z", target): _from_fractal_z(target) for target in ("NCHW", "HWCN")},
        **{("FRACTAL_NZ", target): _from_fractal_nz for target in ("ND", "NCHW", "NHWC")},
        **{("NDC1HWC0", target): _from_ndc1hwc0(target) for target in ("NCDHW", "ND")},
        ("NCHW", "NHWC"): _transposed(0, 2, 3, 1),
        ("NHWC", "NCHW"): _transposed(0, 3, 1, 2),
        ("NHWC", "HWCN"): _transposed(1, 2, 3, 0),
        ("HWCN", "NCHW"): _transposed(3, 2, 0, 1),
        ("HWCN", "NHWC"): _transposed(3, 0, 1, 2),
        ("NCHW", "FRACTAL_Z"): _to_fractal_z(0, 1, 2, 3),
        ("NHWC", "FRACTAL_Z"): _to_fractal_z(0, 3, 1, 2),
        ("HWCN", "FRACTAL_Z"): _to_fractal_z(3, 2, 0, 1),
    }
)


def slice_to(array: _Array, wanted: tuple[int, ...]) -> _Array:
    """The corner of `array` with the shape `wanted`, or less if it is larger; `array` itself if there is nothing to cut.

    Raises CommandError if `wanted` counts as larger: the original compares only the first dimension that differs.
    """
    if not wanted or array.ndim < len(wanted) or tuple(array.shape) == wanted:
        return array
    if math.prod(wanted) == array.size and sum(size != 1 for size in array.shape) <= 1:
        return array
    if array.ndim not in (4, 5):
        return array
    wanted = (*wanted, *(1,) * (array.ndim - len(wanted)))
    if array.shape < wanted:
        raise CommandError(ExitCode.BAD_SHAPE, f"data of shape {array.shape} cannot be cut to {wanted}")
    return array[tuple(slice(size) for size in wanted)]


# Runs the user's own conversions (`-c DIR`), `DIR/format_convert/convert_<SOURCE>_to_<TARGET>.py`.
#
# Each file has `convert(shape_from, shape_to, array)`, with a fourth argument, the number of groups, if the target is FRACTAL_Z.
# The file is executed, which is the purpose of the option. See docs/msaccucmp.md#options-of-convert.

_NAME: Final = re.compile(r"convert_(?P<source>\w+?)_to_(?P<target>\w+)\.py")
_LARGEST: Final = 1 << 20
_MOST_FILES: Final = 1000

Scripts = Mapping[tuple[str, str], Callable[..., Any]]


def load_scripts(folder: str) -> Scripts:
    """The `convert` functions of the directory, by source and target format. Other files are logged and left out.

    Raises AbortError if a script cannot be run.
    """
    place = os.path.join(folder, "format_convert")
    if not os.path.isdir(place):
        return {}
    scripts: dict[tuple[str, str], Callable[..., Any]] = {}
    known = set(FORMATS.values())
    for name in sorted(os.listdir(place))[:_MOST_FILES]:
        path = os.path.join(place, name)
        if not os.path.isfile(path):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            log("WARNING", f"{path} is not named convert_<SOURCE>_to_<TARGET>.py and is ignored")
            continue
        convert = _convert_function(path)
        if convert is not None and {match["source"], match["target"]} <= known:
            scripts[match["source"], match["target"]] = convert
    return scripts


def run_file(path: str) -> ModuleType:
    """The module in the file. Raises AbortError if it cannot be run."""
    size = os.stat(path).st_size
    if size > _LARGEST:
        raise AbortError(f"{path} holds {size} bytes; a script may have {_LARGEST}")
    with open(path, "rb") as file:
        source = file.read()
    module = ModuleType(os.path.basename(path)[:-3])
    module.__file__ = path
    folder = os.path.dirname(path)
    sys.path.insert(0, folder)
    try:
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102  # the option runs the user's own program
    except Exception as error:
        raise AbortError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        if folder in sys.path:  # the script may have changed it
            sys.path.remove(folder)
    return module


def _convert_function(path: str) -> Callable[..., Any] | None:
    module = run_file(path)
    convert: object = getattr(module, "convert", None)
    if not callable(convert):
        log("WARNING", f"{path} has no function convert and is ignored")
        return None
    expected = 4 if "to_FRACTAL_Z" in os.path.basename(path) else 3
    found = len(inspect.signature(convert).parameters)
    if found != expected:
        log("WARNING", f"{path}: convert takes {found} arguments instead of {expected}; the file is ignored")
        return None
    return convert


def run_script(
    convert: Callable[..., Any],
    source: str,
    target: str,
    array: npt.NDArray[Any],
    stored: Stored,
) -> npt.NDArray[Any]:
    """The result of the user's function. Raises CommandError if it fails or does not return an array."""
    arguments: list[Any] = [list(stored.shape), list(stored.wanted), array]
    if stored.groups > 1 and "FRACTAL_Z" in (source, target):
        arguments.append(stored.groups)
    result = convert(*arguments)
    if not isinstance(result, np.ndarray):
        raise CommandError(
            ExitCode.SCRIPT_FAILED, f"convert returned {type(result).__name__}; a numpy array was expected"
        )
    return result
