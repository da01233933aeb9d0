"""Dumps of Ascend devices: the meaning of their file names and contents."""

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
from opdump.errors import CorruptDumpError, UndecodableTensorError
from opdump.layouts.base import LAYOUTS, Layout
from opdump.layouts.mindspore_sync.files import dtype_token
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.records import OpRecord, TensorRecord
from opdump.testing.layout_tests import LayoutTests, assert_same_bits
from opdump.testing.stand_ins import SampleStep, sample_step
from tests.layouts.ascend_dumps import STAMP, TIME, add_dump_file, add_npy, tensor
from tests.layouts.statistic_rows import rows_of


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

    def test_a_step_that_is_read_twice_tells_its_problems_once(self, tmp_path: Path) -> None:
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

    def test_a_payload_tells_when_its_file_changed(self, tmp_path: Path) -> None:
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

    def test_several_conversions_of_one_tensor_are_told_and_a_shape_is_no_format(self, tmp_path: Path) -> None:
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

    def test_records_come_back_as_they_went_in(self, tmp_path: Path) -> None:
        steps = [sample_step(0), sample_step(1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        expected_ops, expected = kept(steps)
        assert ops == expected_ops
        assert [replace(record, statistics={}) for record in tensors] == [
            replace(record, statistics={}) for record in expected
        ]

    def test_statistics_come_back_in_full_precision(self, tmp_path: Path) -> None:
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
