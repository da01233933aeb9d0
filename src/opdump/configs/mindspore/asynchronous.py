"""The asynchronous dump of data_dump.json: which files select it, and which of their keys have no effect there.

    {"common_dump_settings": {..., "file_format": "npy"}}                the file has `file_format`, and `enable` is not true
    MS_ACL_DUMP_CFG_PATH=/path/to/data_dump.json                         the form of ACL: a directory for each step
    {..., "opdump": {"layout": "mindspore-async", "jit_level": "O2"}}    said outright

See docs/async-dump.md#how-to-select-it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from opdump.configs.shared.json_text import Section
from opdump.configs.shared.known_keys import E2E
from opdump.plan import FileFormat, SavedData, StepSet

LAYOUT: Final = "mindspore-async"
_JIT_LEVELS: Final = ("O0", "O1", "O2")
# Keys of the synchronous dump, each with its neutral value.
_SYNCHRONOUS: Final[Mapping[str, object]] = {"save_kernel_args": False, "sample_mode": 0, "stat_calc_mode": "host"}


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """How an asynchronous dump is written."""

    file_format: FileFormat
    step_level: bool
    kernel_by_kernel: bool


def is_asynchronous(e2e: Section, common: Section, own: Section, *, acl_form: bool) -> bool:
    """Whether the sections select the asynchronous dump. If opdump's own `layout` is given, it decides."""
    if own.has("layout"):
        return bool(own.values["layout"] == LAYOUT)
    return acl_form or (common.has("file_format") and e2e.values.get("enable") is not True)


def asynchronous(common: Section, own: Section, *, acl_form: bool) -> Asynchronous:
    """How the sections want it written. Raises ConfigError for an unknown `file_format` or `jit_level`."""
    file_format = common.choice("file_format", get_args(FileFormat)) if common.has("file_format") else "bin"
    # MindSpore calls a program that runs operator by operator O0 or O1.
    level = own.choice("jit_level", _JIT_LEVELS) if own.has("jit_level") else "O0"
    return Asynchronous(cast(FileFormat, file_format), acl_form, acl_form and level != "O2")


def refuse_marks(common: Section, dump_mode: int) -> None:
    """Raises ConfigError for `dump_mode` 2: the asynchronous dump has no `set_dump`."""
    if dump_mode == 2:
        raise common.wrong(
            "dump_mode",
            "0 or 1 in the asynchronous dump, which has no set_dump; or the synchronous dump: take file_format out, or set "
            f'"enable": true in {E2E}',
        )


def refuse_binary_statistics(common: Section, file_format: FileFormat, saved_data: SavedData) -> None:
    """Raises ConfigError for statistics together with binary files."""
    if saved_data != "tensor" and file_format == "bin":
        raise common.wrong(
            "saved_data", 'the asynchronous dump to have statistics only in npy files; write "file_format": "npy"'
        )


def refuse_single_steps(common: Section, steps: StepSet) -> None:
    """Raises ConfigError for overflow detection in selected steps: a program that runs eagerly is always watched as a whole."""
    if steps != StepSet.all():
        raise common.wrong(
            "iteration",
            '"all", which the asynchronous dump of overflows asks for where operators run one by one; write '
            '"iteration": "all", or dump synchronously',
        )


def without_effect(e2e: Section) -> list[str]:
    """One sentence for each setting that has no effect in the asynchronous dump."""
    found: list[Any] = [key for key, nothing in _SYNCHRONOUS.items() if e2e.values.get(key, nothing) != nothing]
    return [
        f"{e2e.where}.{key} belongs to the synchronous dump and has no effect in the asynchronous one" for key in found
    ]
