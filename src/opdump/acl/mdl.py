"""Models and their dump (`acl.mdl`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from opdump.acl.codes import Code
from opdump.acl.data_types import DTYPES, FORMAT_ND, NUMBERS, UNDEFINED_TYPE, storage
from opdump.acl.failures import CallError, returns_code, returns_plain, returns_value
from opdump.acl.handles import DataBuffer, Dataset, ModelDesc, TensorDesc
from opdump.acl.process import LoadedModel, process
from opdump.acl.streams import check_stream
from opdump.acl.tensors import TensorFacts, array_over, check_outputs, dims_of, write_outputs
from opdump.errors import ModelFileError, OpdumpError
from opdump.onnx.recording import adapter_module

Side = Literal["input", "output"]

# ---------------------------------------------------------------------------------------------------------------- dump


@returns_code
def init_dump() -> None:
    """Makes ready to dump. 100001 before `acl.init`, 100002 where `finalize_dump` was not called since the last time."""
    process().init_dump()


@returns_code
def set_dump(config_path: str | os.PathLike[str] | None) -> None:
    """From now on models are loaded under this acl.json, and under no earlier one. Models that are loaded keep theirs.

    Checked in this order: 100001 before `acl.init`, 100045 before `init_dump`, 100000 for None, 100003 and 100006 for the
    file, 100009 for what is wrong in it. Where it fails, what was set before stays.
    """
    process().set_dump(config_path)


@returns_code
def finalize_dump() -> None:
    """Ends every dump, that of `acl.init` too: everything is on disk. Models run on without.

    100001 before `acl.init`, 100045 before `init_dump`.
    """
    process().finalize_dump()


# -------------------------------------------------------------------------------------------------------------- models


@returns_value(0)
def load_from_file(path: str | os.PathLike[str]) -> int:
    """Loads an ONNX file. Its model is called by the stem of the file, its number counts from 1.

    100003 for a file that is not there, 100006 for one that holds no model, 500000 for one that ONNX Runtime refuses.
    """
    return _load(Path(path), "acl.mdl.load_from_file")


@returns_value(0)
def load_from_mem(address: int, size: int) -> int:
    """Loads an ONNX file from memory. Its model is called by the name of its graph."""
    where = "acl.mdl.load_from_mem"
    return _load(process().memory.at(address, size, where=where).tobytes(), where)


@returns_value(0)
def load_from_file_with_mem(
    path: str | os.PathLike[str], work: int, work_size: int, weights: int, weights_size: int
) -> int:
    """The same as `load_from_file`: ONNX Runtime has memory of its own."""
    del work, work_size, weights, weights_size
    return _load(Path(path), "acl.mdl.load_from_file_with_mem")


def query_size(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Bytes of working memory and of weights, and the code. 1 and the size of the file: nobody has to allocate them."""
    try:
        return 1, max(os.stat(path).st_size, 1), Code.SUCCESS.value
    except OSError:
        return 0, 0, Code.INVALID_FILE.value


@returns_code
def unload(model_id: int) -> None:
    """100011 for a model that is not loaded."""
    process().unload(model_id)


@returns_code
def execute(model_id: int, inputs: int, outputs: int) -> None:
    """Runs a model on the buffers of two data sets. 100017 and 100018 where they do not fit, 500000 where the run fails."""
    _execute(model_id, inputs, outputs, "acl.mdl.execute")


@returns_code
def execute_async(model_id: int, inputs: int, outputs: int, stream: int) -> None:
    """The same; it is done when this returns, so that the stream has nothing to wait for."""
    check_stream(stream, "acl.mdl.execute_async")
    _execute(model_id, inputs, outputs, "acl.mdl.execute_async")


def _load(source: Path | bytes, where: str) -> int:
    try:
        return process().load(source, where)
    except ModelFileError as error:
        there = isinstance(source, bytes) or source.is_file()
        raise CallError(Code.PARSE_FILE if there else Code.INVALID_FILE, f"{where}: {error}") from error
    except (CallError, OpdumpError):
        raise
    except Exception as error:  # the runtime's errors have no class of their own
        raise CallError(Code.INTERNAL_ERROR, f"{where}: ONNX Runtime refuses the model: {error}") from error


def _execute(model_id: int, inputs: int, outputs: int, where: str) -> None:
    state = process()
    with state.lock:
        state.must_be_initialised(where)
        model = state.model(model_id, where)
        feeds = _feeds(model, state.handles.get(inputs, Dataset, where), where)
        buffers = _buffers(model, state.handles.get(outputs, Dataset, where), where)
        try:
            arrays = model.run(feeds)
        except OpdumpError:
            raise
        except Exception as error:
            raise CallError(Code.INTERNAL_ERROR, f"{where}: the run of model {model_id} failed: {error}") from error
        check_outputs(buffers, arrays, where, Code.MODEL_OUTPUT_NOT_MATCH)
        write_outputs(state.memory, buffers, arrays, where)
        model.output_dims = [array.shape for array in arrays]


