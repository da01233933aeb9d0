"""Dumps of Ascend devices: the meaning of their files and directories, and the runs that they are."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, read_dump_file, write_dump_file
from opdump.dump_file.names import sanitise
from opdump.errors import CorruptDumpError, NotInDumpError, UndecodableTensorError, UnknownLayoutError
from opdump.layouts.ascend.places import started
from opdump.layouts.base import LAYOUTS, Layout
from opdump.layouts.graph_files.mindspore.spelling import EXECUTION_ORDER_HEADER
from opdump.layouts.mindspore_sync.files import dtype_token
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.records import OpRecord, TensorRecord
from opdump.testing.layout_tests import LayoutTests, assert_same_bits
from opdump.testing.stand_ins import SampleStep, sample_step
from tests.layouts.filing import LATER, STAMP, TIME, add_dump_file, add_npy, rows_of, tensor


class TestDumpFiles:
    def test_a_record_says_what_the_header_says(self, tmp_path: Path) -> None:
        weight = np.arange(32, dtype="float32").reshape(1, 1, 1, 2, 16)
        add_dump_file(
            tmp_path / TIME / "0",
            inputs=(
                tensor("input", 0, weight, dtype="bfloat16", layout="NC1HWC0"),
                tensor("input", 1, np.array([True])),
            ),
            outputs=(tensor("output", 0, np.array(2.5, dtype="float16")),),
        )
        first, second, third = open_dump(tmp_path)
        assert (first.name, first.dtype, first.shape) == ("net/conv1:input:0", "bfloat16", (1, 1, 1, 2, 16))
        assert (first.format, first.data_size) == ("NC1HWC0", 64)
        assert (first.op.op_type, first.op.task_id, first.op.stream_id, first.op.timestamp) == ("Conv2D", 1, 5, STAMP)
        assert first.payload is not None
        assert_same_bits(first.payload.to_host(), weight)
        assert (second.dtype, second.shape, second.data_size) == ("bool", (1,), 1)
        assert third.shape == ()
        assert third.payload is not None
        assert third.payload.to_host() == 2.5

    @pytest.mark.parametrize(
        ("name", "stream"), [(f"Conv2D.net_conv1.1.{STAMP}", 65535), (f"Conv2D.net_conv1.1.5.{STAMP}", 5)]
    )
    def test_names_of_four_and_five_parts_are_read(self, tmp_path: Path, name: str, stream: int) -> None:
        add_dump_file(tmp_path / TIME / "0", name)
        (op,) = open_dump(tmp_path).ops()
        assert (op.op_type, op.op_name, op.stream_id, op.timestamp) == ("Conv2D", "net/conv1", stream, STAMP)

    def test_files_of_the_older_version_are_read(self, tmp_path: Path) -> None:
        path = add_dump_file(tmp_path / TIME / "0")
        write_dump_file(path, replace(read_dump_file(path), version="1.0", variant="1.0"))
        (record,) = open_dump(tmp_path)
        assert record.payload is not None
        assert record.payload.to_host().tolist() == [0, 1, 2]

    def test_the_threads_of_an_operator_are_executions(self, tmp_path: Path) -> None:
        for thread in range(2):
            add_dump_file(tmp_path / TIME / "0", f"Relu.op.9.3.{STAMP + thread}.4.1.{thread}.0", "op")
        assert [op.occurrence for op in open_dump(tmp_path).ops()] == [0, 1]

    def test_time_stamps_give_the_order_and_repetitions(self, tmp_path: Path) -> None:
        for name, later in (("b", 0), ("a", 1), ("b", 2), ("c", 1)):
            add_dump_file(tmp_path / TIME / "0", f"Add.{name}.1.5.{STAMP + later}", name)
        ops = list(open_dump(tmp_path).ops())
        assert [(op.op_name, op.order, op.occurrence) for op in ops] == [
            ("b", 0, 0),
            ("a", 1, 0),
            ("c", 2, 0),
            ("b", 3, 1),
        ]

    def test_a_long_name_is_found_through_the_table(self, tmp_path: Path) -> None:
        place = tmp_path / TIME / "0"
        full = f"Conv2D.{'n' * 300}.1.5.{STAMP}"
        add_dump_file(place, "6142509188972423790", "n" * 300)
        (place / "mapping.csv").write_text(f"6142509188972423790,{full}\n" * 2)
        catalog = open_dump(tmp_path)
        (op,) = catalog.ops()
        assert (op.op_type, op.op_name, op.task_id) == ("Conv2D", "n" * 300, 1)
        assert catalog.problems == ()

    def test_a_step_that_is_read_twice_reports_its_problems_once(self, tmp_path: Path) -> None:
        add_dump_file(tmp_path / TIME / "0").write_bytes(b"")
        catalog = open_dump(tmp_path)
        for _ in range(3):
            assert list(catalog) == []
            catalog.graph(0)
        assert len(catalog.problems) == 1

    def test_files_are_opened_when_a_step_is_asked_for(self, tmp_path: Path) -> None:
        path = add_dump_file(tmp_path / TIME / "0")
        catalog = open_dump(tmp_path)
        path.write_bytes(b"")
        assert catalog.steps == (0,)
        assert catalog.problems == ()
        assert list(catalog) == []
        assert len(catalog.problems) == 1

    def test_a_payload_knows_when_its_file_changed(self, tmp_path: Path) -> None:
        path = add_dump_file(tmp_path / TIME / "0")
        (record,) = open_dump(tmp_path)
        write_dump_file(path, DumpFile())
        assert record.payload is not None
        with pytest.raises(CorruptDumpError):
            record.payload.to_host()

    def test_one_tensor_that_cannot_be_decoded_leaves_the_others(self, tmp_path: Path) -> None:
        whole = np.arange(4, dtype="float32")
        add_dump_file(
            tmp_path / TIME / "0",
            inputs=(tensor("input", 0, whole, short=2),),
            outputs=(tensor("output", 0, whole),),
        )
        catalog = open_dump(tmp_path)
        bad, good = catalog
        assert bad.payload is not None
        with pytest.raises(UndecodableTensorError, match="14 bytes"):
            bad.payload.to_host()
        assert good.payload is not None
        assert_same_bits(good.payload.to_host(), whole)
        assert len(catalog.problems) == 1
        assert "input:0" in str(catalog.problems[0])

    def test_a_tensor_without_bytes_has_no_payload(self, tmp_path: Path) -> None:
        missing = DumpTensor("output", 0, 1, 2, (2, 3), HeldBytes(b""))
        empty = DumpTensor("output", 1, 1, 2, (0, 3), HeldBytes(b""))
        add_dump_file(tmp_path / TIME / "0", outputs=(missing, empty))
        first, second = open_dump(tmp_path)
        assert (first.payload, first.shape, first.data_size) == (None, (2, 3), 24)
        assert second.payload is not None
        assert second.payload.to_host().shape == (0, 3)

    @pytest.mark.parametrize(
        ("number", "size", "shape", "expected"),
        [
            (1, 12, (), (3,)),
            (1, 4, (), ()),
            (0, 8, (2, 1), (8,)),
            (13, 7, (1,), (7,)),
            (99, 5, (1,), (5,)),
            (28, 2, (3,), (3,)),
        ],
    )
    def test_the_shape_of_a_record_is_that_of_its_elements(
        self, tmp_path: Path, number: int, size: int, shape: tuple[int, ...], expected: tuple[int, ...]
    ) -> None:
        odd = DumpTensor("output", 0, number, 2, shape, HeldBytes(bytes(size)))
        add_dump_file(tmp_path / TIME / "0", outputs=(odd,))
        (record,) = open_dump(tmp_path)
        assert record.shape == expected
        assert record.payload is not None
        assert record.payload.to_host().shape == expected

    @pytest.mark.parametrize("name", ["Opdebug.Node_OpDebug.59", "OpDebug.Node_Opdebug.59.5"])
    @pytest.mark.parametrize("ending", ["", ".output.0.json"])
    def test_overflow_files_are_listed_without_tensors(self, tmp_path: Path, name: str, ending: str) -> None:
        place = tmp_path / TIME / "0"
        path = add_dump_file(place, f"{name}.{STAMP}{ending}", "Node_OpDebug")
        (execution,) = open_dump(tmp_path).executions()
        assert execution.tensors == ()
        assert execution.op.task_id == 59
        assert execution.op.arguments == {"file": str(path.relative_to(tmp_path))}

    def test_json_of_every_output_of_an_overflow_file_is_listed(self, tmp_path: Path) -> None:
        place = tmp_path / TIME / "0"
        paths = [add_dump_file(place, f"Opdebug.Node_OpDebug.59.{STAMP}.output.{slot}.json", "") for slot in (0, 1)]
        (execution,) = open_dump(tmp_path).executions()
        files = [str(path.relative_to(tmp_path)) for path in paths]
        assert execution.op.arguments == {"file": files[0], "files": files}


class TestNpyFiles:
    BASE = f"MatMul.Default_fc_MatMul-op0.2.7.{STAMP}"

    def test_the_files_of_an_execution_belong_together(self, tmp_path: Path) -> None:
        place = tmp_path / TIME / "0" / "net" / "1" / "0"
        arrays = {
            ("output", 0): np.ones((2, 2)),
            ("input", 1): np.zeros(3, "int32"),
            ("input", 0): np.ones(1, "float16"),
        }
        for (kind, slot), array in arrays.items():
            add_npy(place, f"{self.BASE}.{kind}.{slot}.NCHW.npy", array)
        (execution,) = open_dump(tmp_path).executions()
        assert [(record.io, record.slot) for record in execution.tensors] == [("input", 0), ("input", 1), ("output", 0)]
        for record in execution.tensors:
            assert record.format == "NCHW"
            assert record.payload is not None
            assert_same_bits(record.payload.to_host(), arrays[record.io, record.slot])

    def test_the_type_in_a_name_is_the_true_one(self, tmp_path: Path) -> None:
        add_npy(tmp_path / TIME / "0", f"{self.BASE}.output.0.ND.BFloat16.npy", np.ones(3, "float32"))
        (record,) = open_dump(tmp_path)
        assert (record.dtype, record.data_size) == ("bfloat16", 6)

    def test_statistics_join_files_and_stand_alone(self, tmp_path: Path) -> None:
        place = tmp_path / TIME / "0" / "net" / "1" / "0"
        add_npy(place, f"{self.BASE}.output.0.ND.npy", np.ones(3, "float32"))
        header = (
            "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,L2Norm Value\n"
        )
        row = f'MatMul,Default/fc/MatMul-op0,2,7,{STAMP},output,0,6,bfloat16,"(3)",1,1.5\n'
        alone = f'Add,Default/Add-op1,3,7,{STAMP + 1},input,0,8,float32,"(2)",4,5\n'
        (place / "statistic.csv").write_text(header + row + alone)
        first, second = open_dump(tmp_path)
        assert (first.op.op_name, first.dtype) == ("Default/fc/MatMul-op0", "bfloat16")
        assert first.payload is not None
        assert first.statistics == {"max": 1.0, "l2norm": 1.5}
        assert (second.op.op_name, second.shape, second.payload) == ("Default/Add-op1", (2,), None)
        assert second.statistics == {"max": 4.0, "l2norm": 5.0}

    def test_a_converted_copy_beside_its_dump_file_is_no_second_tensor(self, tmp_path: Path) -> None:
        path = add_dump_file(tmp_path / TIME / "0")
        add_npy(path.parent, f"{path.name}.output.0.npy", np.ones(3))
        (record,) = open_dump(tmp_path)
        assert record.payload is not None
        assert record.payload.to_host().tolist() == [0, 1, 2]

    def test_several_conversions_of_one_tensor_are_reported_and_a_shape_is_no_format(self, tmp_path: Path) -> None:
        place = tmp_path / TIME / "0" / "net" / "1" / "0"
        name = f"Conv2D.net_conv1.1.5.{STAMP}.output.0"
        for ending in ("1x3", "ND"):
            add_npy(place, f"{name}.{ending}.npy", np.ones((1, 3), "float32"))
        catalog = open_dump(tmp_path)
        (record,) = catalog
        assert (record.shape, record.format) == ((1, 3), "DefaultFormat")
        (problem,) = catalog.problems
        assert f"{name}.ND.npy: holds the same tensor as" in str(problem)
        assert f"{name}.1x3.npy" in str(problem)
        add_dump_file(place)
        assert open_dump(tmp_path).problems == ()

    def test_a_damaged_file_is_a_record_and_a_problem(self, tmp_path: Path) -> None:
        add_npy(tmp_path / TIME / "0", f"{self.BASE}.output.0.ND.npy", np.ones(3)).write_bytes(b"\x93NUMPY")
        add_npy(tmp_path / TIME / "0", f"{self.BASE}.output.1.ND.npy", np.ones(3))
        catalog = open_dump(tmp_path)
        bad, good = catalog
        assert bad.payload is not None
        with pytest.raises(CorruptDumpError):
            bad.payload.to_host()
        assert good.shape == (3,)
        assert len(catalog.problems) == 1


CLASSIC = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,"
    "Positive Inf Count\n"
)


class TestOperatorStatistics:
    def read(self, tmp_path: Path, text: str) -> tuple[list[TensorRecord], list[str]]:
        place = tmp_path / TIME / "0"
        place.mkdir(parents=True)
        (place / f"Conv2D.net_conv1.1.5.{STAMP}.csv").write_text(text)
        catalog = open_dump(tmp_path)
        return list(catalog), [str(problem) for problem in catalog.problems]

    def test_the_classic_table(self, tmp_path: Path) -> None:
        records, problems = self.read(
            tmp_path,
            CLASSIC
            + "Input,0,24,DT_FLOAT,ND,2x3,1.5,-inf,0.25,6,0,1,0\n"
            + "Input,1,4,-,NC1HWC0,-,,,,,,,\n"
            + "Output,0,6,DT_BOOL,ND,6,1,0,nan,6,0,0,0\n",
        )
        assert problems == []
        first, second, third = records
        assert (first.op.op_name, first.op.timestamp, first.payload) == ("net_conv1", STAMP, None)
        assert (first.dtype, first.format, first.shape, first.data_size) == ("float32", "ND", (2, 3), 24)
        assert first.statistics == {
            "max": 1.5,
            "min": float("-inf"),
            "avg": 0.25,
            "count": 6,
            "nan count": 0,
            "negative inf count": 1,
            "positive inf count": 0,
        }
        assert (second.io, second.slot, second.dtype, second.shape, dict(second.statistics)) == (
            "input",
            1,
            "unknown",
            (),
            {},
        )
        assert third.io == "output"

    def test_the_table_of_the_accelerated_kernel(self, tmp_path: Path) -> None:
        records, problems = self.read(
            tmp_path,
            "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,l2norm\n"
            "Input,0,4,DT_BF16,ND,2,2,1.5,2.5\n"
            "Input,1,4,UNKNOW,UNKNOW,NA,NA,NA\n",
        )
        assert problems == []
        assert records[0].dtype == "bfloat16"
        assert records[0].statistics == {"count": 2, "max": 1.5, "l2norm": 2.5}
        assert (records[1].dtype, dict(records[1].statistics)) == ("unknown", {})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "begins with"),
            ("a,b\n", "begins with"),
            (CLASSIC + "Input,0,24\n", "cells"),
            (CLASSIC + "Input,0,24,DT_FLOAT,ND,2x3,1,1\n", "cells"),
            (CLASSIC + "Middle,0,24,DT_FLOAT,ND,2x3,,,,,,,\n", "expected Input or Output"),
            (CLASSIC + "Input,x,24,DT_FLOAT,ND,2x3,,,,,,,\n", "whole number"),
            (CLASSIC + "Input,0,24,DT_FLOAT,ND,2*3,,,,,,,\n", "Shape"),
            (CLASSIC + "Input,0,24,DT_FLOAT,ND,2x3,one,,,,,,\n", "expected a number"),
            (CLASSIC + "x" * 70000, "not a row"),
            (CLASSIC.replace("Count,Nan", "Max Value,Nan"), "two columns of max, 'Max Value' and 'Max Value'"),
        ],
    )
    def test_a_damaged_table_is_one_problem(self, tmp_path: Path, text: str, said: str) -> None:
        records, problems = self.read(tmp_path, text)
        assert records == []
        assert len(problems) == 1
        assert said in problems[0]


class TestAscendLayout(LayoutTests):
    """The reading side, on npy files and statistic.csv as MindSpore would write them for the sample step.

    These files have no room for stacks, arguments, skipped operators, or more than six digits; `kept` returns the rest.
    """

    def write(self, root: Path, steps: Sequence[SampleStep], rank_id: int = 0) -> None:
        for step in steps:
            ops, tensors = kept([step])
            encoder = StatisticEncoder(("max", "min", "avg", "nan count", "l2norm"))
            rows = [encoder.header]
            for op in ops:
                directory = root / TIME / str(op.rank_id) / op.net_name / str(op.graph_id) / str(op.step)
                its = [record for record in tensors if record.op == op]
                for record in its:
                    name = (
                        f"{op.op_type}.{sanitise(op.op_name)}.{op.task_id}.{op.stream_id}.{op.timestamp}.{record.io}."
                        f"{record.slot}.DefaultFormat.{dtype_token(record.dtype)}.npy"
                    )
                    assert record.payload is not None
                    stored = name if len(name) <= 255 else str(zlib.crc32(name.encode()))
                    file = io.BytesIO()
                    np.save(file, record.payload.to_host())
                    directory.mkdir(parents=True, exist_ok=True)
                    (directory / stored).write_bytes(file.getvalue())
                    if stored != name:
                        with (directory / "mapping.csv").open("a") as mapping:
                            mapping.write(f"{stored},{name}\n")
                rows.extend(rows_of(encoder, op, op.op_name, its))
                (directory / "statistic.csv").write_text("".join(rows))

    def layout(self) -> Layout:
        return LAYOUTS.load("acl")

    def kept(self, steps: Sequence[SampleStep]) -> tuple[list[OpRecord], list[TensorRecord]]:
        return kept(steps)

    def leave(self, root: Path, step: SampleStep) -> None:
        self.write(root, [step])  # dumps of devices do not record the end of a run

    def test_records_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        steps = [sample_step(0), sample_step(1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        expected_ops, expected = kept(steps)
        assert ops == expected_ops
        assert [replace(record, statistics={}) for record in tensors] == [
            replace(record, statistics={}) for record in expected
        ]

    def test_statistics_are_read_in_full_precision(self, tmp_path: Path) -> None:
        """Six digits, in these files."""
        self.write(tmp_path, [sample_step(5)])
        _, tensors = self.read(tmp_path)
        for found, expected in zip(tensors, kept([sample_step(5)])[1], strict=True):
            assert bool(found.statistics) == bool(expected.statistics)
            for name, value in found.statistics.items():
                assert value == pytest.approx(expected.statistics[name], rel=1e-5, nan_ok=True)


def kept(steps: Sequence[SampleStep]) -> tuple[list[OpRecord], list[TensorRecord]]:
    """The part of the records that these files keep."""
    ops: list[OpRecord] = []
    tensors: list[TensorRecord] = []
    for step in steps:
        order = 0
        for op in step.ops:
            its = [record for record in step.tensors if record.op is op and record.payload is not None]
            if its:
                left = replace(op, kernel="", forward_op="", stack=(), arguments={}, op_type=sanitise(op.op_type))
                left = replace(left, phase="forward" if op.phase == "optimizer" else op.phase, order=order)
                order += 1
                ops.append(left)
                tensors.extend(replace(record, op=left, argument="", source="", memory=None) for record in its)
    return ops, tensors


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

    def test_models_of_one_number_are_distinguished_by_name(self, tmp_path: Path) -> None:
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

    def test_the_error_for_an_unknown_directory_says_what_each_layout_needs(self, tmp_path: Path) -> None:
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
