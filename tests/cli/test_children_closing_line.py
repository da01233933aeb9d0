"""The closing line of a program with child processes counts all files on disk: the children's and its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.json_shapes import mistakes
from tests.cli.programs import opdump, write_config

pytestmark = pytest.mark.torch

PROGRAM = """
import multiprocessing
import torch


def train():
    net = torch.nn.Linear(2, 1)
    (net(torch.ones(1, 2)) / 0).sum().backward()


if __name__ == "__main__":
    train()
    for _ in range(2):
        child = multiprocessing.get_context("{way}").Process(target=train)
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize(
    ("way", "layout", "saved_data"),
    [("fork", "mindspore-2.3", "full"), ("spawn", "mindspore-2.3", "statistic"), ("fork", "acl", "tensor")],
)
def test_files_and_bytes_of_the_family_are_those_on_disk(
    way: str, layout: str, saved_data: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("{way}", way))
    if layout == "acl":
        (tmp_path / "dump").mkdir()
        (tmp_path / "config.json").write_text(
            json.dumps({"dump": {"dump_path": str(tmp_path / "dump"), "dump_op_switch": "on", "dump_list": []}})
        )
        name = "config.json"
    else:
        name = write_config(tmp_path, saved_data=saved_data).name
    before: dict[Path, tuple[int, int]] = {}
    for _ in range(2):
        done = opdump("run", "--json", "-c", name, "train.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stderr.splitlines()[-1])
        assert mistakes("run", found) == []
        assert len(found["children"]) == 2
        files = {
            path: (path.stat().st_mtime_ns, path.stat().st_size)
            for path in Path(found["path"]).rglob("*")
            if path.is_file()
        }
        written = {path: facts for path, facts in files.items() if before.get(path) != facts}
        everyone = [found, *found["children"]]
        assert sum(each["files"] for each in everyone) == len(written), sorted(map(str, written))
        assert sum(each["bytes"] for each in everyone) == sum(size for _, size in written.values())
        before = files
