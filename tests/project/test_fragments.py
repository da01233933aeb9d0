"""The news fragments in changes/: named as towncrier expects, and written to stand in one list."""

from __future__ import annotations

import re
from pathlib import Path

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
