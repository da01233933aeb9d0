"""The picture on the first page: the output of the first two commands of the README in a terminal.

    python -m tests.project.first_result      runs them, and writes docs/first-result.svg

`test_documentation.py` compares the picture with the blocks that it was made from.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "first-result.svg"
COMMANDS = 2
COLUMNS = 100

# Any monospaced font: every piece of text states its length. Nothing is fetched.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def first_blocks() -> tuple[str, list[str]]:
    """The script of the README, and its first console blocks with their output."""
    text = README.read_text(encoding="utf-8")
    script = re.search(r"^```python file=train\.py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert script is not None
    return script[1], re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:COMMANDS]


def draw() -> str:
    """Run the commands, and draw their output."""
    script, blocks = first_blocks()
    record = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory(prefix="first_") as directory:
        folder = Path(directory).resolve()
        (folder / "train.py").write_text(script, encoding="utf-8")
        for block in blocks:
            command = block.splitlines()[0].removeprefix("$ ")
            done = subprocess.run(
                [sys.executable, "-m", *command.split()],
                cwd=folder,
                env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
            record.print(Text(f"$ {command}", style="bold green"))
            record.print(Text.from_ansi(done.stdout.rstrip().replace(str(folder), "/home/you")), soft_wrap=False)
            record.print()
    return record.export_svg(title="", theme=MONOKAI, code_format=_SVG, unique_id="first-result")


def words_of(picture: str) -> str:
    """All text of the picture, without white space."""
    root = ET.fromstring(picture)
    pieces = root.iterfind(".//{http://www.w3.org/2000/svg}text")
    return re.sub(r"\s", "", "".join("".join(piece.itertext()) for piece in pieces))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
