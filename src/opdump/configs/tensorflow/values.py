"""Values of a `parameter_map`: messages with one field for each kind of value, of which one is set.

The adapter reads the field that it expects. Where another one was set it reads zero, as protobuf has it, and so does opdump,
with a warning (docs/tensorflow-config.md#keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["b", "i", "s", "f"]
_WRITTEN: Final[Mapping[Kind, str]] = {"b": "True", "i": "1", "s": 'tf.compat.as_bytes("...")', "f": "1.0"}


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """One value: `kind` is the field that was set, any field of AttrValue; None where none was."""

    kind: str | None
    value: Any = None

    @classmethod
    def of(cls, value: object) -> ParameterValue:
        """The value that a bool, an int, a float, a str or bytes stands for. Raises TypeError for another type."""
        if isinstance(value, bool):
            return cls("b", value)
        if isinstance(value, int):
            return cls("i", value)
        if isinstance(value, float):
            return cls("f", value)
        if isinstance(value, str | bytes):
            return cls("s", value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
        raise TypeError(f"found a {type(value).__name__}, expected bool, int, float, str or bytes")


def parameter_values(parameter_map: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """The values of a protobuf `parameter_map`, with the field that was set in each."""
    found = {}
    for key, message in parameter_map.items():
        kind = message.WhichOneof("value")
        found[key] = ParameterValue(kind, None if kind is None else getattr(message, kind))
    return found


def read_flag(values: Mapping[str, ParameterValue], key: str, default: bool, warnings: list[str]) -> bool:
    """The field `b` of a key; `default` where the key is missing, False where another field is set."""
    return bool(_read(values, key, "b", default, False, warnings))


def read_number(values: Mapping[str, ParameterValue], key: str, default: int, warnings: list[str]) -> int:
    """The field `i` of a key; `default` where the key is missing, 0 where another field is set."""
    return int(_read(values, key, "i", default, 0, warnings))


def read_text(values: Mapping[str, ParameterValue], key: str, default: str | None, warnings: list[str]) -> str | None:
    """The field `s` of a key; `default` where the key is missing, the empty text where another field is set.

    Bytes that are no UTF-8 come back as Python writes those of file names.
    """
    value = _read(values, key, "s", default, "", warnings)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _read(
    values: Mapping[str, ParameterValue], key: str, kind: Kind, default: Any, zero: Any, warnings: list[str]
) -> Any:
    if key not in values:
        return default
    if values[key].kind == kind:
        return values[key].value
    found = "without a value" if values[key].kind is None else f"as .{values[key].kind}"
    warnings.append(
        f'{key} is set {found} and read as .{kind}, which is {zero!r}; write parameter_map["{key}"].{kind} = {_WRITTEN[kind]}'
    )
    return zero
