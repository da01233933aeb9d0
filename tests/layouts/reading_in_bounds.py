"""Read dumps, each in a process with 2 GB of memory and 10 s of CPU time per action, and report how each one ended.

    python -m tests.layouts.reading_in_bounds DUMP...

prints a line for each: `{"read": 47, "problems": ["..."], "seconds": 0.1}`, with `error` if reading raised any other
error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import traceback
from typing import Any

from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.errors import OpdumpError

_MEMORY, _SECONDS = 2 << 30, 10


def _read(path: str) -> dict[str, Any]:
    """Read everything in a catalog, then run the commands; each action has its own time limit."""
    _begin()
    try:
        catalog = open_dump(path, run="all")
        read = 0
        for record in catalog.tensors(include_skipped=True):
            read += 1
            for _ in record.statistics.items():
                pass
        catalog.constants()
        list(catalog.at_source("elsewhere.py:1"))
        problems = [str(problem) for problem in catalog.problems]
    except OpdumpError as error:
        return {"refused": str(error)[:300]}
    for words in (["show"], ["show", "--json", "--limit", "20"], ["check"]):
        _begin()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                main([words[0], path, *words[1:]])
            except SystemExit as end:
                if end.code not in (0, 1):
                    raise
    return {"read": read, "problems": [problem[:300] for problem in problems[:10]]}


def _begin() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + _SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _in_bounds(path: str) -> dict[str, Any]:
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        signal.alarm(600)  # against waiting forever; a loaded machine may need this long
        try:
            found = _read(path)
        except BaseException:  # noqa: BLE001  # every error is reported
            found = {"error": traceback.format_exc()[-1500:]}
        os.write(there, json.dumps(found).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        text = pipe.read()
    _, status, used = os.wait4(child, 0)
    found = json.loads(text) if text else {"error": f"ended with status {status}"}
    return {**found, "seconds": round(used.ru_utime + used.ru_stime, 2), "kilobytes": used.ru_maxrss}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(json.dumps(_in_bounds(each)), flush=True)
