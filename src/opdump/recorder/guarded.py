"""A layout's writer whose failures are told to the recorder: a full disk need not end the program."""

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
"""The methods that write, of all layouts, and what each gives where it failed."""


class _Guard:
    """Has the methods of the writer as attributes of its own, so that it has those abilities that the writer has."""


def guarded(writer: StepWriter, failed: Callable[[Exception], None]) -> StepWriter:
    """`writer`, which tells `failed` of what its methods raise. That may raise it again; else the call gives nothing.

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
        except Exception as error:  # noqa: BLE001  whatever it is, the recorder tells of it
            failed(error)
            return instead

    return call
