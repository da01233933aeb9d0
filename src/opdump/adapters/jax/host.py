"""JAX arrays as tensors in the memory of this process.

The memory of an array is read at its address. `numpy.asarray` would leave a reference in the array, and JAX could then no longer donate
its memory to a function.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from opdump.adapters.host import BY_DTYPE, ElementType, HostColumns, HostTensor

Array = npt.NDArray[Any]
Memory: TypeAlias = HostTensor | Array | str
"""A value in memory. It is a numpy array if its elements have less than 8 bits, and a text (its type) if it is not an array."""


@functools.cache
def _element_of(dtype: np.dtype[Any]) -> ElementType | None:
    """The element type; None if it is unknown. Cached, because numpy takes long to form the name of a type."""
    return BY_DTYPE.get(dtype.name)


def copied(array: Any, dtype: Any = None) -> Array | str:
    """A copy of the elements of an array of the program, from all of its devices.

    If the value is not an array, or other processes have some of its elements, its type as text.
    """
    found = borrowed(array, dtype)
    return np.array(found) if isinstance(found, np.ndarray) else found


def given_again(copy: Array | str, given: Any) -> Any:
    """An array like a donated one, made from a copy of its elements. Raises ValueError if there is no copy."""
    if isinstance(copy, str):
        raise ValueError(f"no copy of a donated argument: {copy}")
    if not isinstance(given, jax.Array):
        return copy
    if not isinstance(given.dtype, np.dtype):
        return jax.random.wrap_key_data(copy, impl=jax.random.key_impl(given))
    return jax.device_put(copy, given.sharding)


def borrowed(array: Any, dtype: Any = None) -> Array | str:
    """Like `copied`, but without a copy if the memory can be read in place; use it before the program continues.

    Python numbers and numpy arrays are converted to `dtype`, the type in which the function takes them.
    """
    if not isinstance(array, jax.Array):
        aval = jax.typeof(array)
        return str(aval) if "Ref" in type(aval).__name__ else np.asarray(array, dtype)
    if not isinstance(array.dtype, np.dtype):
        array = jax.random.key_data(array)
    array.block_until_ready()
    element = _element_of(array.dtype)
    if element is None or element.bits < 8:
        return np.array(array)
    platform = _platform_of_one(array.sharding)
    if platform:
        return _at_address(array, platform)
    if not array.is_fully_addressable:
        return f"{array.dtype.name} of several processes"
    shards = array.addressable_shards
    if len(shards) == 1 or array.is_fully_replicated:
        return _shard(shards[0].data)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        whole[shard.index] = _shard(shard.data)
    return whole


@functools.lru_cache(maxsize=64)
def _platform_of_one(sharding: Any) -> str:
    """The platform of the only device; empty if there are several."""
    devices = sharding.device_set
    return str(next(iter(devices)).platform) if len(devices) == 1 else ""


def _shard(array: Any) -> Array:
    return _at_address(array, array.device.platform)


def _at_address(array: Any, platform: str) -> Array:
    if platform != "cpu" or array.nbytes == 0:
        return np.array(array)
    memory = (ctypes.c_char * array.nbytes).from_address(array.unsafe_buffer_pointer())
    found: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return found


def memory_of(array: Array | str, *, stays: bool = True) -> Memory:
    """The array as `Memory`. `stays`: as in `host_tensor`."""
    if isinstance(array, str):
        return array
    element = _element_of(array.dtype)
    return array if element is not None and element.bits < 8 else host_tensor(array, stays=stays)


def row_of(memory: Memory, row: int) -> Memory:
    """A row of a value, along its first axis."""
    if isinstance(memory, str):
        return memory
    if not isinstance(memory, HostTensor):
        return memory[row, ...]
    element, shape = memory.element, memory.shape[1:]
    place = memory.pointer + row * element.size(math.prod(shape))
    return HostTensor(element, shape, place, memory.owner, stays=memory.stays)


class Facts(NamedTuple):
    """The properties of a value that are the same in every run. `element` is None if the value cannot be read in place."""

    element: ElementType | None
    shape: tuple[int, ...]


def facts_of(array: Any) -> Facts:
    """The facts of a value. If it is not a JAX array, both are empty."""
    if not isinstance(array, jax.Array):
        return Facts(None, ())
    if not isinstance(array.dtype, np.dtype):
        return Facts(None, array.shape)
    element = _element_of(array.dtype)
    devices = array.sharding.device_set
    is_read_in_place = (
        element is not None
        and (element.code is not None or element.known_to_numpy)  # other types are widened first
        and array.nbytes > 0
        and len(devices) == 1
        and next(iter(devices)).platform == "cpu"
    )
    return Facts(element if is_read_in_place else None, array.shape)


def pointers_of(arrays: Sequence[Any], facts: Sequence[Facts]) -> npt.NDArray[np.int64]:
    """The addresses of arrays whose results are ready; 0 for those without an element."""
    if all(each.element is not None for each in facts):
        return np.array([array.unsafe_buffer_pointer() for array in arrays], np.int64)
    found = [
        0 if each.element is None else array.unsafe_buffer_pointer() for array, each in zip(arrays, facts, strict=True)
    ]
    return np.array(found, np.int64)


def host_tensor(array: Array | str, *, stays: bool = True) -> HostTensor | str:
    """The array for a reader. `stays`: its elements will not change. Otherwise a reader copies what it keeps."""
    if isinstance(array, str):
        return array
    element = _element_of(array.dtype)
    if element is None:
        return str(array.dtype.name)
    if element.bits >= 8:
        return HostTensor.of_array(array, element, stays=stays)
    packed = _packed(array, element.bits)
    return HostTensor(element, array.shape, packed.ctypes.data, packed, stays=True)


def _packed(array: Array, bits: int) -> Array:
    """Packs elements below 8 bits, the first in the lowest bits. numpy uses one byte per element."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: Array = np.bitwise_or.reduce(codes << shifts, axis=1)
    return packed


