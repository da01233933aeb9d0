"""The speed of digests: `python benchmarks/digests.py`.

Prints GB/s of CPU time, one thread, best quartile of the rounds: many tensors in one `DigestBatch`, by instruction set, and the twin (hashlib one
tensor after the other, XXH3 in Python). `hash, lanes` is SHA-1 without the processor's SHA-1 instructions.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from opdump import kernels
from opdump.kernels import digests as twin

TENSORS = {
    "4096 of 1 KB": (1 << 10, 4096),
    "256 of 64 KB": (1 << 16, 256),
    "32 of 1 MB": (1 << 20, 32),
    "64 MB": (1 << 26, 1),
}
NAMES = ("md5", "hash", "xxh3")
ROUNDS = 9


def main() -> None:
    kernels.set_threads(1)
    widest = kernels.instruction_sets()[-1]
    print(f"{'':16}{'':10}" + "".join(f"{name:>14}" for name in (*NAMES, "hash, lanes")))
    for title, (size, count) in TENSORS.items():
        tensors = [np.random.default_rng(i).integers(0, 1 << 32, size // 4, np.uint32) for i in range(count)]
        for name in kernels.instruction_sets():
            kernels.use_instruction_set(name)
            batches = [*(kernels.DigestBatch([each]) for each in NAMES), kernels.DigestBatch(["hash"], 1 << 28, False)]
            print_row(title, name, batches, tensors, ROUNDS)
        print_row(title, "twin", [twin.DigestBatch([each]) for each in NAMES], tensors, 1)
    kernels.use_instruction_set(widest)


def print_row(
    title: str,
    name: str,
    batches: list[kernels.DigestBatch] | list[twin.DigestBatch],
    tensors: list[NDArray[np.uint32]],
    rounds: int,
) -> None:
    print(f"{title:16}{name:10}" + "".join(f"{speed(batch, tensors, rounds):14.2f}" for batch in batches))


def speed(batch: twin.DigestBatch, tensors: list[NDArray[np.uint32]], rounds: int) -> float:
    """The GB/s that a quarter of the rounds reached."""
    found = []
    for _ in range(rounds):
        batch.clear()
        begin = time.process_time()
        numbers = [batch.add(each.ctypes.data, each.nbytes, each.itemsize) for each in tensors]
        for number in numbers:
            batch.digests(number)
        found.append(sum(each.nbytes for each in tensors) / (time.process_time() - begin) / 1e9)
    return sorted(found)[-1 - len(found) // 4]


if __name__ == "__main__":
    main()
