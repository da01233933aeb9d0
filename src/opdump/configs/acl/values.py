"""Values of acl.json out of closed lists. They are looked at after all types and before anything else.

Matching is exact, with case and without trimming (docs/acl-json.md#keys).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from opdump.configs.acl.error import AclConfigError
from opdump.configs.shared.json_text import kind_of
from opdump.plan import ExceptionDetail
from opdump.statistics import dump_stats

EXCEPTION_SCENES: Final[Mapping[str, ExceptionDetail]] = MappingProxyType(
    {
        "lite_exception": "brief",
        "aic_err_brief_dump": "brief",
        "aic_err_norm_dump": "norm",
        "aic_err_detail_dump": "detail",
    }
)
WATCHER: Final = "watcher"

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "dump_mode": ("input", "output", "all"),
        "dump_level": ("op", "kernel", "all"),
        "dump_op_switch": ("on", "off"),
        "dump_data": ("tensor", "stats"),
        "dump_debug": ("on", "off"),
        "dump_scene": (*EXCEPTION_SCENES, WATCHER),
    }
)
_KERNEL_DATA: Final = ("all", "printf", "tensor", "assert", "timestamp")


def check_values(dump: Mapping[str, Any], where: str) -> None:
    """Raises AclConfigError for the first value outside its list: EP0001 for an empty one, EP0002 for another.

    The types of `dump` have been checked.
    """
    for key, allowed in _CHOICES.items():
        if key in dump:
            _check_member(dump[key], allowed, where, f"dump.{key}")
    names = dump.get("dump_stats", ())
    for index, name in enumerate(names):
        _check_member(name, tuple(dump_stats(names)), where, f"dump.dump_stats[{index}]", empty="EP0002")
    if "dump_kernel_data" in dump:
        text = dump["dump_kernel_data"]
        for name in text.split(",") if text else ("",):
            _check_member(name, _KERNEL_DATA, where, "dump.dump_kernel_data", empty="EP0002" if text else "EP0001")


def _check_member(value: str, allowed: Collection[str], where: str, path: str, empty: Any = "EP0001") -> None:
    if value in allowed:
        return
    near = difflib.get_close_matches(value.strip().lower(), [name.lower() for name in allowed], 1, 0.6)
    meant = next((name for name in sorted(allowed) if near and name.lower() == near[0]), None)
    advice = f'; write "{meant}"' if meant else "; write one of them, or leave the key out"
    raise AclConfigError(
        f"{where}: {path}: found {kind_of(value)}, expected one of {'/'.join(sorted(allowed))}{advice}",
        "EP0002" if value else empty,
    )
