"""Comparisons of two versions of a small training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opdump
from opdump.comparison.result import Result
from tests.comparison.programs import dumped

PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
first, norm, other, second = nn.Linear(6, 8), nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*first.parameters(), *norm.parameters(), *other.parameters(), *second.parameters()], lr=0.01)
data, labels = torch.randn(4, 6), torch.tensor([0, 2, 1, 0])
for step in range(2):
    x = first(data)
    x = norm(x)
    x = F.gelu(x)
    x = x + other(x)
    x = second(x)
    loss = F.cross_entropy(x, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def original(folder: Path) -> Path:
    return dumped(folder, "original", PROGRAM)


def compared(folder: Path, original: Path, name: str, old: str, new: str) -> Result:
    assert PROGRAM.count(old) == 1
    return opdump.compare(original, dumped(folder, name, PROGRAM.replace(old, new)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "old", "new", "line", "op_type", "kind"),
    [
        ("argument", "F.gelu(x)", "F.gelu(x, approximate='tanh')", 13, "gelu", "argument"),
        ("operator", "x + other(x)", "x - other(x)", 14, "sub", "operator"),
        ("parameter", "x + other(x)", "x + norm(x)", 14, "native_layer_norm", "input"),
        ("extra", "x = second(x)", "x = second(x * 1.01)", 15, "mul", "extra"),
        ("cast", "x = second(x)", "x = second(x.bfloat16().float())", 15, "_to_copy", "precision"),
        ("data", "data, labels =", "data, labels = 0, 0; junk =", None, "", ""),
        (
            "hook",
            "    optimizer.zero_grad()",
            "    optimizer.zero_grad(); x.register_hook(lambda g: g * 2)",
            17,
            "mul",
            "extra",
        ),
        (
            "memory",
            "    optimizer.step()",
            "    first.weight.detach().numpy()[1, 2] += 0.5; optimizer.step()",
            None,
            "",
            "memory",
        ),
        ("rate", "lr=0.01", "lr=0.02", 19, "addcdiv_", "argument"),
    ],
)
def test_planted_difference_is_named(
    folder: Path, original: Path, name: str, old: str, new: str, line: int | None, op_type: str, kind: str
) -> None:
    if name == "data":
        new, old = "data[1, 3] += 0.25; first_x = first(data); x = first_x", "x = first(data)"
        line, op_type, kind = 11, "add_", "extra"
    result = compared(folder, original, name, old, new)
    assert result.verdict == "divergent"
    found = result.introduced[0]
    assert found.kind == kind
    if line is not None:
        assert found.b is not None
        assert (found.b.op_type, found.b.stack[0].line) == (op_type, line)


def test_missing_operator_is_named_in_the_first_run(folder: Path, original: Path) -> None:
    result = compared(folder, original, "missing", "    x = F.gelu(x)\n", "    pass\n")
    found = result.introduced[0]
    assert (result.verdict, found.kind) == ("divergent", "missing")
    assert found.a is not None
    assert (found.a.op_type, found.a.stack[0].line) == ("gelu", 13)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("foreach", "lr=0.01", "lr=0.01, foreach=True"),
        ("fused", "lr=0.01", "lr=0.01, fused=True"),
        (
            "written_out",
            "x = norm(x)",
            "x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt() * norm.weight + norm.bias",
        ),
        ("split_loss", "F.cross_entropy(x, labels)", "F.nll_loss(x.log_softmax(-1), labels)"),
        ("moved_factor", "x = second(x)", "x = second(x * 4) / 4 + second.bias * 0.75"),
        (
            "batch_in_other_order",
            "data, labels = torch.randn(4, 6), torch.tensor([0, 2, 1, 0])",
            "data, labels = torch.randn(4, 6)[[2, 0, 3, 1]], torch.tensor([1, 0, 0, 2])",
        ),
        ("matmul", "x = first(data)", "x = torch.einsum('bi,oi->bo', data, first.weight) + first.bias"),
    ],
)
def test_another_way_to_the_same_is_benign(folder: Path, original: Path, name: str, old: str, new: str) -> None:
    # Some have the same bits by chance on some processors.
    assert compared(folder, original, name, old, new).verdict in ("benign", "identical")


def test_same_program_is_identical(folder: Path, original: Path) -> None:
    result = opdump.compare(original, dumped(folder, "again", PROGRAM))
    assert (result.verdict, result.unmatched, list(result.introduced)) == ("identical", 0, [])


def test_wrong_output_of_a_kernel_is_named(folder: Path, original: Path) -> None:
    """Change one element of one file, as if the kernel had computed it."""
    flipped = dumped(folder, "kernel", PROGRAM)
    execution = next(iter(opdump.open(flipped).ops(op_type="gelu", step=1)))
    path = Path(getattr(execution.outputs[0].payload, "file", ""))
    values = np.load(path)
    values[1, 2] += 3.0
    np.save(path, values)
    found = opdump.compare(original, flipped).introduced
    assert "gelu" in [each.b.op_type for each in found[:2] if each.b is not None and each.kind == "kernel"]


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("argument", "F.gelu(x)", "F.gelu(x, approximate='tanh')", ("divergent", "argument", 13)),
        (
            "eps",
            "nn.LayerNorm(8), nn.LayerNorm(8)",
            "nn.LayerNorm(8, eps=1e-3), nn.LayerNorm(8)",
            ("divergent", "argument", 12),
        ),
        ("extra", "x = second(x)", "x = second(x * 1.01)", ("divergent", "extra", 15)),
        ("foreach", "lr=0.01", "lr=0.01, foreach=True", ("benign", "", 0)),
        ("same", "lr=0.01", "lr=0.010", ("identical", "", 0)),
    ],
)
def test_statistics_without_elements_show_structure_and_arguments(
    folder: Path, name: str, old: str, new: str, expected: tuple[str, str, int]
) -> None:
    before = folder / "statistics"
    if not before.exists():
        dumped(folder, "statistics", PROGRAM, "statistic")
    assert PROGRAM.count(old) == 1
    result = opdump.compare(before, dumped(folder, f"statistics_{name}", PROGRAM.replace(old, new), "statistic"))
    found = result.introduced[0] if result.introduced else None
    line = found.b.stack[0].line if found is not None and found.b is not None else 0
    assert (result.verdict, found.kind if found is not None else "", line) == expected
    assert "only statistics" in result.notes[-1]
