"""The command around the conversion: its log, its files, its options; every case that the real tool was run on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.dump_file import DumpFile, DumpTensor, write_dump_file
from opdump.msaccucmp import conversion
from opdump.msaccucmp.command_line import run as msaccucmp
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from tests.msaccucmp.cases import (
    ARCHIVES,
    NAME,
    OPDEBUG,
    ORDERS,
    converted,
    dump,
    floats,
    nano,
    read_npy,
    run_in,
    tensor,
    unpacked,
)


def test_every_line_of_the_log_has_time_process_and_level(tmp_path: Path) -> None:
    ended = converted(tmp_path, {NAME: floats((2, 3))}, source=None)
    lines = ended.log.splitlines()
    form = re.compile(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \({os.getpid()}\) - \[(INFO|WARNING|ERROR)\] .+")
    assert lines
    assert all(form.fullmatch(line) for line in lines)
    assert any(line.endswith(f"[ {'>' * 50} 100%]") for line in lines)
    assert re.search(r"finished after \d+ seconds$", lines[-1])


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    output = tmp_path / "out"
    output.mkdir()
    for name in (f"{NAME}.output.0.npy", "convert_failed_file_list.txt", "mapping.csv"):
        (output / name).symlink_to(outside)
    long = "T." + "n" * 225 + ".1.2.3456789012345678"
    ended = converted(tmp_path, {NAME: floats((2, 3)), long: floats((2, 3)), "Y.empty.1.2.3": b""}, source=None)
    assert ended.code == ExitCode.BAD_DUMP
    assert outside.read_bytes() == b"precious"
    assert not any(path.is_symlink() for path in output.iterdir())
    assert len(ended.files) == 4


def test_no_name_in_a_dump_leads_out_of_the_output_directory(tmp_path: Path) -> None:
    hostile = dump(tensor("output", 1, (1,), bytes(4)), op_name="../../../../evil/..")
    ended = converted(tmp_path, {NAME: hostile}, "-t", "msnpy")
    assert list(ended.files) == ["X....1.2.1700000000000000.output.0.ND.npy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_no_temporary_file_is_left_where_a_directory_stands_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out" / f"{NAME}.output.0.npy").mkdir(parents=True)
    ended = converted(tmp_path, {NAME: floats((2, 3))})
    assert ended.code == 0
    assert "[ERROR]" in ended.log
    assert sorted(os.listdir(tmp_path / "out")) == [f"{NAME}.output.0.npy"]


def test_a_new_output_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.write_bytes(floats((2, 3)))
    ended = run_in(tmp_path / "here", ["convert", "-d", str(place), "-out", "deep/er"])
    assert ended.code == 0
    assert (tmp_path / "here" / "deep" / "er").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "here" / "deep" / "er" / f"{NAME}.output.0.npy").stat().st_mode & 0o777 == 0o600


def test_worker_processes_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"X.op{number}.1.2.{number}": floats((2, number + 1)) for number in range(6)}
    files["Y.bad.1.2.3"] = b""
    (tmp_path / "a").mkdir()
    alone = converted(tmp_path / "a", files, source=None)
    monkeypatch.setattr(conversion, "_WORTH_A_WORKER", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    (tmp_path / "b").mkdir()
    together = converted(tmp_path / "b", files, source=None)
    assert together.code == alone.code == ExitCode.BAD_DUMP
    assert [*together.files] == [*alone.files]
    same = set(alone.files) - {"convert_failed_file_list.txt"}
    assert {name: together.files[name] for name in same} == {name: alone.files[name] for name in same}


def test_an_error_keeps_its_code_on_the_way_from_a_worker() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(CommandError(ExitCode.BAD_SHAPE, "why")))
    assert (error.code, str(error)) == (ExitCode.BAD_SHAPE, "why")


def test_several_models_at_once_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    ended = run_in(
        tmp_path / "out",
        ["compare", "-m", str(tmp_path), "-g", str(tmp_path), "-f", str(tmp_path / "rules")],
    )
    assert ended.code == ExitCode.BAD_PATH
    assert "call it once for each" in ended.log


def test_operators_that_read_one_another_end_and_do_not_hang(tmp_path: Path) -> None:
    described = [{"name": "a", "type": "Add", "input": ["t:0"]}]
    described += [{"name": name, "type": "Cast", "input": [f"{other}:0"]} for name, other in ("tu", "ut")]
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"graph": [{"op": described}]}))
    values = np.ones(2, "<f4")
    for side in ("my", "gold"):
        (tmp_path / side).mkdir()
    (tmp_path / "my" / "Add.a.1.2.1700000000000001").write_bytes(dump(tensor("input", 1, (2,), values.tobytes())))
    np.save(tmp_path / "gold" / "x.0.1700000000000001.npy", values)
    sides = ["-m", str(tmp_path / "my"), "-g", str(tmp_path / "gold"), "-f", str(rules)]
    ended = run_in(tmp_path / "out", ["compare", *sides])
    assert ended.code == ExitCode.NO_DUMP, ended.log
    assert "reads its own output" in ended.log


def test_pt_without_torch_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ended = converted(tmp_path, {NAME: floats((2, 3))}, "-t", "pt")
    assert ended.code == ExitCode.BAD_PARAMETER
    assert "pip install torch" in ended.log
    assert ended.files == {}


@pytest.mark.torch
def test_pt_is_what_torch_loads(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.write_bytes(floats((2, 3)))
    run = "from opdump.msaccucmp import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, "convert", "-d", str(place), "-t", "pt"], cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    load = f"import torch; print(torch.load({str(place) + '.output.0.pt'!r}).tolist())"
    shown = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    assert shown.stdout == "[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]\n"


def test_a_conversion_imports_no_framework_and_no_terminal_library(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.write_bytes(floats((2, 3)))
    program = (
        "import sys; from opdump.msaccucmp.command_line import run; "
        f"code = run(['convert', '-d', {str(place)!r}]); "
        "print(code, sorted({'torch', 'rich', 'ml_dtypes', 'multiprocessing', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


def test_a_nano_dump_must_have_five_parts_in_its_name(tmp_path: Path) -> None:
    payload = bytes(range(8))
    assert read_npy(converted(tmp_path, {NAME: nano((2,), 0, payload)}).files[f"{NAME}.output.0.npy"]).shape == (2,)
    assert converted(tmp_path, {"X.a.1.2": nano((2,), 0, payload)}, source="X.a.1.2").code == ExitCode.BAD_DUMP
    assert converted(tmp_path, {NAME: nano((2,), 0, payload, size=9)}).code == ExitCode.BAD_SIZE


def test_an_overflow_file_of_another_spelling_is_an_ordinary_dump(tmp_path: Path) -> None:
    content = dump(tensor("output", 4, (2048,), bytes(2048)))
    other = OPDEBUG.replace("Opdebug.Node_OpDebug", "OpDebug.Node_Opdebug")
    assert list(converted(tmp_path, {other: content}, source=other).files) == [f"{other}.output.0.npy"]


CONVOLUTION = "Conv2D.Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12.2.7.161243956333802"


def _nc1hwc0(nchw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert to the form of a device: channels in blocks of 16, the block last."""
    n, c, h, w = nchw.shape
    return np.ascontiguousarray(nchw.reshape(n, c // 16, 16, h, w).transpose(0, 1, 3, 4, 2))


def test_the_convolution_of_the_guide_is_converted_to_nchw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"input.0": (32, 256, 13, 13), "input.1": (384, 256, 3, 3), "output.0": (32, 384, 13, 13)}
    values = {
        io: (np.arange(np.prod(shape), dtype=np.int64) % 2048).astype(np.float16).reshape(shape)
        for io, shape in shapes.items()
    }
    tensors: dict[str, list[DumpTensor]] = {"input": [], "output": []}
    for io, array in values.items():
        side, _, slot = io.partition(".")
        made = DumpTensor.of(
            side,  # type: ignore[arg-type]  # one of the two types
            int(slot),
            _nc1hwc0(array),
            format="NC1HWC0",
            original_shape=array.shape,
        )
        tensors[side].append(made)
    (tmp_path / "to").mkdir()
    source = tmp_path / "to" / CONVOLUTION
    write_dump_file(source, DumpFile(inputs=tuple(tensors["input"]), outputs=tuple(tensors["output"])))
    monkeypatch.chdir(tmp_path)
    assert msaccucmp(["convert", "-d", str(source), "-out", "./output", "-f", "NCHW", "-t", "npy"]) == 0
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == [
        f"{CONVOLUTION}.input.0.32x256x13x13.npy",
        f"{CONVOLUTION}.input.1.384x256x3x3.npy",
        f"{CONVOLUTION}.output.0.32x384x13x13.npy",
    ]
    for io, array in values.items():
        (path,) = (tmp_path / "output").glob(f"{CONVOLUTION}.{io}.*")
        np.testing.assert_array_equal(np.load(path), array)


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
