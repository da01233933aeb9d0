"""A wrapper for the writer of a layout that reports failures to the recorder, so that a full disk need not end the program."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, cast

from opdump.recorder.writers import StepWriter

_INSTEAD: Final = MappingProxyType(
    {
        "write_step": None,
        "write_graph": None,
        "write_graph_files": None,
        "write_payload": "",
        "write_constant": "",
        "write_kernel_args": None,
        "write_operator": None,
        "write_overflow": None,
        "write_exception": None,
        "graphs_ran": None,
        "write_degradation": None,
        "flush": None,
    }
)
"""The writing methods of all layouts, and what each returns after a failure."""


class _Guard:
    """Has the methods of the writer as instance attributes, so that it offers the same optional methods as the writer."""


def guarded(writer: StepWriter, failed: Callable[[Exception], None]) -> StepWriter:
    """Return a wrapper of `writer` that passes each exception to `failed`. `failed` may raise it again; otherwise the call returns an empty result.

    An interrupt (Ctrl-C) passes through.
    """
    guard = _Guard()
    for name, instead in _INSTEAD.items():
        method = getattr(writer, name, None)
        if method is not None:
            setattr(guard, name, _around(method, instead, failed))
    return cast(StepWriter, guard)


def _around(method: Callable[..., Any], instead: object, failed: Callable[[Exception], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001  the recorder reports every kind of error
            failed(error)
            return instead

    return call
