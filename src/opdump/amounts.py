"""Formats counts, bytes, seconds, long names and small tables for people.

>>> html_table(("operator", "max"), [("a<b", "1")])
'<table><thead><tr><th>operator</th><th>max</th></tr></thead><tbody><tr><td>a&lt;b</td><td>1</td></tr></tbody></table>'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_UNITS = ("kB", "MB", "GB", "TB")


def count(number: int, noun: str) -> str:
    """Return text such as `1 file` or `2,412 files`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def size(number: int) -> str:
    """Return a size in bytes with three digits and powers of 1000: `999 B`, `1.20 kB`, `48.1 MB`."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in _UNITS:
        value /= 1000
        if value < 999.5 or unit == _UNITS[-1]:
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {unit}"


def seconds(number: float) -> str:
    """Return a duration in seconds as `0.42 s`, `75 s` or `12 min 5 s`."""
    if number < 9.995:
        return f"{number:.2f} s"
    if number < 120:
        return f"{number:.0f} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes:,} min {rest} s"


def steps(numbers: Sequence[int]) -> str:
    """Return step numbers as `step 0`, `steps 0-2, 7` or `no step`."""
    if not numbers:
        return "no step"
    ordered = sorted(set(numbers))
    runs: list[list[int]] = [[ordered[0], ordered[0]]]
    for number in ordered[1:]:
        if number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"step {text}" if len(ordered) == 1 else f"steps {text}"


def one_line(text: str, most: int) -> str:
    """Shorten a text that is longer than `most` characters to its end, after an ellipsis. Unprintable characters are escaped.

    >>> one_line("Default/network-Net/conv1-Conv2d/convolution-op7", 30)
    '…conv1-Conv2d/convolution-op7'
    """
    shown = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= most else "…" + shown[len(shown) - most + 1 :]


def repr_of(kind: str, name: str, *facts: str) -> str:
    """Return `Kind(name, fact, fact)` in about 100 characters. The name is shortened to the space that the facts leave, but not below 24 characters."""
    rest = "".join(f", {one_line(fact, 64)}" for fact in facts if fact)
    return f"{kind}({one_line(name, max(24, 97 - len(kind) - len(rest)))}{rest})"


# Small tables for notebooks: what `_repr_html_` returns. Every text is escaped: names come from programs and files.


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """A table with a line above it; columns that are empty in every row are left out, and the headings if all are empty."""
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
    from html import escape  # imported here because its entity table is large and only notebooks need it

    return escape(text)
