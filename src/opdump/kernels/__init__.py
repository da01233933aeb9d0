"""Summarises and compares tensors in one pass over their memory, and moves elements; compiled, or in numpy.

The compiled kernels (native/) and their numpy twins (reference.py, pair_reference.py) return the same bits. If the compiled
module is missing, the twin runs, 20 to 100 times slower, and `active()` shows that. Environment:

    OPDUMP_REQUIRE_NATIVE=1   a missing compiled module is an error
    OPDUMP_ISA=avx2           base, avx2 or avx512 instead of the widest of this machine; numpy for the twin
    OPDUMP_THREADS=1          threads that share one large tensor; the default is one per usable processor, at most 16
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opdump.errors import KernelChoiceError, NativeCoreMissingError
from opdump.interpreter.late_imports import late_names
from opdump.kernels import reference
from opdump.kernels.reference import MOVED_AS
from opdump.kernels.summary import DTYPE_CODES, SUMMARY_FIELDS, Summary, addressed

if TYPE_CHECKING:
    from opdump.kernels.pair_metrics import PairMetrics, SummaryDifferences, WorstChannel, compare_summaries

__all__ = [
    "DTYPE_CODES",
    "NATIVE_FOLLOWER",
    "SUMMARY_FIELDS",
    "AppendFile",
    "BatchSummarizer",
    "DigestBatch",
    "PairMetrics",
    "SeenTensors",
    "Summary",
    "SummaryDifferences",
    "SummaryTable",
    "TableText",
    "WorstChannel",
    "active",
    "compare_pair",
    "compare_summaries",
    "copy_elements",
    "copy_strided_pointer",
    "instruction_sets",
    "pair_totals",
    "set_threads",
    "summarise",
    "summarise_pointer",
    "summarise_strided_pointer",
    "threads",
    "use_instruction_set",
    "why_slow",
    "widen_codes",
    "widened",
    "xxh3_low_pointer",
]


def _choose(environ: Mapping[str, str]) -> tuple[ModuleType, str]:
    """The kernels to use, and why they are not the compiled ones (empty if they are)."""
    isa = environ.get("OPDUMP_ISA", "")
    native: ModuleType | None = None
    reason = ""
    if isa == "numpy":
        reason = "OPDUMP_ISA=numpy"
    else:
        try:
            native = importlib.import_module("._native", __name__)
        except ImportError as error:
            # A missing module is the normal case; a module that fails to load has an error to report.
            missing = isinstance(error, ModuleNotFoundError)
            reason = "opdump was installed without a C++ compiler" if missing else str(error)
    if native is None and environ.get("OPDUMP_REQUIRE_NATIVE", "") not in ("", "0"):
        raise NativeCoreMissingError(
            f"OPDUMP_REQUIRE_NATIVE is set, and the compiled kernels cannot be used: {reason}. "
            "Install a C++17 compiler (gcc or clang), then: pip install --force-reinstall --no-deps -v opdump"
        )
    chosen = reference if native is None else native
    if native is not None and isa:
        _use(native, isa, "OPDUMP_ISA")
    threads_text = environ.get("OPDUMP_THREADS", "")
    if threads_text:
        if not threads_text.isdecimal() or int(threads_text) == 0:
            raise KernelChoiceError(f"OPDUMP_THREADS is {threads_text!r}; expected a whole number from 1")
        chosen.set_threads(int(threads_text))
    return chosen, reason


def _use(kernels: ModuleType, name: str, source: str) -> None:
    if not kernels.use_instruction_set(name):
        raise KernelChoiceError(f"{source} is {name!r}; this machine can use {', '.join(kernels.instruction_sets())}")


_kernels, _REASON = _choose(os.environ)

# The choice is made once, at import, so that the hot path calls the chosen functions directly. The compiled functions
# have the types of their twins, which are imported only if they are used.
if TYPE_CHECKING or _REASON:
    from opdump.kernels.append_file import AppendFile, TableText, xxh3_low_pointer
    from opdump.kernels.digests import DigestBatch
    from opdump.kernels.pair_reference import pair_totals
    from opdump.kernels.reference import (
        SummaryTable,
        copy_strided_pointer,
        set_threads,
        summarise_pointer,
        summarise_strided_pointer,
        threads,
        widen_codes,
    )

    # Only speed: without them, tensors are read one by one, and each time.
    BatchSummarizer: Any = None
    SeenTensors: Any = None
    NATIVE_FOLLOWER: Any = None
else:
    from opdump.kernels import _native

    AppendFile = _native.AppendFile
    BatchSummarizer = _native.BatchSummarizer
    DigestBatch = _native.DigestBatch
    SeenTensors = _native.SeenTensors
    SummaryTable = _native.SummaryTable
    TableText = _native.TableText
    copy_strided_pointer = _native.copy_strided_pointer
    pair_totals = _native.pair_totals
    set_threads = _native.set_threads
    summarise_pointer = _native.summarise_pointer
    summarise_strided_pointer = _native.summarise_strided_pointer
    threads = _native.threads
    widen_codes = _native.widen_codes
    xxh3_low_pointer = _native.xxh3_low_pointer
    NATIVE_FOLLOWER = _native.Follower

__getattr__ = late_names(__name__, ".pair_metrics")


def active() -> str:
    """The kernels in use: `native (avx512)`, or `numpy (no compiled kernels: <reason>)`."""
    return f"numpy (no compiled kernels: {_REASON})" if _REASON else f"native ({_kernels.instruction_set()})"


def why_slow() -> str:
    """Why the numpy kernels are in use although they were not requested; empty if the compiled ones are, or if `OPDUMP_ISA=numpy`
    is set.
    """
    return "" if os.environ.get("OPDUMP_ISA") == "numpy" else _REASON


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that this machine supports, narrowest first; `("numpy",)` without compiled kernels."""
    return tuple(_kernels.instruction_sets())


