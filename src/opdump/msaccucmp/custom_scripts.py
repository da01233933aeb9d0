"""Runs the user's own conversions (`-c DIR`), `DIR/format_convert/convert_<SOURCE>_to_<TARGET>.py`.

Each file has `convert(shape_from, shape_to, array)`, with a fourth argument, the number of groups, if the target is FRACTAL_Z.
The file is executed, which is the purpose of the option. See docs/msaccucmp.md#options-of-convert.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_formats import FORMATS, Stored

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
            log("WARNING", f"{path} is no convert_<SOURCE>_to_<TARGET>.py and is left out")
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
        log("WARNING", f"{path} has no function convert and is left out")
        return None
    expected = 4 if "to_FRACTAL_Z" in os.path.basename(path) else 3
    found = len(inspect.signature(convert).parameters)
    if found != expected:
        log("WARNING", f"{path}: convert takes {found} arguments instead of {expected}; the file is left out")
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
