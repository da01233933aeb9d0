"""If the system refuses further threads, only speed is lost."""

from __future__ import annotations

import os
import subprocess
import sys

from opdump import kernels

_PROGRAM = """
import threading
import numpy as np
from opdump import kernels
kernels.set_threads(4)
try:
    threading.Thread(target=int).start()
    print("threads")
except RuntimeError:
    print("no threads")
print(kernels.active(), kernels.summarise(np.arange(4_000_000, dtype=np.float32)))
"""


def test_a_summary_needs_no_other_thread() -> None:
    # Each thread, also in C++, reserves a stack of this size, which no address space has room for.
    limited = f"ulimit -S -s {1 << 37} && exec {sys.executable} -c '{_PROGRAM}'"
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's library aborts without its threads
    with_threads, without = (
        subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environ)
        for command in ([sys.executable, "-c", _PROGRAM], ["bash", "-c", limited])
    )
    assert without.returncode == with_threads.returncode == 0, without.stderr
    assert (with_threads.stdout.splitlines()[0], without.stdout.splitlines()[0]) == ("threads", "no threads")
    assert without.stdout.splitlines()[1:] == with_threads.stdout.splitlines()[1:]
    assert kernels.active() in without.stdout