def use_instruction_set(name: str) -> None:
    """Use another instruction set from now on, for tests and benchmarks. Raises KernelChoiceError if it is not available."""
    _use(_kernels, name, "the instruction set asked for")


def summarise(array: NDArray[np.generic], dtype: str | None = None) -> Summary:
    """Summarise an array of any shape and strides, or a numpy scalar.

    `dtype` names the element type if numpy cannot: bfloat16 is passed as uint16 with dtype="bfloat16". Other byte orders are
    converted. Raises UnsupportedDtypeError for complex numbers, strings and all other types that are not in DTYPE_CODES.
    """
    found = addressed(array, dtype)
    rows = np.empty((1, len(SUMMARY_FIELDS)))
    summarise_strided_pointer(found.address, found.code, found.array.shape, found.strides, rows, 0)
    return Summary(*rows[0].tolist())


def compare_pair(
    a: NDArray[np.generic],
    b: NDArray[np.generic],
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    dtype_a: str | None = None,
    dtype_b: str | None = None,
) -> PairMetrics:
    """Compare two arrays of one shape, with any strides and any of the types of DTYPE_CODES, complex64 and complex128; `a` is the
    reference.

    Mapped files are supported: an array is copied only if it has another byte order, strides that are not multiples of the
    element size, or real elements beside complex ones. `dtype_a` and `dtype_b` name element types if numpy cannot, as in
    `summarise`. Raises ValueError for different shapes and for a tolerance that is negative or not finite, and
    UnsupportedDtypeError for other elements.
    """
    # Not at the top, because the import is slow and only comparisons need it.
    from opdump.kernels.pair_metrics import metrics_of_pair

    return metrics_of_pair(a, b, pair_totals, atol=atol, rtol=rtol, dtype_a=dtype_a, dtype_b=dtype_b)


def copy_elements(source: NDArray[Any], destination: NDArray[Any]) -> None:
    """Copy every element to the same index of `destination`: transpositions, blocks and slices are views of the two.

    Both have the same shape and dtype, and any strides; they do not overlap, and no two indices of the destination share memory.
    Raises ValueError if the shapes or dtypes differ, or if the destination is read-only.
    """
    if source.shape != destination.shape or source.dtype != destination.dtype:
        raise ValueError(
            f"elements of {source.dtype} {source.shape} cannot be copied to {destination.dtype} {destination.shape}"
        )
    item = source.dtype.itemsize
    if item not in MOVED_AS or source.dtype.hasobject:
        np.copyto(destination, source, casting="no")
        return
    if not destination.flags.writeable:
        raise ValueError("the destination cannot be written")
    copy_strided_pointer(
        source.ctypes.data, destination.ctypes.data, item, source.shape, source.strides, destination.strides
    )


def widened(codes: NDArray[np.generic], table: NDArray[np.float32]) -> NDArray[np.float32]:
    """`table[code]` for every byte of `codes`, in its shape: the values of 8-bit codes.

    Raises ValueError unless elements have one byte and the table has 256 float32.
    """
    if codes.dtype.itemsize != 1 or codes.dtype.hasobject:
        raise ValueError(f"a code has one byte; found {codes.dtype}")
    if table.shape != (256,) or table.dtype != np.float32:
        raise ValueError(f"the table has one float32 for each of 256 codes; found {table.dtype} {table.shape}")
    adjacent = np.ascontiguousarray(codes)
    values = np.ascontiguousarray(table)
    floats = np.empty(codes.shape, np.float32)
    widen_codes(adjacent.ctypes.data, adjacent.size, values.ctypes.data, floats.ctypes.data)
    return floats
