"""Adapts pages that are written for the repository to mkdocs (a hook of mkdocs, named in mkdocs.yml).

Files outside docs/ that a page links to become part of the site, under their path in the repository: a Markdown file is a page there,
whose own links are followed too, and any other file is one to download. A fence may say more than its language
(tests/project/test_documentation.py): `python file=train.py` gets that title, other words are for the tests.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?=(?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^(?P<fence> *```\w+) (?P<words>.+)$", re.MULTILINE)


def _place(file: Path) -> str:
    """Where a file of the repository stands on the site."""
    return file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT).as_posix()


def _linked(source: Path) -> list[Path]:
    found = [Path(os.path.normpath(source.parent / link)) for link in _LINK.findall(source.read_text(encoding="utf-8"))]
    return [file for file in found if file.is_file()]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while waiting:
        for file in _linked(waiting.pop()):
            if file.is_relative_to(DOCS) or files.get_file_from_path(_place(file)) is not None:
                continue
            files.append(File(_place(file), str(ROOT), config.site_dir, config.use_directory_urls))
            if file.suffix == ".md":
                waiting.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    source = Path(str(page.file.abs_src_path))

    def link(found: re.Match[str]) -> str:
        file = Path(os.path.normpath(source.parent / found["path"]))
        if not file.is_file():
            return found["path"]
        return os.path.relpath(_place(file), os.path.dirname(page.file.src_uri))

    def fence(found: re.Match[str]) -> str:
        file = re.search(r"file=(\S+)", found["words"])
        return found["fence"] + (f' title="{file[1]}"' if file else "")

    return _FENCE.sub(fence, _LINK.sub(link, markdown))
