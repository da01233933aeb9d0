"""Run the captures of the golden files in one process, and hash every file that they write.

    python -m tests.golden.captures             print the differences from tests/golden/captures.json
    python -m tests.golden.captures --write     rewrite that file
    python -m tests.golden.captures --keep DIR  also keep the dumps in DIR, as text without times, to compare revisions

Times, process ids and the directory are replaced before files are hashed; the index is hashed as its rows. The files of
a capture with the same suffix share a hash, which includes their names. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import opdump
from tests.golden.programs import PROGRAMS

GOLDEN: Final = Path(__file__).with_suffix(".json")
Settings = Mapping[str, Any]
Hashes = dict[str, dict[str, str]]
"""By capture and file suffix: the number of files and their hash."""

_ACL: Final = {"dump_list": [], "dump_mode": "all"}


def acl(**keys: Any) -> Settings:
    """The settings of an acl.json with these keys."""
    return {"config": {"dump": {**_ACL, **keys}}}


def data_dump(*, common: Settings = MappingProxyType({}), **sections: Settings) -> Settings:
    """The settings of a data_dump.json with these keys."""
    settings = {"dump_mode": 0, "net_name": "Net", "iteration": "all", "saved_data": "full", "input_output": 0}
    return {
        "config": {"common_dump_settings": {**settings, "kernels": [], "support_device": [0], **common}, **sections}
    }


STATISTICS: Final = [
    *("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count", "l2norm"),
    *("negative inf count", "positive inf count", "zero count", "hash"),
]
PLAIN: Final[dict[str, Settings]] = {
    "statistics": {},
    "full": {"saved_data": "full"},
    "tensors": {"saved_data": "tensor", "layout": "mindspore-2.3"},
    "mindspore-2.10": {"saved_data": "full", "layout": "mindspore-2.10"},
    "packed": {"saved_data": "full", "layout": "packed"},
    "every statistic": {"statistic_category": STATISTICS},
    "md5": {"statistic_category": ["max", "hash:md5"]},
    "sha1": {"statistic_category": ["max", "hash:sha1"]},
    "inputs": {"saved_data": "full", "inputs": True, "outputs": False},
    "sampled": {"saved_data": "tensor", "sample_mode": 1, "sample_num": 3},
    "kernels": {"saved_data": "full", "kernels": ["name-regex(.*mul.*)", "add", "convolution"]},
    "bin": {"saved_data": "tensor", "file_format": "bin"},
    "reread": {"reread": True},
    "arguments": {"save_kernel_args": True},
    "short names": {"class_names_in_scope": False},
    "acl": acl(),
    "acl statistics": acl(dump_data="stats", dump_stats=["Max", "L2norm"]),
    "acl outputs": acl(dump_mode="output", dump_op_switch="on", dump_level="op"),
    "data_dump": data_dump(),
    "data_dump trans": data_dump(e2e_dump_settings={"enable": True, "trans_flag": True, "save_kernel_args": True}),
}
CAPTURES: Final[dict[str, tuple[str, Settings]]] = {
    **{f"{program} {name}": (program, PLAIN[name]) for program in ("training", "memory") for name in PLAIN},
    **{f"nonfinite {name}": ("nonfinite", PLAIN[name]) for name in ("statistics", "full", "acl", "data_dump")},
    "training every": ("training", {"every": 2}),
    "training ring": ("training", {"ring": 1, "saved_data": "full", "max_memory": "1MB", "triggers": ["nan"]}),
    "nonfinite ring": ("nonfinite", {"ring": 1, "saved_data": "full", "max_memory": "1MB"}),
    "training one step": ("training", {"iteration": "1", "saved_data": "full"}),
    "training disk": ("training", {"saved_data": "full", "max_disk": "200kB"}),
    "overflow": ("nonfinite", {"overflow": True}),
    "overflow first": ("nonfinite", {"op_debug_mode": 3, "overflow_number": 1}),
    "overflow data_dump": ("nonfinite", data_dump(common={"op_debug_mode": 3})),
    "overflow acl": ("nonfinite", acl(dump_debug="on")),
    "exception": ("failing", {"on_exception": True}),
    "exception acl": ("failing", acl(dump_scene="lite_exception")),
    "exception data_dump": ("failing", data_dump(common={"op_debug_mode": 4})),
    **{
        f"calls {level}": ("calls", acl(dump_list=[{"model_name": "golden"}], dump_level=level))
        for level in ("op", "all")
    },
    "calls layers": ("calls", acl(dump_list=[{"model_name": "golden", "layer": ["0"]}])),
    "calls steps": ("calls", acl(dump_list=[{"model_name": "golden"}], dump_step="1", dump_data="stats")),
}

_TIME: Final = re.compile(rb"(?<!\d)\d{13,20}(?!\d)|(?<!\d)20\d{12}(?!\d)|20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?")
"""Microseconds or nanoseconds since 1970, and dates."""
_SAME_RUN: Final = """
    UPDATE runs SET started = 0, ended = 0, process = 0, framework_version = '', opdump_version = '', command = ''
