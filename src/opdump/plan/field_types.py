"""Checks whether a value has the annotated type of a field or an argument, and words the error message.

>>> check_value("capture", "overflow", "maybe", bool)
Traceback (most recent call last):
    ...
opdump.errors.ConfigError: capture: overflow is 'maybe', expected True or False
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from opdump.errors import ConfigError

LARGEST: Final = 2**32 - 1
"""Maximum of integers: MindSpore stores those of a configuration in 32 bits."""
Size = Annotated[int, range(1, 2**63)]
"""A number of bytes. An integer annotation with a range requires that range."""
_SHOWN: Final = 120
_TOO_MUCH: Final = 2**63


@cache
def _hints_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def check_fields(instance: Any) -> None:
    """Raises ConfigError if a field of a dataclass has the wrong type."""
    kind = type(instance)
    hints = _hints_of(cast(Hashable, kind))
    check_values(kind.__name__, {name: getattr(instance, name) for name in hints}, hints)


def check_values(where: str, values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first of `values` that does not have the type that `hints` has for its name; other names pass."""
    for name, value in values.items():
        if name in hints:
            check_value(where, name, value, hints[name])


def check_value(where: str, name: str, value: object, hint: Any) -> None:
    """Raises ConfigError if `value` does not have that type. Integers start at 0, other numbers are above 0; a path must be valid
    on the system.
    """
    if not is_a(value, hint):
        raise wrong_value(where, name, value, " or ".join(_words(hint)))


def wrong_value(where: str, name: str, value: object, expected: str) -> ConfigError:
    """The error for an invalid value."""
    return ConfigError(f"{where}: {name} is {shown(value)}, expected {expected}")


def is_a(value: object, hint: Any) -> bool:
    """Whether a value has that type."""
    kind = get_origin(hint) or hint
    check = _CHECKS.get(kind)
    return isinstance(value, kind) if check is None else check(value, hint)


def is_a_number(value: object, kind: Any) -> bool:
    """Whether it has that type and is not a bool, which is a subclass of int."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_possible(path: Any) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except (UnicodeEncodeError, TypeError):
        return False


def _is_a_collection(values: Any, hint: Any) -> bool:
    return isinstance(values, get_origin(hint)) and all(is_a(each, get_args(hint)[0]) for each in values)


def _is_a_path(value: Any, hint: Any) -> bool:
    return isinstance(value, get_origin(hint) or hint) and _is_possible(value)


_CHECKS: Final[Mapping[Any, Callable[[Any, Any], bool]]] = {
    Any: lambda _value, _hint: True,
    **dict.fromkeys((None, type(None)), lambda value, _hint: value is None),
    **dict.fromkeys((Union, types.UnionType), lambda value, hint: any(is_a(value, each) for each in get_args(hint))),
    Literal: lambda value, hint: isinstance(value, str) and value in get_args(hint),
    **dict.fromkeys((tuple, frozenset), _is_a_collection),
    Annotated: lambda value, hint: is_a_number(value, int) and value in hint.__metadata__[0],
    float: lambda value, _hint: is_a_number(value, int | float) and 0 < value < _TOO_MUCH,
    int: lambda value, _hint: is_a_number(value, int) and 0 <= value <= LARGEST,
    **dict.fromkeys((Path, os.PathLike), _is_a_path),
}
"""The test of a value for each type that is not only a class, by the origin of the type."""


def _words(hint: Any) -> list[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [words for each in arguments for words in _words(each)]
    if origin is Literal:
        choices = ", ".join(repr(choice) for choice in arguments)
        return [f"one of {choices}" if len(arguments) > 1 else choices]
    if origin in (tuple, frozenset):
        return [f"a {origin.__name__} of {_PLURAL.get(arguments[0]) or ' and '.join(_words(arguments[0]))}"]
    if origin is Annotated:
        return [f"a whole number from {hint.__metadata__[0][0]} on"]
    if hint is type(None):
        return ["None"]
    return [_ONE.get(origin or hint) or f"a {hint.__name__}"]


_ONE: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: f"a whole number from 0 to {LARGEST}",
    float: "a number above 0",
    str: "text",
    Path: "a path (pathlib.Path)",
    os.PathLike: "a path",
}
_PLURAL: Final[Mapping[Any, str]] = {int: f"whole numbers from 0 to {LARGEST}", str: "texts"}


def shown(value: object) -> str:
    """The value, truncated: a tensor or a huge number does not fit in a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  the repr of a program's object fails, or a number is too long to be written
        text = "a value"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# Limits of a dump in text form: `20GB`, `512 MiB`, `10%`.

_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgt]?i?b?)", re.ASCII | re.IGNORECASE)
_SHARE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?) ?%", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
SIZE_EXAMPLE: Final = 'a size above 0 such as "20GB", "512MiB", or a number of bytes'
SHARE_EXAMPLE: Final = 'a share above 0 such as "10%" or 0.1'


def parse_size(text: str) -> int:
    """The bytes in `20GB`, `1.5 TB` (powers of 1000), `512MiB` (powers of 1024) or `1000`; case-insensitive.

    Raises ConfigError for any other text, and for a size below one byte.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() == "i" or found[2].lower() == "ib":
        raise ConfigError(f"found {text!r}, expected {SIZE_EXAMPLE}")
    unit = found[2].lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    size = int(float(found[1]) * base ** _POWERS[unit.removesuffix("i")])
    if size < 1:
        raise ConfigError(f"found {text!r}, expected {SIZE_EXAMPLE}")
    return size


def parse_share(text: str) -> float:
    """`10%` as 0.1. Raises ConfigError for any other text, and for a share of 0."""
    found = _SHARE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"found {text!r}, expected {SHARE_EXAMPLE}")
    return float(found[1]) / 100
