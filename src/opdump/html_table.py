"""Small tables for notebooks: what `_repr_html_` returns. Every text is escaped: names come from programs and files.

>>> html_table(("operator", "max"), [("a<b", "1")])
'<table><thead><tr><th>operator</th><th>max</th></tr></thead><tbody><tr><td>a&lt;b</td><td>1</td></tr></tbody></table>'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """A table with a line above it; columns that are empty in every row are left out, and the headings where all are empty."""
    cells = [[str(cell) for cell in row] for row in rows]
    kept = [number for number in range(len(headings)) if any(row[number] for row in cells)]
    head = _row("th", [headings[number] for number in kept]) if any(headings) else ""
    body = "".join(_row("td", [row[number] for number in kept]) for row in cells)
    return html_line(caption) + f"<table>{head and f'<thead>{head}</thead>'}<tbody>{body}</tbody></table>"


def html_facts(facts: Iterable[tuple[str, object]], *, caption: str = "") -> str:
    """A table of names and values; those without a value are left out."""
    return html_table(("", ""), [fact for fact in facts if fact[1] not in ("", None)], caption=caption)


def html_line(text: str) -> str:
    """A line of text; nothing for no text."""
    return f"<div>{_escaped(text)}</div>" if text else ""


def _row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{_escaped(cell)}</{kind}>" for cell in cells) + "</tr>"


def _escaped(text: str) -> str:
    from html import escape  # with a table of all entities; whoever imports records shows few of them in a notebook

    return escape(text)
