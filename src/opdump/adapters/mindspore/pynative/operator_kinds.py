"""Properties of operators: whether one is a view, and the names of its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mindspore import Tensor
from mindspore.ops.auto_generate import gen_ops_prim

from opdump.adapters.mindspore.pynative.tensors import storage_of, tensors_in
from opdump.records import SkipReason

_VIEWS: Final = frozenset(
    {
        *(
            "AsStrided",
            "BroadcastTo",
            "Chunk",
            "Diagonal",
            "ExpandDims",
            "Imag",
            "Narrow",
            "Real",
            "Reshape",
            "Select",
            "SelectExt",
        ),
        *(
            "Slice",
            "SliceExt",
            "Split",
            "SplitTensor",
            "SplitWithSize",
            "Squeeze",
            "StridedSlice",
            "Transpose",
            "TransposeExt",
        ),
        *("Unstack", "UnstackExt", "View", "ViewAs"),
    }
)
"""Operators that may return a view of their input. The name may also end with `View`."""
_LONGEST: Final = 200
_DEEPEST: Final = 3


class Call(NamedTuple):
    """A dispatched call of an operator.

    `arguments` are in the order of the definition. `is_primitive`: the call came with a Primitive object; the gradient of such an operator
    is not dispatched.
    """

    name: str
    arguments: Sequence[Any]
    primitive: Any

    @property
    def is_primitive(self) -> bool:
        return self.primitive is not None

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...]) -> Call:
        # MindSpore dispatches Primitives as (primitive, name, arguments).
        if len(args) == 3 and isinstance(args[1], str) and isinstance(args[2], tuple):
            return cls(name, args[2], args[0])
        return cls(name, args, None)

    @property
    def is_pseudo(self) -> bool:
        """Whether the call only asks for a type and runs nothing. Such names begin in lower case."""
        return self.name[:1].islower()

    def tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors that the operator reads, with the names of their arguments."""
        names = self._names()
        return [
            (names[place] if place < len(names) else "", tensor)
            for place, value in enumerate(self.arguments)
            for tensor in tensors_in((value,))
        ]

    def others(self) -> dict[str, Any]:
        """The arguments without tensors, by name, as JSON values."""
        names = self._names()
        found = {}
        if self.primitive is not None:
            skip = {"input_names", "output_names"}
            found = {key: _json(value) for key, value in _attributes(self.primitive).items() if key not in skip}
        for place, value in enumerate(self.arguments):
            if value is not None and not any(True for _ in tensors_in((value,))):
                found[names[place] if place < len(names) else str(place)] = _json(value)
        return found

    def _names(self) -> Sequence[str]:
        if self.primitive is not None:
            names = _attributes(self.primitive).get("input_names")
            if isinstance(names, list | tuple):
                return [str(name) for name in names]
            kind: Any = type(self.primitive)
            return _signature(kind)
        return _signature(getattr(gen_ops_prim, self.name, None))


def skip_reason(call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> SkipReason:
    """`view` if all results are in the memory of inputs, otherwise empty."""
    if call.name.removesuffix("View") not in _VIEWS or not inputs or not outputs:
        return ""
    memory = {storage_of(tensor) for tensor in inputs}
    return "view" if all(storage_of(tensor) in memory for tensor in outputs) else ""


def may_be_view(name: str) -> bool:
    return name.removesuffix("View") in _VIEWS


@functools.cache
def _signature(kind: Any) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(kind.__call__).parameters.values())[1:]
    except (AttributeError, TypeError, ValueError):
        return ()
    return tuple(each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL)


def _attributes(primitive: Any) -> Mapping[str, Any]:
    found = getattr(primitive, "attrs", None)
    return found if isinstance(found, dict) else {}


def _json(value: Any, depth: int = 0) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tuple | list) and depth < _DEEPEST:
        return [_json(each, depth + 1) for each in value]
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
