"""How a child ends while opdump is at work in it."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import atexit, os, signal, sys, threading
import opdump.capturing.family
from opdump.capturing.family import call_at_end

SOURCE = '''
import os, signal
def file_it():
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("filed", flush=True)
'''
within_opdump = {}
exec(compile(SOURCE, os.path.join(os.path.dirname(opdump.__file__), "sink", "somewhere.py"), "exec"), within_opdump)
call_at_end(within_opdump["file_it"])

def no_thread(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def shut_down():
    threading.Thread.start = no_thread

atexit.register(shut_down)  # Python 3.12 refuses threads by itself from here on
"""


def test_a_signal_during_the_end_of_a_child_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("begun\nfiled\n", "", -signal.SIGTERM)