def _feeds(model: LoadedModel, dataset: Dataset, where: str) -> dict[str, Any]:
    state, wanted = process(), facts_of(model, "input")
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: the data set has {len(dataset.buffers)} buffers, and the model {len(wanted)} inputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    feed_of = adapter_module("feeds").feed_of
    feeds = {}
    for slot, (facts, handle) in enumerate(zip(wanted, dataset.buffers, strict=True)):
        buffer = state.handles.get(handle, DataBuffer, where)
        dims = _described_dims(dataset, slot, facts, where)
        if dims is None:
            dims = dims_of(facts, buffer.size, where)
        feeds[facts.name] = feed_of(array_over(state.memory, buffer, facts, dims, where), facts.dtype)
    return feeds


def _described_dims(dataset: Dataset, slot: int, facts: TensorFacts, where: str) -> tuple[int, ...] | None:
    """The shape that the program has set for an input; None where it has set none."""
    if slot not in dataset.descs:
        return None
    desc = process().handles.get(dataset.descs[slot], TensorDesc, where)
    fits = len(desc.dims) == len(facts.dims) and all(
        given >= 0 and wanted in (-1, given) for given, wanted in zip(desc.dims, facts.dims, strict=True)
    )
    if not fits or DTYPES[desc.data_type] != facts.dtype:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: {facts.name!r} is {facts.dtype} {facts.dims}, and was set to {DTYPES[desc.data_type]} {desc.dims}",
        )
    return tuple(desc.dims)


def _buffers(model: LoadedModel, dataset: Dataset, where: str) -> list[DataBuffer]:
    wanted = facts_of(model, "output")
    if len(dataset.buffers) != len(wanted):
        raise CallError(
            Code.MODEL_OUTPUT_NOT_MATCH,
            f"{where}: the data set has {len(dataset.buffers)} buffers, and the model {len(wanted)} outputs: "
            f"{', '.join(each.name for each in wanted)}",
        )
    for facts in wanted:
        kind = storage(facts.dtype) if facts.dtype in NUMBERS else None
        if kind is None or kind.name != facts.dtype:
            raise CallError(
                Code.UNSUPPORTED_DATA_TYPE,
                f"{where}: the output {facts.name!r} is {facts.dtype}, which cannot be handed over",
            )
    return [process().handles.get(handle, DataBuffer, where) for handle in dataset.buffers]


# -------------------------------------------------------------------------------------------------------- descriptions


def facts_of(model: LoadedModel, side: Side) -> tuple[TensorFacts, ...]:
    """The inputs or outputs of a model."""
    values = model.session.inputs if side == "input" else model.session.outputs
    known = adapter_module("feeds").dtype_and_dims
    return tuple(TensorFacts(value.name, *known(value)) for value in values)


def create_desc() -> int:
    """A description of a model, empty until `get_desc`."""
    return process().handles.add(ModelDesc())


@returns_code
def destroy_desc(desc: int) -> None:
    process().handles.remove(desc, ModelDesc, "acl.mdl.destroy_desc")


@returns_code
def get_desc(desc: int, model_id: int) -> None:
    """Fills a description from a loaded model."""
    found = process().handles.get(desc, ModelDesc, "acl.mdl.get_desc")
    process().model(model_id, "acl.mdl.get_desc")
    found.model_id = model_id


@returns_plain(0)
def get_num_inputs(desc: int) -> int:
    return len(facts_of(_described(desc, "acl.mdl.get_num_inputs"), "input"))


@returns_plain(0)
def get_num_outputs(desc: int) -> int:
    return len(facts_of(_described(desc, "acl.mdl.get_num_outputs"), "output"))


@returns_plain(0)
def get_input_size_by_index(desc: int, index: int) -> int:
    """Bytes of an input, where every dimension that is not known is 1."""
    return _facts(desc, "input", index, "acl.mdl.get_input_size_by_index").least_size


@returns_plain(0)
def get_output_size_by_index(desc: int, index: int) -> int:
    """Bytes of an output, where every dimension that is not known is 1."""
    return _facts(desc, "output", index, "acl.mdl.get_output_size_by_index").least_size


@returns_value({})
def get_input_dims(desc: int, index: int) -> dict[str, Any]:
    """`{"name": ..., "dimCount": ..., "dims": [...]}`; a dimension of -1 is not known."""
    return _dims(_facts(desc, "input", index, "acl.mdl.get_input_dims"))


get_input_dims_v2 = get_input_dims


