"""Objects behind integer handles: data buffers, data sets, descriptions of models and tensors, streams, events, contexts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from opdump.acl.codes import Code
from opdump.acl.failures import CallError

if TYPE_CHECKING:
    from opdump.acl.model_info import ModelInfo

_FIRST = 0x5A000000
_BETWEEN = 0x10

Kind = TypeVar("Kind")


@dataclass(slots=True)
class DataBuffer:
    """Memory of a tensor. If there is none, a run allocates it and `owner` keeps it."""

    address: int
    size: int


@dataclass(slots=True)
class TensorDesc:
    """Element type (number of aclDataType), shape and format of a tensor; -1 is an unknown dimension."""

    data_type: int
    dims: list[int]
    format: int
    name: str = ""


@dataclass(slots=True)
class Dataset:
    """Buffers of the inputs or outputs of a model, in its order, with the descriptions and the gear that were set for them."""

    buffers: list[int] = field(default_factory=list)
    descs: dict[int, int] = field(default_factory=dict)
    gear: tuple[int, int] | None = None
    """Number of the model, and of its gear."""


@dataclass(slots=True)
class ModelDesc:
    """The described model, None before `get_desc`; the model's number if it is a loaded one."""

    model_id: int | None = None
    info: ModelInfo | None = None


@dataclass(slots=True)
class LoadConfig:
    """The options for loading a model: values by the number of aclmdlConfigAttr."""

    values: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ExecConfig:
    """The options for running a model: values by the number of aclmdlExecConfigAttr."""

    values: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpAttr:
    """Attributes of a single operator."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """Work is executed synchronously, so a stream only waits for callbacks."""


@dataclass(slots=True)
class Event:
    """A point in a stream: nanoseconds of `time.perf_counter_ns`, None until it is recorded."""

    recorded: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Belongs to a device."""

    device_id: int


class Handles:
    """Creates handles and looks up their objects."""

    def __init__(self) -> None:
        self._objects: dict[int, object] = {}
        # Several threads may request handles at the same time.
        self._numbers = itertools.count(_FIRST, _BETWEEN)

    def add(self, thing: object) -> int:
        handle = next(self._numbers)
        self._objects[handle] = thing
        return handle

    def get(self, handle: Any, kind: type[Kind], where: str) -> Kind:
        """The object of a handle. Raises CallError for a handle that was never created, was destroyed, or is of another kind."""
        found = self._objects.get(handle) if isinstance(handle, int) else None
        if not isinstance(found, kind):
            what = "nothing" if found is None else f"a {type(found).__name__}"
            raise CallError(
                Code.INVALID_PARAM,
                f"{where}: {handle!r} stands for {what}, expected a {kind.__name__} that still exists",
            )
        return found

    def has(self, handle: int, kind: type[object]) -> bool:
        return isinstance(self._objects.get(handle), kind)

    def remove(self, handle: int, kind: type[Kind], where: str) -> Kind:
        found = self.get(handle, kind, where)
        del self._objects[handle]
        return found
