"""The keys of data_dump.json, and the warnings about unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from opdump.configs.shared.json_text import kind_of

COMMON: Final = "common_dump_settings"
E2E: Final = "e2e_dump_settings"
OWN: Final = "opdump"

KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        COMMON: (
            "dump_mode",
            "path",
            "net_name",
            "iteration",
            "saved_data",
            "input_output",
            "kernels",
            "support_device",
            "op_debug_mode",
            "statistic_category",
            "file_format",
            "overflow_number",
            "initial_iteration",
        ),
        E2E: (
            "enable",
            "trans_flag",
            "save_kernel_args",
            "stat_calc_mode",
            "device_stat_precision_mode",
            "sample_mode",
            "sample_num",
        ),
        OWN: ("layout", "class_names_in_scope", "trailing_comma", "jit_level"),
    }
)
# A section of MindSpore 1.x, which current versions ignore.
_OBSOLETE_SECTION: Final = "async_dump_settings"


def unknown_keys(config: Mapping[str, Any], where: str) -> list[str]:
    """One sentence for each key without a meaning in its place, with the nearest known key."""
    found = [
        f"{where}: unknown section {name!r} is ignored; {_advice(name, tuple(KEYS), KEYS)}"
        for name in config
        if name not in KEYS and name != _OBSOLETE_SECTION
    ]
    for section, keys in KEYS.items():
        inside = config.get(section, {})
        if not isinstance(inside, Mapping):
            found.append(f"{where}: {section}: found {kind_of(inside)}, expected an object; it is ignored")
        else:
            found += [
                f"{where}: {section}: unknown key {key!r} is ignored; {_advice(key, keys, KEYS)}"
                for key in inside
                if key not in keys
            ]
    return found


def obsolete_sections(config: Mapping[str, Any], where: str, layout: str) -> list[str]:
    """One sentence for each section of older MindSpore versions. `layout` is the layout of the dump without it."""
    if _OBSOLETE_SECTION not in config:
        return []
    text = (
        f"{where}: the keys of {_OBSOLETE_SECTION}, a section of old versions of MindSpore, have no effect: what is dumped follows from "
        f'{COMMON} and {E2E}, and is written in the layout {layout!r}; for the asynchronous dump write "opdump": '
        '{"layout": "mindspore-async"}'
    )
    return [text]


def section_of(key: str) -> str | None:
    """The section that a key belongs to; None for an unknown key."""
    return next((section for section, keys in KEYS.items() if key in keys), None)


def nearest_key(key: str) -> str | None:
    """The key that `key` may stand for; None if none is similar."""
    every = [name for keys in KEYS.values() for name in keys]
    near = difflib.get_close_matches(key.lower(), every, 1, 0.6)
    return near[0] if near else None


def _advice(name: str, here: tuple[str, ...], sections: Mapping[str, tuple[str, ...]]) -> str:
    for section, keys in sections.items():
        if name in keys:
            return f"it belongs into {section}"
    near = difflib.get_close_matches(name.lower(), here, 1, 0.6)
    if near:
        return f'the nearest known key is "{near[0]}"'
    elsewhere = nearest_key(name)
    if elsewhere is not None:
        return f'the nearest known key is "{elsewhere}" of {section_of(elsewhere)}'
    return f"known here are {', '.join(here)}"
