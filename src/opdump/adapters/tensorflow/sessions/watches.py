"""Watches tensors while a session runs: the runtime's debugger files what it sees.

A debug node stands between an operator and all that read it, so a reference variable is seen before its update, a branch only where
it was taken, and the body of a loop in each iteration. The files lie in memory where the machine has a file system there.
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
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a file system in memory; the directory in it has a name of its own


class ObservedValue:
    """A value that a tensor had in a run: the elements, and whether they stay what they are; `moment` in microseconds orders those of one run that were watched."""

    __slots__ = ("array", "moment", "stays")

    def __init__(self, array: npt.NDArray[Any], moment: int = 0, *, stays: bool = True) -> None:
        self.array = array
        self.moment = moment
        self.stays = stays


def values_of(
    tensors: Iterable[Any], given: Iterable[Any], fed: Collection[str] = (), *, stays: bool = True
) -> Iterator[tuple[str, tuple[ObservedValue]]]:
    """What a session gave for these tensors, by their names; nothing of one that is fed, where a handle stands for the value."""
    for tensor, value in zip(tensors, given, strict=False):
        dtype, array = tensor.dtype.base_dtype, np.asarray(value)
        if tensor.name not in fed or dtype == tf.string or array.dtype == dtype.as_numpy_dtype:
            yield tensor.name, (ObservedValue(array, stays=stays),)


@dataclass(slots=True)
class WatchedRun:
    """The options of a run whose tensors are watched; after it, what was seen of each, by name, in order."""

    options: Any
    seen: Mapping[str, Sequence[ObservedValue]] = field(default_factory=dict)


class WatchFolders:
    """Directories that the debugger files into, for one session.

    Where it files to is a part of what a run is known by: with another directory the runtime builds the graph anew and keeps both. So
    the same tensors are filed into the same directory again, but for runs at the same time. They go with the session.
    """

    def __init__(self, on_disk: Path | None = None) -> None:
        """`on_disk` is a directory for what may be too large for the memory; else they lie in a file system in memory, where there is one."""
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
        """The path of a directory of its own, which is not there yet."""
        with self._lock:
            if self._root is None:
                where = self._on_disk or (_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
                self._root = temporary_directory("tf", where)
                weakref.finalize(self, remove_own, self._root)
            return self._root / str(next(self._numbers))


@contextmanager
def watching(tensors: Sequence[str], options: Any | None, folders: WatchFolders) -> Iterator[WatchedRun]:
    """Watches tensors (`{node}:{slot}`) in the run that the block makes with `options`, which stay the caller's otherwise."""
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
        finally:  # also of a run that failed
            run.seen = _seen(folder)


def _seen(folder: Path) -> Mapping[str, Sequence[ObservedValue]]:
    """What lies in `{device}/{scope}/{node}_{slot}_DebugIdentity_{moment}[-{number}]`; the number tells apart those of one moment."""
    found: dict[str, list[tuple[int, int, ObservedValue]]] = {}
    for path in folder.rglob("*"):
        named = _FILE.fullmatch(path.name)
        if named is None or not path.is_file():
            continue
        value = _tensor_of(path)
        if value is None:
            continue  # not initialised: nobody wrote it yet
        node, slot, moment, number = named.groups()
        scope = path.parent.relative_to(folder).parts[1:]
        seen = ObservedValue(value, int(moment))
        found.setdefault(f"{'/'.join((*scope, node))}:{slot}", []).append((int(moment), int(number or 0), seen))
    return {name: [seen for _, _, seen in sorted(values, key=_ORDER)] for name, values in found.items()}


def _tensor_of(path: Path) -> npt.NDArray[Any] | None:
    """The tensor of a file, an `Event`; its elements are mapped into memory, and stay when the file is removed. None where it has no value."""
    with path.open("rb") as file:
        event = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    found = Field(0, has_length=True, tag=0, start=0, end=len(event))
    for number in _TO_THE_ELEMENTS:
        begin, end = found.start, found.end
        nothing = Field(number, has_length=True, tag=end, start=end, end=end)
        found = next((each for each in fields(event, begin, end) if each.number == number), nothing)
    if found.start == found.end:  # text, or nothing at all
        value = debug_data.load_tensor_from_event_file(str(path))
        return None if isinstance(value, debug_data.InconvertibleTensorProto) else np.asarray(value)
    facts = tensor_pb2.TensorProto.FromString(bytes(event[begin : found.tag]))
    if facts.dtype in HANDLES:
        return None
    dtype = tf.dtypes.as_dtype(facts.dtype).as_numpy_dtype
    return np.frombuffer(event[found.start : found.end], dtype).reshape([each.size for each in facts.tensor_shape.dim])
