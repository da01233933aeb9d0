"""The dumps in tests/data/mindspore: real output of MindSpore 2.7 and 2.10 on CPU, each with a list of its files."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHIVES = Path(__file__).parents[1] / "data" / "mindspore"


@dataclass(frozen=True)
class Archive:
    """An unpacked archive; `dump` is None if MindSpore refused the config and wrote nothing."""

    name: str
    dump: Path | None
    result: dict[str, Any]

    def files(self, suffix: str) -> list[str]:
        """The files that the run wrote, as listed in its `result.json`, relative to the dump."""
        roots = ("dump/", "diag/debug_dump/")
        files = [file for file in self.result["files"] if file.endswith(suffix)]
        return sorted(file.removeprefix(root) for file in files for root in roots if file.startswith(root))


def names() -> list[str]:
    return sorted(path.name.removesuffix(".tar.gz") for path in ARCHIVES.glob("*.tar.gz"))


def unpack(name: str, into: Path) -> Archive:
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="tar")
        else:
            archive.extractall(into)
    result = next(into.rglob("result.json"))
    roots = [path.parent for path in into.rglob("rank_0")]
    return Archive(name, roots[0] if roots else None, json.loads(result.read_text()))
