"""Models: loading them, their descriptions, and the data sets of their inputs and outputs (`acl.mdl`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from opdump.acl.handles import (
    FORMAT_ND,
    KINDS,
    LOG,
    SELECTOR,
    UNDEFINED_TYPE,
    CallError,
    Code,
    DataBuffer,
    Dataset,
    GearKind,
    Gears,
    LoadConfig,
    ModelDesc,
    ModelInfo,
    TensorDesc,
    TensorInfo,
    returns_code,
    returns_plain,
    returns_value,
)
from opdump.acl.process import process
from opdump.errors import ModelFileError, OpdumpError
from opdump.onnx.recording import adapter_module

# Loading models, also with a configuration handle. Programs for a device name an OM file; the corresponding ONNX file is found.

_OM: Final = ".om"
_OM_MAGIC: Final = b"IMOD"


def onnx_file(path: Path, where: str) -> Path:
    """The path itself, or the ONNX file beside it if the path names an OM file or does not exist.

    Raises CallError: 100003 if neither exists, 100006 for an OM file without an ONNX file beside it.
    """
    if path.suffix != _OM and not _is_om(path):
        return path
    if path.is_file() and not _is_om(path):
        return path  # an ONNX file with that name
    beside = path.with_suffix(".onnx")
    if beside.is_file():
        LOG.info("%s: %s is loaded in its place", where, beside)
        return beside
    if path.is_file():
        raise CallError(
            Code.PARSE_FILE,
            f"{where}: {path} is a model for Ascend devices (OM), which ONNX Runtime cannot run; put the ONNX file that it was "
            f"made of beside it: {beside}",
        )
    raise CallError(
        Code.INVALID_FILE,
        f"{where}: found neither {path} nor {beside}; put the ONNX file that the device model was made from there",
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
    return _load(Path(path), "acl.mdl.load_from_file")


@returns_value(0)
def load_from_mem(address: int, size: int) -> int:
    """Load an ONNX file from memory. The model is named after its graph."""
    return _load(_bytes(address, size, "acl.mdl.load_from_mem"), "acl.mdl.load_from_mem")


@returns_value(0)
def load_from_file_with_mem(
    path: str | os.PathLike[str], work: int, work_size: int, weights: int, weights_size: int
) -> int:
    """The same as `load_from_file`: ONNX Runtime has memory of its own."""
    del work, work_size, weights, weights_size
    return _load(Path(path), "acl.mdl.load_from_file_with_mem")


@returns_value(0)
def load_from_mem_with_mem(address: int, size: int, work: int, work_size: int, weights: int, weights_size: int) -> int:
    """The same as `load_from_mem`."""
    del work, work_size, weights, weights_size
    return _load(_bytes(address, size, "acl.mdl.load_from_mem_with_mem"), "acl.mdl.load_from_mem_with_mem")


@returns_code
def unload(model_id: int) -> None:
    """Unload a model. Returns 100011 for a model that is not loaded."""
    process().unload(model_id)


def query_size(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Bytes of working memory and of weights, and the code: 1 and the size of the file, because the caller need not allocate
    them.
    """
    size, code = _file_size(path)
    return int(size > 0), size, code


def query_size_from_mem(address: int, size: int) -> tuple[int, int, int]:
    """The same for a model in memory."""
    found, code = _memory_size(address, size)
    return int(found > 0), found, code


@returns_value(0)
def _file_size(path: str | os.PathLike[str]) -> int:
    where = "acl.mdl.query_size"
    found = onnx_file(Path(path), where)
    try:
        return max(found.stat().st_size, 1)
    except OSError as error:
        raise CallError(Code.INVALID_FILE, f"{where}: {found}: {error.strerror}; expected an ONNX file") from error


@returns_value(0)
def _memory_size(address: int, size: int) -> int:
    return len(process().memory.at(address, size, where="acl.mdl.query_size_from_mem"))


# ------------------------------------------------------------------------------------------------ configuration handles


def create_config_handle() -> int:
    """Options for loading a model, initially empty."""
    return process().handles.add(LoadConfig())


@returns_code
def destroy_config_handle(handle: int) -> None:
    process().handles.remove(handle, LoadConfig, "acl.mdl.destroy_config_handle")


