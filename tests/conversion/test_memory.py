"""A conversion needs no more memory than its largest tensor plus 100 MB, for every format and every way to cut it."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from opdump.dump_file.dump_file import FORMAT_NUMBERS, dump_data
from tests.conversion.dump_files import TIME

PROGRAM = """
import sys
from pathlib import Path
import opdump.formats
from opdump.conversion import ConversionPlan, convert

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

before = peak()
done = convert([sys.argv[1]], Path(sys.argv[2]), ConversionPlan(format=sys.argv[3]), jobs=1)
assert not done.failures, done.failures
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("source", "shape", "target", "wanted"),
    [
        ("ND", (150 << 20,), "", ()),
        ("NC1HWC0", (600, 2, 128, 64, 16), "NCHW", (600, 20, 128, 64)),
        ("NC1HWC0", (1, 16, 1024, 600, 16), "NCHW", (1, 250, 1024, 600)),
        ("NC1HWC0", (1, 1, 4096, 2400, 16), "NHWC", (1, 4096, 2400, 16)),
        ("FRACTAL_NZ", (600, 1024, 16, 16), "ND", (16384, 9590)),
        ("FRACTAL_Z", (128 * 9, 512, 16, 16), "NCHW", (8192, 2040, 3, 3)),
        ("FRACTAL_Z", (128 * 9, 512, 16, 16), "HWCN", (3, 3, 2040, 8192)),
        ("HWCN", (3, 3, 2048, 8192), "FRACTAL_Z", (8192, 2048, 3, 3)),
        ("HWCN", (3, 3, 2048, 8192), "NCHW", (8192, 2048, 3, 3)),
        ("FRACTAL_Z in 2 groups", (2304, 256, 16, 16), "NCHW", (8192, 2048, 3, 3)),
        ("FRACTAL_Z in 2 groups", (2304, 256, 16, 16), "NHWC", (8192, 3, 3, 2048)),
        ("FRACTAL_Z in 2 groups", (2304, 256, 16, 16), "HWCN", (3, 3, 2048, 8192)),
        ("FRACTAL_Z in 1200 groups", (600 * 32 * 32, 1, 16, 16), "NCHW", (1200 * 8, 8, 32, 32)),  # 2 per share
        ("FRACTAL_Z in 1200 groups", (600 * 32 * 32, 1, 16, 16), "HWCN", (32, 32, 8, 1200 * 8)),
        ("FRACTAL_Z in 2 groups", (832 * 832, 1, 16, 16), "NCHW", (16, 8, 832, 832)),  # all of it is one share
        ("FRACTAL_Z_3D in 2 groups", (2 * 2304, 128, 16, 16), "NCDHW", (4096, 2048, 2, 3, 3)),
        ("NCHW", (8192, 2048, 3, 3), "FRACTAL_Z in 2 groups", (8192, 2048, 3, 3)),
        ("HWCN", (3, 3, 2048, 8192), "FRACTAL_Z in 2 groups", (8192, 2048, 3, 3)),
        ("HWCN", (32, 32, 16, 1200 * 8), "FRACTAL_Z in 1200 groups", (1200 * 8, 16, 32, 32)),
        ("FRACTAL_Z_C04", (590000, 1, 16, 16), "NCHW", (16, 4, 1475, 1600)),
        ("FRACTAL_Z_C04", (1, 590000, 16, 16), "NHWC", (16 * 590000, 2, 2, 4)),
        ("NCHW", (16, 4, 1475, 1600), "FRACTAL_Z_C04", (16, 4, 1475, 1600)),
        ("HWCN", (1475, 1600, 4, 16), "FRACTAL_Z_C04", (16, 4, 1475, 1600)),
        ("FRACTAL_Z in 2 groups", (2304, 256, 16, 16), "NC1HWC0", (8192, 2048, 3, 3)),
        ("FRACTAL_Z in 2 groups", (147456, 2, 16, 32), "FRACTAL_NZ", (64, 64, 192, 192)),
        ("FRACTAL_Z_3D in 2 groups", (2 * 2304, 128, 16, 16), "NDC1HWC0", (4096, 2048, 2, 3, 3)),
        ("FRACTAL_Z_C04", (147400, 1, 16, 16), "NC1HWC0", (16, 4, 737, 800)),
        ("FRACTAL_Z_C04", (147400, 1, 16, 16), "FRACTAL_Z", (16, 4, 737, 800)),
        ("FRACTAL_Z_C04", (590000, 1, 16, 16), "FRACTAL_NZ", (16, 4, 1475, 1600)),
        ("NC1HWC0", (8192, 128, 3, 3, 16), "FRACTAL_Z in 2 groups", (8192, 2048, 3, 3)),
        ("FRACTAL_NZ", (16, 4, 100, 93, 16, 16), "FRACTAL_Z_C04", (16, 4, 1475, 1600)),
        # Each part needs a piece of every page of the file.
        ("NC1HWC0", (37184, 4, 7, 9, 16), "FRACTAL_Z", (37184, 50, 7, 9)),
        ("FRACTAL_Z", (4 * 7 * 9, 2324, 16, 16), "NC1HWC0_C04", (37184, 50, 7, 9)),
        ("NC1HWC0_C04", (1, 1, 112384, 333, 4), "FRACTAL_NZ", (1, 3, 112384, 333)),
        ("FRACTAL_NZ", (1, 3626, 20, 4, 2, 16, 16), "NDC1HWC0", (1, 3626, 20, 30, 50)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_peak_is_the_tensor_and_little_more(
    source: str, shape: tuple[int, ...], target: str, wanted: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / f"Conv2D.conv.1.2.{TIME}"
    size = 2 * math.prod(shape)
    header = dump_data()(version=b"2.0")
    (source_name, _, in_groups), (target_name, _, into_groups) = source.partition(" in "), target.partition(" in ")
    groups = int((in_groups or into_groups or "0").removesuffix(" groups"))
    entry = header.output.add(data_type=2, format=FORMAT_NUMBERS[source_name], size=size, sub_format=groups)
    entry.shape.dim.extend(shape)
    entry.original_shape.dim.extend(wanted)
    text = header.SerializeToString()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)  # a sparse file of zeros
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "out"), target_name],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    print(f"{source} to {target}: {int(printed) / 1e6:.0f} of {size / 1e6:.0f} MB")
    for each in (tmp_path / "out").iterdir():
        size = max(size, each.stat().st_size)
        each.unlink()
    assert int(printed) <= size + 100_000_000, f"{int(printed) / 1e6:.0f} MB for a tensor of {size / 1e6:.0f}"