# The arguments of one call of a function: their addresses in columns, and tensor objects on demand.

Tensor = HostTensor | str


class KnownFacts:
    """The facts of the arrays of each call. While they stay the same, so does the returned object, which callers compare by identity."""

    def __init__(self) -> None:
        self._shardings: list[Any] = []
        self._facts: Sequence[Facts] = ()

    def of(self, arrays: Sequence[Any]) -> Sequence[Facts]:
        shardings = [getattr(array, "sharding", None) for array in arrays]
        if shardings != self._shardings or len(self._facts) != len(arrays):
            facts = tuple(map(facts_of, arrays))
            self._shardings, self._facts = shardings, self._facts if facts == self._facts else facts
        return self._facts


class Arguments:
    """The arguments of a call. `columns` begins with their addresses."""

    def __init__(
        self, values: Sequence[Any], facts: Sequence[Facts], dtypes: Sequence[Any], copied_ones: Sequence[bool] = ()
    ) -> None:
        """`values` are the program's, `dtypes` the types in which the function takes them. `copied_ones` marks those to copy, since they are donated."""
        self.facts = facts
        self.columns = HostColumns()
        self.values = values
        self._dtypes = dtypes
        self._copies = {
            place: copied(values[place], dtypes[place]) for place, is_one in enumerate(copied_ones) if is_one
        }
        self.are_read = False
        """Whether everything needed was read ahead. Their memory may then be gone."""
        self._tensors: dict[int, Tensor] = {}
        pointers = pointers_of(values, facts)
        for place, copy in self._copies.items():
            if facts[place].element is not None and not isinstance(copy, str):
                pointers[place] = copy.ctypes.data
        self.columns.extend(pointers)

    def again(self) -> list[Any]:
        """The arguments for another call; donated ones are restored from their copies."""
        return [
            given_again(self._copies[place], value) if place in self._copies else value
            for place, value in enumerate(self.values)
        ]

    def array(self, place: int) -> Array | str:
        """The argument as a numpy array; its type as text if it is not an array."""
        found = self._copies.get(place)
        return borrowed(self.values[place], self._dtypes[place]) if found is None else found

    def tensor(self, place: int) -> Tensor:
        """The argument for a reader; always the same object."""
        known = self._tensors.get(place)
        if known is None:
            element, shape = self.facts[place]
            if element is None:
                known = host_tensor(self.array(place), stays=False)
            else:
                owner = self._copies.get(place, self.values[place])
                known = HostTensor(element, shape, int(self.columns.pointers[place]), owner, stays=False)
            self._tensors[place] = known
        return known

    def tensors(self) -> list[Tensor]:
        """All arguments, for a reader."""
        return [*map(self.tensor, range(len(self.facts)))]

    def memory(self, place: int) -> Memory:
        """The argument in memory."""
        if self.facts[place].element is not None:
            return self.tensor(place)
        return memory_of(self.array(place), stays=False)


# Measures how far the results of a twin are from those of the program's own function, in one call.

_LARGE: Final = 1e-3
"""Relative to the largest element of a result. A larger deviation causes a warning."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """`facts` are JSON values: the number of results, how many differ, and the largest difference, absolute and relative to the largest element."""

    text: str
    facts: dict[str, Any]
    is_large: bool


def deviation(function: str, names: Sequence[str], twin: Sequence[Any], program: Sequence[Any]) -> Deviation:
    """Compare the results one by one. NaN at the same position counts as equal."""
    differing, largest, relative, worst = 0, 0.0, 0.0, ""
    for name, ours, theirs in zip(names, twin, program, strict=True):
        a, b = borrowed(ours), borrowed(theirs)
        if isinstance(a, str) or isinstance(b, str) or a.tobytes() == b.tobytes():
            continue
        differing += 1
        apart, scale = _apart(a, b)
        largest = max(largest, apart)
        if apart and (scale == 0 or apart / scale > relative or not worst):
            relative, worst = (apart / scale if scale else float("inf")), name
    facts: dict[str, Any] = {"results": len(names), "differ": differing, "largest": largest, "relative": relative}
    if not differing:
        return Deviation(f"{function}: its twin produces the same results, bit for bit", facts, is_large=False)
    text = (
        f"{function}: {differing} of {len(names)} results of its twin differ from the program's, by {largest:.2g} at most, "
        f"{relative:.2g} of the largest element ({worst})"
    )
    if relative > _LARGE:
        text += "; an optimizer that divides rounding errors by their own size (Adam in its first steps) causes such differences"
    return Deviation(text, {**facts, "worst": worst}, is_large=relative > _LARGE)


def _apart(a: Any, b: Any) -> tuple[float, float]:
    """The largest difference of two arrays of the same shape, and the largest finite element of the second."""
    if a.size == 0 or a.shape != b.shape:
        return 0.0, 0.0
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    differences = np.where(same, 0.0, np.where(np.isnan(differences), np.inf, differences))
    sizes = np.abs(b)
    return float(differences.max()), float(sizes[np.isfinite(sizes)].max(initial=0.0))
