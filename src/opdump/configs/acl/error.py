"""The error for an invalid acl.json, with the two codes that the dump system uses.

docs/acl-json.md lists them.
"""

from __future__ import annotations

from typing import Final, Literal

from opdump.errors import ConfigError

AclCode = Literal["EP0001", "EP0002", "EP0003", "EP0004", "EP0005"]
"""Missing, empty or of a wrong type; not in a closed list; an invalid value; invalid JSON; two settings that exclude each other."""

INVALID_FILE: Final = 100003
PARSE_FILE: Final = 100006
INVALID_DUMP_CONFIG: Final = 100009


class AclConfigError(ConfigError):
    """An acl.json is invalid.

    `code` is the code in the message; None for a file that is rejected unread. `error_code` is the return value of `aclInit` and
    `aclmdlSetDump`.
    """

    def __init__(self, message: str, code: AclCode | None = None, error_code: int = INVALID_DUMP_CONFIG) -> None:
        shown = str(error_code) if code is None else f"{code} ({error_code})"
        super().__init__(f"{shown}: {message}")
        self.code = code
        self.error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        # the message has the codes already, so it does not pass through __init__ again
        return _rebuilt, (str(self), self.code, self.error_code)


def _rebuilt(message: str, code: AclCode | None, error_code: int) -> AclConfigError:
    error = AclConfigError.__new__(AclConfigError, message)
    error.args = (message,)
    error.code, error.error_code = code, error_code
    return error
