"""What a program asks to have watched: tensors, and names of operators and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from opdump.errors import ConfigError
from opdump.plan.field_types import shown

WATCHABLE: Final = "expected tensors, a mapping from names to tensors, or names of operators and modules"


def watched_of(what: Any, numbers: Iterator[int]) -> tuple[list[str], dict[str, Any]]:
    """The names and the tensors among what is to be watched; tensors without a name are `tensor0`, `tensor1`, ..."""
    nodes: list[str] = []
    tensors: dict[str, Any] = {}

    def add(item: Any) -> None:
        if isinstance(item, str) and item:
            nodes.append(item)
        elif isinstance(item, Mapping) and all(
            isinstance(name, str) and name and _is_tensor(item[name]) for name in item
        ):
            tensors.update(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            for each in item:
                add(each)
        elif _is_tensor(item):
            tensors[f"tensor{next(numbers)}"] = item
        elif item is not None:
            raise ConfigError(f"watch: found {shown(item)}, {WATCHABLE}")

    add(what)
    return nodes, tensors


def _is_tensor(item: Any) -> bool:
    # Of its class: to ask the tensor would run through the modes and subclasses of the program.
    return hasattr(type(item), "shape") and hasattr(type(item), "dtype")
