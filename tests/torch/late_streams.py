"""A simulated device: the host's memory, with streams on which work finishes late.

An operator runs at once, but what it wrote is hidden at once: the memory holds noise until a reader may know the result, which is
the stream itself, another stream that waited for it, or the host after it waited. Code that forgets to wait reads noise, as on a
real device, but reliably.

    device = LateDevice()
    with device.program():                      # what torch runs here runs on the current stream
        side = device.new_stream()
        with device.on(side):
            y = x * 2                           # noise to the main stream, until
        device.main.wait_for(side)

`LateDevice(turns=3)` runs every operator of the program on a different stream than the one before, with the wait that a correct program
needs. Code that uses a stream other than the current one, or that knows only one stream, reads noise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from opdump.adapters.torch.device import Accelerator, Accelerators

_NOISE = 0x7B
"""A large number in every floating-point type, so that it also shows in sums and extremes."""
_STRIPE, _STRIPES = 1 << 14, 32
"""Size and number of the stripes of larger memory that become noise: a reader of the whole memory reads some of it."""
_WAITS = ("_local_scalar_dense", "equal", "nonzero", "item")
"""Operators whose result the host needs: a device waits for these without being asked."""

_COPIES = ("_to_copy", "clone", "copy_sparse_to_sparse_")
_ALLOCATIONS = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators that write nothing: their memory belongs to the host until an operator writes it. PyTorch itself fills small tensors of
the host in this way (`pad_packed_sequence` fills the lengths), without an operator.
"""


@dataclass(eq=False)
class LateStream:
    """A queue. `knows` is how much of each other queue is finished before the next work on this one."""

    name: str
    ordered: int = 0
    knows: dict[LateStream, int] = field(default_factory=dict)

    def wait_for(self, other: LateStream) -> None:
        """Work queued here from now on runs after the work that is queued there now."""
        for stream, number in (*other.knows.items(), (other, other.ordered)):
            self.knows[stream] = max(self.knows.get(stream, 0), number)

    def has_seen(self, stream: LateStream, number: int) -> bool:
        return stream is self or self.knows.get(stream, 0) >= number


