"""One object of a config: its values, type by type, with errors that name file and key."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from opdump.configs.shared.json_text import kind_of
from opdump.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Section:
    """An object of the config file. `where` leads every message: `data_dump.json: common_dump_settings`."""

    where: str
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        return key in self.values

    def require(self, *keys: str) -> None:
        """Raises ConfigError for the first of `keys` that is missing, with the nearest key that is there."""
        for key in keys:
            if key not in self.values:
                near = difflib.get_close_matches(key.lower(), [found.lower() for found in self.values], 1, 0.7)
                there = next((found for found in self.values if near and found.lower() == near[0]), None)
                hint = (
                    f"found {there!r}: is that meant?" if there else f'add "{key}"; `opdump config new` shows all keys'
                )
                raise ConfigError(f"{self.where}.{key} not found, and it is required; {hint}")

    def unsigned(self, key: str, meaning: str) -> int:
        """An unsigned int, kept to 32 bits as MindSpore keeps it. A boolean, 1.0 and -1 are none."""
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, f"an unsigned int: {meaning}")
        return value % 2**32

    def text(self, key: str, meaning: str) -> str:
        value = self.values[key]
        if not isinstance(value, str):
            raise self.wrong(key, f"a string: {meaning}")
        return value

    def array(self, key: str, meaning: str) -> list[Any]:
        value = self.values[key]
        if not isinstance(value, list):
            raise self.wrong(key, f"an array: {meaning}")
        return value

    def boolean(self, key: str) -> bool:
        value = self.values[key]
        if not isinstance(value, bool):
            raise self.wrong(key, "a boolean: true or false, without quotes")
        return value

    def choice(self, key: str, allowed: Collection[str]) -> str:
        """A string out of a closed list, in exactly that spelling."""
        meaning = " or ".join(f'"{name}"' for name in allowed)
        value = self.text(key, meaning)
        if value not in allowed:
            near = difflib.get_close_matches(value.strip().lower(), allowed, 1, 0.6)
            raise self.wrong(key, f"{key} only supports {meaning}" + (f'; write "{near[0]}"' if near else ""))
        return value

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error for a value that cannot be used; `expected` says what can, and what to write."""
        return ConfigError(f"{self.where}.{key}: found {kind_of(self.values[key])}, expected {expected}")
