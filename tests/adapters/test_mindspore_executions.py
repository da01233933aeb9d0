"""Each execution in MindSpore's dump is read once, completely, and then removed; files that arrive meanwhile stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opdump.adapters.host import HostTensor
from opdump.adapters.mindspore.executions import Executions, has_files

NAME = "{op}.Default_{op}-op0.0.0.{stamp}.{io}.0.DefaultFormat.Float32.npy"


def leave(root: Path, iteration: int, op: str, stamp: int, value: float) -> None:
    """Write the files of an operator with one input and one output, as MindSpore does."""
    directory = root / f"Net/0/{iteration}"
    directory.mkdir(parents=True, exist_ok=True)
    for number, io in enumerate(("input", "output")):
        array = np.full(3, value + number, np.float32)
        np.save(directory / NAME.format(op=op, stamp=stamp + number, io=io), array)


def taken(executions: Executions) -> list[tuple[int | None, list[str], list[float]]]:
    """Per execution: its iteration, its operators, and the first value of each tensor."""
    found = []
    for each in executions.take():
        tensors = [tensor for tensor in each.tensors if isinstance(tensor, HostTensor)]
        names = [operator.operator.op_type for operator in each.program.operators]
        found.append((each.place.step, names, [float(tensor.raw()[0]) for tensor in tensors]))
    return found


def test_an_execution_is_taken_once_and_its_files_are_removed(tmp_path: Path) -> None:
    executions = Executions(tmp_path, 0)
    leave(tmp_path, 0, "Exp", 1000, 1)
    leave(tmp_path, 0, "Log", 2000, 5)
    assert has_files(tmp_path)
    assert taken(executions) == [(0, ["Exp", "Log"], [1, 2, 5, 6])]
    assert not has_files(tmp_path)
    assert taken(executions) == []
    executions.close()
    assert executions.problems == []


def test_a_second_execution_in_one_iteration_is_taken_too(tmp_path: Path) -> None:
    executions = Executions(tmp_path, 0)
    for value in (1, 7):
        leave(tmp_path, 0, "Exp", 1000 * value, value)
        assert taken(executions) == [(0, ["Exp"], [value, value + 1])]
    executions.close()
    assert (tmp_path / "Net/0/0").is_dir(), "MindSpore may write into it again"


def test_the_directory_of_an_iteration_goes_when_a_later_one_is_there(tmp_path: Path) -> None:
    executions = Executions(tmp_path, 0)
    for iteration in range(5):
        leave(tmp_path, iteration, "Exp", 1000 * (iteration + 1), iteration)
        assert taken(executions) == [(iteration, ["Exp"], [iteration, iteration + 1])]
    executions.close()
    assert sorted(path.name for path in (tmp_path / "Net/0").iterdir()) == ["4"]


def test_what_comes_into_an_earlier_iteration_is_not_lost(tmp_path: Path) -> None:
    executions = Executions(tmp_path, 0)
    leave(tmp_path, 0, "Exp", 1000, 0)
    leave(tmp_path, 1, "Exp", 2000, 1)
    steps = []
    for execution in executions.take():
        steps.append(execution.place.step)
        if execution.place.step == 0:
            leave(tmp_path, 0, "Late", 9000, 9)
    executions.close()
    again = Executions(tmp_path, 0)
    assert steps == [0, 1]
    assert taken(again) == [(0, ["Late"], [9, 10])]
    again.close()


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    executions = Executions(tmp_path, 0)
    leave(tmp_path, 0, "Exp", 1000, 1)
    next((tmp_path / "Net/0/0").glob("*output*")).write_bytes(b"")
    assert taken(executions) == [(0, ["Exp"], [1])]
    assert "is not an npy file" in str(executions.problems[0])
    executions.close()
