"""`opdump check` on the command line."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

from opdump.commands import main
from opdump.configs.drilldown import SelectedOperator, drilldown_config
from opdump.conversion import ConversionPlan, convert
from opdump.dump_file import DumpFile, DumpTensor, write_dump_file
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern
from opdump.testing import sample_step
from tests.conversion.dump_files import TIME, overflow_file
from tests.layouts.filing import file_step, new_writer

DEVICE = "20231114221320/0/net/1/0"


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def dump(directory: Path, op_type: str, number: int, read: Any, made: Any) -> Path:
    """Write the file of one operator, which reads and makes one tensor; operators run in the order of their numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{op_type}.net_{op_type}{number}.{number}.2.{TIME + number}"
    inputs = (DumpTensor.of("input", 0, np.asarray(read)),)
    outputs = (DumpTensor.of("output", 0, np.asarray(made)),)
    write_dump_file(path, DumpFile(inputs=inputs, outputs=outputs, op_name=f"net/{op_type}{number}"))
    return path


def half(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float16)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    place = tmp_path / DEVICE
    dump(place, "Add", 1, half(1, 2), half(3, 4))
    dump(place, "Exp", 2, half(3, 100), half(20, np.inf))
    dump(place, "Mul", 3, half(20, np.inf), half(0, np.nan))
    dump(place, "Sub", 4, half(1, 2), half(0, 0))
    dump(place, "Cast", 5, half(1, 2), half(1, 65000))
    return tmp_path


def test_a_run_that_did_not_end_is_reported_if_each_of_its_steps_is_complete(tmp_path: Path) -> None:
    for number, totals in enumerate((None, {"executed": 1})):
        plan = DumpPlan(path=tmp_path / str(number), layout="mindspore-2.3")
        writer = new_writer(plan)
        for step in range(2):
            file_step(writer, sample_step(step))
        writer.close(totals)
    cut_off, ended = check(tmp_path / "0"), check(tmp_path / "1")
    assert "opdump: warning: rank 0: the run was interrupted or is still running" in cut_off.stderr
    assert "up to step 1" in cut_off.stderr
    assert "interrupted" not in ended.output
    assert cut_off.exit_code == ended.exit_code
    assert cut_off.stdout == ended.stdout.replace(str(tmp_path / "1"), str(tmp_path / "0"))


def rows(done: Result) -> list[list[str]]:
    table = done.output.partition("\n\n")[0]
    return [line.split() for line in table.splitlines()[1:] if line.startswith(" ")]


def test_the_table_has_operator_tensor_and_finding(broken: Path) -> None:
    done = check(broken)
    told = [(row[2], row[3], row[4], " ".join(row[7:])) for row in rows(done)]
    assert told == [
        ("net/Exp2", "Exp", "output:0", "inf 1 of 2 elements origin"),
        ("net/Mul3", "Mul", "output:0", "nan 1 of 2 elements inherited"),
        ("net/Sub4", "Sub", "output:0", "all zero 2 elements"),
        ("net/Cast5", "Cast", "output:0", "extreme 64992, the largest float16 is 65504"),
    ]
    assert done.output.splitlines()[-1] == "4 findings: 1 inf, 1 nan, 1 all zero, 1 extreme (10 tensors checked)"
    assert done.exit_code == 1


def test_json_has_the_same(broken: Path) -> None:
    done = check(broken, "--json")
    said = json.loads(done.output)
    assert [each["check"] for each in said["findings"]] == ["inf", "nan", "all zero", "extreme"]
    first = said["findings"][0]
    assert (first["op_name"], first["net_name"], first["step"], first["rank"]) == ("net/Exp2", "net", 0, 0)
    assert (first["origin"], first["io"], first["slot"], first["shape"]) == (True, "output", 0, [2])
    assert (said["tensors"], said["unknown"], said["problems"]) == (10, 0, [])


def test_nothing_found_is_reported_and_ends_with_0(tmp_path: Path) -> None:
    dump(tmp_path / DEVICE, "Add", 1, half(1, 2), half(3, 4))
    done = check(tmp_path, "--emit-config", tmp_path / "acl.json")
    assert done.output.splitlines() == [
        "no findings (2 tensors checked)",
        f"opdump: nothing was found, so {tmp_path / 'acl.json'} was not written",
    ]
    assert (done.exit_code, (tmp_path / "acl.json").exists()) == (0, False)


def test_options_move_the_thresholds(broken: Path) -> None:
    assert "extreme" not in check(broken, "--extreme", "1").output
    assert "... and 3 more findings (--limit 0 shows all)" in check(broken, "--limit", "1").output
    assert check(broken, "--extreme", "1.5").exit_code == 2