@returns_value({})
def get_output_dims(desc: int, index: int) -> dict[str, Any]:
    return _dims(_facts(desc, "output", index, "acl.mdl.get_output_dims"))


@returns_value({})
def get_cur_output_dims(desc: int, index: int) -> dict[str, Any]:
    """The same with the shape of the last run, where there was one."""
    where = "acl.mdl.get_cur_output_dims"
    facts = _facts(desc, "output", index, where)
    last = _described(desc, where).output_dims
    return _dims(facts if last is None else TensorFacts(facts.name, facts.dtype, last[index]))


@returns_plain("")
def get_input_name_by_index(desc: int, index: int) -> str:
    return _facts(desc, "input", index, "acl.mdl.get_input_name_by_index").name


@returns_plain("")
def get_output_name_by_index(desc: int, index: int) -> str:
    return _facts(desc, "output", index, "acl.mdl.get_output_name_by_index").name


@returns_value(0)
def get_input_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "input", name, "acl.mdl.get_input_index_by_name")


@returns_value(0)
def get_output_index_by_name(desc: int, name: str) -> int:
    return _index(desc, "output", name, "acl.mdl.get_output_index_by_name")


@returns_plain(UNDEFINED_TYPE)
def get_input_data_type(desc: int, index: int) -> int:
    """Number of aclDataType; -1 for what has none."""
    return _facts(desc, "input", index, "acl.mdl.get_input_data_type").data_type


@returns_plain(UNDEFINED_TYPE)
def get_output_data_type(desc: int, index: int) -> int:
    return _facts(desc, "output", index, "acl.mdl.get_output_data_type").data_type


@returns_plain(-1)
def get_input_format(desc: int, index: int) -> int:
    """ONNX knows no formats: ND."""
    _facts(desc, "input", index, "acl.mdl.get_input_format")
    return FORMAT_ND


@returns_plain(-1)
def get_output_format(desc: int, index: int) -> int:
    _facts(desc, "output", index, "acl.mdl.get_output_format")
    return FORMAT_ND


def _described(desc: int, where: str) -> LoadedModel:
    found = process().handles.get(desc, ModelDesc, where)
    if found.model_id is None:
        raise CallError(Code.INVALID_PARAM, f"{where}: the description is empty; call acl.mdl.get_desc first")
    return process().model(found.model_id, where)


def _facts(desc: int, side: Side, index: Any, where: str) -> TensorFacts:
    known = facts_of(_described(desc, where), side)
    if not isinstance(index, int) or not 0 <= index < len(known):
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no {side} {index!r}; the model has {len(known)}")
    return known[index]


def _index(desc: int, side: Side, name: str, where: str) -> int:
    names = [facts.name for facts in facts_of(_described(desc, where), side)]
    if name not in names:
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no {side} {name!r}; the model has {', '.join(names)}")
    return names.index(name)


def _dims(facts: TensorFacts) -> dict[str, Any]:
    return {"name": facts.name, "dimCount": len(facts.dims), "dims": list(facts.dims)}


# ----------------------------------------------------------------------------------------------------------- data sets


def create_dataset() -> int:
    """A data set: the buffers of a model's inputs, or of its outputs."""
    return process().handles.add(Dataset())


@returns_code
def destroy_dataset(dataset: int) -> None:
    """Forgets a data set; its buffers stay."""
    process().handles.remove(dataset, Dataset, "acl.mdl.destroy_dataset")


@returns_value(0)
def add_dataset_buffer(dataset: int, buffer: int) -> int:
    """Adds the buffer of the next input or output; the data set, and the code."""
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
    """The buffer of a slot; 0 where there is none."""
    buffers = process().handles.get(dataset, Dataset, "acl.mdl.get_dataset_buffer").buffers
    return _of_slot(buffers, index, "acl.mdl.get_dataset_buffer")


@returns_value(0)
def set_dataset_tensor_desc(dataset: int, desc: int, index: int) -> int:
    """Says what shape an input has in the next runs; the data set, and the code."""
    where = "acl.mdl.set_dataset_tensor_desc"
    found = process().handles.get(dataset, Dataset, where)
    process().handles.get(desc, TensorDesc, where)
    _of_slot(found.buffers, index, where)
    found.descs[index] = desc
    return dataset


@returns_plain(0)
def get_dataset_tensor_desc(dataset: int, index: int) -> int:
    """The description that was set for a slot; 0 where none was."""
    return process().handles.get(dataset, Dataset, "acl.mdl.get_dataset_tensor_desc").descs.get(index, 0)


def _of_slot(buffers: list[int], index: Any, where: str) -> int:
    if not isinstance(index, int) or not 0 <= index < len(buffers):
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no slot {index!r}; the data set has {len(buffers)}")
    return buffers[index]
