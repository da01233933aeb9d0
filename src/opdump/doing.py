"""What this process is doing now, for progress lines where the error output is not a terminal.

Work notes it where a part of it begins, which costs as much as an assignment; the words are put together when somebody reads them.
"""

from __future__ import annotations

_notes: dict[str, tuple[object, ...]] = {}


def note(*words: object) -> None:
    """The part of the work that begins now, as words."""
    _notes["part"] = words


def note_progress(*words: object) -> None:
    """How far all of it is, as words."""
    _notes["progress"] = words


def noted() -> str:
    """`judging steps, 1 of 3; running Default/mm-op7 of step 1 again`; empty where nothing was noted."""
    found = (" ".join(filter(None, map(str, _notes.get(kind, ())))) for kind in ("progress", "part"))
    return "; ".join(filter(None, found))


def forget() -> None:
    """Other work begins."""
    _notes.clear()