def test_bfloat16_and_complex_numbers_are_looked_at(tmp_path: Path) -> None:
    dump(
        tmp_path / DEVICE, "Exp", 1, np.array([1], ml_dtypes.bfloat16), np.array([3.38e38, np.inf], ml_dtypes.bfloat16)
    )
    dump(tmp_path / DEVICE, "Abs", 2, np.array([1], np.complex64), np.array([1 + 1j * np.inf, np.nan], np.complex64))
    found = [(row[2], row[7]) for row in rows(check(tmp_path))]
    assert found == [("net/Exp1", "inf"), ("net/Exp1", "extreme"), ("net/Abs2", "nan"), ("net/Abs2", "inf")]


def test_an_overflow_file_is_a_finding_of_its_operator(tmp_path: Path) -> None:
    place = tmp_path / DEVICE
    dump(place, "Add", 57, half(1), half(2))
    overflow_file(place, f"Opdebug.Node_OpDebug.59.5.{TIME + 99}", task=57, stream=2, status=0x110)
    done = check(tmp_path, "--json")
    (found,) = json.loads(done.output)["findings"]
    assert (found["check"], found["op_name"], found["op_type"], found["status"]) == (
        "overflow",
        "net/Add57",
        "Add",
        272,
    )
    assert (found["rank"], found["step"], found["net_name"]) == (0, 0, "net")
    assert (check(tmp_path, "--step", "0").exit_code, check(tmp_path, "--step", "1").exit_code) == (1, 2)
    assert "0x110 overflow of an integer addition" in check(tmp_path).output


def test_overflow_files_of_one_name_are_findings_of_their_own_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        place = tmp_path / DEVICE.replace("/0/", f"/{rank}/", 1)
        dump(place, "Add", 57, half(1), half(2))
        overflow_file(place, f"Opdebug.Node_OpDebug.59.5.{TIME + 99}", task=57, stream=2, status=0x110)
    assert [each["rank"] for each in json.loads(check(tmp_path, "--json").output)["findings"]] == [0, 1]


