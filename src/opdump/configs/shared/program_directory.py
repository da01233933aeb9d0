"""Where the running program lies: what a relative `dump_path` of an acl.json starts from, in every adapter."""

from __future__ import annotations

import sys
from pathlib import Path


def program_directory() -> Path | None:
    """The directory of the running script, behind every symbolic link, as Python's `sys.path[0]` is; None without a script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None