@returns_code
def set_config_opt(handle: int, attribute: int, value: Any) -> None:
    """Set an option for loading a model.

    The attributes: 0 is the priority, 1 the source (1, 2 file; 3, 4 memory), 2 the path, 3 and 4 address and size in memory. Options
    for memory of weights and workspace (5 to 8, 13) have no effect. Returns 100000 for an invalid option, and for queues and
    weights in a separate file.
    """
    where = "acl.mdl.set_config_opt"
    found = process().handles.get(handle, LoadConfig, where)
    if attribute in _QUEUES or attribute == _WEIGHT_PATH:
        what = "queues are" if attribute in _QUEUES else "a path of weights is"
        raise CallError(
            Code.INVALID_PARAM, f"{where}: {what} not simulated; ONNX Runtime finds external weights beside the model"
        )
    if attribute not in {_PRIORITY, _LOAD_TYPE, _PATH, _MEMORY, _MEMORY_SIZE} | _WITHOUT_MEANING:
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: found attribute {attribute!r}, expected a number of aclmdlConfigAttr (0 to 13)",
        )
    if attribute == _PATH:
        is_right, expected = isinstance(value, str | os.PathLike) and bool(os.fspath(value)), "a path"
    elif attribute == _LOAD_TYPE:
        is_right, expected = value in (*_FROM_FILE, *_FROM_MEMORY, *_FROM_QUEUES), "1, 2 (file), 3 or 4 (memory)"
    else:
        is_right, expected = (
            isinstance(value, int) and not (attribute == _MEMORY and value == 0),
            "a nonzero address",
        )
    if not is_right:
        raise CallError(Code.INVALID_PARAM, f"{where}: found {value!r} for attribute {attribute}, expected {expected}")
    found.values[attribute] = value


@returns_value(0)
def load_with_config(handle: int) -> int:
    """Load a model with the options of the handle. Returns 100000 if an option is missing, otherwise the codes of
    `load_from_file`.
    """
    where = "acl.mdl.load_with_config"
    values = process().handles.get(handle, LoadConfig, where).values
    kind = values.get(_LOAD_TYPE)
    if kind in _FROM_QUEUES:
        raise CallError(
            Code.INVALID_PARAM, f"{where}: queues are not simulated; load from a file (1) or from memory (3)"
        )
    needed = {_PATH: "a path (2)"} if kind in _FROM_FILE else {_MEMORY: "an address (3)", _MEMORY_SIZE: "a size (4)"}
    missing = [name for attribute, name in needed.items() if attribute not in values]
    if kind is None:
        missing = ["from where: attribute 1 is 1 (file) or 3 (memory)"]
    if missing:
        raise CallError(Code.INVALID_PARAM, f"{where}: acl.mdl.set_config_opt did not set {' and '.join(missing)}")
    if kind in _FROM_FILE:
        return _load(Path(values[_PATH]), where)
    return _load(_bytes(values[_MEMORY], values[_MEMORY_SIZE], where), where)


# ---------------------------------------------------------------------------------------------------------- what it does


def info_of_source(source: Path | bytes, where: str) -> ModelInfo:
    """The description of a model that is not loaded: a session of it is opened, and closed."""
    with _refusals(source, where):
        found = onnx_file(source, where) if isinstance(source, Path) else source
        adapter = adapter_module("model_file")
        model = adapter.load_model(found)
        options = adapter.onnxruntime.SessionOptions()
        session = adapter.open_session(model, model.source, "disable", options, ["CPUExecutionProvider"])
        return ModelInfo(model, session.get_inputs(), session.get_outputs(), where)


def _load(source: Path | bytes, where: str) -> int:
    with _refusals(source, where):
        return process().load(onnx_file(source, where) if isinstance(source, Path) else source, where)


@contextmanager
def _refusals(source: Path | bytes, where: str) -> Iterator[None]:
    """Convert errors about a model to return codes."""
    try:
        yield
    except ModelFileError as error:
        there = isinstance(source, bytes) or source.is_file()
        raise CallError(Code.PARSE_FILE if there else Code.INVALID_FILE, f"{where}: {error}") from error
    except (CallError, OpdumpError):
        raise
    except Exception as error:  # the runtime's errors have no class of their own
        raise CallError(Code.INTERNAL_ERROR, f"{where}: ONNX Runtime refuses the model: {error}") from error


