"""Check the output of a verb with --json against its documented shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

SHAPES: Final = Path(__file__).parents[2] / "docs/json"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mistakes(verb: str, value: Any) -> list[str]:
    """The places where a value does not match `docs/json/{verb}.json`; covers the part of JSON Schema that these files
    use.
    """
    return list(_mistakes(json.loads((SHAPES / f"{verb}.json").read_text()), value, "$"))


def _mistakes(shape: Any, value: Any, at: str) -> Iterator[str]:
    kinds = shape.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(kind, value) for kind in kinds):
        yield f"{at}: found {str(value)[:80]!r}, expected {' or '.join(kinds)}"
        return
    if "enum" in shape and value not in shape["enum"]:
        yield f"{at}: found {value!r}, expected one of {shape['enum']}"
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _mistakes(shape.get("items", {}), each, f"{at}[{number}]")
    if isinstance(value, dict):
        known = shape.get("properties", {})
        yield from (f"{at}: {name} is missing" for name in shape.get("required", ()) if name not in value)
        others = shape.get("additionalProperties", {})
        for name, each in value.items():
            if name in known:
                yield from _mistakes(known[name], each, f"{at}.{name}")
            elif others is False:
                yield f"{at}: {name} is not described"
            elif isinstance(others, dict):
                yield from _mistakes(others, each, f"{at}.{name}")


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (isinstance(value, bool) == (kind == "boolean"))
