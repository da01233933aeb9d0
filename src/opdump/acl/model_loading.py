"""Loading models, also with a configuration handle (`acl.mdl`).

Programs for a device name an OM file; this module finds the corresponding ONNX file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opdump.acl.codes import Code
from opdump.acl.failures import LOG, CallError, returns_code, returns_value
from opdump.acl.handles import LoadConfig
from opdump.acl.model_info import ModelInfo
from opdump.acl.process import process
from opdump.errors import ModelFileError, OpdumpError
from opdump.onnx.recording import adapter_module

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
            f"{where}: {path} is a model for Ascend devices (OM), which ONNX Runtime does not run; put the ONNX file that it was "
            f"made of beside it: {beside}",
        )
    raise CallError(
        Code.INVALID_FILE,
        f"{where}: found neither {path} nor {beside}; put the ONNX file that the model for the device is made of there",
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
            "a number, no null address",
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
        raise CallError(Code.INVALID_PARAM, f"{where}: acl.mdl.set_config_opt did not say {' and '.join(missing)}")
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
