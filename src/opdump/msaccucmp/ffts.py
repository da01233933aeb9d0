"""Finds the slices of FFTS+ tasks: each thread has a slice of the tensors, which the first attribute of the file describes.

The shapes in the header are then replaced by those of the slice of the thread in the file's name:
`Relu.op.9.3.1700000000000000.4.<context>.<thread>.<device>`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opdump.dump_file import DumpFile, DumpTensor
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode


def slices_of(name: str, file: DumpFile) -> DumpFile:
    """The file with the shapes of its thread's slices; the unchanged file if its attribute requests none.

    Raises AbortError for an invalid attribute, and CommandError if the name has no thread or the number of slices differs from
    the number of tensors.
    """
    if not file.attributes:
        return file
    import json

    try:
        described = json.loads(file.attributes[0][1])
        if not described.get("threadMode"):
            return file
    except (ValueError, AttributeError, RecursionError) as error:
        raise AbortError(f"{name}: its attribute {file.attributes[0][0]!r} is no JSON object ({error})") from error
    parts = name.split(".")
    if len(parts) < 2 or not parts[-2].isdecimal():
        raise CommandError(ExitCode.BAD_PATH, f"{name}: its name has no thread before its last part")
    thread = int(parts[-2])
    return replace(
        file,
        inputs=_sliced(name, file.inputs, described, "input_tensor_slice", thread),
        outputs=_sliced(name, file.outputs, described, "output_tensor_slice", thread),
    )


def _sliced(
    name: str, tensors: tuple[DumpTensor, ...], described: Any, key: str, thread: int
) -> tuple[DumpTensor, ...]:
    try:
        slices = described[key]
        parts = slices[thread] if slices else slices
        shapes = [tuple(int(bounds["higher"]) - int(bounds["lower"]) for bounds in part) for part in parts]
    except (TypeError, LookupError, ValueError) as error:
        raise AbortError(f"{name}: its attribute has no slice of thread {thread} in {key}") from error
    if len(shapes) != len(tensors):
        raise CommandError(
            ExitCode.BAD_SLICES, f"{name}: its attribute has {len(shapes)} slices in {key} for {len(tensors)} tensors"
        )
    if any(size < 0 for shape in shapes for size in shape):
        raise AbortError(f"{name}: a slice in {key} ends before it begins")
    return tuple(replace(tensor, shape=shape) for tensor, shape in zip(tensors, shapes, strict=True))
