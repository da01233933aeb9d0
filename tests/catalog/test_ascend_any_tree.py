"""Any tree of directories and files is opened or refused with an opdump error: no crash, and no read outside the tree."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdump.catalog.catalog import open_dump
from opdump.dump_file import DumpFile
from opdump.dump_file.names import DumpName, ExceptionName, FftsPlus, parse_name
from opdump.dump_file.writing import encode_dump_file
from opdump.errors import OpdumpError
from tests.layouts.ascend_dumps import LATER, STAMP, TIME, tensor

_IDS = st.integers(0, 2**63)
_PARTS = st.text(st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
_FFTS = st.none() | st.builds(FftsPlus, _IDS, _IDS, _IDS)

_DIRECTORIES = (
    "0",
    "3",
    "11",
    "99999999999999",
    TIME,
    LATER,
    "resnet50",
    "rank_0",
    "graphs",
    "extra-info",
    "data-dump",
)
_PLACES = st.one_of(
    st.lists(st.sampled_from(_DIRECTORIES), max_size=6),
    st.sampled_from([[], [TIME, "0"], [TIME, "3", "resnet50", "11", "0"], ["3", TIME, "0"], [LATER, "0", "11"]]),
    st.sampled_from([["graphs"], ["rank_0", "execution_order"]]),
)
_FILES = (
    f"Conv2D.net_conv1.1.5.{STAMP}",
    f"Conv2D.net_conv1.1.{STAMP}",
    f"net_conv1.Conv2D.1.5.{STAMP}.4.1.0.0",
    f"Conv2D.net_conv1.1.5.{STAMP}.csv",
    f"Conv2D.net_conv1.1.5.{STAMP}.output.0.ND.Float32.npy",
    f"Opdebug.Node_OpDebug.59.{STAMP}",
    f"Opdebug.Node_OpDebug.59.{STAMP}.output.0.json",
    "exception_info.7.12.20240101120000123",
    "123456789",
    "mapping.csv",
    "statistic.csv",
    "ms_execution_order_graph_11.csv",
)


def _dump_file() -> bytes:
    import numpy as np

    parts = (tensor("output", 0, np.arange(3, dtype="float32")), tensor("output", 1, np.ones(2, "int8"), short=1))
    return b"".join(bytes(part) for part in encode_dump_file(DumpFile(outputs=parts, op_name="net/conv1")))


_WHOLE = _dump_file()
_CONTENTS = st.one_of(
    st.just(_WHOLE),
    st.binary(max_size=40),
    st.integers(0, len(_WHOLE)).map(lambda size: _WHOLE[:size]),
    st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)).map(
        lambda change: _WHOLE[: change[0]] + bytes([change[1]]) + _WHOLE[change[0] + 1 :]
    ),
    st.sampled_from(
        [
            b"123456789,Conv2D.net_conv1.1.5.7\n",
            b"123456789,../../x\n123456789\n",
            b"Input/Output,Index,Data Size,Data Type,Format,Shape\nInput,0,1,DT_INT8,ND,1\n",
            b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape\n",
        ]
    ),
)
_TREES = st.lists(st.tuples(_PLACES, st.sampled_from(_FILES), _CONTENTS), max_size=6)
_LINKS = st.lists(
    st.tuples(st.lists(st.sampled_from(_DIRECTORIES), max_size=4), st.sampled_from((*_DIRECTORIES, *_FILES))),
    max_size=2,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_TREES, _LINKS, st.sampled_from(["latest", "all", 1]))
def test_any_tree_is_read_or_refused(
    tree: list[tuple[list[str], str, bytes]], links: list[tuple[list[str], str]], run: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside, root = Path(folder, "outside"), Path(folder, "dump")
        for place in (outside, outside / "3", root):
            place.mkdir(parents=True)
            if place != root:
                (place / f"Add.secret.1.5.{STAMP}").write_bytes(_WHOLE.replace(b"net/conv1", b"secret/op"))
        for directories, name, content in tree:
            _make(root.joinpath(*directories), name, content)
        for directories, name in links:
            target = root.joinpath(*directories)
            if target.is_dir() and not os.path.lexists(target / name):
                (target / name).symlink_to(outside)
        for opened in (root, *(root / name for name in _DIRECTORIES)):
            if opened.is_symlink():
                continue  # the caller named the outside directory explicitly
            assert "secret/op" not in _read(opened, run)


def _make(directory: Path, name: str, content: bytes) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    except OSError:
        assert directory.exists() or any(parent.is_file() for parent in directory.parents)


def _read(path: Path, run: str) -> set[str]:
    """The operator names of a dump, after reading all of its tensors."""
    try:
        catalog = open_dump(path, run=run)  # type: ignore[arg-type]
        names = {op.op_name for op in catalog.ops(include_skipped=True)}
        records = list(catalog)
        assert all(isinstance(problem, OpdumpError) for problem in catalog.problems)
    except OpdumpError:
        return set()
    for record in records:
        if record.payload is not None:
            try:
                assert record.payload.to_host().shape == record.shape
            except OpdumpError:
                assert catalog.problems
    return names


@given(st.builds(DumpName, _PARTS, _PARTS, _IDS, st.none() | _IDS, st.integers(0, 10**254), _FFTS))
def test_every_dump_name_is_read_back(name: DumpName) -> None:
    if name.op_type != "exception_info":
        assert parse_name(str(name)) == name


@given(
    st.builds(
        ExceptionName,
        _PARTS,
        _IDS,
        _IDS,
        st.integers(10**15, 10**17 - 1),
        is_detail=st.just(True),
    )
)
def test_every_name_of_an_exception_is_read_back(name: ExceptionName) -> None:
    assert parse_name(str(name)) == name
