"""`make demo`: dump three training steps of train.py, and show the result."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = Path("demo_output")
FILES_SHOWN = 6
ROWS_SHOWN = 8
COLUMNS = 132


def main() -> int:
    config = HERE / "data_dump.json"
    title(f"The configuration: {relative(config)}")
    print(config.read_text(), end="")

    shutil.rmtree(OUTPUT, ignore_errors=True)
    command = ["opdump", "run", "-c", relative(config), "--path", str(OUTPUT), relative(HERE / "train.py")]
    title("Three steps under capture")
    code = opdump(command)
    if code:
        return code

    title("What is on disk")
    print_tree(OUTPUT)

    statistics = next(OUTPUT.glob("rank_0/DigitsResNet/0/0/statistic.csv"))
    title(f"The head of {statistics}")
    for line in statistics.read_text().splitlines()[:ROWS_SHOWN]:
        print(cut(line))

    title("The operators of one line of the script")
    line = next(
        number for number, text in enumerate((HERE / "train.py").read_text().splitlines(), 1) if "self.fc(" in text
    )
    code = opdump(["opdump", "show", str(OUTPUT), "--source", f"train.py:{line}", "--step", "0", "--limit", "6"])

    title("Next")
    print(f".venv/bin/opdump show {OUTPUT}")
    print(".venv/bin/opdump run YOUR_SCRIPT.py")
    return code


def opdump(command: list[str]) -> int:
    """Print a command as a user would type it, and run it with this Python."""
    print("$ " + " ".join(command), flush=True)
    return subprocess.run([sys.executable, "-m", *command], check=False).returncode


def title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."


def print_tree(folder: Path, indent: str = "") -> None:
    """Print the folders under `folder`, and the first files of each."""
    if not indent:
        print(f"{folder}/")
    entries = sorted(folder.iterdir())
    files = [entry for entry in entries if entry.is_file()]
    for entry in entries:
        if entry.is_dir():
            print(f"{indent}  {entry.name}/")
            print_tree(entry, indent + "  ")
    for file in files[:FILES_SHOWN]:
        print(cut(f"{indent}  {file.name}"))
    if len(files) > FILES_SHOWN:
        print(f"{indent}  ... and {len(files) - FILES_SHOWN} more files")


if __name__ == "__main__":
    sys.exit(main())
