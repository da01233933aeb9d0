"""Models (`acl.mdl`): loading and running them, their descriptions, the data sets of their inputs and outputs, and their dump."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from opdump.acl.handles import (
    DTYPES,
    FORMAT_ND,
    KINDS,
    LOG,
    NUMBERS,
    SELECTOR,
    UNDEFINED_TYPE,
    CallError,
    Code,
    DataBuffer,
    Dataset,
    ExecConfig,
    GearKind,
    Gears,
    LoadConfig,
    ModelDesc,
    ModelInfo,
    TensorDesc,
    TensorInfo,
    refuse,
    returns_code,
    returns_plain,
    returns_value,
    storage,
)
from opdump.acl.memory import array_over, check_outputs, dims_of, write_outputs
from opdump.acl.process import LoadedModel, process
from opdump.errors import ModelFileError, OpdumpError
from opdump.onnx.recording import adapter_module

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


# Loading models, also with a configuration handle. Programs for a device name an OM file; the corresponding ONNX file is found.

_OM: Final = ".om"
_OM_MAGIC: Final = b"IMOD"


def _onnx_file(path: Path) -> Path:
    """The path itself, or the ONNX file beside it if the path names an OM file or does not exist.

    Raises CallError: 100003 if neither exists, 100006 for an OM file without an ONNX file beside it.
    """
    if path.suffix != _OM and not _is_om(path):
        return path
    if path.is_file() and not _is_om(path):
        return path  # an ONNX file with that name
    beside = path.with_suffix(".onnx")
    if beside.is_file():
        LOG.info("%s is loaded in its place", beside)
        return beside
    if path.is_file():
        raise CallError(
            Code.PARSE_FILE,
            f"{path} is a model for Ascend devices (OM), which ONNX Runtime cannot run; put the ONNX file that it was "
            f"made of beside it: {beside}",
        )
    raise CallError(
        Code.INVALID_FILE,
        f"found neither {path} nor {beside}; put the ONNX file that the device model was made from there",
    )


def _is_om(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_OM_MAGIC)) == _OM_MAGIC
    except OSError:
        return False


# aclmdlConfigAttr
_PRIORITY: Final = 0
_LOAD_TYPE: Final = 1
_PATH: Final = 2
_MEMORY: Final = 3
_MEMORY_SIZE: Final = 4
_WITHOUT_MEANING: Final = frozenset({5, 6, 7, 8, 13})
"""Memory of weights and of the workspace, their sizes, and the use of the workspace: ONNX Runtime has memory of its own."""
_QUEUES: Final = frozenset({9, 10, 11, 12})
_WEIGHT_PATH: Final = 14
# aclmdlLoadType
_FROM_FILE: Final = (1, 2)
_FROM_MEMORY: Final = (3, 4)
_FROM_QUEUES: Final = (5, 6)


@returns_value(0)
def load_from_file(path: str | os.PathLike[str]) -> int:
    """Load an ONNX file. The model is named after the stem of the file; its number counts from 1.

    For `resnet.om`, the file `resnet.onnx` beside it is loaded, unless `resnet.om` is itself an ONNX file. Returns 100003 for a
    missing file, 100006 for one without a model, 500000 for one that ONNX Runtime rejects.
    """
    return _load(Path(path))


@returns_value(0)
def load_from_mem(address: int, size: int) -> int:
    """Load an ONNX file from memory. The model is named after its graph."""
    return _load(_bytes(address, size))


@returns_value(0)
def load_from_file_with_mem(
    path: str | os.PathLike[str], work: int, work_size: int, weights: int, weights_size: int
) -> int:
    """The same as `load_from_file`: ONNX Runtime has memory of its own."""
    del work, work_size, weights, weights_size
    return _load(Path(path))


@returns_value(0)
def load_from_mem_with_mem(address: int, size: int, work: int, work_size: int, weights: int, weights_size: int) -> int:
    """The same as `load_from_mem`."""
    del work, work_size, weights, weights_size
    return _load(_bytes(address, size))


@returns_code
def unload(model_id: int) -> None:
    """Unload a model. Returns 100011 for a model that is not loaded."""
    process().unload(model_id)


def query_size(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Bytes of working memory and of weights, and the code: 1 and the size of the file, because the caller need not allocate
    them.
    """
    size, code = _query_size(path)
    return int(size > 0), size, code


