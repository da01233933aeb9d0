"""Conversion compared with vectors from the real tool: the same names and elements, except for the differences listed
here.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from opdump.conversion import ConversionPlan, convert
from opdump.formats import FORMATS

ARCHIVE = Path(__file__).parent.parent / "data" / "msaccucmp.tar.gz"

DIFFERENT = {
    "dtype_BF16_single_bin": "bin has the bytes of the device; the tool widens them and calls them bfloat16 all the same",
    "dtype_dir_bin": "the same",
    "fmt_NC1HWC0_bad_slice": "the tool leaves the tensor uncut where the original shape cannot be; that is a failure",
    "fmt_NC1HWC0_sliceflag": "a shape of fewer members than the tensor has is a failure; the tool drops the others",
    "fmt_NZ_to_ND": "the tool joins the leading axes of FRACTAL_NZ",
    "fmt_custom_script": "scripts of the user are run by the command msaccucmp alone",
    "list_comma": "a missing file is a failure",
    "mapping_dir_npy": "files are named by mapping.csv; the tool keeps the digits",
    "opdebug_new_badlen": "what the record says wrongly of itself is a failure, and the JSON is there",
    "opdebug_new_invalid0": "the same",
}


def _names() -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        cases = [name for name in archive.getnames() if name.endswith("/case.json")]
        described = [json.load(archive.extractfile(name) or pytest.fail(name)) for name in cases]
    return sorted(
        case["case"]
        for case in described
        if case["exit_code"] == 0 and case["argv"][0] == "convert" and "msnpy" not in case["argv"]
    )


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vectors")
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(directory, filter="data")
        else:
            archive.extractall(directory)
    return directory


def _differences(case: Path, out: Path) -> list[str]:
    arguments = json.loads((case / "case.json").read_text())["argv"]
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    shape = tuple(map(int, options["-s"].split(","))) if "-s" in options else None
    plan = ConversionPlan(
        options.get("-t", "npy"),
        format=next((name for name in FORMATS if name == options.get("-f")), ""),
        shape=shape,
        io="input" if "-i" in options else "output" if "-o" in options else None,
        slot=int(options.get("-i") or options.get("-o") or 0),
    )
    sources = options["-d"].replace("{in}", str(case / "in")).split(",")
    (case / "in").mkdir(exist_ok=True)  # the archive omits empty directories
    done = convert(sources, out, plan)
    found = [f"{each.path} {each.tensor}: {each.reason}" for each in done.failures]
    expected = {path.name: path for path in (case / "out").glob("*") if path.name != "mapping.csv"}
    actual = {path.name: path for path in out.glob("*") if path.name != "mapping.csv"}
    if "dtype_UINT1" not in case.name:  # the tool writes nothing and exits with 0
        found += sorted(expected.keys() ^ actual.keys())
    for name in sorted(expected.keys() & actual.keys()):
        if name.endswith(".npy"):
            theirs, ours = np.load(expected[name]), np.load(actual[name])
            same = theirs.shape == ours.shape and theirs.tobytes() == ours.tobytes()
        else:
            same = expected[name].read_bytes() == actual[name].read_bytes()
        if not same:
            found.append(f"{name} differs")
    return found


@pytest.mark.parametrize("name", _names())
def test_names_and_elements_are_those_of_the_real_tool_or_the_difference_is_known(
    name: str, vectors: Path, tmp_path: Path
) -> None:
    differences = _differences(vectors / name, tmp_path / "out")
    assert bool(differences) == (name in DIFFERENT), differences
