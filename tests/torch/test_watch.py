"""Watch mode: the content of the outputs of watched operators after each operator, and which operator wrote into them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import opdump
from opdump.commands.show import show
from opdump.errors import CaptureStateError, ConfigError
from opdump.plan import DumpPlan, ModelSelection
from opdump.reports.completeness import closing_lines
from opdump.reports.watch import WatchedOutput, watched_outputs
from tests.torch.releases import WRITES_A_NUMBER


class Net(nn.Module):
    """The example of the documentation: A and B may write into the memory of C and D."""

    def __init__(self, spoil: Callable[[Tensor, Tensor], object] | None = None) -> None:
        super().__init__()
        self.A = nn.Linear(4, 4)
        self.B = nn.Linear(4, 4)
        self.C = nn.Linear(4, 4)
        self.D = nn.Conv1d(1, 1, 1)
        self.spoil = spoil

    def forward(self, x: Tensor) -> Tensor:
        c = self.C(x)
        d = self.D(x[:, None])[:, 0]
        a = self.A(x)
        if self.spoil is not None:
            self.spoil(c, a)
        result: Tensor = self.B(a) + c + d
        return result


def watch_plan(path: Path, *entries: ModelSelection) -> DumpPlan:
    return DumpPlan(
        path=path, captures="watch", inputs=False, layout="acl", file_format="bin", dialect="acl", models=entries
    )


SAMPLE = ModelSelection(layers=("A", "B"), watcher_nodes=("C", "D"))


def looks(path: Path) -> list[WatchedOutput]:
    return watched_outputs(opdump.open(path).executions(include_skipped=True))


def test_the_sample_of_the_documents_gives_exactly_its_four_files(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(2, 4)
    with torch.no_grad(), opdump.capture(watch_plan(tmp_path, SAMPLE)):
        net(x)
    files = [file for file in tmp_path.rglob("*") if file.is_file() and ".dump_metadata" not in file.parts]
    assert sorted(file.name.rsplit(".", 3)[0] for file in files) == [
        "addmm.A_To_C",
        "addmm.B_To_C",
        "convolution.A_To_D",
        "convolution.B_To_D",
    ]
    assert {file.parent.relative_to(tmp_path).parts[1:] for file in files} == {("0",)}
    with torch.no_grad():
        expected = {"C": net.C(x), "D": net.D(x[:, None])}
    for file in files:
        (tensor,) = opdump.read_dump_file(file).outputs
        held = np.frombuffer(bytes(tensor.data.read()), np.float32).reshape(tensor.shape)
        assert np.array_equal(held, expected[file.name.split("_To_")[1][0]].numpy())


def test_the_sample_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    config = {
        "dump_list": [{"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}],
        "dump_path": str(tmp_path / "output"),
        "dump_mode": "output",
        "dump_scene": "watcher",
    }
    (tmp_path / "acl.json").write_text(json.dumps({"dump": config}))
    net = Net()
    with torch.no_grad(), opdump.capture(tmp_path / "acl.json") as dump:
        net(torch.randn(2, 4))
    assert len(list((tmp_path / "output").rglob("*_To_*"))) == 4
    assert dump.report is not None
    line = closing_lines(dump.report)[0]
    ran = sum(dump.report.skipped.values())
    assert f"{ran} operators ran, watched outputs were read 6 times; step 0, " in line, line
    assert " in 5 files, " in line


def spoil_by_index(c: Tensor, a: Tensor) -> None:
    c[0, 0] = 7


def spoil_by_a_view(c: Tensor, a: Tensor) -> None:
    c.view(-1)[2:3].add_(1)


def spoil_by_data(c: Tensor, a: Tensor) -> None:
    c.data.mul_(2)


def spoil_by_detach(c: Tensor, a: Tensor) -> None:
    c.detach().zero_()


def spoil_by_a_transpose(c: Tensor, a: Tensor) -> None:
    c.t().copy_(a.t())


def spoil_by_out(c: Tensor, a: Tensor) -> None:
    torch.sub(a, 1, out=c)


def spoil_by_a_list(c: Tensor, a: Tensor) -> None:
    torch._foreach_mul_([a.clone(), c], 3.0)


def spoil_by_scatter(c: Tensor, a: Tensor) -> None:
    c.scatter_(1, torch.zeros(2, 1, dtype=torch.int64), 9.0)


def spoil_by_numpy(c: Tensor, a: Tensor) -> None:
    c.numpy()[1, 1] = -5
    torch.neg(a)


def spoil_by_a_kernel(c: Tensor, a: Tensor) -> None:
    torch.ops.opdump_watched.stray(a, c.data_ptr())


_LIBRARY = torch.library.Library("opdump_watched", "DEF")
_LIBRARY.define("stray(Tensor x, int address) -> Tensor")


@torch.library.impl(_LIBRARY, "stray", "CPU")
def _stray(x: Tensor, address: int) -> Tensor:
    """Declares no writes, and writes to the given address."""
    ctypes.memset(address, 1, 4)
    return x.clone()


SPOILERS: dict[Callable[[Tensor, Tensor], None], str] = {
    spoil_by_index: WRITES_A_NUMBER,
    spoil_by_a_view: "aten::add_.Tensor",
    spoil_by_data: "aten::mul_.Tensor",
    spoil_by_detach: "aten::zero_",
    spoil_by_a_transpose: "aten::copy_",
    spoil_by_out: "aten::sub.out",
    spoil_by_a_list: "aten::_foreach_mul_.Scalar",
    spoil_by_scatter: "aten::scatter_.value",
    # PyTorch does not see the writer itself, so the next operator is named.
    spoil_by_numpy: "aten::neg",
    spoil_by_a_kernel: "opdump_watched::stray",
}


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_a_program_that_writes_into_watched_memory_has_its_writer_named(
    spoil: Callable[[Tensor, Tensor], None], tmp_path: Path
) -> None:
    net, x = Net(spoil), torch.randn(2, 4)
    with torch.no_grad(), opdump.capture(watch=["C", "D"], path=tmp_path):
        net(x)
    of_c, of_d = looks(tmp_path)
    assert (of_c.node, of_d.node) == ("C", "D")
    assert of_c.writer is not None
    assert of_c.writer.kernel == SPOILERS[spoil]
    assert of_c.changes == 1
    assert of_c.writer.stack[0].file == __file__
    assert of_d.writer is None


def clean_sum(c: Tensor, a: Tensor) -> None:
    c + a


def clean_copy(c: Tensor, a: Tensor) -> None:
    c.clone().mul_(2)


def clean_view(c: Tensor, a: Tensor) -> None:
    c.view(-1).t().sum()


def clean_numpy(c: Tensor, a: Tensor) -> None:
    c.numpy().sum()


def clean_other(c: Tensor, a: Tensor) -> None:
    a.add_(1)


def clean_out(c: Tensor, a: Tensor) -> None:
    torch.sub(c, 1, out=torch.empty_like(c))


def clean_list(c: Tensor, a: Tensor) -> None:
    torch._foreach_mul([c, a], 3.0)


def clean_chunks(c: Tensor, a: Tensor) -> None:
    torch.cat([part.relu() for part in c.chunk(2)])


def clean_rewrite(c: Tensor, a: Tensor) -> None:
    c.copy_(c.clone())  # the same bytes


def clean_release(c: Tensor, a: Tensor) -> None:
    for _ in range(5):  # memory of the same size is allocated and freed
        torch.empty_like(c).fill_(3)


CLEAN = (
    *(clean_sum, clean_copy, clean_view, clean_numpy, clean_other),
    *(clean_out, clean_list, clean_chunks, clean_rewrite, clean_release),
)


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_a_clean_program_has_no_writer(program: Callable[[Tensor, Tensor], None], tmp_path: Path) -> None:
    net, x = Net(program), torch.randn(2, 4)
    with torch.no_grad(), opdump.capture(watch=["C", "D"], path=tmp_path):
        net(x)
    found = looks(tmp_path)
    assert [output.node for output in found] == ["C", "D"]
    assert all(output.writer is None and output.looks > 3 for output in found)


def test_memory_that_is_reused_after_an_output_was_dropped_is_no_change_of_the_output(tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.C = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            self.C(x)
            for number in range(20):
                x = torch.full_like(x, float(number))
            return x

    with torch.no_grad(), opdump.capture(watch="C", path=tmp_path):
        Dropping()(torch.ones(64, 64))
    (output,) = looks(tmp_path)
    assert output.writer is None
    assert output.looks >= 20


def test_tensors_of_the_program_are_watched_from_where_it_says_so(tmp_path: Path) -> None:
    table, other = torch.zeros(3), torch.ones(2)
    with opdump.capture(watch={"table": table}, path=tmp_path):
        torch.ones(2) + 1
        opdump.watch(other)
        table[1] = 4
        other.mul_(2)
    of_table, of_other = looks(tmp_path)
    assert (of_table.node, of_other.node) == ("table", "tensor0")
    assert of_table.writer is not None
    assert of_other.writer is not None
    assert (of_table.writer.kernel, of_other.writer.kernel) == (WRITES_A_NUMBER, "aten::mul_.Tensor")


def test_other_memory_given_through_data_is_a_change(tmp_path: Path) -> None:
    table = torch.zeros(3)
    with opdump.capture(watch={"table": table}, path=tmp_path):
        torch.ones(2) + 1
        table.data = torch.ones(3)
        torch.ones(2).neg()
    (output,) = looks(tmp_path)
    assert output.writer is not None


def test_an_operator_that_runs_again_is_watched_anew(tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad(), opdump.capture(watch="C", path=tmp_path):
        net(torch.randn(2, 4))
        net(torch.randn(2, 4))
    found = looks(tmp_path)
    assert [output.node for output in found] == ["C", "C"]
    assert all(output.writer is None for output in found)


def test_an_operator_in_both_lists_leaves_no_file(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(watch_plan(tmp_path, ModelSelection(layers=("C",), watcher_nodes=("C",)))):
        Net()(torch.randn(2, 4))
    assert not list(tmp_path.rglob("*_To_*"))


def test_a_watched_name_that_matches_nothing_is_reported_at_the_end(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(watch=["C", "conv9"], path=tmp_path) as dump:
        Net()(torch.randn(2, 4))
    assert dump.report is not None
    (warning,) = dump.report.warnings
    assert warning.startswith("watch: 'conv9' is not an operator or module that ran; nearest: ")


def test_show_names_the_writer(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(watch=["C", "D"], path=tmp_path):
        Net(spoil_by_a_view)(torch.randn(2, 4))
    shown = CliRunner().invoke(show, [str(tmp_path), "--watch"])
    assert shown.exit_code == 0
    assert "aten::add_.Tensor" in shown.output
    assert "test_watch.py" in shown.output
    assert "2 watched outputs" in shown.output
    rows = json.loads(CliRunner().invoke(show, [str(tmp_path), "--watch", "--json"]).output)["watched"]
    assert [row["first_changed_after"] is None for row in rows] == [False, True]


def test_a_dump_without_an_index_is_compared_from_its_first_look(tmp_path: Path) -> None:
    with torch.no_grad(), opdump.capture(watch=["C"], path=tmp_path):
        Net(spoil_by_a_view)(torch.randn(2, 4))
    (index,) = tmp_path.rglob("index.sqlite")
    index.unlink()
    (output,) = looks(tmp_path)
    assert output.writer is not None
    assert output.changes == 1


def test_show_says_that_a_dump_holds_no_looks(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        torch.ones(2) + 1
    shown = CliRunner().invoke(show, [str(tmp_path), "--watch"])
    assert shown.exit_code != 0
    assert "A_To_C" in str(shown.exception)


def test_watching_without_a_watch_capture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureStateError, match="no capture is running"):
        opdump.watch("C")
    with opdump.capture(path=tmp_path), pytest.raises(CaptureStateError, match="watch=\\["):
        opdump.watch("C")
    with pytest.raises(ConfigError, match="one mode"), opdump.capture(watch="C", overflow=True, path=tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match='layout "acl"'),
        opdump.capture(watch="C", layout="mindspore-2.3", path=tmp_path),
    ):
        pass
    with pytest.raises(ConfigError, match="expected tensors"), opdump.capture(watch={"a": 3}, path=tmp_path):
        pass


def test_messages_about_an_acl_json_use_the_keys_of_that_file(tmp_path: Path) -> None:
    entry = {"layer": ["A", "D9"], "watcher_nodes": ["C", "B9"]}
    dump = {"dump_path": str(tmp_path), "dump_list": [entry], "dump_mode": "output", "dump_scene": "watcher"}
    (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
    with torch.no_grad(), opdump.capture(tmp_path / "acl.json") as running:
        Net()(torch.randn(2, 4))
    assert running.report is not None
    told = [text.partition(" is no")[0] for text in running.report.warnings]
    assert told == ["dump_list.watcher_nodes: 'B9'", "dump_list.layer: 'D9'"]
