"""The site of the docs, and the fragments of the changelog."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

import opdump

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHOWN = re.findall(
    r"^::: (\S+)$", "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api/*.md")), re.MULTILINE
)


def test_every_page_has_its_place_on_the_site_once() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    placed = re.findall(r"(\S+\.md)$", settings.partition("\nnav:")[2], re.MULTILINE)
    project = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
    assert sorted(placed) == sorted([*(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")), *project])


@pytest.mark.parametrize("name", SHOWN)
def test_a_name_of_the_reference_is_there(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None


def test_the_reference_has_every_public_name() -> None:
    elsewhere = {
        "__version__",
        "acl",
        "onnx",
        "tensorflow",
    }  # packages have a page of their own, or their names are listed one by one
    public = {f"opdump.{name}" for name in opdump.__all__ if name not in elsewhere}
    assert public - set(SHOWN) == {"opdump.OpdumpError"}, "listed through opdump.errors"


CHANGES = Path(__file__).resolve().parents[2] / "changes"
FRAGMENTS = sorted(file for file in CHANGES.iterdir() if file.name not in ("README.md", "template.jinja"))


def test_every_fragment_says_what_kind_of_change_it_is() -> None:
    settings = (CHANGES.parent / "pyproject.toml").read_text(encoding="utf-8")
    kinds = re.findall(r'\{ directory = "(\w+)", name = "\w+", showcontent = true \}', settings)
    assert kinds == ["added", "changed", "fixed"]
    name = re.compile(rf"[a-z0-9][\w.-]*\.(?:{'|'.join(kinds)})\.md")
    assert [file.name for file in FRAGMENTS if not name.fullmatch(file.name)] == []


def test_every_fragment_is_one_paragraph_without_bullets_and_links() -> None:
    # It becomes one entry of a list, which adds its own bullets, in a file in another directory.
    whole = re.compile(r"(?!\s*\Z)(?:(?!\s*(?:[-*] |#))(?!.*\]\()\S.*\n)+")
    assert [file.name for file in FRAGMENTS if not whole.fullmatch(file.read_text(encoding="utf-8"))] == []