def _bytes(address: int, size: int, where: str) -> bytes:
    return process().memory.at(address, size, where=where).tobytes()


# Descriptions of models: inputs, outputs and gears (`acl.mdl`).

Side = Literal["input", "output"]


def create_desc() -> int:
    """A description of a model, empty until `get_desc`."""
    return process().handles.add(ModelDesc())


@returns_code
def destroy_desc(desc: int) -> None:
    process().handles.remove(desc, ModelDesc, "acl.mdl.destroy_desc")


@returns_code
def get_desc(desc: int, model_id: int) -> None:
    """Fill a description from a loaded model."""
    where = "acl.mdl.get_desc"
    found = process().handles.get(desc, ModelDesc, where)
    model = process().model(model_id, where)
    found.model_id, found.info = model_id, model.info


@returns_code
def get_desc_from_file(desc: int, path: str | os.PathLike[str]) -> None:
    """Fill a description from a file that is not loaded. The codes are those of `load_from_file`."""
    where = "acl.mdl.get_desc_from_file"
    found = process().handles.get(desc, ModelDesc, where)
    found.model_id, found.info = None, info_of_source(Path(path), where)


@returns_code
def get_desc_from_mem(desc: int, address: int, size: int) -> None:
    """Fill a description from a model in memory that is not loaded."""
    where = "acl.mdl.get_desc_from_mem"
    found = process().handles.get(desc, ModelDesc, where)
    source = process().memory.at(address, size, where=where).tobytes()
    found.model_id, found.info = None, info_of_source(source, where)


@returns_plain(0)
def get_num_inputs(desc: int) -> int:
    """The number of inputs. A model with gears has one more, which selects the gear."""
    return len(_described(desc, "acl.mdl.get_num_inputs").inputs)


@returns_plain(0)
def get_num_outputs(desc: int) -> int:
    return len(_described(desc, "acl.mdl.get_num_outputs").outputs)


@returns_plain(0)
def get_input_size_by_index(desc: int, index: int) -> int:
    """Bytes of an input, in the largest gear; every unknown dimension counts as 1."""
    return _size(desc, "input", index, "acl.mdl.get_input_size_by_index")


@returns_plain(0)
def get_output_size_by_index(desc: int, index: int) -> int:
    """Bytes of an output, in the largest gear; every unknown dimension counts as 1."""
    return _size(desc, "output", index, "acl.mdl.get_output_size_by_index")


@returns_value({})
def get_input_dims(desc: int, index: int) -> dict[str, Any]:
    """`{"name": ..., "dimCount": ..., "dims": [...]}`; a dimension of -1 is unknown, or changes with the gear."""
    return _dims(_info(desc, "input", index, "acl.mdl.get_input_dims"))


get_input_dims_v2 = get_input_dims


@returns_value({})
def get_output_dims(desc: int, index: int) -> dict[str, Any]:
    """The same for an output; for a model with gears, in the largest one."""
    return _dims(_info(desc, "output", index, "acl.mdl.get_output_dims"))


@returns_value({})
def get_cur_output_dims(desc: int, index: int) -> dict[str, Any]:
    """The same in the gear that was last set or, without gears, of the last run; before that like `get_output_dims`."""
    where = "acl.mdl.get_cur_output_dims"
    info = _info(desc, "output", index, where)
    found = process().handles.get(desc, ModelDesc, where)
    if found.model_id is None:
        return _dims(info)
    model = process().model(found.model_id, where)
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
    gears = _gears(desc, "dynamic_batch_size", "acl.mdl.get_dynamic_batch")
    batch = [] if gears is None else [choice[0] for choice in gears.choices]
    return {"batchCount": len(batch), "batch": batch}


@returns_value({})
def get_dynamic_hw(desc: int, index: int = -1) -> dict[str, Any]:
    """`{"hwCount": 2, "hw": [[416, 416], [832, 832]]}`; empty for a model without such gears. `index` is ignored."""
    del index
    gears = _gears(desc, "dynamic_image_size", "acl.mdl.get_dynamic_hw")
    sizes = [] if gears is None else [list(choice) for choice in gears.choices]
    return {"hwCount": len(sizes), "hw": sizes}


