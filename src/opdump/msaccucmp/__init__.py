"""The command `msaccucmp`: the `convert` and `overflow` of the original, on the same command line.

    python3 msaccucmp.py convert -d /data/dump -out /data/npy -v 2      # before
    msaccucmp convert -d /data/dump -out /data/npy -v 2                 # now

Output names, bytes, file modes and exit codes are those of the original, including its errors: if the results differ, `opdump
convert` is right. See docs/msaccucmp.md.
"""

from __future__ import annotations


def main() -> None:
    """The console script: run the command line, and end with its exit code."""
    import sys

    from opdump.msaccucmp.command_line import run

    sys.exit(run(sys.argv[1:]))