def query_size_from_mem(address: int, size: int) -> tuple[int, int, int]:
    """The same for a model in memory."""
    found, code = _query_size_from_mem(address, size)
    return int(found > 0), found, code


@returns_value(0)
def _query_size(path: str | os.PathLike[str]) -> int:
    found = _onnx_file(Path(path))
    try:
        return max(found.stat().st_size, 1)
    except OSError as error:
        raise CallError(Code.INVALID_FILE, f"{found}: {error.strerror}; expected an ONNX file") from error


@returns_value(0)
def _query_size_from_mem(address: int, size: int) -> int:
    return len(process().memory.at(address, size))


# ------------------------------------------------------------------------------------------------ configuration handles


def create_config_handle() -> int:
    """Options for loading a model, initially empty."""
    return process().handles.add(LoadConfig())


@returns_code
def destroy_config_handle(handle: int) -> None:
    process().handles.remove(handle, LoadConfig)


@returns_code
def set_config_opt(handle: int, attribute: int, value: Any) -> None:
    """Set an option for loading a model.

    The attributes: 0 is the priority, 1 the source (1, 2 file; 3, 4 memory), 2 the path, 3 and 4 address and size in memory. Options
    for memory of weights and workspace (5 to 8, 13) have no effect. Returns 100000 for an invalid option, and for queues and
    weights in a separate file.
    """
    found = process().handles.get(handle, LoadConfig)
    if attribute in _QUEUES or attribute == _WEIGHT_PATH:
        what = "queues are" if attribute in _QUEUES else "a path of weights is"
        raise CallError(
            Code.INVALID_PARAM, f"{what} not simulated; ONNX Runtime finds external weights beside the model"
        )
    if attribute not in {_PRIORITY, _LOAD_TYPE, _PATH, _MEMORY, _MEMORY_SIZE} | _WITHOUT_MEANING:
        raise CallError(
            Code.INVALID_PARAM, f"found attribute {attribute!r}, expected a number of aclmdlConfigAttr (0 to 13)"
        )
    if attribute == _PATH:
        is_right, expected = isinstance(value, str | os.PathLike) and bool(os.fspath(value)), "a path"
    elif attribute == _LOAD_TYPE:
        is_right, expected = value in (*_FROM_FILE, *_FROM_MEMORY, *_FROM_QUEUES), "1, 2 (file), 3 or 4 (memory)"
    else:
        is_right, expected = (isinstance(value, int) and not (attribute == _MEMORY and value == 0), "a nonzero address")
    if not is_right:
        raise CallError(Code.INVALID_PARAM, f"found {value!r} for attribute {attribute}, expected {expected}")
    found.values[attribute] = value


@returns_value(0)
def load_with_config(handle: int) -> int:
    """Load a model with the options of the handle. Returns 100000 if an option is missing, otherwise the codes of
    `load_from_file`.
    """
    values = process().handles.get(handle, LoadConfig).values
    kind = values.get(_LOAD_TYPE)
    if kind in _FROM_QUEUES:
        raise CallError(Code.INVALID_PARAM, "queues are not simulated; load from a file (1) or from memory (3)")
    needed = {_PATH: "a path (2)"} if kind in _FROM_FILE else {_MEMORY: "an address (3)", _MEMORY_SIZE: "a size (4)"}
    missing = [name for attribute, name in needed.items() if attribute not in values]
    if kind is None:
        missing = ["from where: attribute 1 is 1 (file) or 3 (memory)"]
    if missing:
        raise CallError(Code.INVALID_PARAM, f"acl.mdl.set_config_opt did not set {' and '.join(missing)}")
    if kind in _FROM_FILE:
        return _load(Path(values[_PATH]))
    return _load(_bytes(values[_MEMORY], values[_MEMORY_SIZE]))


# ---------------------------------------------------------------------------------------------------------- what it does


