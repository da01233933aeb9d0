"""Reads JSON as strictly as MindSpore's parser (nlohmann), reports the place of an error, and checks the keys of objects.

Python's own parser is laxer: it accepts NaN and Infinity, numbers beyond the range of a double, and unpaired surrogates. It is
not stricter in anything that a config can contain.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from opdump.errors import ConfigError
from opdump.plan.unmatched_names import nearest

# JSON, with the place of each value.


@dataclass(frozen=True, slots=True)
class Section:
    """An object of the config file. `where` begins every message: `data_dump.json: common_dump_settings`."""

    where: str
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        return key in self.values

    def require(self, *keys: str) -> None:
        """Raises ConfigError for the first of `keys` that is missing, with the nearest key that exists."""
        for key in keys:
            if key not in self.values:
                there = nearest(key, self.values, 1, alike=0.7)
                hint = (
                    f"found {there[0]!r}: is that meant?"
                    if there
                    else f'add "{key}"; `opdump config new` shows all keys'
                )
                raise ConfigError(f"{self.where}.{key} not found, and it is required; {hint}")

    def unsigned(self, key: str, meaning: str) -> int:
        """An unsigned int, reduced to 32 bits as in MindSpore. A boolean, 1.0 and -1 are errors."""
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, f"an unsigned int: {meaning}")
        return value % 2**32

    def text(self, key: str, meaning: str, default: str | None = None) -> str:
        value = self.values[key] if default is None else self.values.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"a string: {meaning}")
        return value

    def array(self, key: str, meaning: str) -> list[Any]:
        value = self.values[key]
        if not isinstance(value, list):
            raise self.wrong(key, f"an array: {meaning}")
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "a boolean: true or false, without quotes")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """A string from a closed list, in exactly that spelling."""
        meaning = " or ".join(f'"{name}"' for name in allowed)
        value = self.text(key, meaning, default)
        if value not in allowed:
            near = nearest(value, allowed, 1)
            raise self.wrong(key, f"{key} only supports {meaning}" + (f'; write "{near[0]}"' if near else ""))
        return value

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error for an invalid value; `expected` describes valid ones, and what to write."""
        return ConfigError(f"{self.where}.{key}: found {kind_of(self.values[key])}, expected {expected}")


_SPACE = " \t\n\r"


def read_json(data: bytes, where: str, *, whole: bool = False) -> tuple[Any, list[str]]:
    """The value in `data`, and warnings about duplicate keys and text after the value.

    Integers from 0 to 2^64-1 and down to -2^63 are returned as int, any other number as float; `-0` is a float, because it is not
    an unsigned number. The last of duplicate keys counts. Text after the value is ignored, as in MindSpore; with `whole` it is an
    error.

    Raises ConfigError for invalid JSON.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: byte {error.start} is {data[error.start]:#04x}, expected UTF-8; save the file as UTF-8"
        ) from error
    start = len(text) - len(text.lstrip(_SPACE))
    if start == len(text):
        raise ConfigError(f"{where}: the file is empty, expected a JSON object; `opdump config new` creates one")
    warnings: list[str] = []
    try:
        value, end = _decoder(where, warnings).raw_decode(text, start)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.splitlines()[error.lineno - 1 :] else ""
        raise ConfigError(
            f"{where}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}), found {_excerpt(line, error)}; "
            f"JSON has no comments, no comma after the last item and no single quotes"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{where}: brackets are nested too deeply to read; a config needs three levels") from error
    _refuse_lone_surrogates(value, where)
    if rest := text[end:].strip(_SPACE):
        if whole:
            raise ConfigError(f"{where}: text after the end of the JSON: {rest[:40]!r}; remove it")
        warnings.append(f"{where}: text after the end of the JSON is ignored: {rest[:40]!r}")
    return value, warnings


def kind_of(value: object) -> str:
    """Describes a JSON value, with its text if that is short: `"0" (a string)`."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    kind = names.get(type(value))
    if kind is None:
        kind = "a negative number" if isinstance(value, int) else "a fractional number or one out of range"
        kind = "a number" if isinstance(value, int) and value >= 0 else kind
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:  # brackets that were barely shallow enough to read
        text = "[...]" if isinstance(value, list) else "{...}"
    except Exception:  # noqa: BLE001  a keyword may hold anything, with words of its own or none
        text = "a value"
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    return shown if value is None else f"{shown} ({kind})"


def _decoder(where: str, warnings: list[str]) -> json.JSONDecoder:
    def integer(text: str) -> int | float:
        if text == "-0" or len(text) > 20:
            return real(text)
        number = int(text)
        return number if -(2**63) <= number < 2**64 else float(number)

    def real(text: str) -> float:
        number = float(text)
        if math.isinf(number):
            raise ConfigError(f"{where}: the number {text[:40]} does not fit into 64 bits")
        return number

    def constant(text: str) -> NoReturn:
        raise ConfigError(f"{where}: found {text}, which is not JSON; expected a number, a string, true, false or null")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = sorted(name for name, count in counts.items() if count > 1)
            warnings.append(f"{where}: keys given more than once, of which the last one is used: {', '.join(twice)}")
        return found

    return json.JSONDecoder(
        parse_int=integer, parse_float=real, parse_constant=constant, object_pairs_hook=members, strict=True
    )


def _refuse_lone_surrogates(value: object, where: str) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and any("\ud800" <= char <= "\udfff" for char in item):
            raise ConfigError(f"{where}: the string {item!r} holds half of a surrogate pair, which is not a character")


def _excerpt(line: str, error: json.JSONDecodeError) -> str:
    found = line[error.colno - 1 : error.colno + 29].strip()
    return repr(found) if found else "the end of the line"


# The keys of data_dump.json, and the warnings about unknown ones.

COMMON: Final = "common_dump_settings"
E2E: Final = "e2e_dump_settings"
OWN: Final = "opdump"

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
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
    return next(iter(nearest(key, [name for keys in KEYS.values() for name in keys], 1)), None)


def _advice(name: str, here: tuple[str, ...], sections: Mapping[str, tuple[str, ...]]) -> str:
    for section, keys in sections.items():
        if name in keys:
            return f"it belongs in {section}"
    near = nearest(name, here, 1)
    if near:
        return f'the nearest known key is "{near[0]}"'
    elsewhere = nearest_key(name)
    if elsewhere is not None:
        return f'the nearest known key is "{elsewhere}" of {section_of(elsewhere)}'
    return f"known keys: {', '.join(here)}"
