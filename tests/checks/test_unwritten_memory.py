"""Memory that an operator will write is no finding before it is written, whole or in part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import opdump
from opdump.checks.not_finite import Origins, written
from opdump.op_types.unspecified import only_overwrites
from opdump.records import IO, OpRecord, SkipReason, TensorRecord

Given = tuple[IO, int, str, int, SkipReason]
"""Input or output, slot, argument, number of NaN values, and why it was not read."""


def operator(kernel: str, *given: Given, sources: tuple[str, ...] = ()) -> tuple[OpRecord, list[TensorRecord]]:
    name = kernel.partition("::")[2].partition(".")[0]
    op = OpRecord(op_type=name, op_name=name, timestamp=1, kernel=kernel)
    tensors = []
    for number, (io, slot, argument, nan, skip) in enumerate(given):
        counts = {"nan count": nan, "negative inf count": 0, "positive inf count": 0, "max": math.nan if nan else 1.0}
        tensors.append(
            TensorRecord(
                op=op,
                io=io,
                slot=slot,
                dtype="float32",
                shape=(4,),
                argument=argument,
                skip=skip,
                statistics={} if skip else counts,
                source=sources[number] if number < len(sources) else "",
            )
        )
    return op, tensors


def origin(*operators: tuple[OpRecord, list[TensorRecord]]) -> tuple[str, str]:
    origins = Origins()
    for op, tensors in operators:
        origins.observe(op, tensors)
    return origins.origin()


GATHERED = operator(
    "fsdp::all_gather_copy_in",
    ("input", 0, "all_gather_inputs[0]", 0, ""),
    ("output", 0, "[0]", 0, ""),
    ("output", 1, "[1]", 3, ""),
)
RECEIVED = operator("c10d::recv_", ("input", 0, "tensors[0]", 4, ""), ("output", 0, "tensors[0]", 0, ""))
REDUCED = operator(
    "c10d::_reduce_scatter_base_",
    ("input", 0, "output_tensor", 4, ""),
    ("input", 1, "input_tensor", 0, ""),
    ("output", 0, "output_tensor", 0, ""),
)
PART_OF_A_LIST = operator(
    "mine::split",
    ("input", 0, "x", 0, ""),
    ("input", 1, "out[0]", 4, ""),
    ("input", 2, "out[1]", 4, "allocation"),
    ("output", 0, "out[0]", 0, ""),
    ("output", 1, "out[1]", 4, ""),
)


@pytest.mark.parametrize("clean", [GATHERED, RECEIVED, REDUCED, PART_OF_A_LIST], ids=lambda each: each[0].kernel)
def test_what_an_operator_has_not_written_makes_no_nan(clean: tuple[OpRecord, list[TensorRecord]]) -> None:
    assert origin(clean) == ("", "")


def test_nan_that_a_kernel_of_pytorch_writes_into_its_out_is_its_own() -> None:
    divided = operator(
        "aten::div.out",
        ("input", 0, "self", 0, ""),
        ("input", 1, "out", 4, "allocation"),
        ("output", 0, "out", 4, ""),
    )
    assert origin(divided) == ("made", "div")


def test_nan_that_another_rank_sent_is_not_hidden() -> None:
    received = operator("c10d::recv_", ("input", 0, "tensors[0]", 0, ""), ("output", 0, "tensors[0]", 2, ""))
    assert [each.io for each in written(*received)] == ["output"]
    assert origin(received)[1] == "recv_"


def test_a_part_of_a_list_that_a_later_operator_reads_as_nan_was_made_there() -> None:
    reader = operator("aten::add", ("input", 0, "self", 4, ""), ("output", 0, "", 4, ""), sources=("split:1",))
    assert origin(PART_OF_A_LIST, reader) == ("made", "split")


def test_only_known_arguments_count_as_write_only() -> None:
    assert only_overwrites("mine::split", "out[3]")
    assert only_overwrites("c10d::allgather_", "output_tensors[0][1]")
    assert not only_overwrites("c10d::allgather_", "input_tensors[0]")
    assert not only_overwrites("c10d::send", "tensors[0]")
    assert not only_overwrites("Out", "out")


@pytest.fixture
def filled_with_nan() -> Iterator[None]:
    """Memory that PyTorch allocates contains NaN until it is written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("filled_with_nan")
def test_a_clean_program_with_buffers_has_no_first_nan(tmp_path: Path) -> None:
    library = torch.library.Library("opdump_unwritten", "DEF")
    library.define("split(Tensor x, *, Tensor(a!)[] out) -> ()")

    def split(x: torch.Tensor, *, out: list[torch.Tensor]) -> None:
        out[0].copy_(x)

    library.impl("split", split, "CPU")
    x = torch.ones(3)
    with opdump.capture(path=tmp_path) as dump:
        first, second = torch.empty(3), torch.empty(3)
        torch.ops.opdump_unwritten.split(x, out=[first, second])
        torch.ops.opdump_unwritten.split(x, out=[second, first])
        torch.add(first, second, out=torch.empty(3))
    assert dump.report is not None
    assert dump.report.verdict.kind == "none"
