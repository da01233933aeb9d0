"""Limits of a dump in text form: `20GB`, `512 MiB`, `10%`."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from opdump.errors import ConfigError

_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgt]?i?b?)", re.ASCII | re.IGNORECASE)
_SHARE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?) ?%", re.ASCII)
_POWERS: Final = MappingProxyType({"": 0, "k": 1, "m": 2, "g": 3, "t": 4})
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
