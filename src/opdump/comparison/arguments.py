"""Arguments of operators that are no tensors, compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from opdump.comparison.nodes import Node, are_of_two_modes
from opdump.comparison.trace import has_elements

_OF_NO_VALUE: Final = frozenset(
    {"device", "pin_memory", "layout", "memory_format", "non_blocking", "generator", "dtype", "implicit", "copy"}
)
"""Arguments that say where and how, and not what. A change of the element type shows in the types of the tensors."""
_DIMENSIONS: Final = frozenset({"axis", "axes", "dim", "dim0", "dim1", "dims"})
"""Arguments that name dimensions of the first input."""
_ADDS_DIMENSIONS: Final = frozenset({"unsqueeze", "stack", "expand_dims", "expanddims", "onehot", "one_hot"})
"""Operators whose arguments name dimensions of the output: it has more of them."""
_CLOSE: Final = 2.0**-23
"""Relative: numbers that float32 cannot tell apart are the same; one program may have rounded them before the other."""


def differing(
    a: Node, b: Node, scalars_a: Collection[float] = (), scalars_b: Collection[float] = ()
) -> dict[str, tuple[Any, Any]]:
    """The arguments that differ, by name.

    `scalars_a` and `scalars_b` are the numbers that each program read out of tensors: an argument that is one of these on either
    side was computed, and what it was computed from is compared.
    """
    if a.op.kernel != b.op.kernel or are_of_two_modes(a, b):
        one, other = a.written_arguments, b.written_arguments
        names: Collection[str] = one.keys() & other.keys()
    else:
        one, other = a.arguments, b.arguments
        names = one.keys() | other.keys()
    return {
        name: (one.get(name), other.get(name))
        for name in names
        if name not in _OF_NO_VALUE
        and not _is_same(_counted_up(a, name, one.get(name)), _counted_up(b, name, other.get(name)))
        and not (_is_among(one.get(name), scalars_a) and _is_among(other.get(name), scalars_b))
    }


def told_of(arguments: Mapping[str, tuple[Any, Any]]) -> str:
    """Arguments that differ, for people; of lists of texts, as of the equations of an operator, the part that differs."""
    parts = {name: _differing_part(*values) for name, values in arguments.items()}
    return ", ".join(f"{name}: {before} in A, {after} in B" for name, (before, after) in sorted(parts.items()))


def _differing_part(one: Any, other: Any) -> tuple[Any, Any]:
    if not all(
        isinstance(each, (list, tuple)) and all(isinstance(text, str) for text in each) for each in (one, other)
    ):
        return one, other
    shorter = min(len(one), len(other))
    first = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    last = next((place for place in range(shorter - first) if one[-1 - place] != other[-1 - place]), shorter - first)
    before, after = ("; ".join(each[first : len(each) - last]) or "nothing" for each in (one, other))
    return before, after


def _counted_up(node: Node, name: str, value: Any) -> Any:
    """A dimension as it is counted from the first, where it is counted from the last; anything else as it is."""
    records = node.outputs if node.bare_type.lower() in _ADDS_DIMENSIONS else node.inputs
    rank = len(records[0].shape) if 0 in records else 0
    if name not in _DIMENSIONS or not rank:
        return value
    if isinstance(value, (list, tuple)):
        return [_counted_up(node, name, each) for each in value]
    return value + rank if isinstance(value, int) and -rank <= value < 0 else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return (
            one == other
            or (math.isnan(one) and math.isnan(other))
            or math.isclose(one, other, rel_tol=_CLOSE, abs_tol=0.0)
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if "graph" in one and "graph" in other:
            return True  # the name of a body, which exporters count up
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _is_among(value: Any, scalars: Collection[float]) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) in scalars


def scalars_read(nodes: Collection[Node]) -> frozenset[float]:
    """The numbers that a program read out of tensors (`item()`)."""
    found = set()
    for node in nodes:
        if node.bare_type in ("_local_scalar_dense", "item"):
            for record in node.inputs.values():
                if has_elements(record):
                    found.add(
                        float(
                            abs(record.numpy().reshape(-1)[0])
                            if record.dtype.startswith("complex")
                            else record.numpy().reshape(-1)[0]
                        )
                    )
    return frozenset(found)