@returns_value(0)
def get_input_dynamic_gear_count(desc: int, index: int = -1) -> int:
    """The number of gears of `dynamic_dims`. `index` is ignored."""
    del index
    gears = _gears(desc, "dynamic_dims", "acl.mdl.get_input_dynamic_gear_count")
    return 0 if gears is None else len(gears.choices)


@returns_value([])
def get_input_dynamic_dims(desc: int, index: int, gear_count: int) -> list[dict[str, Any]]:
    """The gears of `dynamic_dims`, each `{"name": "", "dimCount": 5, "dims": [...]}`: the concatenated shapes of all inputs.

    Returns 100000 if `gear_count` differs from `get_input_dynamic_gear_count`. `index` is ignored.
    """
    del index
    where = "acl.mdl.get_input_dynamic_dims"
    gears = _gears(desc, "dynamic_dims", where)
    count = 0 if gears is None else len(gears.choices)
    if gear_count != count:
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: the count is {gear_count!r}, but acl.mdl.get_input_dynamic_gear_count returns {count}",
        )
    wholes = [] if gears is None else [gears.whole(gear) for gear in range(count)]
    return [{"name": "", "dimCount": len(whole), "dims": whole} for whole in wholes]


# ------------------------------------------------------------------------------------------------------ names and types


@returns_plain("")
def get_tensor_real_name(desc: int, name: str) -> str:
    """The name itself, because no name is shortened. Empty if no input or output has it."""
    where = "acl.mdl.get_tensor_real_name"
    found = _described(desc, where)
    if name not in {info.name for info in (*found.inputs, *found.outputs)}:
        raise CallError(Code.INVALID_PARAM, f"{where}: the model has no input or output {name!r}")
    return name


@returns_plain("")
def get_input_name_by_index(desc: int, index: int) -> str:
    return _info(desc, "input", index, "acl.mdl.get_input_name_by_index").name


@returns_plain("")
def get_output_name_by_index(desc: int, index: int) -> str:
    return _info(desc, "output", index, "acl.mdl.get_output_name_by_index").name


@returns_value(0)
def get_input_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "input", name, "acl.mdl.get_input_index_by_name")


@returns_value(0)
def get_output_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "output", name, "acl.mdl.get_output_index_by_name")


@returns_plain(UNDEFINED_TYPE)
def get_input_data_type(desc: int, index: int) -> int:
    """Number of aclDataType; -1 for types without one."""
    return _info(desc, "input", index, "acl.mdl.get_input_data_type").data_type


@returns_plain(UNDEFINED_TYPE)
def get_output_data_type(desc: int, index: int) -> int:
    return _info(desc, "output", index, "acl.mdl.get_output_data_type").data_type


@returns_plain(-1)
def get_input_format(desc: int, index: int) -> int:
    """ONNX has no formats: ND."""
    _info(desc, "input", index, "acl.mdl.get_input_format")
    return FORMAT_ND


@returns_plain(-1)
def get_output_format(desc: int, index: int) -> int:
    _info(desc, "output", index, "acl.mdl.get_output_format")
    return FORMAT_ND


def _described(desc: int, where: str) -> ModelInfo:
    info = process().handles.get(desc, ModelDesc, where).info
    if info is None:
        raise CallError(Code.INVALID_PARAM, f"{where}: the description is empty; call acl.mdl.get_desc first")
    return info


def _info(desc: int, side: Side, index: Any, where: str) -> TensorInfo:
    found = _described(desc, where)
    known = found.inputs if side == "input" else found.outputs
    if not isinstance(index, int) or not 0 <= index < len(known):
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no {side} {index!r}; the model has {len(known)}")
    return known[index]


def _size(desc: int, side: Side, index: Any, where: str) -> int:
    _info(desc, side, index, where)
    return _described(desc, where).size(side, index)


def _index(desc: int, side: Side, name: str, where: str) -> int:
    found = _described(desc, where)
    names = [info.name for info in (found.inputs if side == "input" else found.outputs)]
    if name not in names:
        text = f"{where}: there is no {side} {name!r}; the model has {', '.join(names)}"
        if name == SELECTOR:
            text += f". It has no gears: declare them in its metadata ({', '.join(KINDS)}), docs/acl.md"
        raise CallError(Code.INVALID_PARAM, text, is_answer=name == SELECTOR)
    return names.index(name)


def _gears(desc: int, kind: GearKind, where: str) -> Gears | None:
    gears = _described(desc, where).gears
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
