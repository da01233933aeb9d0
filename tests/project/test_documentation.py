"""The README and the docs: every link leads somewhere, and every piece of code does what the page says.

The word after a fence determines what happens to the block:

    python                 runs; the blocks up to the next console block share their names
    python cell            is a cell of a notebook; the cells up to the next console block are one notebook, run in a
                           Jupyter kernel
    python file=train.py   is written to that file (any language), for the blocks that follow
    console                each line after `$ ` runs in bash, and must print what is below it;
                           `...` stands for any text in a line, and on a line of its own for any number of lines
    json                   must parse
    sh norun               is only shown: it would install something or run for minutes
    text, or nothing       is only shown

A page runs in an empty folder with a copy of `examples/`, and with its own folder instead of `/tmp`, so that several
pages can run at once, for several users.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from tests.project.first_result import PICTURE, first_blocks, words_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("changes/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("benchmarks/results/*.md"),
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_PACKAGES = {"python.md": ("pandas", "polars", "nbclient")}
"""Packages that the code of a page needs besides PyTorch."""


class Block(NamedTuple):
    language: str
    options: tuple[str, ...]
    text: str
    line: int

    def with_own(self, temporary: str) -> Block:
        return self._replace(text=re.sub(r"(?<![\w/])/tmp(?=/)", temporary, self.text))


def _blocks(page: Path) -> Iterator[Block]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            language, *options = token.info.split() or [""]
            assert token.map is not None
            yield Block(language, tuple(options), token.content, token.map[0] + 2)


def _slug(heading: str) -> str:
    """The anchor of a heading where Markdown is usually shown."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return {_slug(inline.content) for opening, inline in itertools.pairwise(tokens) if opening.type == "heading_open"}


def _links(page: Path) -> Iterator[str]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                yield str(target)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_or_a_heading(page: Path) -> None:
    broken = []
    for link in _links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_that_the_code_names_is_there() -> None:
    broken = []
    for file in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("native/*")]):
        for path, anchor in re.findall(r"(docs/[\w-]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8")):
            if not (ROOT / path).exists() or (anchor and anchor not in _anchors(ROOT / path)):
                broken.append(f"{file.relative_to(ROOT)}: {path}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_fence_says_what_it_holds(page: Path) -> None:
    known = {"", "python", "console", "json", "sh", "text", "csv"}
    unknown = [(block.line, block.language) for block in _blocks(page) if block.language not in known]
    shown_only = [block.line for block in _blocks(page) if block.language == "sh" and "norun" not in block.options]
    assert (unknown, shown_only) == ([], [])


def test_the_table_of_contents_has_every_page_once() -> None:
    contents = ROOT / "docs" / "README.md"
    found = Counter(link.partition("#")[0] for link in _links(contents) if "/" not in link)
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page != contents]
    assert {name: found[name] for name in pages} == dict.fromkeys(pages, 1)


def test_the_picture_shows_what_the_first_commands_print() -> None:
    _, blocks = first_blocks()
    picture = PICTURE.read_text(encoding="utf-8")
    shown = re.sub(r"\s", "", "".join(blocks))
    assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*?"), words_of(picture)), (
        "python -m tests.project.first_result"
    )
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"], "it fetches nothing"


def _with_code(page: Path) -> bool:
    return any(block.language in ("python", "console", "json") for block in _blocks(page))


@pytest.fixture
def temporary() -> Iterator[str]:
    # Not below tmp_path, which may contain a user name with dots; the path of a dump must not.
    with tempfile.TemporaryDirectory(prefix="opdump-page-", dir="/tmp") as directory:
        yield directory


@pytest.mark.sampled(8)
@pytest.mark.parametrize("page", [page for page in PAGES if _with_code(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path, temporary: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.xfail("notimpl: the pages use PyTorch, which is not installed")
    missing = [name for name in _PACKAGES.get(page.name, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.xfail(f"notimpl: the page uses {', '.join(missing)}, which is not installed")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    command = tmp_path / "bin" / "opdump"  # the installed command of this Python
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m opdump "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    program: list[str] = []
    cells: list[str] = []
    for block in (each.with_own(temporary) for each in _blocks(page)):
        file = next((option[5:] for option in block.options if option.startswith("file=")), None)
        if file is not None:
            (tmp_path / file).write_text(block.text, encoding="utf-8")
        elif "cell" in block.options:
            cells.append(block.text)
        elif block.language == "python":
            program.append("\n" * (block.line - 1 - "".join(program).count("\n")) + block.text)
        elif block.language == "console":
            _run_python(program, page, tmp_path)
            _run_cells(cells, tmp_path)
            program, cells = [], []
            _run_console(block, page, tmp_path)
        elif block.language == "json":
            json.loads(block.text)
    _run_python(program, page, tmp_path)
    _run_cells(cells, tmp_path)


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def _run_python(program: list[str], page: Path, folder: Path) -> None:
    if not program:
        return
    source = folder / f"{page.stem}.py"  # keep the line numbers of the page, so that errors point there
    source.write_text("".join(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, source.name], cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page}:\n{done.stderr}"


def _run_cells(cells: list[str], folder: Path) -> None:
    if not cells:
        return
    nbformat, nbclient = (
        importlib.import_module(name) for name in ("nbformat", "nbclient")
    )  # only one page needs them
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    places = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    own = {name: str(folder / name.lower()) for name in places}
    client = nbclient.NotebookClient(
        notebook, timeout=None, startup_timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**_environment(folder), **own})


def _run_console(block: Block, page: Path, folder: Path) -> None:
    commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    assert commands, f"{page}:{block.line}: a console block starts with `$ ` and a command"
    for command in commands:
        line, _, expected = command.partition("\n")
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=folder,
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = _trimmed(done.stdout)
        assert _pattern(_trimmed(expected)).fullmatch(printed + "\n"), f"{page}:{block.line}: $ {line}\n{printed}"


_SIGN_OF_LIFE = re.compile(r"opdump: \w+ has run for \d+ s")


def _trimmed(text: str) -> str:
    """The lines without trailing space, and without progress messages, which a slow machine adds."""
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "\n".join(line for line in lines if not _SIGN_OF_LIFE.match(line))


def _pattern(expected: str) -> re.Pattern[str]:
    def line_pattern(line: str) -> str:
        return r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*?") + r"\n"

    return re.compile("".join(line_pattern(line) for line in expected.splitlines()) or r"\n")
