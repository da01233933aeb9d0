"""What `opdump convert` costs: the start, small files, one large file, formats with widening, and memory.

    python benchmarks/convert.py [--directory /dev/shm] [--size 1024]

Everything is measured against a plain copy of the same files, in turn with it, so that a change of the machine's speed meets
both; printed is the median of the rounds. Without --directory the files lie where temporary files lie: on a disk its file system
decides, in /dev/shm opdump alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from opdump.conversion import ConversionPlan, convert
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.data_types import BY_NAME
from opdump.dump_file.tensor_formats import FORMAT_NUMBERS

FILES = 1000
SMALL = 32 << 10
ROUNDS = 5


def dump(
    path: Path,
    dtype: str,
    format_name: str,
    shape: tuple[int, ...],
    data: memoryview,
    original_shape: tuple[int, ...] = (),
) -> None:
    tensor = DumpTensor(
        io="output",
        slot=0,
        data_type=BY_NAME[dtype].number,
        format=FORMAT_NUMBERS[format_name],
        shape=shape,
        data=HeldBytes(data),
        original_shape=original_shape,
    )
    write_dump_file(path, DumpFile(outputs=(tensor,), op_name="net/op"))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(root: Path, copy: Callable[[Path], object], ours: Callable[[Path], object]) -> tuple[float, float]:
    """Seconds of a copy and of a conversion: the medians."""
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        for work, times in zip((copy, ours), took, strict=True):
            out = root / "out"
            out.mkdir()
            spent = seconds(partial(work, out))
            shutil.rmtree(out)
            if number:  # the first round imports and fills the page cache
                times.append(spent)
    return statistics.median(took[0]), statistics.median(took[1])


def converted(source: Path, out: Path, plan: ConversionPlan, jobs: int | None = 1) -> None:
    done = convert([str(source)], out, plan, jobs=jobs)
    assert not done.failures, done.failures


def start(root: Path) -> None:
    dump(root / "Add.add.1.2.3", "float32", "ND", (6,), memoryview(bytes(24)))
    command = [sys.executable, "-m", "opdump", "convert", str(root / "Add.add.1.2.3"), "-o", str(root / "out")]
    numpy = [sys.executable, "-c", "import numpy"]

    def median(arguments: list[str]) -> float:
        return statistics.median(
            seconds(lambda: subprocess.run(arguments, check=True, capture_output=True)) for _ in range(9)
        )

    median([*command[:1], "-c", "import opdump.conversion"])
    print(f"start:            {median(command):.2f} s for one small file, of which numpy takes {median(numpy):.2f} s")
    shutil.rmtree(root / "out")


def small_files(root: Path) -> None:
    source = root / "small"
    source.mkdir()
    data = np.random.default_rng(0).bytes(SMALL)
    for number in range(FILES):
        dump(
            source / f"Add.add{number}.1.2.{1700000000000000 + number}",
            "float32",
            "ND",
            (SMALL // 4,),
            memoryview(data),
        )

    def copy(out: Path) -> None:
        for entry in os.scandir(source):
            shutil.copyfile(entry.path, out / entry.name)

    plain, ours = in_turn(root, copy, lambda out: converted(source, out, ConversionPlan()))
    print(f"{FILES} of {SMALL >> 10} KB:    {FILES / ours:,.0f} files/s; a plain copy {FILES / plain:,.0f} files/s")
    cores = len(os.sched_getaffinity(0))
    took = seconds(lambda: converted(source, root / "out", ConversionPlan(), jobs=cores))
    shutil.rmtree(root / "out")
    print(f"                  {FILES / took:,.0f} files/s with --jobs {cores}, processes started within")
    shutil.rmtree(source)


def large(root: Path, megabytes: int, title: str, plan: ConversionPlan, dtype: str, format_name: str) -> None:
    """One tensor, in a process of its own for its peak of memory."""
    source = root / "Conv2D.conv.1.2.3"
    blocks = megabytes << 20 >> 16
    shape = (blocks // 4, 4, 64, 32, 16) if format_name != "ND" else (blocks << 15,)
    itemsize = 2
    data = np.random.default_rng(0).integers(0, 60, blocks << 15, dtype=np.uint16)
    assert data.nbytes == itemsize * int(np.prod(shape))
    original = (blocks // 4, 64, 64, 32) if format_name != "ND" else ()
    dump(source, dtype, format_name, shape, data.data.cast("B"), original_shape=original)
    del data
    plain, ours = in_turn(
        root,
        lambda out: shutil.copyfile(source, out / "copy"),
        lambda out: converted(source, out, plan),
    )
    # VmHWM begins anew in a new program; ru_maxrss would keep that of this one.
    program = (
        "import sys; from pathlib import Path; from opdump.conversion import ConversionPlan, convert; import opdump.formats\n"
        "def peak(): return int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "before = peak()\n"
        f"convert([sys.argv[1]], Path(sys.argv[2]), ConversionPlan(format={plan.format!r}))\n"
        "print(peak() - before)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program, str(source), str(root / "out")], check=True, capture_output=True, text=True
    ).stdout
    peak = int(printed) / 1024
    shutil.rmtree(root / "out")
    source.unlink()
    print(
        f"{title:17} {plain / ours:.0%} of a plain copy of {megabytes} MiB ({megabytes / 1024 / ours:.2f} GiB/s); "
        f"peak memory {peak:,.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where to put the files")
    parser.add_argument("--size", type=int, default=1024, help="MiB of the large file")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="opdump-convert-", dir=arguments.directory))
    try:
        start(root)
        small_files(root)
        size = arguments.size
        large(root, size, "ND to npy:", ConversionPlan(), "float16", "ND")
        large(root, size // 4, "bfloat16 to npy:", ConversionPlan(), "bfloat16", "ND")
        large(root, size // 4, "NC1HWC0 to NCHW:", ConversionPlan(format="NCHW"), "float16", "NC1HWC0")
        large(root, size // 4, "and bfloat16:", ConversionPlan(format="NCHW"), "bfloat16", "NC1HWC0")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
