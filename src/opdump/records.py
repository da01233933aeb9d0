"""Records of operators and of their inputs and outputs.

An adapter creates them from live tensors, a layout writes them, and a catalog reads them back:

    OpRecord      one execution of one operator
    TensorRecord  one input or output of it
    Payload       the elements, in memory or in a file

They are frozen: the record that is read equals the record that was written.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args, overload, runtime_checkable

from opdump.amounts import html_facts, one_line, repr_of
from opdump.call_stacks import Frame as Frame  # noqa: PLC0414  # extensions import it from here
from opdump.call_stacks import told_lines
from opdump.errors import NoElementsError, OpdumpError, PackageMissingError

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

IO = Literal["input", "output"]
SkipReason = Literal[
    "",  # captured
    "view",  # launches no kernel: a different view of the same memory
    "allocation",  # launches no kernel: memory without values
    "metadata",  # launches no kernel: reads or changes shape, stride or version
    "constant",  # launches no kernel: returns a value stored in the model
    "control flow",  # runs other operators, or runs inside an operator whose contents the runtime hides
    "not selected",  # excluded by the plan's kernels, set_dump or input_output
    "device not selected",  # support_device excludes its device
    "empty",  # no elements
    "in flight",  # the result of a collective that is still being written when the operator returns
    "failed",  # a collective that failed: its outputs are undefined
    "no storage",  # meta or fake tensor: a shape without values
    "unsupported layout",  # the elements are not accessible as a dense array
    "opaque",  # an element type or a subclass that no array can represent
    "no overflow",  # overflow mode: nothing overflowed in it
    "no exception",  # exception mode: it did not fail
    "fed",  # no operator produced it: the program provided it
    "handle",  # returns a handle of a variable, an iterator or a queue: no elements
    "not executed",  # did not run in this step: a branch not taken, or removed by the runtime
    "device graph",  # recorded into a graph of the device, or replayed from one: runs without the framework
    "not observed",  # ran where it could not be observed
    "not written",  # the dump could no longer be written when it ran
    "not triggered",  # kept in memory with the last steps, and dropped because no trigger fired
    "not watched",  # watch mode: only the outputs of watched operators are written
]
WITHOUT_KERNEL: frozenset[SkipReason] = frozenset(
    {"view", "allocation", "metadata", "constant", "control flow", "fed", "handle", "not executed"}
)
"""Reasons for operators that executed nothing."""
Phase = Literal["forward", "recomputation", "backward", "optimizer"]
RunFact = Literal[
    "source",
    "materialised",
    "deviation of the twin",
    "executed_as",
    "inside",
    "stands_for",
    "seen_as",
    "body",
    "graph_shapes",
]
"""An argument added by an adapter: how an operator ran and where its values come from. The page of each framework explains them.

They may differ between runs of the same operator, so comparisons ignore them. Operators of PyTorch have none, and may have arguments with these
names.
"""
RUN_FACTS: Final[frozenset[str]] = frozenset(get_args(RunFact))
StatisticValue = float | int | str
CALL: Final = "jax::jit"
"""The kernel of the call of a compiled function of JAX, which is recorded beside the operators in it."""
_REPEATING: Final = frozenset({CALL, "Parameter"})


class Statistics(Mapping[str, StatisticValue]):
    """Statistics by their names in the config, with the type of each: the type of `TensorRecord.statistics` for a type checker.

    Statistics read from a table are a plain dict.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, name: Literal["max", "min", "avg", "l2norm"], /) -> float: ...
    @overload
    def __getitem__(
        self,
        name: Literal[
            "count",
            "negative zero count",
            "positive zero count",
            "nan count",
            "negative inf count",
            "positive inf count",
            "zero count",
        ],
        /,
    ) -> int: ...
    @overload
    def __getitem__(self, name: Literal["md5", "hash", "hash:md5", "hash:sha1", "xxh3"], /) -> str: ...
    @overload
    def __getitem__(self, name: str, /) -> StatisticValue: ...
    def __getitem__(self, name: str, /) -> StatisticValue:
        raise KeyError(name)


