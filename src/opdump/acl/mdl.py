"""Models and their dump (`acl.mdl`)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from opdump.acl.handles import (
    DTYPES,
    KINDS,
    NUMBERS,
    CallError,
    Code,
    DataBuffer,
    Dataset,
    ExecConfig,
    GearKind,
    TensorDesc,
    TensorInfo,
    refuse,
    returns_code,
    storage,
)
from opdump.acl.models import (
    add_dataset_buffer,
    create_config_handle,
    create_dataset,
    create_desc,
    destroy_config_handle,
    destroy_dataset,
    destroy_desc,
    get_cur_output_dims,
    get_dataset_buffer,
    get_dataset_num_buffers,
    get_dataset_tensor_desc,
    get_desc,
    get_desc_from_file,
    get_desc_from_mem,
    get_dynamic_batch,
    get_dynamic_hw,
    get_input_data_type,
    get_input_dims,
    get_input_dims_v2,
    get_input_dynamic_dims,
    get_input_dynamic_gear_count,
    get_input_format,
    get_input_index_by_name,
    get_input_name_by_index,
    get_input_size_by_index,
    get_num_inputs,
    get_num_outputs,
    get_output_data_type,
    get_output_dims,
    get_output_format,
    get_output_index_by_name,
    get_output_name_by_index,
    get_output_size_by_index,
    get_tensor_real_name,
    load_from_file,
    load_from_file_with_mem,
    load_from_mem,
    load_from_mem_with_mem,
    load_with_config,
    of_slot,
    query_size,
    query_size_from_mem,
    set_config_opt,
    set_dataset_tensor_desc,
    unload,
)
from opdump.acl.process import LoadedModel, process
from opdump.acl.streams import check_stream
from opdump.acl.tensor_descs import array_over, check_outputs, dims_of, write_outputs
from opdump.errors import OpdumpError
from opdump.onnx.recording import adapter_module

__all__ = [
    "add_dataset_buffer",
    "create_config_handle",
    "create_dataset",
    "create_desc",
    "create_exec_config_handle",
    "destroy_config_handle",
    "destroy_dataset",
    "destroy_desc",
    "destroy_exec_config_handle",
    "execute",
    "execute_async",
    "execute_v2",
    "finalize_dump",
    "get_cur_output_dims",
    "get_dataset_buffer",
    "get_dataset_num_buffers",
    "get_dataset_tensor_desc",
    "get_desc",
    "get_desc_from_file",
    "get_desc_from_mem",
    "get_dynamic_batch",
    "get_dynamic_hw",
    "get_input_data_type",
    "get_input_dims",
    "get_input_dims_v2",
    "get_input_dynamic_dims",
    "get_input_dynamic_gear_count",
    "get_input_format",
    "get_input_index_by_name",
    "get_input_name_by_index",
    "get_input_size_by_index",
    "get_num_inputs",
    "get_num_outputs",
    "get_output_data_type",
    "get_output_dims",
    "get_output_format",
    "get_output_index_by_name",
    "get_output_name_by_index",
    "get_output_size_by_index",
    "get_tensor_real_name",
    "init_dump",
    "load_from_file",
    "load_from_file_with_mem",
    "load_from_mem",
    "load_from_mem_with_mem",
    "load_with_config",
    "query_size",
    "query_size_from_mem",
    "set_config_opt",
    "set_dataset_tensor_desc",
    "set_dump",
    "set_dynamic_batch_size",
    "set_dynamic_hw_size",
    "set_exec_config_opt",
    "set_input_dynamic_dims",
    "unload",
]

# ---------------------------------------------------------------------------------------------------------------- dump


@returns_code
def init_dump() -> None:
    """Prepare to dump. Returns 100001 before `acl.init`, 100002 if `finalize_dump` was not called since the last time."""
    process().init_dump()


@returns_code
def set_dump(config_path: str | os.PathLike[str] | None = None) -> None:
    """Load models under this acl.json from now on, replacing an earlier one. Loaded models keep theirs.

    Checked in this order: 100001 before `acl.init`, 100045 before `init_dump`, 100000 for None, 100003 and 100006 for the file,
    100009 for invalid content. After a failure, the earlier setting stays.
    """
    process().set_dump(config_path)


@returns_code
def finalize_dump() -> None:
    """End every dump, including that of `acl.init`: everything is on disk. Models continue to run without a dump.

    Returns 100001 before `acl.init`, 100045 before `init_dump`.
    """
    process().finalize_dump()


# ---------------------------------------------------------------------------------------------------------------- gears


@returns_code
def set_dynamic_batch_size(model_id: int, dataset: int, index: int, batch_size: int) -> None:
    """Set the batch size of the next runs on this data set. `index` is that of the input `ascend_mbatch_shape_data`.

    Returns 100000 for 0, for a missing buffer and for one without memory, 145012 for one of less than 4 bytes, 145013 for a size
    that is not a gear.
    """
    _set_gear(model_id, dataset, index, "dynamic_batch_size", [batch_size], "acl.mdl.set_dynamic_batch_size")


@returns_code
def set_dynamic_hw_size(model_id: int, dataset: int, index: int, height: int, width: int) -> None:
    """The same for height and width. The codes are those of `set_dynamic_batch_size`; the buffer needs at least 8 bytes."""
    _set_gear(model_id, dataset, index, "dynamic_image_size", [height, width], "acl.mdl.set_dynamic_hw_size")


@returns_code
def set_input_dynamic_dims(model_id: int, dataset: int, index: int, dims: Any) -> None:
    """The same for the concatenated shapes of all inputs: `{"dimCount": 5, "dims": [2, 20, 1, 20, 1]}`, as
    `get_input_dynamic_dims` returns them. The codes are those of `set_dynamic_batch_size`; the buffer needs 4 bytes for each
    number of the gear.
    """
    where = "acl.mdl.set_input_dynamic_dims"
    count = dims.get("dimCount") if isinstance(dims, dict) else None
    numbers = dims.get("dims") if isinstance(dims, dict) else None
    if not isinstance(count, int) or not isinstance(numbers, list) or not 0 < count <= len(numbers):
        raise CallError(
            Code.INVALID_PARAM, f'{where}: found {dims!r}, expected {{"name": "", "dimCount": 5, "dims": [...]}}'
        )
    _set_gear(model_id, dataset, index, "dynamic_dims", numbers[:count], where)


def _set_gear(model_id: int, dataset: int, index: int, kind: GearKind, wanted: list[Any], where: str) -> None:
    state = process()
    found = state.handles.get(dataset, Dataset, where)
    if not all(isinstance(number, int) and number > 0 for number in wanted):
        raise CallError(Code.INVALID_PARAM, f"{where}: found {wanted}, expected whole numbers, 1 or more")
    buffer = state.handles.get(of_slot(found.buffers, index, where), DataBuffer, where)
    model = state.model(model_id, where)
    gears = model.info.gears
    if gears is None or gears.kind != kind:
        other = (
            f"it has {gears.kind}"
            if gears is not None
            else f"declare them in its metadata ({', '.join(KINDS)}), docs/acl.md"
        )
        raise CallError(Code.DYNAMIC_BATCH_SIZE, f"{where}: model {model_id} has no gears of {kind}; {other}")
    selector = len(model.info.own_inputs)
    if index != selector:
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: found index {index!r}, expected {selector}, the result of acl.mdl.get_input_index_by_name(desc, {gears.selector.name!r})",
        )
    known = [
        gears.whole(gear) if kind == "dynamic_dims" else list(gears.choices[gear]) for gear in range(len(gears.choices))
    ]
    if wanted not in known:
        raise CallError(Code.DYNAMIC_BATCH_SIZE, f"{where}: {wanted} is not a gear of model {model_id}; it has {known}")
    gear = known.index(wanted)
    values = np.array(gears.choices[gear], np.int64)
    if buffer.size < values.size * 4:
        raise CallError(
            Code.DYNAMIC_INPUT_LENGTH,
            f"{where}: the buffer of {gears.selector.name!r} has {buffer.size} bytes, expected {values.size * 4}: "
            "acl.mdl.get_input_size_by_index",
        )
    written = values if buffer.size >= values.nbytes else values.astype(np.int32)
    state.memory.at(buffer.address, written.nbytes, where=where, write=True)[:] = written.view(np.uint8)
    found.gear, model.gear = (model_id, gear), gear


# ----------------------------------------------------------------------------------------------------------------- runs


@returns_code
def execute(model_id: int, inputs: int, outputs: int) -> None:
    """Run a model on the buffers of two data sets.

    Returns 100017 and 100018 if they do not fit, 145013 if the model has gears and none was set, 500000 if the run fails.
    """
    _execute(model_id, inputs, outputs, "acl.mdl.execute")


@returns_code
def execute_async(model_id: int, inputs: int, outputs: int, stream: int) -> None:
    """The same; it has finished when this returns, so the stream only waits for callbacks."""
    check_stream(stream, "acl.mdl.execute_async")
    _execute(model_id, inputs, outputs, "acl.mdl.execute_async")


@returns_code
def execute_v2(model_id: int, inputs: int, outputs: int, stream: int, handle: int) -> None:
    """The same as `execute`; the timeouts in the handle have no effect."""
    check_stream(stream, "acl.mdl.execute_v2")
    process().handles.get(handle, ExecConfig, "acl.mdl.execute_v2")
    _execute(model_id, inputs, outputs, "acl.mdl.execute_v2")


def create_exec_config_handle() -> int:
    """Options for running a model, initially empty."""
    return process().handles.add(ExecConfig())


@returns_code
def destroy_exec_config_handle(handle: int) -> None:
    process().handles.remove(handle, ExecConfig, "acl.mdl.destroy_exec_config_handle")


@returns_code
def set_exec_config_opt(handle: int, attribute: int, value: Any) -> None:
    """Set how long a run waits for its stream (0) and for events (1), in milliseconds; -1 forever. Has no effect here."""
    where = "acl.mdl.set_exec_config_opt"
    found = process().handles.get(handle, ExecConfig, where)
    if attribute not in (0, 1) or not isinstance(value, int) or value < -1:
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: found attribute {attribute!r} and {value!r}, expected 0 or 1, and milliseconds",
        )
    found.values[attribute] = value


def _execute(model_id: int, inputs: int, outputs: int, where: str) -> None:
    state = process()
    with state.lock:
        state.must_be_initialised(where)
        model = state.model(model_id, where)
        given = state.handles.get(inputs, Dataset, where)
        gear = _gear(model, given, where)
        feeds = _feeds(model, given, gear, where)
        buffers = _buffers(model, state.handles.get(outputs, Dataset, where), where)
        try:
            arrays = model.run(feeds)
        except OpdumpError:
            raise
        except Exception as error:
            raise CallError(Code.INTERNAL_ERROR, f"{where}: the run of model {model_id} failed: {error}") from error
        check_outputs(buffers, arrays, where, Code.MODEL_OUTPUT_NOT_MATCH)
        write_outputs(state.memory, buffers, arrays, where)
        model.output_dims, model.gear_of_run = [array.shape for array in arrays], gear


def _gear(model: LoadedModel, dataset: Dataset, where: str) -> int | None:
    """The gear that was set for a run; None for a model without gears."""
    gears = model.info.gears
    if gears is None:
        return None
    if dataset.gear is None or dataset.gear[0] != model.model_id:
        raise CallError(
            Code.DYNAMIC_BATCH_SIZE,
            f"{where}: model {model.model_id} has gears of {gears.kind}, {[list(each) for each in gears.choices]}, and none was set for "
            f"this data set; call acl.mdl.{_SETTERS[gears.kind]}",
        )
    if dataset.descs:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: the gear determines the shapes of model {model.model_id}; leave out acl.mdl.set_dataset_tensor_desc",
        )
    return dataset.gear[1]


_SETTERS: dict[GearKind, str] = {
    "dynamic_batch_size": "set_dynamic_batch_size",
    "dynamic_image_size": "set_dynamic_hw_size",
    "dynamic_dims": "set_input_dynamic_dims",
}


def _feeds(model: LoadedModel, dataset: Dataset, gear: int | None, where: str) -> dict[str, Any]:
    state, info, wanted = process(), model.info, model.info.inputs
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: the data set has {len(dataset.buffers)} buffers, but the model has {len(wanted)} inputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    feed_of = adapter_module("tensors_of_run").feed_of
    feeds = {}
    for slot, (each, handle) in enumerate(zip(info.own_inputs, dataset.buffers, strict=False)):
        buffer = state.handles.get(handle, DataBuffer, where)
        if gear is not None and info.gears is not None:
            dims: tuple[int, ...] | None = info.gears.shapes[gear][slot]
        else:
            dims = _described_dims(dataset, slot, each, where)
        if dims is None:
            dims = dims_of(each, buffer.size, where)
        feeds[each.name] = feed_of(array_over(state.memory, buffer, each, dims, where), each.dtype)
    return feeds


def _described_dims(dataset: Dataset, slot: int, info: TensorInfo, where: str) -> tuple[int, ...] | None:
    """The shape that the program has set for an input; None if it has set none."""
    if slot not in dataset.descs:
        return None
    desc = process().handles.get(dataset.descs[slot], TensorDesc, where)
    fits = len(desc.dims) == len(info.dims) and all(
        given >= 0 and wanted in (-1, given) for given, wanted in zip(desc.dims, info.dims, strict=True)
    )
    if not fits or DTYPES[desc.data_type] != info.dtype:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: {info.name!r} is {info.dtype} {info.dims}, but was set to {DTYPES[desc.data_type]} {desc.dims}",
        )
    return tuple(desc.dims)


def _buffers(model: LoadedModel, dataset: Dataset, where: str) -> list[DataBuffer]:
    wanted = model.info.outputs
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_OUTPUT_NOT_MATCH,
            f"{where}: the data set has {len(dataset.buffers)} buffers, but the model has {len(wanted)} outputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    for info in wanted:
        kind = storage(info.dtype) if info.dtype in NUMBERS else None
        if kind is None or kind.name != info.dtype:
            raise CallError(
                Code.UNSUPPORTED_DATA_TYPE,
                f"{where}: the output {info.name!r} is {info.dtype}, which cannot be passed",
            )
    return [process().handles.get(handle, DataBuffer, where) for handle in dataset.buffers]


__getattr__ = refuse(__name__, __all__)
