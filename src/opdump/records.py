"""Records of operators and of their inputs and outputs.

An adapter makes them from live tensors, a layout files them, a catalog hands the same records back:

    OpRecord      one execution of one operator
    TensorRecord  one input or output of it
    Payload       the elements, wherever they are

They are frozen: a record that was filed is the record that is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args, overload, runtime_checkable

from opdump.amounts import one_line, repr_of
from opdump.call_stacks import Frame as Frame  # noqa: PLC0414  # packages have it from here
from opdump.call_stacks import told_lines
from opdump.errors import NoElementsError, OpdumpError
from opdump.html_table import html_facts
from opdump.tensor_elements import empty_elements, torch_tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.tensor_elements import Tensor

IO = Literal["input", "output"]
SkipReason = Literal[
    "",  # captured
    "view",  # launches no kernel: another look at the same memory
    "allocation",  # launches no kernel: memory without values
    "metadata",  # launches no kernel: reads or changes shape, stride or version
    "constant",  # launches no kernel: gives a value that is written in the model
    "control flow",  # runs other operators, or is run by one whose inside the runtime does not show
    "not selected",  # the plan's kernels, set_dump or input_output leave it out
    "device not selected",  # support_device leaves its device out
    "empty",  # no elements
    "in flight",  # the result of a collective that is still being written when the operator returns
    "failed",  # a collective that failed: its outputs are undefined
    "no storage",  # meta or fake tensor: shape without values
    "unsupported layout",  # elements cannot be reached as a dense array
    "opaque",  # an element type or a subclass that no array stands for
    "no overflow",  # overflow mode: nothing overflowed in it
    "no exception",  # exception mode: it did not fail
    "fed",  # no operator made it: the program gave it
    "handle",  # gives a handle to a variable, an iterator, a queue: no elements
    "not executed",  # did not run in this step: a branch not taken, or removed before by the runtime
    "device graph",  # recorded into a graph of the device, or replayed from one: it runs without the framework
    "not observed",  # ran where it could not be seen
    "not written",  # the dump could not be written any more when it ran
    "not triggered",  # kept in memory with the last steps until no trigger could fire for it any more
    "not watched",  # watch mode: the files are of the watched operators' outputs
]
WITHOUT_KERNEL: frozenset[SkipReason] = frozenset(
    {"view", "allocation", "metadata", "constant", "control flow", "fed", "handle", "not executed"}
)
"""Reasons of operators that executed nothing."""
Phase = Literal["forward", "recomputation", "backward", "optimizer"]
RunFact = Literal["source", "materialised", "deviation of the twin", "executed_as", "inside", "stands_for"]
"""An argument that an adapter adds: how an operator ran and where its values are from. The page of each framework explains them.

Another run of the same operator may have other facts, so comparisons leave them out. Operators of PyTorch have none, and may have arguments of these names.
"""
RUN_FACTS: Final[frozenset[str]] = frozenset(get_args(RunFact))
StatisticValue = float | int | str


class Statistics(Mapping[str, StatisticValue]):
    """Statistics by the config's spelling, with the type of each: what `TensorRecord.statistics` is to a type checker.

    Those that were read from a table are a plain dict.
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
    """A value as statistic.csv shows it: 6 significant digits (`0.449951`, `1e-09`), `nan`, `inf`, `-inf`.

    Counts are whole numbers and digests stay as they are.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(int(value))
    return "nan" if math.isnan(value) else f"{value:g}"


def shown_shape(shape: tuple[int, ...]) -> str:
    """`(2,384,13,13)`; `()` of a scalar."""
    return f"({','.join(map(str, shape))})"


def escaped(name: str) -> str:
    r"""`name` with each half of a surrogate pair (a byte that was no text, as Python holds it) as an escape: `\udc80`, `\ud800`.

    No file, table or database takes the half itself.
    """
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


Record = TypeVar("Record")
_LONGEST_SHOWN: Final = 400
"""Characters of arguments in a notebook: a list of a network may have thousands of numbers."""


def _fills_slots_directly(record: type[Record]) -> type[Record]:
    """Gives a frozen slotted dataclass an `__init__` of the same meaning that takes a quarter of the time.

    The generated one looks up each attribute by name to get around the freeze. A dumped step makes thousands of records, so
    this one calls the slots' own descriptors.
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
    """Where the elements of a tensor lay when an operator read or had written them.

    `storage` numbers the storages of a step, 0, 1, ... in the order in which they were first seen in it: two tensors of a step share
    memory only if it is the same. `offset` of the first element and `strides`, one for each axis, count elements.
    `version` is how often the framework counted a write into the memory since the storage was first seen in the step. It is negative
    where a tensor counts apart from the others of its storage (`x.data`), and 0 where nothing is counted.
    """

    storage: int
    offset: int
    strides: tuple[int, ...]
    version: int = 0


@_fills_slots_directly
@dataclass(frozen=True, slots=True, repr=False)
class OpRecord:
    """One execution of one operator.

    `op_name` is the true name, the full scope with slashes (`Default/network-LeNet/conv1-Conv2d/convolution-op0`).
    `timestamp` counts microseconds since the Unix epoch; it is unique within a process and grows with execution order.
    `occurrence` numbers the executions of one name within one step (a loop body, gradient accumulation): 0, 1, ...
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
    """The framework's own name of what ran (`aten::convolution`, overload included where there is one)."""
    forward_op: str = ""
    """For a backward operator: `op_name` of the forward operator whose gradient it computes; empty where unknown."""
    stack: Sequence[Frame] = ()
    """The lines of the program that lead to it, innermost first."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Non-tensor arguments by their name in the operator's schema, and the `RUN_FACTS` that are known; JSON values. Not to be
    changed afterwards.
    """
    skip: SkipReason = ""
    """Why the operator left no data; empty where it was captured."""

    @property
    def line(self) -> str:
        """The innermost line of the program, as `train.py:175`; empty where none is known."""
        return f"{os.path.basename(self.stack[0].file)}:{self.stack[0].line}" if self.stack else ""

    def __repr__(self) -> str:
        return repr_of("OpRecord", self.op_name, self.place, self.line)

    @property
    def place(self) -> str:
        """Where in a run it stands, as `step 2, rank 0, backward`."""
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


