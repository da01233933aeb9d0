"""Data sets: the buffers of a model's inputs, or of its outputs (`acl.mdl`)."""

from __future__ import annotations

from typing import Any

from opdump.acl.codes import Code
from opdump.acl.failures import CallError, returns_code, returns_plain, returns_value
from opdump.acl.handles import DataBuffer, Dataset, TensorDesc
from opdump.acl.process import process


def create_dataset() -> int:
    """A data set: the buffers of a model's inputs, or of its outputs."""
    return process().handles.add(Dataset())


@returns_code
def destroy_dataset(dataset: int) -> None:
    """Forget a data set; its buffers stay."""
    process().handles.remove(dataset, Dataset, "acl.mdl.destroy_dataset")


@returns_value(0)
def add_dataset_buffer(dataset: int, buffer: int) -> int:
    """Add the buffer of the next input or output; returns the data set, and the code."""
    where = "acl.mdl.add_dataset_buffer"
    found = process().handles.get(dataset, Dataset, where)
    process().handles.get(buffer, DataBuffer, where)
    found.buffers.append(buffer)
    return dataset


@returns_plain(0)
def get_dataset_num_buffers(dataset: int) -> int:
    return len(process().handles.get(dataset, Dataset, "acl.mdl.get_dataset_num_buffers").buffers)


@returns_plain(0)
def get_dataset_buffer(dataset: int, index: int) -> int:
    """The buffer of a slot; 0 if there is none."""
    buffers = process().handles.get(dataset, Dataset, "acl.mdl.get_dataset_buffer").buffers
    return of_slot(buffers, index, "acl.mdl.get_dataset_buffer")


@returns_value(0)
def set_dataset_tensor_desc(dataset: int, desc: int, index: int) -> int:
    """Set the shape of an input for the next runs; returns the data set, and the code."""
    where = "acl.mdl.set_dataset_tensor_desc"
    found = process().handles.get(dataset, Dataset, where)
    process().handles.get(desc, TensorDesc, where)
    of_slot(found.buffers, index, where)
    found.descs[index] = desc
    return dataset


@returns_plain(0)
def get_dataset_tensor_desc(dataset: int, index: int) -> int:
    """The description that was set for a slot; 0 if none was."""
    return process().handles.get(dataset, Dataset, "acl.mdl.get_dataset_tensor_desc").descs.get(index, 0)


def of_slot(buffers: list[int], index: Any, where: str) -> int:
    if not isinstance(index, int) or not 0 <= index < len(buffers):
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no slot {index!r}; the data set has {len(buffers)}")
    return buffers[index]
