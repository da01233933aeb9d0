"""Single operators (`acl.op`): each runs as a model of one node, which `dump_op_switch` dumps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from opdump.acl.handles import (
    DTYPES,
    NUMBERS,
    CallError,
    Code,
    DataBuffer,
    OpAttr,
    TensorDesc,
    TensorInfo,
    refuse,
    returns_code,
)
from opdump.acl.memory import array_over, check_outputs, write_outputs
from opdump.acl.process import LoadedModel, process
from opdump.errors import ModelFileError, OpdumpError
from opdump.onnx.recording import adapter_module

_DUMPS_ARGS = 0x1

Signature = tuple[tuple[str, tuple[int, ...]], ...]
Kind = TypeVar("Kind")


@returns_code
def execute_v2(
    op_type: str,
    input_descs: Sequence[int],
    inputs: Sequence[int],
    output_descs: Sequence[int],
    outputs: Sequence[int],
    attr: int,
    stream: int,
) -> None:
    """Run an ONNX operator on buffers. The descriptions of the outputs receive the resulting shapes.

    A model of it that `load` or `set_model_dir` found is used if its inputs fit; otherwise one is created. Returns 100024 if ONNX
    has no such operator or does not accept the attributes, 100021 and 100022 if buffers do not fit, 500000 if the run fails.
    """
    buffers = input_descs, inputs, output_descs, outputs
    _execute(op_type, *buffers, attr, stream, sets_shapes=True)


@returns_code
def execute(
    op_type: str,
    input_descs: Sequence[int],
    inputs: Sequence[int],
    output_descs: Sequence[int],
    outputs: Sequence[int],
    attr: int,
    stream: int,
) -> None:
    """The same; the descriptions of the outputs stay unchanged."""
    buffers = input_descs, inputs, output_descs, outputs
    _execute(op_type, *buffers, attr, stream, sets_shapes=False)


def _execute(
    op_type: str,
    input_descs: Sequence[int],
    inputs: Sequence[int],
    output_descs: Sequence[int],
    outputs: Sequence[int],
    attr: int,
    stream: int,
    *,
    sets_shapes: bool,
) -> None:
    process().check_stream(stream)
    state = process()
    with state.lock:
        state.must_be_initialised()
        into = _all(inputs, DataBuffer)
        out = _all(outputs, DataBuffer)
        described, results = _all(input_descs, TensorDesc), _all(output_descs, TensorDesc)
        if len(into) != len(described):
            raise CallError(Code.OP_INPUT_NOT_MATCH, f"{len(described)} descriptions, {len(into)} inputs")
        if len(out) != len(results):
            raise CallError(Code.OP_OUTPUT_NOT_MATCH, f"{len(results)} descriptions, {len(out)} outputs")
        model = _model(op_type, _signature(described), _signature(results), _attributes(attr))
        feed_of = adapter_module("tensors_of_run").feed_of
        feeds = {}
        for value, buffer, desc in zip(model.session.inputs, into, described, strict=True):
            info = TensorInfo(value.name, DTYPES[desc.data_type], tuple(desc.dims))
            try:
                array = array_over(state.memory, buffer, info, info.dims)
            except CallError as error:
                if error.code != Code.MODEL_INPUT_NOT_MATCH:
                    raise
                raise CallError(Code.OP_INPUT_NOT_MATCH, str(error)) from error
            feeds[value.name] = feed_of(array, info.dtype)
        try:
            arrays = model.run(feeds)
        except OpdumpError:
            raise
        except Exception as error:
            raise CallError(Code.INTERNAL_ERROR, f"{op_type} failed: {error}") from error
        if len(arrays) != len(out):
            raise CallError(Code.OP_OUTPUT_NOT_MATCH, f"{op_type} has {len(arrays)} outputs, not {len(out)}")
        check_outputs(out, arrays, Code.OP_OUTPUT_NOT_MATCH)
        write_outputs(state.memory, out, arrays)
        for desc, array in zip(results if sets_shapes else (), arrays, strict=False):
            desc.data_type = NUMBERS.get(array.dtype.name, desc.data_type)
            desc.dims = list(array.shape)


@returns_code
def update_params(op_type: str, input_descs: Sequence[int], output_descs: Sequence[int], attr: int) -> None:
    """Prepare the model of an operator for these shapes. The codes are those of `execute_v2`."""
    with process().lock:
        process().must_be_initialised()
        inputs, outputs = _all(input_descs, TensorDesc), _all(output_descs, TensorDesc)
        _model(op_type, _signature(inputs), _signature(outputs), _attributes(attr))


@returns_code
def set_model_dir(directory: str | os.PathLike[str]) -> None:
    """Load every model of one operator (`*.onnx`) in a directory. Returns 100003 if there is no such directory."""
    folder = Path(directory)
    if not folder.is_dir():
        raise CallError(Code.INVALID_FILE, f"{folder} is not a directory")
    for path in sorted(folder.glob("*.onnx")):
        _add(path)


@returns_code
def load(model: int, size: int) -> None:
    """Load a model of one operator from memory. Returns 100006 for an invalid model."""
    _add(process().memory.at(model, size).tobytes())


@returns_code
def start_dump_args(dump_type: Any, path: str | os.PathLike[str] | None) -> None:
    """Select a directory for descriptions of the arguments of operators, and create it.

    Returns 500001 for a type without the bit 1, for a missing path, for a path that is not a readable and writable directory, and
    if it was started already. Only operators of Ascend's library write descriptions, and there are none here.
    """
    if not isinstance(dump_type, int) or not dump_type & _DUMPS_ARGS:
        raise CallError(Code.FAILURE, f"the type is {dump_type!r}, expected one with the bit 1")
    if not path:
        raise CallError(Code.FAILURE, f"the path is {path!r}, expected a directory")
    if process().is_writing_args:
        raise CallError(Code.FAILURE, "it was already started; call acl.op.stop_dump_args first")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError(Code.FAILURE, f"{folder} cannot be created as a directory: {error.strerror}") from error
    if not os.access(folder, os.R_OK | os.W_OK):
        raise CallError(Code.FAILURE, f"{folder} cannot be read and written")
    process().is_writing_args = True


@returns_code
def stop_dump_args(dump_type: Any) -> None:
    """End it. Allowed if nothing was started; returns 500001 for a type without the bit 1."""
    if not isinstance(dump_type, int) or not dump_type & _DUMPS_ARGS:
        raise CallError(Code.FAILURE, f"the type is {dump_type!r}, expected one with the bit 1")
    process().is_writing_args = False


# ---------------------------------------------------------------------------------------------------------- attributes


def create_attr() -> int:
    """Attributes of an operator, initially empty."""
    return process().handles.add(OpAttr())


@returns_code
def destroy_attr(attr: int) -> None:
    process().handles.remove(attr, OpAttr)


@returns_code
def set_attr_bool(attr: int, name: str, value: bool) -> None:
    """ONNX attributes have no booleans: 1 and 0."""
    _set(attr, name, int(bool(value)))


@returns_code
def set_attr_int(attr: int, name: str, value: int) -> None:
    _set(attr, name, int(value))


@returns_code
def set_attr_float(attr: int, name: str, value: float) -> None:
    _set(attr, name, float(value))


@returns_code
def set_attr_string(attr: int, name: str, value: str) -> None:
    _set(attr, name, str(value))


@returns_code
def set_attr_list_bool(attr: int, name: str, values: Sequence[bool]) -> None:
    _set(attr, name, [int(bool(value)) for value in values])


@returns_code
def set_attr_list_int(attr: int, name: str, values: Sequence[int]) -> None:
    _set(attr, name, [int(value) for value in values])


@returns_code
def set_attr_list_float(attr: int, name: str, values: Sequence[float]) -> None:
    _set(attr, name, [float(value) for value in values])


@returns_code
def set_attr_list_string(attr: int, name: str, values: Sequence[str]) -> None:
    _set(attr, name, [str(value) for value in values])


def _set(attr: int, name: str, value: Any) -> None:
    process().handles.get(attr, OpAttr).values[name] = value


def _attributes(attr: int) -> dict[str, Any]:
    return process().handles.get(attr, OpAttr).values if attr else {}


def _all(handles: Sequence[int], kind: type[Kind]) -> list[Kind]:
    return [process().handles.get(handle, kind) for handle in handles]


def _signature(descs: Sequence[TensorDesc]) -> Signature:
    return tuple((DTYPES[desc.data_type], tuple(desc.dims)) for desc in descs)


def _model(op_type: str, inputs: Signature, outputs: Signature, attributes: dict[str, Any]) -> LoadedModel:
    adapter = adapter_module("model_file")

    def make() -> Any:
        for known, model in process().library:
            if known == op_type and not attributes and adapter.takes(model, inputs):
                return model
        return adapter.one_node_model(op_type, inputs, outputs, attributes)

    # The shapes of outputs follow from the rest.
    signature = (op_type, inputs, tuple(dtype for dtype, _ in outputs), repr(sorted(attributes.items())))
    try:
        return process().single_operator(signature, make)
    except ModelFileError as error:
        raise CallError(Code.OP_NOT_FOUND, str(error)) from error
    except (CallError, OpdumpError):
        raise
    except Exception as error:
        raise CallError(Code.OP_NOT_FOUND, f"ONNX Runtime has no {op_type} for this: {error}") from error


def _add(source: Path | bytes) -> None:
    try:
        process().library.append(adapter_module("model_file").load_one_node_model(source))
    except ModelFileError as error:
        raise CallError(Code.PARSE_FILE, str(error)) from error


__getattr__ = refuse(__name__)
