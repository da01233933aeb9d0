"""Descriptions of models: inputs, outputs and gears (`acl.mdl`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from opdump.acl.codes import Code
from opdump.acl.data_types import FORMAT_ND, UNDEFINED_TYPE, TensorInfo
from opdump.acl.failures import CallError, returns_code, returns_plain, returns_value
from opdump.acl.gears import KINDS, SELECTOR, Gears, Kind
from opdump.acl.handles import ModelDesc
from opdump.acl.model_info import ModelInfo
from opdump.acl.model_loading import info_of_source
from opdump.acl.process import process

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
            f"{where}: the count is {gear_count!r}, and acl.mdl.get_input_dynamic_gear_count gives {count}",
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
        raise CallError(Code.INVALID_PARAM, f"{where}: the model has no input and no output {name!r}")
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
            text += f". It has no gears: say them in its metadata ({', '.join(KINDS)}), docs/acl.md"
        raise CallError(Code.INVALID_PARAM, text, is_answer=name == SELECTOR)
    return names.index(name)


def _gears(desc: int, kind: Kind, where: str) -> Gears | None:
    gears = _described(desc, where).gears
    return gears if gears is not None and gears.kind == kind else None


def _dims(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dimCount": len(info.dims), "dims": list(info.dims)}
