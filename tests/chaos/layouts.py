"""The layouts under test, each with the configuration that selects it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_COMMON: Final = {
    "op_debug_mode": 0,
    "dump_mode": 0,
    "net_name": "Net",
    "iteration": "all",
    "saved_data": "full",
    "input_output": 0,
    "kernels": [],
    "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A layout, and the configuration that writes it to a directory."""

    name: str
    config: Callable[[Path], Mapping[str, Any]]
    small_disk: int = 900
    """Kilobytes, less than half of a dump: page-sized files fill the disk in the second or third step."""
    writes: tuple[int, ...] = (1, 30, 90)
    """The numbers of Python writes after which a signal arrives."""
    writes_in_python: bool = True
    """Whether elements are written by `os.write`, which a test can slow down."""

    def write_config(self, file: Path, root: Path) -> Path:
        file.write_text(json.dumps(self.config(root)))
        return file


def _synchronous(root: Path) -> Mapping[str, Any]:
    return {
        "common_dump_settings": {**_COMMON, "path": str(root)},
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }


def _asynchronous(root: Path) -> Mapping[str, Any]:
    return {"common_dump_settings": {**_COMMON, "path": str(root), "file_format": "npy"}}


def _acl(root: Path) -> Mapping[str, Any]:
    return {"dump": {"dump_path": str(root), "dump_mode": "all", "dump_op_switch": "on", "dump_list": []}}


def _packed(root: Path) -> Mapping[str, Any]:
    return {**_synchronous(root), "opdump": {"layout": "packed"}}


CASES: Final = (
    Case("synchronous", _synchronous),
    Case("asynchronous", _asynchronous),
    Case("acl", _acl),
    Case("packed", _packed, small_disk=250, writes=(1, 2, 3), writes_in_python=False),
)
"""To test another layout, add a line."""
