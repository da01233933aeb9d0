"""The cost of `opdump convert`: the start, small files, one large file, formats with widening, and memory.

    python benchmarks/convert.py [--directory /data] [--size 1024]

Everything is measured alternately with a plain copy of the same files, so that a change of the machine's speed affects both. Figures are
medians of the rounds. Without --directory, the files go into the directory for temporary files. On a disk the file system determines the
speed, so small files are also converted in memory (/dev/shm) if it exists and has room.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import NamedTuple

import numpy as np

from opdump.conversion import ConversionPlan, convert
from opdump.dtypes import BY_NAME
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.dump_file import FORMAT_NUMBERS
from opdump.msaccucmp.command_line import run as run_msaccucmp

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


class Spent(NamedTuple):
    """The medians of the rounds: wall-clock seconds, and CPU seconds of this process."""

    wall: float
    cpu: float


def in_turn(root: Path, *works: Callable[[Path], object]) -> list[Spent]:
    """The time of each work; the order changes from round to round."""
    took: list[list[Spent]] = [[] for _ in works]
    for number in range(ROUNDS + 1):
        numbered = list(enumerate(works))
        for place, work in numbered if number % 2 else reversed(numbered):
            out = root / "out"
            out.mkdir()
            began = time.process_time()
            wall = seconds(partial(work, out))
            cpu = time.process_time() - began
            shutil.rmtree(out)
            if number:  # the first round imports and fills the page cache
                took[place].append(Spent(wall, cpu))
    return [Spent(*map(statistics.median, zip(*times, strict=True))) for times in took]


def converted(source: Path, out: Path, plan: ConversionPlan, jobs: int | None = 1) -> None:
    done = convert([str(source)], out, plan, jobs=jobs)
    assert not done.failures, done.failures


def start(root: Path) -> None:
    source = str(root / "Add.add.1.2.3")
    dump(Path(source), "float32", "ND", (6,), memoryview(bytes(24)))
    out = str(root / "out")
    commands = {
        "opdump": [sys.executable, "-m", "opdump", "convert", source, "-o", out],
        "msaccucmp": [sys.executable, "-m", "opdump.msaccucmp", "convert", "-d", source, "-out", out],
        "numpy": [sys.executable, "-c", "import numpy"],
    }
    # As after the first start: some environments do not let Python keep bytecode.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(10):
        for name, command in commands.items():
            run = partial(subprocess.run, command, check=True, capture_output=True, env=environment)
            took[name].append(seconds(run))
    # The first round may compile.
    opdump, msaccucmp, numpy = (statistics.median(times[1:]) for times in took.values())
    print(
        f"start:            {opdump:.2f} s for one small file, msaccucmp {msaccucmp:.2f} s, of which numpy takes "
        f"{numpy:.2f} s"
    )
    shutil.rmtree(out)


def small_files(root: Path, place: str) -> None:
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

    copied, ours, theirs = in_turn(
        root, copy, lambda out: converted(source, out, ConversionPlan()), lambda out: as_msaccucmp(source, out)
    )

    def rate(spent: Spent) -> str:
        return f"{FILES / spent.wall:,.0f} files/s ({FILES / spent.cpu:,.0f} per CPU second)"

    print(f"{FILES} of {SMALL >> 10} KB {place}: {rate(ours)}")
    print(f"                  msaccucmp {rate(theirs)}")
    print(f"                  a plain copy {rate(copied)}")
    cores = len(os.sched_getaffinity(0))
    took = seconds(lambda: converted(source, root / "out", ConversionPlan(), jobs=cores))
    shutil.rmtree(root / "out")
    print(f"                  {FILES / took:,.0f} files/s with --jobs {cores}, including the start of the processes")
    shutil.rmtree(source)


def as_msaccucmp(source: Path, out: Path) -> None:
    """The command in this process: below 1,000 files it starts no other process."""
    with open(os.devnull, "w") as log, contextlib.redirect_stderr(log):
        code = run_msaccucmp(["convert", "-d", str(source), "-out", str(out)])
    assert code == 0, code


def in_memory(size: int) -> str | None:
    """A directory in memory with room for this many bytes."""
    place = "/dev/shm"
    return place if os.path.isdir(place) and shutil.disk_usage(place).free > size else None


def large(root: Path, megabytes: int, title: str, plan: ConversionPlan, dtype: str, format_name: str) -> None:
    """One tensor, in a separate process to measure its peak memory."""
    source = root / "Conv2D.conv.1.2.3"
    blocks = megabytes << 20 >> 16
    shape, original = {
        "ND": ((blocks << 15,), ()),
        "NC1HWC0": ((blocks // 4, 4, 64, 32, 16), (blocks // 4, 64, 64, 32)),
        "FRACTAL_NZ": ((128, blocks, 16, 16), (blocks * 16, 128 * 16)),
        "FRACTAL_Z": ((128, blocks, 16, 16), (blocks * 16, 32 * 16, 2, 2)),
    }[format_name]
    data = np.random.default_rng(0).integers(0, 60, blocks << 15, dtype=np.uint16)
    assert data.nbytes == 2 * int(np.prod(shape))
    dump(source, dtype, format_name, shape, data.data.cast("B"), original_shape=original)
    del data
    copied, conversion = in_turn(
        root,
        lambda out: shutil.copyfile(source, out / "copy"),
        lambda out: converted(source, out, plan),
    )
    plain, ours = copied.wall, conversion.wall
    # VmHWM starts at zero in a new program; ru_maxrss would keep the value of this one.
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
    parser.add_argument("--directory", type=Path, help="directory for the files")
    parser.add_argument("--size", type=int, default=1024, help="MiB of the large file")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="opdump-convert-", dir=arguments.directory))
    try:
        start(root)
        small_files(root, f"in {root.parent}")
        memory = None if arguments.directory else in_memory(4 * FILES * SMALL)
        if memory is not None:
            beside = Path(tempfile.mkdtemp(prefix="opdump-convert-", dir=memory))
            try:
                small_files(beside, f"in {memory}")
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        size = arguments.size
        large(root, size, "ND to npy:", ConversionPlan(), "float16", "ND")
        large(root, size // 4, "bfloat16 to npy:", ConversionPlan(), "bfloat16", "ND")
        large(root, size // 4, "NC1HWC0 to NCHW:", ConversionPlan(format="NCHW"), "float16", "NC1HWC0")
        large(root, size // 4, "and bfloat16:", ConversionPlan(format="NCHW"), "bfloat16", "NC1HWC0")
        large(root, size // 4, "FRACTAL_NZ to ND:", ConversionPlan(format="ND"), "float16", "FRACTAL_NZ")
        large(root, size // 4, "FRACTAL_Z to NCHW:", ConversionPlan(format="NCHW"), "float16", "FRACTAL_Z")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