def _info_of_source(source: Path | bytes) -> ModelInfo:
    """The description of a model that is not loaded: a session of it is opened, and closed."""
    with _refusals(source):
        found = _onnx_file(source) if isinstance(source, Path) else source
        adapter = adapter_module("model_file")
        model = adapter.load_model(found)
        options = adapter.onnxruntime.SessionOptions()
        session = adapter.open_session(model, model.source, "disable", options, ["CPUExecutionProvider"])
        return ModelInfo(model, session.get_inputs(), session.get_outputs())


def _load(source: Path | bytes) -> int:
    with _refusals(source):
        return process().load(_onnx_file(source) if isinstance(source, Path) else source)


@contextmanager
def _refusals(source: Path | bytes) -> Iterator[None]:
    """Convert errors about a model to return codes."""
    try:
        yield
    except ModelFileError as error:
        there = isinstance(source, bytes) or source.is_file()
        raise CallError(Code.PARSE_FILE if there else Code.INVALID_FILE, str(error)) from error
    except (CallError, OpdumpError):
        raise
    except Exception as error:  # the runtime's errors have no class of their own
        raise CallError(Code.INTERNAL_ERROR, f"ONNX Runtime refuses the model: {error}") from error


def _bytes(address: int, size: int) -> bytes:
    return process().memory.at(address, size).tobytes()


# Descriptions of models: inputs, outputs and gears (`acl.mdl`).

Side = Literal["input", "output"]


def create_desc() -> int:
    """A description of a model, empty until `get_desc`."""
    return process().handles.add(ModelDesc())


@returns_code
def destroy_desc(desc: int) -> None:
    process().handles.remove(desc, ModelDesc)


@returns_code
def get_desc(desc: int, model_id: int) -> None:
    """Fill a description from a loaded model."""
    found = process().handles.get(desc, ModelDesc)
    model = process().model(model_id)
    found.model_id, found.info = model_id, model.info


@returns_code
def get_desc_from_file(desc: int, path: str | os.PathLike[str]) -> None:
    """Fill a description from a file that is not loaded. The codes are those of `load_from_file`."""
    found = process().handles.get(desc, ModelDesc)
    found.model_id, found.info = None, _info_of_source(Path(path))


@returns_code
def get_desc_from_mem(desc: int, address: int, size: int) -> None:
    """Fill a description from a model in memory that is not loaded."""
    found = process().handles.get(desc, ModelDesc)
    source = process().memory.at(address, size).tobytes()
    found.model_id, found.info = None, _info_of_source(source)


@returns_plain(0)
def get_num_inputs(desc: int) -> int:
    """The number of inputs. A model with gears has one more, which selects the gear."""
    return len(_described(desc).inputs)


@returns_plain(0)
def get_num_outputs(desc: int) -> int:
    return len(_described(desc).outputs)


@returns_plain(0)
def get_input_size_by_index(desc: int, index: int) -> int:
    """Bytes of an input, in the largest gear; every unknown dimension counts as 1."""
    return _size(desc, "input", index)


@returns_plain(0)
def get_output_size_by_index(desc: int, index: int) -> int:
    """Bytes of an output, in the largest gear; every unknown dimension counts as 1."""
    return _size(desc, "output", index)


@returns_value({})
def get_input_dims(desc: int, index: int) -> dict[str, Any]:
    """`{"name": ..., "dimCount": ..., "dims": [...]}`; a dimension of -1 is unknown, or changes with the gear."""
    return _dims(_info(desc, "input", index))


get_input_dims_v2 = get_input_dims


@returns_value({})
def get_output_dims(desc: int, index: int) -> dict[str, Any]:
    """The same for an output; for a model with gears, in the largest one."""
    return _dims(_info(desc, "output", index))


@returns_value({})
def get_cur_output_dims(desc: int, index: int) -> dict[str, Any]:
    """The same in the gear that was last set or, without gears, of the last run; before that like `get_output_dims`."""
    info = _info(desc, "output", index)
    found = process().handles.get(desc, ModelDesc)
    if found.model_id is None:
        return _dims(info)
    model = process().model(found.model_id)
    dims: tuple[int, ...] | None = None
    if model.gear is not None:
        dims = model.info.output_dims(model.gear)[index]
    if model.output_dims is not None and model.gear == model.gear_of_run and (dims is None or min(dims, default=0) < 0):
        dims = model.output_dims[index]
    return _dims(info if dims is None else TensorInfo(info.name, info.dtype, dims))