@runtime_checkable
class Payload(Protocol):
    """The elements of a tensor, wherever they are."""

    def to_host(self) -> npt.NDArray[Any]:
        """The elements as a numpy array of the record's shape, or the first ones in a row (`TensorRecord.sample`).

        Types that numpy lacks are widened: bfloat16 and the 8-bit floats to float32 (MindSpore's guide to dumps).
        """
        ...


@dataclass(frozen=True, slots=True)
class HostPayload:
    """Elements that are in memory already.

    `npy` is a file outside of the dump that holds them too, whole and as a layout of npy files would write them: it may be moved into one.
    """

    array: npt.NDArray[Any]
    npy: str = ""

    def to_host(self) -> npt.NDArray[Any]:
        return self.array


@dataclass(frozen=True, slots=True)
class DamagedPayload:
    """Elements that are known to be unreadable since the dump was looked at; the problems of the dump tell of it too."""

    file: str
    error: OpdumpError

    def to_host(self) -> npt.NDArray[Any]:
        """Raises the error that was found: CorruptDumpError, or UndecodableTensorError for one tensor of a whole file."""
        raise type(self.error)(str(self.error))


@runtime_checkable
class SupportsFile(Protocol):
    """Elements that lie in a file."""

    @property
    def file(self) -> str:
        """Its path, below the one by which the dump was opened."""
        ...


@runtime_checkable
class SupportsInspection(Protocol):
    """Elements of which something can be told before they are read."""

    def inspect(self) -> None:
        """Raises what `to_host` would raise, as far as header and size tell."""


if TYPE_CHECKING:

    class _Given:
        """The field `statistics`: any mapping is given, and who reads it knows the type of each value."""

        def __get__(self, record: object, kind: type, /) -> Statistics: ...
        def __set__(self, record: object, statistics: Mapping[str, StatisticValue], /) -> None: ...


@_fills_slots_directly
@dataclass(frozen=True, slots=True, repr=False)
class TensorRecord:
    """One input or output of an operator.

    `dtype` is the original element type in lower case (`float32`, `bfloat16`, `float8_e4m3fn`, `complex64`, `bool`),
    before any widening for storage. `payload` is None where only statistics were recorded.
    `statistics` maps category names in the config's spelling (`max`, `l2norm`, `nan count`, `md5`) to values; it is
    empty for complex tensors and where none were recorded.
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
    """Name of the argument or result in the operator's schema (`weight`, `grad_output`); empty where unknown."""
    source: str = ""
    """For an input: who made it, as `{op_name}:{slot}`, `Parameter.{name}` or `data-{id}`; empty where unknown."""
    data_size: int = 0
    """Bytes of the contiguous tensor in its original dtype."""
    skip: SkipReason = ""
    """Why the tensor left no data; empty where it was captured."""
    sample: int = 0
    """Elements in the payload where it is a sample: the first ones of the tensor, row-major, in an array of one axis.
    0 where it has the whole tensor. Shape, statistics and `data_size` are those of the whole tensor in any case."""
    memory: Memory | None = None
    """Where the elements lay: those of an input before the operator ran, of an output after it. None where that is not known."""

    @property
    def payload_shape(self) -> tuple[int, ...]:
        """The shape of the payload's elements."""
        return (self.sample,) if self.sample else self.shape

    @property
    def name(self) -> str:
        """`{op_name}:{io}:{slot}`, unique within one execution."""
        return f"{self.op.op_name}:{self.io}:{self.slot}"

    def numpy(self) -> npt.NDArray[Any]:
        """The elements as a read-only numpy array: of `shape`, or of a sample the first ones in a row (`payload_shape`).

        Types that numpy lacks are widened: bfloat16 and the floats of 8 bits and fewer to float32, integers of fewer than 8 bits
        to int8 or uint8, complex32 to complex64; quantised types of PyTorch come as the numbers that they stand for, in float32.
        NaN keeps its bits. A tensor of no elements is an empty array, though there is no file of it. A large file is mapped, not read.

        Raises NoElementsError where the dump has no elements of it, and CorruptDumpError or UndecodableTensorError where its
        file cannot be read.
        """
        if self.payload is not None:
            return self.payload.to_host()
        if 0 in self.shape:
            return empty_elements(self.dtype, self.shape)
        raise NoElementsError(f"{self.name} in step {self.op.step}: {self._why_without_elements()}")

    def torch(self) -> Tensor:
        """The elements as a tensor of PyTorch on the CPU with memory of its own, of the type that was dumped.

        bfloat16, the 8-bit floats and complex32 are these types of PyTorch, bit for bit, where it has them; what it has not
        (int4, HiFloat8, quantised types) comes widened, as `numpy` gives it.

        Raises as `numpy` does, and PackageMissingError where PyTorch is not installed.
        """
        return torch_tensor(self.numpy(), self.dtype)

    def _why_without_elements(self) -> str:
        if self.skip or self.op.skip:
            return f"it left no data ({self.skip or self.op.skip})"
        if self.statistics:
            return (
                'the dump has its statistics alone; to have elements, dump with saved_data "full" (opdump run --full)'
            )
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
    """What a layout files of a tensor beside its elements: a `TensorRecord`, or what a recorder kept of one."""

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
    """The same as a record, with its elements where they are given."""
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
