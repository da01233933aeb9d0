"""The command in MindSpore's guide on the convolution of its sample: three files in NCHW, with their shapes in their
names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.dump_file import DumpFile, DumpTensor, write_dump_file
from opdump.msaccucmp.command_line import run as msaccucmp

NAME = "Conv2D.Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12.2.7.161243956333802"


def _nc1hwc0(nchw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert to the form of a device: channels in blocks of 16, the block last."""
    n, c, h, w = nchw.shape
    return np.ascontiguousarray(nchw.reshape(n, c // 16, 16, h, w).transpose(0, 1, 3, 4, 2))


def test_the_convolution_of_the_guide_is_converted_to_nchw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"input.0": (32, 256, 13, 13), "input.1": (384, 256, 3, 3), "output.0": (32, 384, 13, 13)}
    values = {
        io: (np.arange(np.prod(shape), dtype=np.int64) % 2048).astype(np.float16).reshape(shape)
        for io, shape in shapes.items()
    }
    tensors: dict[str, list[DumpTensor]] = {"input": [], "output": []}
    for io, array in values.items():
        side, _, slot = io.partition(".")
        made = DumpTensor.of(
            side,  # type: ignore[arg-type]  # one of the two types
            int(slot),
            _nc1hwc0(array),
            format="NC1HWC0",
            original_shape=array.shape,
        )
        tensors[side].append(made)
    (tmp_path / "to").mkdir()
    source = tmp_path / "to" / NAME
    write_dump_file(source, DumpFile(inputs=tuple(tensors["input"]), outputs=tuple(tensors["output"])))
    monkeypatch.chdir(tmp_path)
    assert msaccucmp(["convert", "-d", str(source), "-out", "./output", "-f", "NCHW", "-t", "npy"]) == 0
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == [
        f"{NAME}.input.0.32x256x13x13.npy",
        f"{NAME}.input.1.384x256x3x3.npy",
        f"{NAME}.output.0.32x384x13x13.npy",
    ]
    for io, array in values.items():
        (path,) = (tmp_path / "output").glob(f"{NAME}.{io}.*")
        np.testing.assert_array_equal(np.load(path), array)