# ---------------------------------------------------------------------------------------------------------------- gears


@returns_value({})
def get_dynamic_batch(desc: int) -> dict[str, Any]:
    """`{"batchCount": 2, "batch": [1, 4]}`; empty for a model without such gears."""
    gears = _gears(desc, "dynamic_batch_size")
    batch = [] if gears is None else [choice[0] for choice in gears.choices]
    return {"batchCount": len(batch), "batch": batch}


@returns_value({})
def get_dynamic_hw(desc: int, index: int = -1) -> dict[str, Any]:
    """`{"hwCount": 2, "hw": [[416, 416], [832, 832]]}`; empty for a model without such gears. `index` is ignored."""
    del index
    gears = _gears(desc, "dynamic_image_size")
    sizes = [] if gears is None else [list(choice) for choice in gears.choices]
    return {"hwCount": len(sizes), "hw": sizes}


@returns_value(0)
def get_input_dynamic_gear_count(desc: int, index: int = -1) -> int:
    """The number of gears of `dynamic_dims`. `index` is ignored."""
    del index
    gears = _gears(desc, "dynamic_dims")
    return 0 if gears is None else len(gears.choices)


@returns_value([])
def get_input_dynamic_dims(desc: int, index: int, gear_count: int) -> list[dict[str, Any]]:
    """The gears of `dynamic_dims`, each `{"name": "", "dimCount": 5, "dims": [...]}`: the concatenated shapes of all inputs.

    Returns 100000 if `gear_count` differs from `get_input_dynamic_gear_count`. `index` is ignored.
    """
    del index
    gears = _gears(desc, "dynamic_dims")
    count = 0 if gears is None else len(gears.choices)
    if gear_count != count:
        raise CallError(
            Code.INVALID_PARAM, f"the count is {gear_count!r}, but acl.mdl.get_input_dynamic_gear_count returns {count}"
        )
    wholes = [] if gears is None else [gears.whole(gear) for gear in range(count)]
    return [{"name": "", "dimCount": len(whole), "dims": whole} for whole in wholes]


# ------------------------------------------------------------------------------------------------------ names and types


@returns_plain("")
def get_tensor_real_name(desc: int, name: str) -> str:
    """The name itself, because no name is shortened. Empty if no input or output has it."""
    found = _described(desc)
    if name not in {info.name for info in (*found.inputs, *found.outputs)}:
        raise CallError(Code.INVALID_PARAM, f"the model has no input or output {name!r}")
    return name


@returns_plain("")
def get_input_name_by_index(desc: int, index: int) -> str:
    return _info(desc, "input", index).name


@returns_plain("")
def get_output_name_by_index(desc: int, index: int) -> str:
    return _info(desc, "output", index).name


@returns_value(0)
def get_input_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "input", name)


@returns_value(0)
def get_output_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "output", name)


@returns_plain(UNDEFINED_TYPE)
def get_input_data_type(desc: int, index: int) -> int:
    """Number of aclDataType; -1 for types without one."""
    return _info(desc, "input", index).data_type


@returns_plain(UNDEFINED_TYPE)
def get_output_data_type(desc: int, index: int) -> int:
    return _info(desc, "output", index).data_type


@returns_plain(-1)
def get_input_format(desc: int, index: int) -> int:
    """ONNX has no formats: ND."""
    _info(desc, "input", index)
    return FORMAT_ND


@returns_plain(-1)
def get_output_format(desc: int, index: int) -> int:
    _info(desc, "output", index)
    return FORMAT_ND


def _described(desc: int) -> ModelInfo:
    info = process().handles.get(desc, ModelDesc).info
    if info is None:
        raise CallError(Code.INVALID_PARAM, "the description is empty; call acl.mdl.get_desc first")
    return info


def _info(desc: int, side: Side, index: Any) -> TensorInfo:
    found = _described(desc)
    known = found.inputs if side == "input" else found.outputs
    if not isinstance(index, int) or not 0 <= index < len(known):
        raise CallError(Code.INVALID_PARAM, f"there is no {side} {index!r}; the model has {len(known)}")
    return known[index]


