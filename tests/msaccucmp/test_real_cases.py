"""Every case that the real tool was run on: the same exit code, the same files, the same bytes."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.msaccucmp.cases import ARCHIVES, ORDERS, run_in, unpacked


def names_of_cases() -> list[str]:
    names: set[str] = set()
    for path in ARCHIVES:
        with tarfile.open(path) as archive:
            names |= {name.split("/")[0] for name in archive.getnames()}
    return sorted(names)


@pytest.fixture(scope="module")
def real_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folders of the cases. If the order of a directory matters, it is listed as the real tool found it, on any
    file system.
    """
    folder = unpacked(tmp_path_factory.mktemp("real"))
    orders = {str(folder / name): order for name, order in json.loads(ORDERS.read_text()).items()}
    listed, walked = os.listdir, os.walk

    def in_order(path: str, names: list[str]) -> list[str]:
        order = orders.get(str(path))
        return names if order is None else sorted(names, key=order.index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda path=".": in_order(path, listed(path)))
        patch.setattr(
            os,
            "walk",
            lambda *args, **kwargs: ((*at, in_order(at[0], names)) for *at, names in walked(*args, **kwargs)),
        )
        yield folder


def stable(files: dict[str, bytes], case: str) -> dict[str, bytes]:
    """The files without unstable parts: the time in a name, the folder and the order of a list, numpy's text of a
    number.
    """
    result = {}
    for name, content in files.items():
        text = content.replace(case.encode(), b"{CASE}")
        # numpy versions print the same complex64 as `1e+09` or `1000000000`; both tools use numpy's text.
        text = re.sub(rb"\(([^()\s]+j)\)", lambda found: repr(complex(found[1].decode())).encode(), text)
        if name.endswith("list.txt"):
            text = b"\n".join(sorted(text.split(b"\n")))
        result[re.sub(r"_\d{14}\.(txt|csv)$", r"_<time>.\1", name)] = text
    return result


@pytest.mark.parametrize("name", names_of_cases())
def test_the_command_does_what_the_real_tool_did(name: str, real_cases: Path, tmp_path: Path) -> None:
    folder = real_cases / name
    case = json.loads((folder / "case.json").read_text())
    (folder / "in").mkdir(exist_ok=True)  # an archive keeps no empty directory
    output = tmp_path / "out"
    arguments = [part.replace("{in}", str(folder / "in")).replace("{out}", str(output)) for part in case["argv"]]
    ended = run_in(output, arguments)
    written = folder / "out"
    expected = {
        str(path.relative_to(written)): path.read_bytes().replace(b"{CASE}/out", str(output).encode())
        for path in written.rglob("*")
        if path.is_file()
    }
    assert ended.code == case["exit_code"]
    assert stable(ended.files, str(folder)) == stable(expected, str(folder))
    assert all((output / file).stat().st_mode & 0o777 == 0o600 for file in ended.files)


def test_there_are_as_many_cases_as_were_made() -> None:
    assert len(names_of_cases()) == 2123
