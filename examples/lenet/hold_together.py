"""Compare the dumps of the four programs: hold_together.py FOLDER, where FOLDER contains torch/, jax/, tensorflow/ and mindspore/.

Prints how far each layer output, gradient and updated parameter is from that of PyTorch, relative to the largest value. The
exit code is 1 if anything differs by more than 1e-4, is missing, or has another path than in the other dumps.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import lenet_data
import numpy as np
import numpy.typing as npt

import opdump

Array = npt.NDArray[np.float32]

FRAMEWORKS = ("torch", "jax", "tensorflow", "mindspore")
TOLERANCE = 1e-4
# type.name.task.stream.time.io.slot.format; MindSpore adds the dtype.
FILE_NAME = re.compile(r"[\w-]+\.[\w-]+\.\d+\.\d+\.\d{16}\.(input|output)\.\d+\.DefaultFormat(\.\w+)?\.npy")
# TensorFlow has channels last, and numbers the outputs of a kernel after its inputs.
AXES = ((0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 0, 1), (0, 1), (1, 0), (0,))
OUTPUTS = {"conv1": (16, 6, 28, 28), "conv2": (16, 16, 10, 10), "fc1": (16, 120), "fc2": (16, 84), "fc3": (16, 10)}


def main(folder: Path) -> int:
    """Print the table; returns 1 if something is wrong, otherwise 0."""
    wrong = [f"{framework}: {path}" for framework in FRAMEWORKS for path in misplaced(folder / framework)]
    dumps = [opdump.open(folder / framework) for framework in FRAMEWORKS]
    print(f"{'':29}", *(f"{framework:>10}" for framework in FRAMEWORKS[1:]))
    for step in range(lenet_data.STEPS):
        for what, layer, shape in wanted():
            if what == "updated" and step == 0:
                continue
            (first, *_), *others = [found(dump, step, what, layer, shape) for dump in dumps]
            far = [min((distance(each, first) for each in other), default=math.inf) for other in others]
            kind = "" if what == "output" else " weight" if len(shape) > 1 else " bias"
            name = f"step {step}, {layer}{kind} {what}"
            print(f"{name:29}", *(f"{each:10.1e}" for each in far))
            wrong += [
                f"{each}: {name}" for each, far_off in zip(FRAMEWORKS[1:], far, strict=True) if far_off > TOLERANCE
            ]
    print("\n".join(["not as in the others:", *wrong] if wrong else [f"all agree to {TOLERANCE}"]))
    return 1 if wrong else 0


def misplaced(dump: Path) -> Iterator[str]:
    """Missing directories of the layout, and tensor files with other names."""
    yield from (each for each in ("rank_0/.dump_metadata", "rank_0/execution_order") if not (dump / each).is_dir())
    steps = {path.parent.name for path in dump.glob("rank_0/LeNet/*/*/*.npy") if path.parent.name != "constants"}
    if steps != {str(step) for step in range(lenet_data.STEPS)}:
        yield f"steps {sorted(steps)}"
    yield from (path.name for path in dump.rglob("*.npy") if not FILE_NAME.fullmatch(path.name))


def wanted() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The tensors to look for: the layer, and the shape in PyTorch."""
    for layer, shape in lenet_data.SHAPES.items():
        yield "output", layer, OUTPUTS[layer]
        for each in (shape, shape[:1]):
            yield "gradient", layer, each
            yield "updated", layer, each


def found(dump: opdump.Catalog, step: int, what: str, layer: str, shape: tuple[int, ...]) -> list[Array]:
    """Candidates for this tensor in the step, the most likely first.

    A layer's output is that of its last operator. No two parameters have the same size, so a gradient is identified by its size. A parameter
    updated in the previous step is what the layer reads.
    """
    tensors = []
    for record in dump.tensors(step=step, io="input" if what == "updated" else "output"):
        name = record.op.op_name
        is_backward = name.startswith(("Gradients/", "gradient_tape/"))
        # conv1-Conv2d in PyTorch and MindSpore, conv1 in JAX, conv1_1 in TensorFlow
        is_of_layer = re.search(rf"(^|/){layer}(_\d+)?(-\w+)?/", name) is not None
        if is_backward if what == "gradient" else is_of_layer and not is_backward:
            tensors += [record.numpy()] if math.prod(record.shape) == math.prod(shape) else []
    return [each for array in reversed(tensors) for each in arranged(array, shape)]


def arranged(array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """The values in PyTorch's order; several arrays if the shape is ambiguous."""
    if array.squeeze().shape == shape:
        array = array.squeeze()
    for axes in AXES:
        if len(axes) == array.ndim and array.transpose(axes).shape == shape:
            yield array.transpose(axes)


def distance(one: Array, other: Array) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(one.astype(np.float64) - other).max() / np.abs(other).max())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