"""
_DUMP_TIME: Final = re.compile(rb"\n\x032\.0\x10[\x80-\xff]+[\x00-\x7f]")
"""The first two fields of a protobuf dump file: the version and the time."""


def written(folder: Path, kept: Path | None = None) -> Hashes:
    """Run every capture below `folder`, and hash what each writes. If `kept` is a directory, copy the files there in
    their hashed form.
    """
    return {name: _captured(folder / name.replace(" ", "-"), *CAPTURES[name], kept) for name in CAPTURES}


def _captured(place: Path, program: str, settings: Settings, kept: Path | None) -> dict[str, str]:
    place.mkdir()
    script, dump = place / "program.py", place / "dump"
    script.write_text(PROGRAMS[program])
    _run(script, _keywords(settings, place, dump))
    found: dict[str, list[tuple[str, bytes]]] = {}
    for path in sorted(dump.rglob("*")):
        if path.is_file():
            name = _TIME.sub(b"TIME", os.fsencode(path.relative_to(dump))).decode()
            found.setdefault(Path(name).suffix or path.name, []).append((name, _content(path, place)))
    hashes = {}
    for suffix, files in sorted(found.items()):
        files.sort()
        whole = b"\n".join(part for name, content in files for part in (name.encode(), content))
        hashes[suffix] = f"{len(files)} {hashlib.sha256(whole).hexdigest()[:16]}"
        if kept is not None:
            for number, (name, content) in enumerate(files):
                copy = kept / place.name / f"{name}.{number}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
    return hashes


def _keywords(settings: Settings, place: Path, dump: Path) -> dict[str, Any]:
    """The keywords of `opdump.capture` for a dump into `dump`; a config becomes a file."""
    if "config" not in settings:
        return {**settings, "path": str(dump)}
    dump.mkdir()
    config = settings["config"]
    if "dump" in config:
        file, config = place / "acl.json", {"dump": {**config["dump"], "dump_path": str(dump)}}
    else:
        common = {**config["common_dump_settings"], "path": str(dump)}
        file, config = place / "data_dump.json", {**config, "common_dump_settings": common}
    file.write_text(json.dumps(config))
    return {"config": str(file)}


def _run(script: Path, keywords: Settings) -> None:
    """Run a program in a thread, whose stacks begin with the program, whatever runs this module."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(runpy.run_path, str(script), {"SETTINGS": keywords}).result()


def _content(path: Path, place: Path) -> bytes:
    return _TIME.sub(b"TIME", _DUMP_TIME.sub(b"TIME", _raw(path))).replace(os.fsencode(place), b"PLACE")


def _raw(path: Path) -> bytes:
    if path.suffix == ".pack":  # the header of each tensor contains a time stamp, and a hash of it
        tensors = (tensor for each in opdump.open(path.parents[1]).ops() for tensor in each.tensors)
        return b"".join(tensor.numpy().tobytes() for tensor in tensors if not tensor.skip)
    if path.suffix != ".sqlite":
        return path.read_bytes()
    with closing(sqlite3.connect(path)) as index:
        index.execute(_SAME_RUN)  # not committed
        return "\n".join(index.iterdump()).encode()


def differences(found: Hashes, golden: Hashes) -> list[str]:
    """The differences, one per line."""
    return [
        f"{name}: {suffix} files: {found.get(name, {}).get(suffix)}, expected {golden.get(name, {}).get(suffix)}"
        for name in sorted({*found, *golden})
        for suffix in sorted({*found.get(name, {}), *golden.get(name, {})})
        if found.get(name, {}).get(suffix) != golden.get(name, {}).get(suffix)
    ]


def main() -> int:
    kept = Path(sys.argv[sys.argv.index("--keep") + 1]) if "--keep" in sys.argv else None
    with tempfile.TemporaryDirectory() as folder:
        found = written(Path(folder), kept)
    if "--write" in sys.argv:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    lines = differences(found, json.loads(GOLDEN.read_text()))
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
