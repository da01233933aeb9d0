"""A tensor or an operator that cannot be compared: its row has the reason, and the others continue."""

from __future__ import annotations

from opdump.msaccucmp.exit_codes import CommandError, ExitCode


class IncomparableError(CommandError):
    """The text is that of the original's table, which has none for some failures; `message` is for the log."""

    def __init__(self, code: ExitCode, reason: str, message: str = "") -> None:
        super().__init__(code, message or reason)
        self.reason = reason


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape in the form of the reasons: `(2, 3)`, `(6)`, `()`."""
    return f"({', '.join(map(str, shape))})"
