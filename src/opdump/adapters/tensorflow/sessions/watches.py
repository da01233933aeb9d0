"""Watches tensors while a session runs: the runtime's debugger writes the values that it sees.

A debug node is between an operator and all its readers, so a reference variable is seen before its update, a branch only if
it was taken, and the body of a loop in each iteration. The files are in memory if the machine has a file system there.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import shutil
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.python.debug.lib import debug_data

from opdump.adapters.tensorflow.graphs.library import HANDLES
from opdump.dump_file.wire import Field, fields
from opdump.sink.temporary_directories import remove_own, temporary_directory

_FILE: Final = re.compile(r"(.+)_(\d+)_DebugIdentity_(\d+)(?:-(\d+))?", re.ASCII | re.DOTALL)
_ORDER: Final = itemgetter(0, 1)
_TO_THE_ELEMENTS: Final = (5, 1, 8, 4)
"""Fields: Event.summary, Summary.value, Summary.Value.tensor, TensorProto.tensor_content. Source: TensorFlow's event.proto, summary.proto, tensor.proto."""
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a file system in memory; the directory in it has a unique name


class ObservedValue:
    """A value of a tensor in a run: the elements, and whether they stay unchanged; `moment` in microseconds orders the watched ones of a run."""

    __slots__ = ("array", "moment", "stays")

    def __init__(self, array: npt.NDArray[Any], moment: int = 0, *, stays: bool = True) -> None:
        self.array = array
        self.moment = moment
        self.stays = stays


def values_of(
    tensors: Iterable[Any], given: Iterable[Any], fed: Collection[str] = (), *, stays: bool = True
) -> Iterator[tuple[str, tuple[ObservedValue]]]:
    """The session's values for these tensors, by name; without fed tensors whose value is a handle."""
    for tensor, value in zip(tensors, given, strict=False):
        dtype, array = tensor.dtype.base_dtype, np.asarray(value)
        if tensor.name not in fed or dtype == tf.string or array.dtype == dtype.as_numpy_dtype:
            yield tensor.name, (ObservedValue(array, stays=stays),)


@dataclass(slots=True)
class WatchedRun:
    """The options of a run whose tensors are watched; after it, the values seen of each, by name, in order."""

    options: Any
    seen: Mapping[str, Sequence[ObservedValue]] = field(default_factory=dict)


class WatchFolders:
    """The debugger's directories for one session.

    The directory is part of the identity of a run: with another one, the runtime builds the graph again and keeps both. The same tensors are
    therefore written to the same directory each time, except for simultaneous runs. The directories are removed with the session.
    """

    def __init__(self, on_disk: Path | None = None) -> None:
        """`on_disk` is a directory for data that may be too large for memory; otherwise a file system in memory is used, if there is one."""
        self._on_disk = on_disk
        self._free: dict[tuple[str, ...], list[Path]] = {}
        self._lock = threading.RLock()
        self._root: Path | None = None
        self._numbers = itertools.count(1)

    @contextmanager
    def lent(self, names: tuple[str, ...]) -> Iterator[Path]:
        """An empty directory for these tensors."""
        with self._lock:
            free = self._free.setdefault(names, [])
            folder = free.pop() if free else self.new()
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                self._free[names].append(folder)

    def new(self) -> Path:
        """The path of a unique directory that does not exist yet."""
        with self._lock:
            if self._root is None:
                where = self._on_disk or (_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
                self._root = temporary_directory("tf", where)
                weakref.finalize(self, remove_own, self._root)
            return self._root / str(next(self._numbers))


@contextmanager
def watching(tensors: Sequence[str], options: Any | None, folders: WatchFolders) -> Iterator[WatchedRun]:
    """Watch tensors (`{node}:{slot}`) in the run that the block makes with `options`, which otherwise stay the caller's."""
    watched = tf.compat.v1.RunOptions()
    if options is not None:
        watched.CopyFrom(options)
    with folders.lent(tuple(tensors)) as folder:
        for tensor in tensors:
            node, _, slot = tensor.rpartition(":")
            entry = watched.debug_options.debug_tensor_watch_opts.add()
            entry.node_name, entry.output_slot = node, int(slot)
            entry.debug_ops.append("DebugIdentity")
            entry.debug_urls.append(f"file://{folder}")
        run = WatchedRun(watched)
        try:
            yield run
        finally:  # also for a run that failed
            run.seen = _seen(folder)


def _seen(folder: Path) -> Mapping[str, Sequence[ObservedValue]]:
    """The contents of `{device}/{scope}/{node}_{slot}_DebugIdentity_{moment}[-{number}]`; the number distinguishes files of the same moment."""
    found: dict[str, list[tuple[int, int, ObservedValue]]] = {}
    for path in folder.rglob("*"):
        named = _FILE.fullmatch(path.name)
        if named is None or not path.is_file():
            continue
        value = _tensor_of(path)
        if value is None:
            continue  # uninitialised: no operator has written it yet
        node, slot, moment, number = named.groups()
        scope = path.parent.relative_to(folder).parts[1:]
        seen = ObservedValue(value, int(moment))
        found.setdefault(f"{'/'.join((*scope, node))}:{slot}", []).append((int(moment), int(number or 0), seen))
    return {name: [seen for _, _, seen in sorted(values, key=_ORDER)] for name, values in found.items()}


def _tensor_of(path: Path) -> npt.NDArray[Any] | None:
    """The tensor in a file, an `Event`. Its elements are mapped, and stay valid when the file is removed. None if it has no value."""
    with path.open("rb") as file:
        event = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    found = Field(0, has_length=True, tag=0, start=0, end=len(event))
    for number in _TO_THE_ELEMENTS:
        begin, end = found.start, found.end
        nothing = Field(number, has_length=True, tag=end, start=end, end=end)
        found = next((each for each in fields(event, begin, end) if each.number == number), nothing)
    if found.start == found.end:  # text, or no value
        value = debug_data.load_tensor_from_event_file(str(path))
        return None if isinstance(value, debug_data.InconvertibleTensorProto) else np.asarray(value)
    facts = tensor_pb2.TensorProto.FromString(bytes(event[begin : found.tag]))
    if facts.dtype in HANDLES:
        return None
    dtype = tf.dtypes.as_dtype(facts.dtype).as_numpy_dtype
    return np.frombuffer(event[found.start : found.end], dtype).reshape([each.size for each in facts.tensor_shape.dim])
