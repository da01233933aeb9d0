"""Dumps of Ascend devices: the meaning of their directories, in both generations, and the runs that they contain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.errors import NotInDumpError, UnknownLayoutError
from opdump.layouts.ascend.places import started
from opdump.layouts.graph_files.mindspore.spelling import EXECUTION_ORDER_HEADER
from tests.layouts.ascend_dumps import LATER, STAMP, TIME, add_dump_file, add_npy


class TestDirectories:
    @pytest.mark.parametrize(
        ("directory", "step", "net_name", "graph_id"),
        [
            (f"{TIME}/3", 0, "", 0),
            (f"{TIME}/3/11", 0, "", 11),
            (f"{TIME}/3/11/2", 2, "", 11),
            (f"{TIME}/3/resnet50", 0, "resnet50", 0),
            (f"{TIME}/3/resnet50/11", 0, "resnet50", 11),
            (f"{TIME}/3/resnet50/11/2", 2, "resnet50", 11),
            (f"{TIME}/3/2024/11/2", 2, "2024", 11),
            (f"7/{TIME}/3", 7, "", 0),
            (f"7/{TIME}/3/resnet50/11/2", 7, "resnet50", 11),
        ],
    )
    def test_every_level_that_may_be_there_is_understood(
        self, tmp_path: Path, directory: str, step: int, net_name: str, graph_id: int
    ) -> None:
        add_dump_file(tmp_path / directory)
        catalog = open_dump(tmp_path)
        (op,) = catalog.ops()
        assert (op.rank_id, op.device_id, op.step, op.net_name, op.graph_id) == (3, 3, step, net_name, graph_id)
        assert (catalog.ranks, catalog.steps, catalog.graphs) == ((3,), (step,), (graph_id,))
        assert catalog.problems == ()

    @pytest.mark.parametrize("depth", range(6))
    def test_any_directory_of_a_dump_can_be_opened(self, tmp_path: Path, depth: int) -> None:
        parts = ("7", TIME, "3", "resnet50", "11", "2")
        add_dump_file(tmp_path.joinpath(*parts))
        (op,) = open_dump(tmp_path.joinpath(*parts[: depth + 1])).ops()
        assert (op.rank_id, op.step, op.net_name, op.graph_id) == (3, 7, "resnet50", 11)

    def test_a_part_holds_no_more_than_is_in_it(self, tmp_path: Path) -> None:
        for index in range(3):
            add_dump_file(tmp_path / TIME / "0" / "net" / "1" / str(index))
        assert open_dump(tmp_path / TIME / "0" / "net").steps == (0, 1, 2)
        assert open_dump(tmp_path / TIME / "0" / "net" / "1" / "2").steps == (2,)

    def test_single_operators_stand_beside_models(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / f"4/{TIME}/0/net/1/0", f"ReduceSum.comm.1.5.{STAMP + 1}", "comm")
        add_dump_file(tmp_path / f"4/{TIME}/0", f"net_fc_MatMul.MatMulV2.1.5.{STAMP}", "net/fc/MatMul")
        ops = list(open_dump(tmp_path).ops(step=4))
        assert [(op.op_type, op.op_name, op.order) for op in ops] == [
            ("MatMulV2", "net/fc/MatMul", 0),
            ("ReduceSum", "comm", 1),
        ]

    def test_models_of_one_number_are_told_apart_by_name(self, tmp_path: Path) -> None:
        for number, name in enumerate(["one", "other"]):
            add_dump_file(tmp_path / TIME / "0" / name / "1" / "0", f"Add.add.1.5.{STAMP + number}", "add")
        ops = list(open_dump(tmp_path).ops(graph=1))
        assert [(op.net_name, op.occurrence) for op in ops] == [("one", 0), ("other", 0)]

    def test_devices_are_ranks(self, tmp_path: Path) -> None:
        for device in (0, 7):
            add_dump_file(tmp_path / TIME / str(device) / "net" / "1" / "0")
        catalog = open_dump(tmp_path)
        assert catalog.ranks == (0, 7)
        assert [op.rank_id for op in catalog.ops()] == [0, 7]

    def test_a_data_directory_that_was_copied_out_keeps_its_step(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "5")
        (op,) = open_dump(tmp_path / "5").ops()
        assert (op.step, op.rank_id) == (5, 0)

    def test_a_model_that_was_copied_out_keeps_its_name(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "resnet" / "11" / "2")
        (op,) = open_dump(tmp_path / "resnet").ops()
        assert (op.net_name, op.graph_id, op.step) == ("resnet", 11, 2)

    def test_a_folder_of_dump_files_of_any_name_can_be_opened(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "mine")
        catalog = open_dump(tmp_path / "mine")
        (run,) = catalog.runs
        assert (catalog.ranks, catalog.steps, run.started) == ((0,), (0,), STAMP)

    @pytest.mark.parametrize("opened", [".", "extra-info", "extra-info/data-dump"])
    def test_exception_dumps_are_read(self, tmp_path: Path, opened: str) -> None:
        place = tmp_path / "extra-info" / "data-dump" / "2"
        add_dump_file(place, "exception_info.7.12.20240101120000123", "")
        add_dump_file(place, "MatMul.mm.12.20240101120000124", "")
        ops = list(open_dump(tmp_path / opened).ops())
        assert [(op.op_name, op.rank_id, op.task_id) for op in ops] == [("exception_info", 2, 12), ("mm", 2, 12)]
        assert ops[1].timestamp - ops[0].timestamp == 1000

    def test_graph_files_beside_a_dump_give_true_names(self, tmp_path: Path) -> None:
        orders = tmp_path / "rank_0" / "execution_order"
        orders.mkdir(parents=True)
        (orders / "ms_execution_order_graph_1.csv").write_text(
            f"{EXECUTION_ORDER_HEADER}\nDefault/net/fc-Dense/MatMul-op1\n"
        )
        name = f"MatMul.Default_net_fc-Dense_MatMul-op1.1.5.{STAMP}.output.0.ND.npy"
        add_npy(tmp_path / TIME / "0" / "net" / "1" / "0", name, np.ones(2))
        catalog = open_dump(tmp_path)
        assert [op.op_name for op in catalog.ops()] == ["Default/net/fc-Dense/MatMul-op1"]
        assert catalog.execution_order(1) == ("Default/net/fc-Dense/MatMul-op1",)
        assert catalog.graph(1) is None
        assert catalog.constants() == ()
        assert catalog.history(1) == ()

    def test_a_dump_below_a_directory_that_looks_like_a_time_is_found(self, tmp_path: Path) -> None:
        root = tmp_path / LATER / "5"
        add_dump_file(root / TIME / "0" / "net" / "1" / "2")
        (op,) = open_dump(root).ops()
        assert (op.rank_id, op.net_name) == (0, "net")
        add_dump_file(tmp_path / LATER / "mine" / TIME / "3")
        (op,) = open_dump(tmp_path / LATER / "mine").ops()
        assert op.rank_id == 3

    def test_a_time_after_very_many_other_directories_is_found(self, tmp_path: Path) -> None:
        for number in range(600):
            (tmp_path / "3" / f"kept{number}").mkdir(parents=True)
        add_dump_file(tmp_path / "3" / TIME / "0/Net/1/3")
        assert [execution.op.step for execution in open_dump(tmp_path).executions()] == [3]

    def test_an_unknown_directory_is_told_what_either_layout_needs(self, tmp_path: Path) -> None:
        (tmp_path / "stuff").mkdir()
        with pytest.raises(UnknownLayoutError, match=r"holds stuff.*rank_0.*device_id"):
            open_dump(tmp_path)

    def test_the_directory_above_a_dump_names_it(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "mine" / TIME / "0")
        with pytest.raises(UnknownLayoutError, match=r"Did you mean .*mine\?"):
            open_dump(tmp_path)

    def test_a_single_file_says_how_it_is_read(self, tmp_path: Path) -> None:
        path = add_dump_file(tmp_path)
        with pytest.raises(UnknownLayoutError, match=r"is a file.*opdump\.read_dump_file"):
            open_dump(path)

    @pytest.mark.parametrize("below", ["", "rank_2", "rank_2/net", "rank_2/net/1", "rank_2/net/1/3"])
    def test_dump_files_where_older_versions_of_mindspore_wrote_them_are_read(self, tmp_path: Path, below: str) -> None:
        add_dump_file(tmp_path / "rank_2" / "net" / "1" / "3")
        catalog = open_dump(tmp_path / below)
        assert [record.op.op_name for record in catalog] == ["net/conv1"]
        assert [(op.rank_id, op.net_name, op.graph_id, op.step) for op in catalog.ops()] == [(2, "net", 1, 3)]

    def test_dump_files_below_ranks_hide_no_dump_of_a_device_beside_them(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "rank_0" / "net" / "1" / "3", op_name="net/old")
        add_dump_file(tmp_path / TIME / "0" / "net" / "1" / "4", op_name="net/new")
        assert {op.op_name for op in open_dump(tmp_path, run="all").ops()} == {"net/old", "net/new"}

    def test_a_directory_of_numbers_is_no_dump(self, tmp_path: Path) -> None:
        (tmp_path / TIME / "0").mkdir(parents=True)
        (tmp_path / "12345").write_text("x")
        with pytest.raises(UnknownLayoutError):
            open_dump(tmp_path)


class TestRuns:
    def test_each_time_is_a_run(self, tmp_path: Path) -> None:
        for number, time in enumerate((TIME, LATER)):
            for index in range(2 - number):
                name = f"Add.run{number}.1.5.{STAMP}"
                add_dump_file(tmp_path / time / "0" / "net" / "1" / str(index), name, f"run{number}")
        catalog = open_dump(tmp_path)
        assert [(run.id, run.started, run.device_target) for run in catalog.runs] == [
            (1, started(TIME), "Ascend"),
            (2, started(LATER), "Ascend"),
        ]
        assert [(op.step, op.op_name) for op in catalog.ops()] == [(0, "run1"), (1, "run0")]
        assert [op.op_name for op in open_dump(tmp_path, run="all").ops(step=0)] == ["run0", "run1"]
        assert [op.step for op in open_dump(tmp_path, run=1).ops()] == [0, 1]
        assert open_dump(tmp_path, run=2).steps == (0,)
        with pytest.raises(NotInDumpError, match="no run 3"):
            open_dump(tmp_path, run=3)

    def test_steps_that_each_have_their_own_time_are_one_run(self, tmp_path: Path) -> None:
        for step, minute in ((0, 1), (1, 2), (2, 3), (0, 4), (1, 5)):
            add_dump_file(tmp_path / str(step) / f"2024112012{minute:02}00" / "0")
        catalog = open_dump(tmp_path)
        assert [run.id for run in catalog.runs] == [1, 2]
        assert catalog.steps == (0, 1, 2)
        assert open_dump(tmp_path, run=2).steps == (0, 1)

    def test_devices_count_their_runs_by_themselves(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / "0" / TIME / "0")
        add_dump_file(tmp_path / "0" / LATER / "1")
        assert [(run.rank_id, run.id) for run in open_dump(tmp_path).runs] == [(0, 1), (1, 1)]
