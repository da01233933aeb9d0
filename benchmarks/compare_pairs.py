"""The speed of comparing two tensors: `python benchmarks/compare_pairs.py [--size 100000000] [--rows 1000000] [--files DIRECTORY]`.

The columns of a table are measured alternately, round by round, in one run. Figures are medians of the rounds, in wall-clock seconds.

    read     numpy's maximum over both tensors, one vectorised pass of one thread each: close to a plain read
    pair     `compare_pair`, every metric, with all threads and with one; `cpu` is its CPU time
    numpy    cosine, absolute and relative differences, RMSE and the count out of tolerance with numpy's passes in float64, on a part
             of the pair and scaled
    files    a pair of npy files that are not in the page cache: read in blocks, and mapped and compared
    memory   the growth of a process that compares the files, with mapped pages, relative to the size of both
    outputs  the table of a comparison: operator outputs in files that are not in the page cache, pair by pair, relative to a plain
             read of the files; and the growth of a process, relative to the size of the largest pair
    rows     `compare_summaries` of `--rows` pairs of summaries, and the table of a comparison of as many outputs with statistics only

Goals: a pair of 100 million values in 2 s with two processors; a million pairs of statistics in 10 s; outputs at half the rate of
a read or more; at most 1.5 times the largest pair in memory.

The size of the pair is that of float32; other dtypes are measured at a tenth of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump import kernels
from opdump.comparison.pairs import Outputs
from opdump.comparison.pairs import measured as measured_outputs
from opdump.index.values import FilePayload
from opdump.kernels import compare_pair, compare_summaries
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics

ROUNDS = 5
Array = NDArray[Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=100_000_000, help="values of each tensor")
    parser.add_argument("--rows", type=int, default=1_000_000, help="pairs of summaries")
    parser.add_argument("--files", type=Path, help="directory for the files (default: a temporary one)")
    options = parser.parse_args()
    print(f"{kernels.active()}, {kernels.threads()} threads, {os.cpu_count()} processors")
    print_large(options.size)
    print_types(options.size // 10)
    print_instruction_sets(options.size // 10)
    with tempfile.TemporaryDirectory(dir=options.files) as directory:
        print_files(Path(directory), options.size)
        print_outputs(Path(directory), options.size // 10)
    print_rows(options.rows)


def _high_bits(values: Array) -> Array:
    """bfloat16 as raw bits: the upper half of a float32."""
    bits: Array = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return bits


def pair(dtype: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(shape, dtype=np.float32)
    other = values * np.float32(1 + 1e-4)
    if dtype == "bfloat16":
        return _high_bits(values), _high_bits(other)
    if dtype == "bool":
        return values < 0.3, other < 0.3
    if not dtype.startswith("float"):
        values, other = values * np.float32(20), other * np.float32(20)
    return values.astype(dtype), other.astype(dtype)


def measured(
    actions: dict[str, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each action in each round; the actions alternate."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            begin = clock()
            action()
            found[name].append(clock() - begin)
    return found


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(x / y for x, y in zip(found[one], found[other], strict=True))


def with_threads(count: int, action: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        before = kernels.threads()
        kernels.set_threads(count)
        action()
        kernels.set_threads(before)

    return run


@np.errstate(all="ignore")
def numpy_passes(a: Array, b: Array) -> None:
    x, y = a.astype(np.float64), b.astype(np.float64)
    difference = np.abs(x - y)
    np.dot(x, y) / np.sqrt(np.dot(x, x) * np.dot(y, y))
    difference.max(), difference.mean()
    relative = difference / np.abs(x)
    relative.max(), relative.mean()
    np.sqrt(np.square(difference).mean())
    np.count_nonzero(difference > 1e-3 * np.abs(x))


def read(x: Array, y: Array) -> None:
    """Read every value with almost no computation."""
    x.max()
    y.max()


def print_large(size: int) -> None:
    a, b = pair("float32", (size,))
    part = min(size, 10_000_000)
    shapes = {"one axis": (-1,), "rows of 1000": (size // 1000, 1000), "rows of 4": (size // 4, 4)}
    print(f"\nfloat32, 2 x {size} values; seconds")
    print(f"{'':16}{'read':>8}{'pair':>8}{'1 thread':>10}{'numpy':>8}{'cpu':>8}{'pair/read':>11}{'pair/numpy':>12}")
    for name, shape in shapes.items():
        count = int(np.prod(shape)) if shape != (-1,) else size
        x, y = a[:count].reshape(shape), b[:count].reshape(shape)
        found = measured(
            {
                "read": partial(read, x, y),
                "pair": partial(compare_pair, x, y, rtol=1e-3),
                "1 thread": with_threads(1, partial(compare_pair, x, y, rtol=1e-3)),
                "numpy": lambda: numpy_passes(a[:part], b[:part]),
            }
        )
        found["numpy"] = [seconds * size / part for seconds in found["numpy"]]
        begin = time.process_time()
        compare_pair(x, y, rtol=1e-3)
        found["cpu"] = [time.process_time() - begin]
        seconds = "".join(f"{statistics.median(found[each]):{10 if each[0] == '1' else 8}.3f}" for each in found)
        print(f"{name:16}{seconds}{ratio(found, 'pair', 'read'):11.2f}{ratio(found, 'pair', 'numpy'):12.4f}")


def print_types(size: int) -> None:
    print(f"\nrows of 1000, 2 x {size} values; nanoseconds of CPU time per value")
    for dtype in kernels.DTYPE_CODES:
        a, b = pair(dtype, (size // 1000, 1000))
        compare: dict[str, Callable[[], object]] = {"pair": partial(compare_pair, a, b, dtype_a=dtype, dtype_b=dtype)}
        found = measured(compare, time.process_time)
        print(f"{dtype:12}{1e9 * statistics.median(found['pair']) / a.size:8.2f}")


def print_instruction_sets(size: int) -> None:
    a, b = pair("float32", (size // 1000, 1000))
    widest = kernels.instruction_sets()[-1]

    def run(name: str) -> None:
        kernels.use_instruction_set(name)
        compare_pair(a, b)

    sets = kernels.instruction_sets()
    found = measured({name: partial(run, name) for name in sets}, time.process_time)
    kernels.use_instruction_set(widest)
    text = ", ".join(f"{name} {1e9 * statistics.median(seconds) / a.size:.2f}" for name, seconds in found.items())
    print(f"float32 by instruction set: {text}")


def print_files(directory: Path, size: int) -> None:
    for path, array in zip(files(directory), pair("float32", (size // 1000, 1000)), strict=True):
        np.save(path, array)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    total = sum(path.stat().st_size for path in files(directory))
    found: dict[str, list[float]] = {"read": [], "pair": []}
    for _ in range(ROUNDS):
        for name, action in {
            "read": partial(read_files, files(directory)),
            "pair": partial(compare_files, directory),
        }.items():
            forget(files(directory))
            begin = time.perf_counter()
            action()
            found[name].append(time.perf_counter() - begin)
    rates = "".join(f"{name} {total / statistics.median(seconds) / 1e9:.2f} GB/s, " for name, seconds in found.items())
    print(f"\nfiles not in memory, {total / 1e6:.0f} MB: {rates}rate of pair / read {ratio(found, 'read', 'pair'):.2f}")
    peak = growth(f"compare_files(Path({str(directory)!r}))")
    print(f"memory: {peak / 1e6:.0f} MB, {peak / total:.2f} of both files")


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def files(directory: Path) -> tuple[Path, Path]:
    return directory / "a.npy", directory / "b.npy"


def forget(paths: Iterable[Path]) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_files(paths: Iterable[Path]) -> None:
    block = bytearray(8 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(block):
                pass


def compare_files(directory: Path) -> None:
    a, b = (np.load(path, mmap_mode="r") for path in files(directory))
    compare_pair(a, b, rtol=1e-3)


def print_outputs(directory: Path, size: int) -> None:
    """Measure ten pairs of outputs."""
    a, b = pair("float32", (size // 1000, 1000))
    paths = [directory / f"{side}{number}.npy" for number in range(10) for side in "ab"]
    for path in paths:
        np.save(path, a if path.name.startswith("a") else b)
        os.sync()
    total = sum(path.stat().st_size for path in paths)
    found: dict[str, list[float]] = {"read": [], "outputs": []}
    actions = {"read": partial(read_files, paths), "outputs": partial(measure_outputs, directory, a.shape)}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            forget(paths)
            begin = time.perf_counter()
            action()
            found[name].append(time.perf_counter() - begin)
    rates = "".join(f"{name} {total / statistics.median(seconds) / 1e6:.0f} MB/s, " for name, seconds in found.items())
    print(
        f"\noutputs not in memory, {total / 1e6:.0f} MB: {rates}rate of outputs / read {ratio(found, 'read', 'outputs'):.2f}"
    )
    peak = growth(f"measure_outputs(Path({str(directory)!r}), {a.shape})")
    print(f"memory: {peak / 1e6:.0f} MB, {peak / (total / 10):.2f} of the largest pair")


def measure_outputs(directory: Path, shape: tuple[int, ...]) -> None:
    op = OpRecord("MatMul", "Default/matmul-op1", 1)
    records = [
        [
            TensorRecord(
                op,
                "output",
                0,
                "float32",
                shape,
                payload=FilePayload(directory, f"{side}{number}.npy", "float32", shape),
            )
            for side in "ab"
        ]
        for number in range(10)
    ]
    measured_outputs([Outputs(one, other) for one, other in records])


def growth(call: str) -> int:
    """The growth of the peak memory of a new process that makes this call, in bytes."""
    code = f"""
from pathlib import Path
from benchmarks.compare_pairs import *
before = peak_memory()
{call}
print(peak_memory() - before)
"""
    here = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    return int(done.stdout)


def print_rows(count: int) -> None:
    generator = np.random.default_rng(0)
    a = np.abs(generator.standard_normal((count, len(kernels.SUMMARY_FIELDS))))
    b = a * (1 + 1e-4)
    found = measured({"rows": lambda: compare_summaries(a, b), "read": lambda: (a.max(), b.max())})
    print(
        f"\n{count} pairs of summaries: {statistics.median(found['rows']):.3f} s, {ratio(found, 'rows', 'read'):.1f} plain reads"
    )
    op = OpRecord("MatMul", "Default/matmul-op1", 1)
    one, other = (
        TensorRecord(op, "output", 0, "float32", (1000,), statistics=SummaryStatistics(kernels.summarise(values)))
        for values in pair("float32", (1000,))
    )
    unit = [Outputs(one, other)] * (count // 100)
    found = measured({"outputs": partial(measured_outputs, unit)})
    print(
        f"{count} outputs with statistics only: {100 * statistics.median(found['outputs']):.1f} s (a hundredth of them, scaled)"
    )


if __name__ == "__main__":
    main()
