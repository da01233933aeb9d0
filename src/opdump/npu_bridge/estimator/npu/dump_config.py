"""DumpConfig: the dump configuration of an estimator.

docs/tensorflow-config.md#keys explains each parameter.
"""

from __future__ import annotations

from typing import Any


class DumpConfig:
    """What to dump: iterations, inputs or outputs, or operators that overflow.

    Like the original, it checks nothing; values are checked when a session is created.
    """

    def __init__(
        self,
        enable_dump: Any = False,
        dump_path: Any = None,
        dump_step: Any = None,
        dump_mode: Any = "output",
        enable_dump_debug: Any = False,
        dump_debug_mode: Any = "all",
        dump_data: Any = "tensor",
        dump_layer: Any = None,
    ) -> None:
        self._enable_dump = enable_dump
        self._dump_path = dump_path
        self._dump_step = dump_step
        self._dump_mode = dump_mode
        self._enable_dump_debug = enable_dump_debug
        self._dump_debug_mode = dump_debug_mode
        self.dump_data = dump_data
        self.dump_layer = dump_layer