def format_statistic(value: StatisticValue) -> str:
    """Format a value as in statistic.csv: 6 significant digits (`0.449951`, `1e-09`), `nan`, `inf`, `-inf`.

    Counts are formatted as whole numbers, and digests are returned unchanged.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(int(value))
    return "nan" if math.isnan(value) else f"{value:g}"


def shown_shape(shape: tuple[int, ...]) -> str:
    """Return the shape as `(2,384,13,13)`, or `()` for a scalar."""
    return f"({','.join(map(str, shape))})"


def escaped(name: str) -> str:
    r"""Escape each half of a surrogate pair in `name` (Python's form of a byte that is not text): `\udc80`, `\ud800`.

    Files, tables and databases do not accept such halves.
    """
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


Record = TypeVar("Record")
_LONGEST_SHOWN: Final = 400
"""Limit for the characters of arguments in a notebook: a list of a network may have thousands of numbers."""


def _fills_slots_directly(record: type[Record]) -> type[Record]:
    """Replace the `__init__` of a frozen slotted dataclass by an equivalent one that takes a quarter of the time.

    The generated one looks up each attribute by name to get around the freeze. A dumped step creates thousands of records, so this one calls the
    descriptors of the slots.
    """
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for item in fields(record):  # type: ignore[arg-type]  # only dataclasses are decorated
        scope[f"set_{item.name}"] = getattr(record, item.name).__set__
        value = item.name
        if item.default_factory is not MISSING:
            scope[f"make_{item.name}"] = item.default_factory
            parameters.append(f"{item.name}=MISSING")
            value = f"make_{item.name}() if {item.name} is MISSING else {item.name}"
        elif item.default is not MISSING:
            scope[f"default_{item.name}"] = item.default
            parameters.append(f"{item.name}=default_{item.name}")
        else:
            parameters.append(item.name)
        body.append(f"    set_{item.name}(self, {value})")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(body)
    exec(source, scope)  # noqa: S102  # our own field names
    record.__init__ = scope["__init__"]  # type: ignore[method-assign]
    return record


@_fills_slots_directly
@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a tensor when an operator read or had written it.

    `storage` numbers the storages of a step 0, 1, ... in the order in which they were first seen. Two tensors of a step share memory only if it is
    equal. `offset` (of the first element) and `strides` (one per axis) are in elements. `version` is how often the framework counted a write into the
    memory since the storage was first seen in the step. It is negative if a tensor is counted separately from the others of its storage (`x.data`),
    and 0 if nothing is counted.
    """

    storage: int
    offset: int
    strides: tuple[int, ...]
    version: int = 0


@_fills_slots_directly
@dataclass(frozen=True, slots=True, repr=False)
class OpRecord:
    """One execution of one operator.

    `op_name` is the full name with all scopes (`Default/network-LeNet/conv1-Conv2d/convolution-op0`).
    `timestamp` is in microseconds since the Unix epoch, is unique within a process, and increases with execution order.
    `occurrence` numbers the executions with the same name within a step (a loop body, gradient accumulation): 0, 1, ...
    `order` is the position in the execution order of the step, over all graphs of the rank.
    """

    op_type: str
    op_name: str
    timestamp: int
    step: int = 0
    net_name: str = ""
    graph_id: int = 0
    rank_id: int = 0
    device_id: int = 0
    task_id: int = 0
    stream_id: int = 0
    order: int = 0
    occurrence: int = 0
    phase: Phase = "forward"
    kernel: str = ""
    """The framework's name of the kernel (`aten::convolution`, with the overload if there is one)."""
    forward_op: str = ""
    """For a backward operator: the `op_name` of the forward operator whose gradient it computes; empty if unknown."""
    stack: Sequence[Frame] = ()
    """The lines of the program that lead to the operator, innermost first."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Non-tensor arguments by their names in the operator's schema, and the known `RUN_FACTS`; JSON values. Do not change them."""
    skip: SkipReason = ""
    """Why the operator left no data; empty if it was captured."""

    @property
    def line(self) -> str:
        """The innermost line of the program, as `train.py:175`; empty if unknown."""
        return f"{os.path.basename(self.stack[0].file)}:{self.stack[0].line}" if self.stack else ""

    @property
    def repeats_operators(self) -> bool:
        """Whether the outputs are those of operators recorded before: the results of a compiled function of JAX, or a state among them."""
        return self.kernel in _REPEATING

    def __repr__(self) -> str:
        return repr_of("OpRecord", self.op_name, self.place, self.line)

    @property
    def place(self) -> str:
        """The position in the run, as `step 2, rank 0, backward`."""
        times = f", execution {self.occurrence + 1}" if self.occurrence else ""
        return f"step {self.step}, rank {self.rank_id}, {self.phase}{times}" + (
            f", left out: {self.skip}" if self.skip else ""
        )

    def _repr_html_(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return html_facts(
            [
                ("operator", self.op_name),
                ("kernel", self.kernel or self.op_type),
                ("ran in", self.place),
                ("gradient of", self.forward_op),
                *((place, code or " ") for place, code in told_lines(self.stack)),
                ("arguments", arguments if len(arguments) < _LONGEST_SHOWN else f"{arguments[:_LONGEST_SHOWN]}…"),
            ]
        )


def graph_shapes(op: OpRecord, io: IO) -> dict[int, tuple[int, ...]]:
    """Return the shapes that a graph gives to inputs or outputs of an operator, by slot, if these are recorded in the shape of the memory.

    They are in the argument `graph_shapes`, as `{"input.0": [12, 16]}`. Shapes that are not lists of sizes are left out.
    """
    noted = op.arguments.get("graph_shapes")
    found = {}
    for name, shape in noted.items() if isinstance(noted, Mapping) else ():
        of, _, slot = str(name).partition(".")
        if (
            of == io
            and slot.isdecimal()
            and isinstance(shape, list)
            and all(isinstance(n, int) and n >= 0 for n in shape)
        ):
            found[int(slot)] = tuple(shape)
    return found


@runtime_checkable
class Payload(Protocol):
    """The elements of a tensor, in memory or in a file."""

    def to_host(self) -> npt.NDArray[Any]:
        """Return the elements as a numpy array of the record's shape, or the first ones in a 1-D array (`TensorRecord.sample`).

        Types that numpy lacks are widened: bfloat16 and the 8-bit floats to float32, as in MindSpore's dumps.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostPayload:
    """Elements in memory.

    `npy` is a file outside of the dump that contains all of them, in the form that layouts with npy files write. It may be moved into such a layout.
    """

    array: npt.NDArray[Any]
    npy: str = ""

    def to_host(self) -> npt.NDArray[Any]:
        return self.array


@dataclass(frozen=True, slots=True)
class DamagedPayload:
    """Elements that were unreadable when the dump was opened. The problems of the dump list them as well."""

    file: str
    error: OpdumpError

    def to_host(self) -> npt.NDArray[Any]:
        """Raise the error that was found: CorruptDumpError, or UndecodableTensorError for a single tensor of an intact file."""
        raise type(self.error)(str(self.error))


@runtime_checkable
class SupportsFile(Protocol):
    """Elements in a file."""

    @property
    def file(self) -> str:
        """The path, relative to the path that the dump was opened with."""
        ...


@runtime_checkable
class SupportsInspection(Protocol):
    """Elements that can be checked before they are read."""

    def inspect(self) -> None:
        """Raise the error that `to_host` would raise, as far as header and size show it."""


if TYPE_CHECKING:

    class _Given:
        """The type of the field `statistics`: any mapping can be set; a reader gets the type of each value."""

        def __get__(self, record: object, kind: type, /) -> Statistics: ...
        def __set__(self, record: object, statistics: Mapping[str, StatisticValue], /) -> None: ...


@_fills_slots_directly
@dataclass(frozen=True, slots=True, repr=False)
class TensorRecord:
    """One input or output of an operator.

    `dtype` is the original element type in lower case (`float32`, `bfloat16`, `float8_e4m3fn`, `complex64`, `bool`), before any widening for storage.
    `payload` is None if only statistics were recorded.
    `statistics` maps names as in the config (`max`, `l2norm`, `nan count`, `md5`) to values. It is empty for complex tensors, and if none were
    recorded.
    """

    op: OpRecord
    io: IO
    slot: int
    dtype: str
    shape: tuple[int, ...]
    format: str = "DefaultFormat"
    payload: Payload | None = field(default=None, compare=False)
    statistics: _Given = field(default_factory=dict)  # type: ignore[assignment]
    argument: str = ""
    """Name of the argument or result in the operator's schema (`weight`, `grad_output`); empty if unknown."""
    source: str = ""
    """For an input: its producer, as `{op_name}:{slot}`, `Parameter.{name}`, `data-{id}`, or for the output of an earlier step
    `data-of-earlier-step/{op_name}:{slot}`; empty if unknown."""
    data_size: int = 0
    """Size of the contiguous tensor in its original dtype, in bytes."""
    skip: SkipReason = ""
    """Why the tensor left no data; empty if it was captured."""
    sample: int = 0
    """If the payload is a sample: its number of elements, the first ones of the tensor in row-major order, in a 1-D array. 0 if the payload is the
    whole tensor. Shape, statistics and `data_size` always describe the whole tensor."""
    memory: Memory | None = None
    """The memory of an input before the operator ran, or of an output after it ran. None if unknown."""

    @property
    def payload_shape(self) -> tuple[int, ...]:
        """The shape of the payload's array."""
        return (self.sample,) if self.sample else self.shape

    @property
    def name(self) -> str:
        """`{op_name}:{io}:{slot}`, unique within one execution."""
        return f"{self.op.op_name}:{self.io}:{self.slot}"

    def numpy(self) -> npt.NDArray[Any]:
        """Return the elements as a read-only numpy array: of `shape`, or for a sample the first ones in a 1-D array (`payload_shape`).

        Types that numpy lacks are widened: bfloat16 and floats of 8 bits or fewer to float32, integers of fewer than 8 bits to int8 or uint8,
        complex32 to complex64. Quantised types of PyTorch are returned as the numbers that they represent, in float32. NaN keeps its bits. A tensor
        without elements is an empty array, although it has no file. A large file is mapped, not read.

        Raises NoElementsError if the dump has no elements of this tensor, and CorruptDumpError or UndecodableTensorError if its file cannot be read.
        """
        if self.payload is not None:
            return self.payload.to_host()
        if 0 in self.shape:
            return empty_elements(self.dtype, self.shape)
        raise NoElementsError(f"{self.name} in step {self.op.step}: {self._why_without_elements()}")

    def torch(self) -> Tensor:
        """Return the elements as a PyTorch tensor on the CPU with its own memory, in the recorded type.

        bfloat16, the 8-bit floats and complex32 have their PyTorch types, bit for bit, if this PyTorch has them. Types that it lacks (int4, HiFloat8,
        quantised types) are widened, as in `numpy`.

        Raises the same errors as `numpy`, and PackageMissingError if PyTorch is not installed.
        """
        return torch_tensor(self.numpy(), self.dtype)

    def _why_without_elements(self) -> str:
        if self.skip or self.op.skip:
            return f"it left no data ({self.skip or self.op.skip})"
        if self.statistics:
            return 'the dump has only its statistics; to record elements, use saved_data "full" (opdump run --full)'
        return "its file is not in the dump: it was never written, or it was deleted"

    def __repr__(self) -> str:
        counts = [
            ("nan", self.statistics.get("nan count", 0)),
            ("inf", _infinities(self.statistics)),
        ]
        found = [(name, self.statistics[name]) for name in ("max", "min") if name in self.statistics]
        facts = " ".join(f"{name} {format_statistic(value)}" for name, value in (*found, *(c for c in counts if c[1])))
        what = f"{self.dtype} {one_line(shown_shape(self.shape), 24)}"
        return repr_of(
            "TensorRecord", self.name, what, f"step {self.op.step}", facts or (self.skip and f"left out: {self.skip}")
        )

    def _repr_html_(self) -> str:
        facts = [
            ("tensor", self.name),
            ("ran in", self.op.place),
            ("line", f"{self.op.line}  {self.op.stack[0].code}" if self.op.stack else ""),
            ("argument", self.argument),
            ("dtype", self.dtype),
            ("shape", shown_shape(self.shape)),
            ("format", "" if self.format == "DefaultFormat" else self.format),
            ("made by", self.source),
            ("elements", f"a sample, the first {self.sample:,}" if self.sample else ""),
            ("left out", self.skip),
        ]
        return html_facts([*facts, *((name, format_statistic(value)) for name, value in self.statistics.items())])


def _infinities(statistics: Statistics) -> int:
    return sum(statistics[name] for name in ("negative inf count", "positive inf count") if name in statistics)


class FiledTensor(Protocol):
    """The attributes of a tensor that a layout writes besides its elements: a `TensorRecord`, or a recorder's snapshot."""

    @property
    def op(self) -> OpRecord: ...
    @property
    def io(self) -> IO: ...
    @property
    def slot(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def format(self) -> str: ...
    @property
    def statistics(self) -> Mapping[str, StatisticValue]: ...
    @property
    def argument(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def data_size(self) -> int: ...
    @property
    def skip(self) -> SkipReason: ...
    @property
    def sample(self) -> int: ...
    @property
    def memory(self) -> Memory | None: ...


def record_of(tensor: FiledTensor, payload: Payload | None = None) -> TensorRecord:
    """Return the tensor as a record, with `payload` as its elements if given."""
    return TensorRecord(
        op=tensor.op,
        io=tensor.io,
        slot=tensor.slot,
        dtype=tensor.dtype,
        shape=tensor.shape,
        format=tensor.format,
        payload=payload,
        statistics=tensor.statistics,
        argument=tensor.argument,
        source=tensor.source,
        data_size=tensor.data_size,
        skip=tensor.skip,
        sample=tensor.sample,
        memory=tensor.memory,
    )


# Converts stored elements from numpy arrays to PyTorch tensors of the recorded type.

_WIDENED: Final = {
    **dict.fromkeys(("bfloat16", "hifloat8", "qint8", "quint8", "qint32"), "float32"),
    **dict.fromkeys(("int4", "int2"), "int8"),
    **dict.fromkeys(("uint4", "uint2", "uint1"), "uint8"),
    "complex32": "complex64",
}
_HIGH: Final = int(sys.byteorder == "little")
"""Index of the upper half of a float32, which is the bfloat16."""
_SMALL_FLOATS: Final = ("float4", "float6", "float8")


def empty_elements(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the array for a tensor without elements, in numpy's type for it."""
    import numpy as np

    return np.empty(shape, "float32" if dtype.startswith(_SMALL_FLOATS) else _WIDENED.get(dtype, dtype))


def torch_tensor(array: npt.NDArray[Any], dtype: str) -> Tensor:
    """Return the elements as a tensor of that type, exactly, or of the array's type if PyTorch lacks it. The memory is a copy.

    Raises PackageMissingError if PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise PackageMissingError(
            f"torch() returns a PyTorch tensor, and PyTorch cannot be imported here ({error}); run: pip install torch, or use numpy()"
        ) from error
    import numpy as np

    own = np.array(array, array.dtype.newbyteorder("="), order="C")  # PyTorch warns about read-only memory
    made: Tensor = torch.from_numpy(own)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        return made
    if dtype == "bfloat16" and own.dtype == np.float32:
        # PyTorch's conversion would map every NaN to the same bits.
        halves = own.reshape(-1).view(np.uint16)[_HIGH::2].copy()
        return torch.from_numpy(halves.view(np.int16)).view(kind).reshape(own.shape)
    if dtype == "complex32":
        parts = own.reshape(-1).view(np.float32).astype(np.float16)
        return torch.from_numpy(parts.view(np.int32)).view(kind).reshape(own.shape)
    return made.to(kind) if dtype.startswith("float8") else made
