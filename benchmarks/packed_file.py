"""The speed of writing a file of tensor values, next to that of `dd` into the same directory in the same run.

    python benchmarks/packed_file.py [--directory DIR] [--megabytes 512] [--rounds 5]

Wall-clock seconds from the first tensor until the last byte was passed to the system, best of the rounds. `dd` writes the same number of
bytes in blocks of 1 MB into the system's cache, and in blocks of 8 MB past it (`oflag=direct`), which is the speed of the disk. Rounds of
all sizes are interleaved.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from opdump.kernels import active
from opdump.layouts.packed import ElementsFile

_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 26)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    most = arguments.megabytes << 20
    best: dict[int, float] = {}
    into_cache = past_cache = 0.0
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        for _ in range(arguments.rounds):
            into_cache = max(into_cache, _dd(Path(folder) / "dd", arguments.megabytes, "bs=1M"))
            past_cache = max(past_cache, _dd(Path(folder) / "dd", arguments.megabytes // 8, "bs=8M", "oflag=direct"))
            for size in _SIZES:
                best[size] = max(best.get(size, 0.0), _packed(Path(folder) / "1.pack", size, most))
    print(
        f"kernels: {active()}; {arguments.megabytes} MB; dd {into_cache / 1e9:.2f} GB/s, past the cache {past_cache / 1e9:.2f}"
    )
    for size, speed in best.items():
        print(
            f"{size / 1024:8.0f} KB {speed / 1e9:6.2f} GB/s {speed / into_cache:6.0%} of dd, {speed / past_cache:6.0%} past the cache"
            f"{speed / size:10.0f} tensors/s"
        )


def _dd(path: Path, blocks: int, *options: str) -> float:
    began = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", f"count={blocks}", *options], check=True, capture_output=True)
    took = time.perf_counter() - began
    written = path.stat().st_size
    path.unlink()
    return written / took


def _packed(path: Path, size: int, most: int) -> float:
    array = np.random.default_rng(0).standard_normal(size // 4, dtype=np.float32)
    count = max(1, min(most // size, 100_000))
    began = time.perf_counter()
    file = ElementsFile(path, 1 << 28)
    for number in range(count):
        file.append(f"Net/0/0/Add.Add-op{number}.0.0.1795247154245448.output.0.DefaultFormat.npy", array)
    file.close()
    took = time.perf_counter() - began
    path.unlink()
    return count * size / took


if __name__ == "__main__":
    main()
