"""What a program may ask about a dump (`acl.dump`): where it lies, and to get it itself.

pyACL has no such calls; these are acldumpGetPath, acldumpRegCallback and acldumpUnregCallback of the C interface.
"""

from __future__ import annotations

from opdump.acl.codes import Code
from opdump.acl.delivery import APPEND, Callback, DumpChunk
from opdump.acl.failures import returns_code
from opdump.acl.process import process
from opdump.onnx.recording import Recording
from opdump.sink import make_directory

__all__ = ["APPEND", "Code", "DumpChunk", "get_path", "reg_callback", "unreg_callback"]

_DETAILS = {1: "brief", 2: "norm", 3: "detail"}
_CAPTURES = {4: ("data", "watch"), 5: ("overflow",)}


@returns_code
def reg_callback(callback: Callback | None, flag: int = 0) -> None:
    """From now on nothing goes to disk: `callback(chunk, length)` gets each piece of a file, and returns 0 or None.

    500001 for no function, or another flag than 0. A second registration is ignored, and returns 0.
    """
    process().delivery.register(callback, flag)


def unreg_callback() -> None:
    """Files go to disk again."""
    process().delivery.unregister()


def get_path(dump_type: int) -> str | None:
    """Where a kind of dump goes: 1, 2, 3 failing operators (brief, norm, detail), 4 data, 5 overflows; None where it is off.

    The directory of failing operators is made.
    """
    recording = process().recording
    if recording is None:
        return None
    plan = recording.plan
    if plan.captures == "exception" and plan.exception_detail == _DETAILS.get(dump_type):
        path = plan.path / "extra-info" / "data-dump"
        make_directory(path)
        return f"{path}/"
    if plan.captures in _CAPTURES.get(dump_type, ()) and not plan.enables_nothing:
        return f"{plan.path}/{_time(recording)}"
    return None


def _time(recording: Recording) -> str:
    return str(getattr(recording.writer, "time", ""))