def test_json_of_every_output_of_an_overflow_file_is_a_finding_of_its_rank(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / DEVICE
    dump(place, "Add", 57, half(1), half(2))
    name = f"Opdebug.Node_OpDebug.59.5.{TIME + 99}"
    for slot, status in enumerate((0x110, 0x20)):
        overflow_file(source / str(slot), name, task=57, stream=2, status=status)
        convert([str(source / str(slot))], source, ConversionPlan())
        (source / f"{name}.output.0.json").rename(place / f"{name}.output.{slot}.json")
    shutil.rmtree(source)
    found = json.loads(check(tmp_path, "--rank", "0", "--json").output)["findings"]
    assert sorted((each["status"], each["rank"], each["op_name"]) for each in found) == [
        (0x20, 0, "net/Add57"),
        (0x110, 0, "net/Add57"),
    ]


def test_a_damaged_file_is_no_clean_dump(tmp_path: Path) -> None:
    dump(tmp_path / DEVICE, "Add", 1, half(1, 2), half(3, 4))
    path = tmp_path / DEVICE / f"Add.net_Add2.2.2.{TIME}"
    path.write_bytes(b"\xff" * 20)
    done = check(tmp_path)
    assert "opdump: problem: " in done.output
    assert path.name in done.output
    assert done.exit_code == 2


def test_where_nothing_can_be_checked_it_ends_with_2(tmp_path: Path) -> None:
    assert check(tmp_path / "missing").exit_code == 2
    assert check().exit_code == 2
    done = check(tmp_path, "--dialect", "acl")
    assert "add --emit-config FILE" in done.output


def test_the_second_data_dump_json_selects_the_suspicious_operators_alone(broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "data_dump.json"
    done = check(broken, "--emit-config", file, "--path", "/tmp/second")
    assert f"opdump: wrote {file} (3 operators); next: opdump run -c {file} ..." in done.output
    settings = json.loads(file.read_text())["common_dump_settings"]
    assert settings["kernels"] == ["net/Exp2", "net/Sub4", "net/Cast5"]  # not net/Mul3, which read an inf
    assert (settings["path"], settings["net_name"], settings["saved_data"]) == ("/tmp/second", "net", "tensor")
    assert (settings["dump_mode"], settings["iteration"], settings["input_output"]) == (1, "0", 0)


def test_the_second_acl_json_lists_models_and_layers(broken: Path, tmp_path: Path) -> None:
    second = broken / "20231114221320" / "0" / "net" / "1"
    for step in (1, 3, 4):
        dump(second / str(step), "Exp", 2, half(1), half(np.inf if step > 1 else 3))
    file = tmp_path / "acl.json"
    check(second, "--emit-config", file)
    assert json.loads(file.read_text())["dump"] == {
        "dump_path": str(broken),
        "dump_mode": "all",
        "dump_data": "tensor",
        "dump_step": "0|3-4",
        "dump_list": [{"model_name": "net", "layer": ["net/Exp2", "net/Sub4", "net/Cast5"]}],
    }


def test_the_dialect_is_that_of_the_option_then_of_the_name_then_of_the_dump(broken: Path, tmp_path: Path) -> None:
    def keys(name: str, *options: str) -> list[str]:
        check(broken, "--emit-config", tmp_path / name, "--path", "/tmp/second", *options)
        return list(json.loads((tmp_path / name).read_text()))

    assert keys("second.json") == ["dump"]
    assert keys("my_data_dump.json") == ["common_dump_settings", "e2e_dump_settings"]
    assert keys("acl.json", "--dialect", "mindspore") == ["common_dump_settings", "e2e_dump_settings"]


def test_operators_outside_of_models_are_dumped_under_the_switch() -> None:
    suspects = [SelectedOperator("Add.1"), SelectedOperator("conv", "resnet", 2)]
    dump = json.loads(drilldown_config("acl", suspects, path="/d", first={}, recorded_steps=(1, 2)))["dump"]
    assert (dump["dump_op_switch"], dump.get("dump_step")) == ("on", None)  # the step of one of them is unknown
    assert dump["dump_list"] == [{"layer": ["Add.1"]}, {"model_name": "resnet", "layer": ["conv"]}]


def test_the_second_configuration_keeps_the_network_devices_and_layout_of_the_first() -> None:
    first = {
        "common_dump_settings": {"net_name": "LeNet", "support_device": [2], "saved_data": "statistic", "path": "/a"},
        "e2e_dump_settings": {"enable": True, "trans_flag": False, "stat_calc_mode": "device"},
        "opdump": {"layout": "mindspore-2.10"},
    }
    second = json.loads(drilldown_config("mindspore", [SelectedOperator("a/b-op1", "x", 5)], path="/b", first=first))
    common = second["common_dump_settings"]
    assert (common["net_name"], common["support_device"], common["saved_data"], common["path"]) == (
        "LeNet",
        [2],
        "tensor",
        "/b",
    )
    assert second["e2e_dump_settings"] == {"enable": True, "trans_flag": False}
    assert second["opdump"] == {"layout": "mindspore-2.10"}


@pytest.mark.parametrize(
    "name", ["net/conv-op1", "Add", "a.b*c(d)[e]^f$g{h}|i\\j+k?", 'with "quotes" and spaces/x', "name-regex(x)/y)"]
)
def test_a_kernel_entry_selects_its_operator_and_no_similar_name(name: str) -> None:
    text = drilldown_config("mindspore", [SelectedOperator(name)], path="/d", first={})
    (entry,) = json.loads(text)["common_dump_settings"]["kernels"]
    pattern = KernelPattern.parse(entry)
    assert pattern.matches(name, "Whatever")
    assert not pattern.matches(name + "1", name)


def test_what_no_configuration_can_say_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"found the dump path '/a\.b'.*--path"):
        drilldown_config("mindspore", [SelectedOperator("a")], path="/a.b", first={})
    with pytest.raises(ConfigError, match="nothing to dump"):
        drilldown_config("acl", [], path="/a", first={})


@pytest.mark.torch
def test_the_second_run_under_the_emitted_configuration_dumps_what_was_suspicious(tmp_path: Path) -> None:
    torch = importlib.import_module("torch")  # an import statement would exclude the whole file if torch is missing
    import opdump

    def program(dump: Any) -> None:
        for step in range(3):
            torch.ones(4).mul(200.0 if step == 1 else 1.0).exp().mul(2).add(1)
            dump.step()

    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "data_dump.json"
    with opdump.capture(path=first, saved_data="statistic") as dump_of_first:
        program(dump_of_first)
    assert check(first, "--emit-config", file, "--path", second).exit_code == 1
    accepted = CliRunner().invoke(main, ["config", "check", str(file)])
    assert accepted.exit_code == 0, accepted.output
    with opdump.capture(str(file)) as dump_of_second:
        program(dump_of_second)
    recorded = {(each.op.step, each.op.op_type, each.io) for each in opdump.open(second).tensors()}
    assert recorded == {(1, "exp", "input"), (1, "exp", "output")}
