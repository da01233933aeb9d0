"""`make demo`: find a bug in a training whose loss is NaN."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = "demo_output"
NEXT = "opdump: next: "


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    train = relative(str(HERE / "train.py"))
    print("\n== 1 of 3: record a training that has a bug (about 10 s)", flush=True)
    code, following = run(f"opdump run --path {OUTPUT}/bug {train} --standardize 0")
    if code or not following:
        return code or 1

    print("\n== 2 of 3: look at the operator that made the first NaN", flush=True)
    code, _ = run(following)
    if code:
        return code
    print("The smallest divisor (min of input.1) is 0: some pixels are 0 in every picture, and so is their deviation.")

    print("\n== 3 of 3: train again, and add 1e-6 to the deviation (about 10 s)", flush=True)
    code, _ = run(f"opdump run --path {OUTPUT}/fixed {train} --standardize 1e-6")
    if code:
        return code

    print("\nFound: train.py divided 0 by 0. Your own script: .venv/bin/opdump run YOUR_SCRIPT.py")
    return 0


def run(command: str) -> tuple[int, str]:
    """Print and run a command, and its output; return its exit code and the command that it names as the next one."""
    print(f"$ {command}", flush=True)
    following = ""
    with subprocess.Popen(
        [sys.executable, "-m", *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(relative(line), end="", flush=True)
            if line.startswith(NEXT):
                following = relative(line.removeprefix(NEXT).strip())
    return process.returncode, following


def relative(text: str) -> str:
    return text.replace(f"{Path.cwd()}/", "")


if __name__ == "__main__":
    sys.exit(main())
