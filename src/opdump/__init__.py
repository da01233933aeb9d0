"""Records what every operator of a neural network read and wrote while it runs, and reads such dumps back.

    with opdump.capture("data_dump.json"):
        train()

    for op in opdump.open("/data/dump").ops("Conv2D", step=2):
        print(op.op_name, {slot: output.statistics["max"] for slot, output in op.outputs.items()})

Importing opdump imports no framework and patches nothing; every name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdump import acl, onnx, tensorflow
    from opdump.adapters.base import DumpComplete
    from opdump.capturing.capture import capture, name_model, set_dump, start, stop, watch
    from opdump.capturing.dump import Dump
    from opdump.capturing.report import CaptureReport
    from opdump.catalog.catalog import Catalog, Execution, Run
    from opdump.catalog.catalog import open_dump as open  # noqa: A004  # opdump.open reads as the built-in does
    from opdump.comparison.compare import compare
    from opdump.dump_file import DumpFile, DumpTensor, read_dump_file, write_dump_file
    from opdump.errors import OpdumpError
    from opdump.plan import DumpPlan
    from opdump.records import OpRecord, TensorRecord

    __version__: str

_HOMES = {
    "Catalog": ("catalog.catalog", "Catalog"),
    "CaptureReport": ("capturing.report", "CaptureReport"),
    "Dump": ("capturing.dump", "Dump"),
    "DumpComplete": ("adapters.base", "DumpComplete"),
    "DumpFile": ("dump_file", "DumpFile"),
    "DumpPlan": ("plan", "DumpPlan"),
    "DumpTensor": ("dump_file", "DumpTensor"),
    "Execution": ("catalog.catalog", "Execution"),
    "OpRecord": ("records", "OpRecord"),
    "OpdumpError": ("errors", "OpdumpError"),
    "Run": ("catalog.catalog", "Run"),
    "TensorRecord": ("records", "TensorRecord"),
    "capture": ("capturing.capture", "capture"),
    "compare": ("comparison.compare", "compare"),
    "name_model": ("capturing.capture", "name_model"),
    "open": ("catalog.catalog", "open_dump"),
    "read_dump_file": ("dump_file", "read_dump_file"),
    "set_dump": ("capturing.capture", "set_dump"),
    "start": ("capturing.capture", "start"),
    "stop": ("capturing.capture", "stop"),
    "watch": ("capturing.capture", "watch"),
    "write_dump_file": ("dump_file", "write_dump_file"),
}

_IPYTHON = {"load_ipython_extension": ("commands.notebook", "load_ipython_extension")}
"""What IPython looks for; nobody else needs the name."""

_MODULES = ("acl", "onnx", "tensorflow")

__all__ = [
    "CaptureReport",
    "Catalog",
    "Dump",
    "DumpComplete",
    "DumpFile",
    "DumpPlan",
    "DumpTensor",
    "Execution",
    "OpRecord",
    "OpdumpError",
    "Run",
    "TensorRecord",
    "__version__",
    "acl",
    "capture",
    "compare",
    "name_model",
    "onnx",
    "open",
    "read_dump_file",
    "set_dump",
    "start",
    "stop",
    "tensorflow",
    "watch",
    "write_dump_file",
]


def _version() -> str:
    """The version that pyproject.toml gave the installed package; "unknown" for a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES and name not in _IPYTHON:
        raise AttributeError(f"module 'opdump' has no attribute {name!r}")
    module, attribute = _HOMES.get(name) or _IPYTHON[name]
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
