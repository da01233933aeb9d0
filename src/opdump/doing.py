"""What this process is doing now, for progress lines when the error output is not a terminal.

Code notes the part of the work that it begins, which costs as much as an assignment. The text is built only when it is read.
"""

from __future__ import annotations

_notes: dict[str, tuple[object, ...]] = {}


def note(*words: object) -> None:
    """Note the part of the work that begins now, as words."""
    _notes["part"] = words


def note_progress(*words: object) -> None:
    """Note the overall progress, as words."""
    _notes["progress"] = words


def noted() -> str:
    """Return text such as `judging steps, 1 of 3; running Default/mm-op7 of step 1 again`, empty if nothing was noted."""
    found = (" ".join(filter(None, map(str, _notes.get(kind, ())))) for kind in ("progress", "part"))
    return "; ".join(filter(None, found))


def forget() -> None:
    """Clear the notes, before other work begins."""
    _notes.clear()
