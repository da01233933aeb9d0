"""`dump_path` of TensorFlow: a directory that is there.

It is absolute or relative to the directory that the script runs in; `~` and `$HOME` stand for themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

from opdump.configs.tensorflow.error import TensorflowConfigError


def resolve_dump_path(text: str | None, where: str, directory: Path | None = None) -> Path:
    """The real path of `text`, which is relative to `directory`, or to the current directory where that is None.

    Raises TensorflowConfigError for a missing path, for what is no directory, and for one that cannot be read and written.
    """
    if text is None:
        raise TensorflowConfigError(
            f"{where}: dump_path: if use dump function, dump_path must be set. It is missing, expected a directory that "
            f'exists; write "dump_path": "/tmp/dump" beside enable_dump or enable_dump_debug',
            "E10058",
        )
    # nothing is joined for the current directory: it may be gone, which realpath tells
    path = text if directory is None else os.path.join(directory, text)
    if not text or not os.path.isdir(path):
        there = bool(text) and os.path.lexists(path)
        advice = "name a directory" if there or not text else f"make it: mkdir -p '{path}'"
        if text.startswith(("~", "$")):
            advice = f"{text.split('/', 1)[0]!r} stands for itself there: write the path out"
        raise _bad(where, f"the path {text} is not directory.", f"expected a directory that exists; {advice}")
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        raise _bad(
            where, f"the path {text} is invalid.", f"it cannot be resolved ({error.strerror}); write an absolute path"
        ) from error
    if not os.access(real, os.R_OK | os.W_OK):
        raise _bad(
            where,
            f"the path {text} does't have read, write permissions.",
            f"expected both; chmod u+rw '{real}', or name another",
        )
    return Path(real)


def _bad(where: str, words: str, advice: str) -> TensorflowConfigError:
    return TensorflowConfigError(f"{where}: dump_path: {words} ({advice})")