def _size(desc: int, side: Side, index: Any) -> int:
    _info(desc, side, index)
    return _described(desc).size(side, index)


def _index(desc: int, side: Side, name: str) -> int:
    found = _described(desc)
    names = [info.name for info in (found.inputs if side == "input" else found.outputs)]
    if name not in names:
        text = f"there is no {side} {name!r}; the model has {', '.join(names)}"
        if name == SELECTOR:
            text += f". It has no gears: declare them in its metadata ({', '.join(KINDS)}), docs/acl.md"
        raise CallError(Code.INVALID_PARAM, text, is_answer=name == SELECTOR)
    return names.index(name)


def _gears(desc: int, kind: GearKind) -> Gears | None:
    gears = _described(desc).gears
    return gears if gears is not None and gears.kind == kind else None


def _dims(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dimCount": len(info.dims), "dims": list(info.dims)}


# Data sets: the buffers of a model's inputs, or of its outputs (`acl.mdl`).


def create_dataset() -> int:
    """A data set: the buffers of a model's inputs, or of its outputs."""
    return process().handles.add(Dataset())


@returns_code
def destroy_dataset(dataset: int) -> None:
    """Forget a data set; its buffers stay."""
    process().handles.remove(dataset, Dataset)


@returns_value(0)
def add_dataset_buffer(dataset: int, buffer: int) -> int:
    """Add the buffer of the next input or output; returns the data set, and the code."""
    found = process().handles.get(dataset, Dataset)
    process().handles.get(buffer, DataBuffer)
    found.buffers.append(buffer)
    return dataset


@returns_plain(0)
def get_dataset_num_buffers(dataset: int) -> int:
    return len(process().handles.get(dataset, Dataset).buffers)


@returns_plain(0)
def get_dataset_buffer(dataset: int, index: int) -> int:
    """The buffer of a slot; 0 if there is none."""
    buffers = process().handles.get(dataset, Dataset).buffers
    return _slot(buffers, index)


@returns_value(0)
def set_dataset_tensor_desc(dataset: int, desc: int, index: int) -> int:
    """Set the shape of an input for the next runs; returns the data set, and the code."""
    found = process().handles.get(dataset, Dataset)
    process().handles.get(desc, TensorDesc)
    _slot(found.buffers, index)
    found.descs[index] = desc
    return dataset


@returns_plain(0)
def get_dataset_tensor_desc(dataset: int, index: int) -> int:
    """The description that was set for a slot; 0 if none was."""
    return process().handles.get(dataset, Dataset).descs.get(index, 0)


def _slot(buffers: list[int], index: Any) -> int:
    if not isinstance(index, int) or not 0 <= index < len(buffers):
        raise CallError(Code.INVALID_PARAM, f"there is no slot {index!r}; the data set has {len(buffers)}")
    return buffers[index]


# ---------------------------------------------------------------------------------------------------------------- gears


@returns_code
def set_dynamic_batch_size(model_id: int, dataset: int, index: int, batch_size: int) -> None:
    """Set the batch size of the next runs on this data set. `index` is that of the input `ascend_mbatch_shape_data`.

    Returns 100000 for 0, for a missing buffer and for one without memory, 145012 for one of less than 4 bytes, 145013 for a size
    that is not a gear.
    """
    _set_gear(model_id, dataset, index, "dynamic_batch_size", [batch_size])


@returns_code
def set_dynamic_hw_size(model_id: int, dataset: int, index: int, height: int, width: int) -> None:
    """The same for height and width. The codes are those of `set_dynamic_batch_size`; the buffer needs at least 8 bytes."""
    _set_gear(model_id, dataset, index, "dynamic_image_size", [height, width])


@returns_code
def set_input_dynamic_dims(model_id: int, dataset: int, index: int, dims: Any) -> None:
    """The same for the concatenated shapes of all inputs: `{"dimCount": 5, "dims": [2, 20, 1, 20, 1]}`, as
    `get_input_dynamic_dims` returns them. The codes are those of `set_dynamic_batch_size`; the buffer needs 4 bytes for each
    number of the gear.
    """
    count = dims.get("dimCount") if isinstance(dims, dict) else None
    numbers = dims.get("dims") if isinstance(dims, dict) else None
    if not isinstance(count, int) or not isinstance(numbers, list) or not 0 < count <= len(numbers):
        raise CallError(Code.INVALID_PARAM, f'found {dims!r}, expected {{"name": "", "dimCount": 5, "dims": [...]}}')
    _set_gear(model_id, dataset, index, "dynamic_dims", numbers[:count])


def _set_gear(model_id: int, dataset: int, index: int, kind: GearKind, wanted: list[Any]) -> None:
    state = process()
    found = state.handles.get(dataset, Dataset)
    if not all(isinstance(number, int) and number > 0 for number in wanted):
        raise CallError(Code.INVALID_PARAM, f"found {wanted}, expected whole numbers, 1 or more")
    buffer = state.handles.get(_slot(found.buffers, index), DataBuffer)
    model = state.model(model_id)
    gears = model.info.gears
    if gears is None or gears.kind != kind:
        other = (
            f"it has {gears.kind}"
            if gears is not None
            else f"declare them in its metadata ({', '.join(KINDS)}), docs/acl.md"
        )
        raise CallError(Code.DYNAMIC_BATCH_SIZE, f"model {model_id} has no gears of {kind}; {other}")
    selector = len(model.info.own_inputs)
    if index != selector:
        raise CallError(
            Code.INVALID_PARAM,
            f"found index {index!r}, expected {selector}, the result of acl.mdl.get_input_index_by_name(desc, {gears.selector.name!r})",
        )
    known = [
        gears.whole(gear) if kind == "dynamic_dims" else list(gears.choices[gear]) for gear in range(len(gears.choices))
    ]
    if wanted not in known:
        raise CallError(Code.DYNAMIC_BATCH_SIZE, f"{wanted} is not a gear of model {model_id}; it has {known}")
    gear = known.index(wanted)
    values = np.array(gears.choices[gear], np.int64)
    if buffer.size < values.size * 4:
        raise CallError(
            Code.DYNAMIC_INPUT_LENGTH,
            f"the buffer of {gears.selector.name!r} has {buffer.size} bytes, expected {values.size * 4}: "
            "acl.mdl.get_input_size_by_index",
        )
    written = values if buffer.size >= values.nbytes else values.astype(np.int32)
    state.memory.at(buffer.address, written.nbytes, write=True)[:] = written.view(np.uint8)
    found.gear, model.gear = (model_id, gear), gear


# ----------------------------------------------------------------------------------------------------------------- runs


@returns_code
def execute(model_id: int, inputs: int, outputs: int) -> None:
    """Run a model on the buffers of two data sets.

    Returns 100017 and 100018 if they do not fit, 145013 if the model has gears and none was set, 500000 if the run fails.
    """
    _execute(model_id, inputs, outputs)


@returns_code
def execute_async(model_id: int, inputs: int, outputs: int, stream: int) -> None:
    """The same; it has finished when this returns, so the stream only waits for callbacks."""
    process().check_stream(stream)
    _execute(model_id, inputs, outputs)


@returns_code
def execute_v2(model_id: int, inputs: int, outputs: int, stream: int, handle: int) -> None:
    """The same as `execute`; the timeouts in the handle have no effect."""
    process().check_stream(stream)
    process().handles.get(handle, ExecConfig)
    _execute(model_id, inputs, outputs)


def create_exec_config_handle() -> int:
    """Options for running a model, initially empty."""
    return process().handles.add(ExecConfig())


@returns_code
def destroy_exec_config_handle(handle: int) -> None:
    process().handles.remove(handle, ExecConfig)


@returns_code
def set_exec_config_opt(handle: int, attribute: int, value: Any) -> None:
    """Set how long a run waits for its stream (0) and for events (1), in milliseconds; -1 forever. Has no effect here."""
    found = process().handles.get(handle, ExecConfig)
    if attribute not in (0, 1) or not isinstance(value, int) or value < -1:
        raise CallError(
            Code.INVALID_PARAM, f"found attribute {attribute!r} and {value!r}, expected 0 or 1, and milliseconds"
        )
    found.values[attribute] = value


def _execute(model_id: int, inputs: int, outputs: int) -> None:
    state = process()
    with state.lock:
        state.must_be_initialised()
        model = state.model(model_id)
        given = state.handles.get(inputs, Dataset)
        gear = _gear(model, given)
        feeds = _feeds(model, given, gear)
        buffers = _buffers(model, state.handles.get(outputs, Dataset))
        try:
            arrays = model.run(feeds)
        except OpdumpError:
            raise
        except Exception as error:
            raise CallError(Code.INTERNAL_ERROR, f"the run of model {model_id} failed: {error}") from error
        check_outputs(buffers, arrays, Code.MODEL_OUTPUT_NOT_MATCH)
        write_outputs(state.memory, buffers, arrays)
        model.output_dims, model.gear_of_run = [array.shape for array in arrays], gear


def _gear(model: LoadedModel, dataset: Dataset) -> int | None:
    """The gear that was set for a run; None for a model without gears."""
    gears = model.info.gears
    if gears is None:
        return None
    if dataset.gear is None or dataset.gear[0] != model.model_id:
        raise CallError(
            Code.DYNAMIC_BATCH_SIZE,
            f"model {model.model_id} has gears of {gears.kind}, {[list(each) for each in gears.choices]}, and none was set for "
            f"this data set; call acl.mdl.{_SETTERS[gears.kind]}",
        )
    if dataset.descs:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"the gear determines the shapes of model {model.model_id}; leave out acl.mdl.set_dataset_tensor_desc",
        )
    return dataset.gear[1]


