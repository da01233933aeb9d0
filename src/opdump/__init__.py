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
    from opdump.replaying import replay
    from opdump.statistics import merge_statistics

    __version__: str

_NAMES = {
    "adapters.base": ("DumpComplete",),
    "capturing.capture": ("capture", "name_model", "set_dump", "start", "stop", "watch"),
    "capturing.dump": ("Dump",),
    "capturing.report": ("CaptureReport",),
    "catalog.catalog": ("Catalog", "Execution", "Run"),
    "commands.notebook": ("load_ipython_extension",),  # IPython looks for it; nothing else needs the name
    "comparison.compare": ("compare",),
    "dump_file": ("DumpFile", "DumpTensor", "read_dump_file", "write_dump_file"),
    "errors": ("OpdumpError",),
    "plan": ("DumpPlan",),
    "records": ("OpRecord", "TensorRecord"),
    "replaying": ("replay",),
    "statistics": ("merge_statistics",),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES["open"] = ("catalog.catalog", "open_dump")

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
    "merge_statistics",
    "name_model",
    "onnx",
    "open",
    "read_dump_file",
    "replay",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'opdump' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
