"""The speed of converting device formats: `python benchmarks/formats.py [--megabytes 200] [--rounds 15]`.

Prints GB/s (bytes of the device's array per second) of each conversion, all measured alternately in one run, one thread:

    memcpy    a plain copy of the same number of bytes to memory that was written before
    convert   `convert_format` to memory that was written before: `out`
    /memcpy   convert / memcpy at the same moment: the median of the rounds, and its quartiles
    threads   convert with as many threads as it would use
    new copy  a plain copy to new memory
    new       `convert_format` to new memory: without `out`
    /new      new / new copy, in the same way

Then MB/s of input for converting 8-bit codes to float32, next to numpy's `take`. Speeds are the best quartile of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdump import kernels
from opdump.formats import convert_format


class Case(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]  # the first axis is scaled to the requested size
    source: str
    target: str
    cut: Callable[[tuple[int, ...]], tuple[int, ...]]


def _channels_less(shape: tuple[int, ...]) -> tuple[int, ...]:
    n, c1, h, w, c0 = shape
    return n, c1 * c0 - 3, h, w


CASES = (
    Case("NC1HWC0 to NCHW, float16", "float16", (0, 32, 56, 56, 16), "NC1HWC0", "NCHW", _channels_less),
    Case("NC1HWC0 to NCHW, float16, 7x7", "float16", (0, 32, 7, 7, 16), "NC1HWC0", "NCHW", _channels_less),
    Case("NC1HWC0 to NCHW, float32", "float32", (0, 32, 56, 56, 16), "NC1HWC0", "NCHW", _channels_less),
    Case("NC1HWC0 to NCHW, int8", "int8", (0, 16, 56, 56, 32), "NC1HWC0", "NCHW", _channels_less),
    Case(
        "NC1HWC0 to NHWC, float16",
        "float16",
        (0, 32, 56, 56, 16),
        "NC1HWC0",
        "NHWC",
        lambda shape: (shape[0], *shape[2:4], shape[1] * shape[4]),
    ),
    Case(
        "FRACTAL_NZ to ND, float16",
        "float16",
        (0, 256, 128, 16, 16),
        "FRACTAL_NZ",
        "ND",
        lambda shape: (shape[0], shape[2] * 16 - 5, shape[1] * 16 - 5),
    ),
    Case(
        "FRACTAL_Z to NCHW, float16, 3x3",
        "float16",
        (0, 128, 16, 16),
        "FRACTAL_Z",
        "NCHW",
        lambda shape: (shape[1] * 16 - 5, shape[0] // 9 * 16 - 5, 3, 3),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200, help="size of the device's array")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    threads = kernels.threads()
    print(f"{kernels.active()}, {threads} threads, {options.megabytes} MB")
    columns = ("memcpy", "convert", "/memcpy", "", "threads", "new copy", "new", "/new", "")
    print(f"{'':34}" + "".join(f"{column:>{9 if column else 13}}" for column in columns))
    for case in CASES:
        print_case(case, options.megabytes * 1_000_000, options.rounds, threads)
    print_codes(options.megabytes * 250_000, options.rounds, threads)


def print_case(case: Case, size: int, rounds: int, threads: int) -> None:
    array = filled(case, size)
    written = np.zeros(array.shape, array.dtype)
    shape = case.cut(array.shape)
    out = np.zeros(shape, array.dtype)

    def convert(out: NDArray[Any] | None = None) -> None:
        convert_format(array, case.source, case.target, shape=shape, out=out)

    actions: dict[str, tuple[int, Callable[[], Any]]] = {
        "memcpy": (1, lambda: np.copyto(written, array)),
        "convert": (1, lambda: convert(out)),
        "threads": (threads, lambda: convert(out)),
        "new copy": (1, array.copy),
        "new": (1, convert),
    }
    for _, action in actions.values():
        action()  # writes the pages that numpy's zeros only reserved
    speeds = measured(actions, array.nbytes / 1e9, rounds)
    best = {name: f"{best_quartile(speed):9.2f}" for name, speed in speeds.items()}
    print(
        f"{case.name:34}{best['memcpy']}{best['convert']}{ratio(speeds['convert'], speeds['memcpy'])}"
        f"{best['threads']}{best['new copy']}{best['new']}{ratio(speeds['new'], speeds['new copy'])}"
    )


def ratio(speeds: list[float], copies: list[float]) -> str:
    """The median and the quartiles of the rounds' ratios."""
    quotients = [speed / copy for speed, copy in zip(speeds, copies, strict=True)]
    low, middle, high = statistics.quantiles(quotients, n=4, method="inclusive")
    return f"{middle:9.2f} {f'({low:.2f}-{high:.2f})':>12}"


def filled(case: Case, size: int) -> NDArray[Any]:
    dtype = np.dtype(case.dtype)
    one = int(np.prod(case.shape[1:])) * dtype.itemsize
    first = max(size // one, 1)
    if case.source == "FRACTAL_Z":
        first = max(first // 9, 1) * 9
    array = np.empty((first, *case.shape[1:]), dtype)
    array[...] = np.arange(case.shape[-1])
    return array


def measured(actions: dict[str, tuple[int, Callable[[], Any]]], amount: float, rounds: int) -> dict[str, list[float]]:
    """The part of `amount` that each action processes per second, round by round; the actions alternate."""
    speeds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, (threads, action) in actions.items():
            kernels.set_threads(threads)
            begin = time.perf_counter()
            action()
            speeds[name].append(amount / (time.perf_counter() - begin))
    return speeds


def best_quartile(values: list[float]) -> float:
    """The value that a quarter of the rounds reached."""
    return sorted(values)[-1 - len(values) // 4]


def print_codes(count: int, rounds: int, threads: int) -> None:
    codes = np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)
    table = np.arange(256, dtype=np.float32)
    actions: dict[str, tuple[int, Callable[[], Any]]] = {
        "one thread": (1, lambda: kernels.widened(codes, table)),
        f"{threads} threads": (threads, lambda: kernels.widened(codes, table)),
        "numpy": (1, lambda: np.take(table, codes)),
    }
    speeds = measured(actions, count / 1e6, min(rounds, 5))
    text = ", ".join(f"{name} {best_quartile(speed):.0f}" for name, speed in speeds.items())
    print(f"8-bit codes to float32, MB/s of input: {text}")


if __name__ == "__main__":
    main()
