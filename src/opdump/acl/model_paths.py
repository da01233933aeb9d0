"""Finds the ONNX file for the path of a model: programs for a device name an OM file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from opdump.acl.codes import Code
from opdump.acl.failures import LOG, CallError

_OM: Final = ".om"
_OM_MAGIC: Final = b"IMOD"


def onnx_file(path: Path, where: str) -> Path:
    """The path itself, or the ONNX file beside it where the path is that of an OM file or of none.

    Raises CallError: 100003 where there is neither, 100006 for an OM file that has no ONNX file beside it.
    """
    if path.suffix != _OM and not _is_om(path):
        return path
    if path.is_file() and not _is_om(path):
        return path  # an ONNX file by that name
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