_SETTERS: dict[GearKind, str] = {
    "dynamic_batch_size": "set_dynamic_batch_size",
    "dynamic_image_size": "set_dynamic_hw_size",
    "dynamic_dims": "set_input_dynamic_dims",
}


def _feeds(model: LoadedModel, dataset: Dataset, gear: int | None) -> dict[str, Any]:
    state, info, wanted = process(), model.info, model.info.inputs
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"the data set has {len(dataset.buffers)} buffers, but the model has {len(wanted)} inputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    feed_of = adapter_module("tensors_of_run").feed_of
    feeds = {}
    for slot, (each, handle) in enumerate(zip(info.own_inputs, dataset.buffers, strict=False)):
        buffer = state.handles.get(handle, DataBuffer)
        if gear is not None and info.gears is not None:
            dims: tuple[int, ...] | None = info.gears.shapes[gear][slot]
        else:
            dims = _described_dims(dataset, slot, each)
        if dims is None:
            dims = dims_of(each, buffer.size)
        feeds[each.name] = feed_of(array_over(state.memory, buffer, each, dims), each.dtype)
    return feeds


def _described_dims(dataset: Dataset, slot: int, info: TensorInfo) -> tuple[int, ...] | None:
    """The shape that the program has set for an input; None if it has set none."""
    if slot not in dataset.descs:
        return None
    desc = process().handles.get(dataset.descs[slot], TensorDesc)
    fits = len(desc.dims) == len(info.dims) and all(
        given >= 0 and wanted in (-1, given) for given, wanted in zip(desc.dims, info.dims, strict=True)
    )
    if not fits or DTYPES[desc.data_type] != info.dtype:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{info.name!r} is {info.dtype} {info.dims}, but was set to {DTYPES[desc.data_type]} {desc.dims}",
        )
    return tuple(desc.dims)


def _buffers(model: LoadedModel, dataset: Dataset) -> list[DataBuffer]:
    wanted = model.info.outputs
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_OUTPUT_NOT_MATCH,
            f"the data set has {len(dataset.buffers)} buffers, but the model has {len(wanted)} outputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    for info in wanted:
        kind = storage(info.dtype) if info.dtype in NUMBERS else None
        if kind is None or kind.name != info.dtype:
            raise CallError(
                Code.UNSUPPORTED_DATA_TYPE, f"the output {info.name!r} is {info.dtype}, which cannot be passed"
            )
    return [process().handles.get(handle, DataBuffer) for handle in dataset.buffers]


__getattr__ = refuse(__name__)
