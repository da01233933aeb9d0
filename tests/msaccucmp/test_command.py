"""The command around the conversion: its log, its files, links, worker processes, and unsupported options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opdump.msaccucmp import conversion
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from tests.msaccucmp.cases import NAME, OPDEBUG, converted, dump, floats, nano, read_npy, run_in, tensor


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