class _Hidden:
    """Memory that a stream wrote: its true bytes, and which streams may see them."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._memory = StorageWeakRef(storage)
        self._address = storage.data_ptr()
        self._size = size = storage.nbytes()
        if size <= _STRIPE * _STRIPES:
            self._stripes = [(0, size)]
        else:
            self._stripes = [((size - _STRIPE) * n // (_STRIPES - 1), _STRIPE) for n in range(_STRIPES)]
        self.stream: LateStream | None = None
        self.number = 0
        self._true: list[bytes] | None = None
        """The true bytes while the memory holds noise."""

    @property
    def is_gone(self) -> bool:
        """Whether the memory was freed or the storage has new memory (`resize_`); the address may belong to another tensor."""
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._memory.cdata)
        if storage is None:  # checked first: another thread may free it before the result is used
            return True
        return storage.data_ptr() != self._address or storage.nbytes() != self._size

    @property
    def is_noise(self) -> bool:
        return self._true is not None

    def show(self) -> None:
        if self._true is not None and not self.is_gone:
            for (place, _), true in zip(self._stripes, self._true, strict=True):
                ctypes.memmove(self._address + place, true, len(true))
        self._true = None

    def hide(self) -> None:
        if self._true is None and not self.is_gone:
            self._true = [ctypes.string_at(self._address + place, size) for place, size in self._stripes]
            for place, size in self._stripes:
                ctypes.memset(self._address + place, _NOISE, size)


class LateDevice(Accelerator):
    """Streams on the host's memory. `waits` counts how often the host waited."""

    copies_in_background = True

    class Graph:
        """A recorded graph; it would run without the framework."""

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            """Recording of this thread's stream begins."""

        def capture_end(self) -> None:
            """The graph is ready."""

        def replay(self) -> None:
            """Has no effect that the host sees."""

    graphs = (Graph,)

    def __init__(self, turns: int = 0) -> None:
        self.main = LateStream("main")
        self.host = LateStream("host")
        self.current = self.main
        self._turns = [self.main, *(LateStream(f"turn {number}") for number in range(1, turns))] if turns else []
        self.waits = 0
        self.orders = 0
        """Number of operators that ran."""
        self.capturing = False
        self.broken: list[str] = []
        """Calls that would have invalidated a graph during its recording."""
        self.refuses: frozenset[torch.dtype] = frozenset()
        self.lacks: frozenset[str] = frozenset()
        """Operators that fail when the capture calls them."""
        self.room: int | None = None
        """The largest allocation on the device, in bytes, that the capture may make."""
        self._hidden: dict[int, _Hidden] = {}
        self._of_host: list[StorageWeakRef] = []
        self._gives_host_memory = False

    def on_the_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor, marked as memory of the host that the device can write into."""
        self._of_host.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    def is_of_host(self, tensor: torch.Tensor) -> bool:
        return bool(self._of_host) and StorageWeakRef(tensor.untyped_storage()) in self._of_host

    def new_stream(self, name: str = "side") -> LateStream:
        return LateStream(name)

    def current_stream(self, device: torch.device) -> LateStream:
        return self.current

    @contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        before, self.current = self.current, stream
        is_of_capture = not torch._C._len_torch_dispatch_stack()  # the capture works outside of all modes
        try:
            with _Queueing(self, is_of_capture=is_of_capture):
                yield
        finally:
            self.current = before

    @contextmanager
    def program(self) -> Iterator[None]:
        """Code in the block is a program on this device; at its end the host has waited for everything."""
        try:
            with _Queueing(self, takes_turns=bool(self._turns)):
                yield
        finally:
            for hidden in list(self._hidden.values()):
                hidden.show()
            self._hidden.clear()

    def next_turn(self) -> None:
        """The program continues on another stream, which waits for the previous one."""
        if self.current in self._turns:
            before = self.current
            self.current = self._turns[(self._turns.index(before) + 1) % len(self._turns)]
            self.current.wait_for(before)

    @contextmanager
    def recording_a_graph(self) -> Iterator[None]:
        """As far as the capture can tell, work is recorded into a graph and not executed."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def wait(self, stream: LateStream) -> None:
        self._forbidden_while_capturing("the host waited for a stream")
        self.waits += 1
        self._has_come(stream)

    def _has_come(self, stream: LateStream) -> None:
        self.host.wait_for(stream)
        for key, hidden in list(self._hidden.items()):
            if hidden.is_gone:
                del self._hidden[key]
            elif hidden.stream is not None and self.host.has_seen(hidden.stream, hidden.number):
                hidden.show()

    def is_capturing(self) -> bool:
        return self.capturing

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self._forbidden_while_capturing("memory was pinned")
        self._gives_host_memory = True
        try:
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        finally:
            self._gives_host_memory = False

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_of_capture: bool = False) -> Any:
        """Run an operator on the current stream."""
        stream = self.current
        self.orders += 1
        if self.refuses & {kwargs.get("dtype"), *(each.dtype for each in _tensors((args, kwargs)))}:
            raise TypeError("the device has no such type")
        if is_of_capture and func.overloadpacket.__name__ in self.lacks:
            raise RuntimeError(f"{func.overloadpacket.__name__} does not have a deterministic implementation")
        if func.overloadpacket.__name__ in _WAITS:
            self._has_come(stream)
        shown = []
        for hidden in self._of((args, kwargs)):
            if hidden.is_noise and (hidden.stream is None or stream.has_seen(hidden.stream, hidden.number)):
                hidden.show()
                shown.append(hidden)
        result = func(*args, **kwargs)
        if not is_of_capture:
            fill_unwritten(func, result)
        stream.ordered += 1
        written = [value for value, mutable in _arguments(func, args, kwargs) if mutable]
        # A view does not write.
        known = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs)) if _has_memory(tensor)}
        made = [
            each for each in _tensors(result) if _has_memory(each) and each.untyped_storage().data_ptr() not in known
        ]
        touched = (made, written) if func.overloadpacket.__name__ not in _ALLOCATIONS else ()
        # Dense and sparse copies to the host; a result that is made contiguous or has another dtype stays on the device.
        to_host = func.overloadpacket.__name__ in _COPIES and not kwargs.keys() & {"dtype", "memory_format"}
        room = self.room if is_of_capture and not (to_host or self._gives_host_memory) else None
        is_dense = all(leaf.layout is torch.strided for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        if room is not None and is_dense and any(each.untyped_storage().nbytes() > room for each in made):
            raise torch.OutOfMemoryError("the device is out of memory")
        for memory in self._of(touched, make=True):
            memory.stream, memory.number = stream, stream.ordered
            shown.append(memory)
        for memory in shown:
            assert memory.stream is not None
            if not self.host.has_seen(memory.stream, memory.number):
                memory.hide()
        return result

    def _of(self, values: Any, *, make: bool = False) -> list[_Hidden]:
        found: dict[int, _Hidden] = {}
        for tensor in _tensors(values):
            if not _has_memory(tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if not key:
                continue
            hidden = self._hidden.get(key)
            if hidden is not None and hidden.is_gone:
                hidden = None
            if hidden is None and make:
                hidden = self._hidden[key] = _Hidden(storage)
            if hidden is not None:
                found[key] = hidden
        return list(found.values())

    def _forbidden_while_capturing(self, what: str) -> None:
        if self.capturing:
            self.broken.append(what)


class _Queueing(TorchDispatchMode):
    """Runs every operator on the device's current stream."""

    def __init__(self, device: LateDevice, *, takes_turns: bool = False, is_of_capture: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._is_of_capture = is_of_capture
        self._takes_turns = takes_turns

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._takes_turns:
            self._device.next_turn()
        return self._device.run(func, args, kwargs or {}, is_of_capture=self._is_of_capture)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class ForcedAccelerators(Accelerators):
    """Treats the tensors of the host as a device's, except those that the program requested in the host's memory."""

    reads_host = False

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def of(self, tensor: torch.Tensor) -> Accelerator | None:
        return None if self._device.is_of_host(tensor) else self._device

    def capturing(self) -> Accelerator | None:
        return self._device


def fill_unwritten(func: Any, result: Any) -> None:
    """Zero the memory that an operator left uninitialised, so that a reader (`scatter_` into `empty_like`) finds the same in every run."""
    if func.overloadpacket.__name__ in _ALLOCATIONS:
        for tensor in _tensors(result):
            if _has_memory(tensor):
                ctypes.memset(tensor.untyped_storage().data_ptr(), 0, tensor.untyped_storage().nbytes())


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among values; the parts of sparse tensors."""
    found = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            found += _parts(leaf) if leaf.layout is not torch.strided else [leaf]
    return found


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    with _disable_current_modes():  # the capture only sees operators of the program
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout is torch.sparse_csr:
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return []


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.is_meta or tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # a wrapper around other tensors
        return False


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        yield value, argument.alias_info is not None and argument.alias_info.is_write
