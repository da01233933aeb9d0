"""The speed at which the summary kernel reads memory: `python benchmarks/summary_kernel.py [--size 16777216] [--dtype float32]`.

Prints GB/s (bytes of the tensor per second) for each dtype and size, all measured alternately in one run:

    read     numpy's maximum over the same bytes as float32: one vectorised pass of one thread, close to a plain read
    kernel   the summary, one thread
    threads  the summary with as many threads as it would use
    numpy    the numbers of the summary by numpy's passes with float64 accumulation (not for the largest size)
    ratio    kernel / read at the same moment: at 1.00 the summary costs no more than reading

Best quartile of the rounds. Then the time of one call, and a comparison of the instruction sets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from opdump import kernels

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
BYTES_OF_A_ROUND = 1 << 25
ROUNDS = 20
Array = NDArray[np.generic]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, action="append", help="number of values; repeatable")
    parser.add_argument("--dtype", action="append", choices=kernels.DTYPE_CODES, help="repeatable")
    options = parser.parse_args()
    sizes = tuple(options.size or SIZES)
    threads = kernels.threads()
    print(f"{kernels.active()}, {threads} threads")
    print(f"{'':26}{'elements':>10}{'read':>8}{'kernel':>8}{'threads':>8}{'numpy':>8}{'ratio':>8}   GB/s")
    for name, make in tensors(options.dtype).items():
        for size in sizes:
            print_row(name, make(size), name.split(",")[0], threads)
    print_calls()
    print_instruction_sets(sizes[-2] if len(sizes) > 1 else sizes[0])


def tensors(dtypes: list[str] | None) -> dict[str, Callable[[int], Array]]:
    """The tensors to measure, by name; the name starts with the dtype."""
    kinds: dict[str, Callable[[int], Array]] = {}
    for dtype in dtypes or kernels.DTYPE_CODES:
        kinds[dtype] = lambda size, dtype=dtype: tensor(dtype, size)  # type: ignore[misc]
        if dtype == "float32":
            kinds["float32, 1 NaN in 1001"] = lambda size: with_value(size, 1001, np.nan)
            kinds["float32, half -Inf"] = lambda size: with_value(size, 2, -np.inf)
    return kinds


def tensor(dtype: str, size: int) -> Array:
    values = np.random.default_rng(0).standard_normal(size)
    if dtype == "bool":
        return values < 0.3
    if dtype == "bfloat16":
        upper_halves: Array = (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return upper_halves
    numbers: Array = values if dtype.startswith("float") else (values * 50).astype(np.int64)
    return numbers.astype(dtype)


def with_value(size: int, every: int, value: float) -> Array:
    array = tensor("float32", size)
    array[::every] = np.float32(value)
    return array


def print_row(name: str, array: Array, dtype: str, threads: int) -> None:
    table = kernels.SummaryTable()
    pointer, code, count = array.ctypes.data, kernels.DTYPE_CODES[dtype], array.size
    as_floats = array.view(np.float32)

    def summarise() -> None:
        table.add(pointer, code, count)
        table.clear()

    def read() -> None:
        as_floats.max()

    def numpy_passes() -> None:
        values = array.astype(np.float64)
        np.isnan(values).sum(), np.isinf(values).sum(), (values == 0).sum(), (values < 0).sum()
        values.max(), values.min(), values.sum(), np.square(values).sum()

    calls = max(1, BYTES_OF_A_ROUND // max(array.nbytes, 4096) // 8)
    measured: dict[str, list[float]] = {"read": [], "kernel": [], "threads": [], "numpy": []}
    for _ in range(ROUNDS):
        kernels.set_threads(1)
        measured["read"].append(speed(read, calls, array.nbytes))
        measured["kernel"].append(speed(summarise, calls, array.nbytes))
        kernels.set_threads(threads)
        measured["threads"].append(speed(summarise, calls, array.nbytes))
        if array.size <= 1 << 20 and len(measured["numpy"]) < 3:
            measured["numpy"].append(speed(numpy_passes, 1, array.nbytes))
    ratio = best_quartile([kernel / read for kernel, read in zip(measured["kernel"], measured["read"], strict=True)])
    columns = "".join(f"{best_quartile(speeds):8.2f}" if speeds else f"{'-':>8}" for speeds in measured.values())
    print(f"{name:26}{array.size:10}{columns}{ratio:8.2f}")


def speed(action: Callable[[], None], calls: int, size: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        action()
    return calls * size / (time.perf_counter() - begin) / 1e9


def best_quartile(values: list[float]) -> float:
    """The value that a quarter of the rounds reached."""
    return sorted(values)[-1 - len(values) // 4]


def print_calls() -> None:
    array = np.ones(64, np.float32)
    pointer, code = array.ctypes.data, kernels.DTYPE_CODES["float32"]
    table = kernels.SummaryTable(100_000)
    rows = np.empty((1, len(kernels.SUMMARY_FIELDS)))
    calls: dict[str, Callable[[], object]] = {
        "SummaryTable.add": lambda: table.add(pointer, code, 64),
        "SummaryTable.add_strided": lambda: table.add_strided(pointer, code, (8, 4), (8, 2)),
        "summarise_pointer": lambda: kernels.summarise_pointer(pointer, code, 64, rows, 0),
        "nothing": lambda: None,
    }
    best = {name: float("inf") for name in calls}
    for _ in range(30):
        table.clear()
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(1000):
                call()
            best[name] = min(best[name], time.perf_counter() - begin)
    nothing = best.pop("nothing")
    text = ", ".join(f"{name} {1e6 * (seconds - nothing):.0f} ns" for name, seconds in best.items())
    print(f"one call, 64 elements of float32, without the loop: {text}")


def print_instruction_sets(size: int) -> None:
    widest = kernels.instruction_sets()[-1]
    threads = kernels.threads()
    kernels.set_threads(1)
    array = tensor("float32", size)
    table = kernels.SummaryTable()
    found: dict[str, list[float]] = {name: [] for name in kernels.instruction_sets()}
    for _ in range(ROUNDS):
        for name, speeds in found.items():
            kernels.use_instruction_set(name)
            speeds.append(speed(lambda: void(table.add(array.ctypes.data, 2, size)), 3, array.nbytes))
        table.clear()
    kernels.use_instruction_set(widest)
    kernels.set_threads(threads)
    text = ", ".join(f"{name} {best_quartile(speeds):.1f}" for name, speeds in found.items())
    print(f"float32, {size} elements, one thread, GB/s: {text}")


def void(_: object) -> None:
    """Discard a result."""


if __name__ == "__main__":
    main()
