"""Programs compiled with torch.compile, compared with the same programs uncompiled."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import opdump
from opdump.comparison.accuracy import error_of
from opdump.comparison.result import Result

FLOOR: Final = """
import torch
from torch.nn import functional as F

torch.manual_seed(0)
def fraction(x):
    return torch.floor(torch.sum(F.softmax(x, dim=-1), dim=-1))
# compile fraction
result = fraction(torch.randn(43, 64))
"""
CHUNK: Final = """
import torch
from torch import nn

torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, size=128):
        super().__init__()
        self.value = nn.Linear(size, 2 * size, bias=False)
        self.gate = nn.Linear(size, 2 * size, bias=False)

    def forward(self, x):
        first, second = torch.chunk(self.value(x) * self.gate(x), 2, dim=-1)
        return first + second

block = Block()
# compile block
with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
    result = block(torch.randn(1, 16, 16, 128)).float().sum()
"""
TRAINING: Final = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(F.gelu(self.norm(self.first(x))))

network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
# compile network
data, labels = torch.randn(4, 6), torch.tensor([0, 2, 1, 0])
for step in range(3):
    loss = F.cross_entropy(network(data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SEVERAL: Final = """
import torch

torch.manual_seed(0)
def several(x):
    hidden = torch.tanh(x)
    hidden.square().sum()
    return hidden * 3, hidden.sum(1)
# compile several
result = several(torch.randn(6, 8))
"""
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # A warning that PyTorch raises about its own compiler
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++")


def dumped(folder: Path, name: str, program: str, backend: str = "") -> Path:
    torch = pytest.importorskip("torch")
    if backend:
        head, _, rest = program.partition("# compile ")
        what, _, rest = rest.partition("\n")
        program = f"{head}{what} = torch.compile({what}, backend={backend!r})\n{rest}"
    path = folder / f"{name}.py"
    path.write_text(program)
    torch._dynamo.reset()
    names = {"__name__": "__main__", "DATA": torch.linspace(-2, 2, 48).reshape(6, 8)}
    with opdump.capture(path=str(folder / name), saved_data="full"):
        exec(compile(program, str(path), "exec"), names)
    return folder / name


def both_ways(folder: Path, program: str, backend: str, plain: str | None = None) -> tuple[Result, Result]:
    """The plain program compared with the compiled one, and the reverse."""
    one = dumped(folder, "plain", program if plain is None else plain)
    other = dumped(folder, "compiled", program, backend)
    return opdump.compare(one, other), opdump.compare(other, one)


@needs_compiler
def test_step_that_rounding_decides_is_named(tmp_path: Path) -> None:
    result, reverse = both_ways(tmp_path, FLOOR, "inductor")
    floors = [
        next(opdump.open(tmp_path / name).ops(op)).outputs[0].numpy()
        for name, op in (("plain", "floor"), ("compiled", "compiled_fraction"))
    ]
    if (floors[0] == floors[1]).all():  # this release sums in the same order: nothing differs, and nothing is named
        assert (list(result.introduced), list(reverse.introduced)) == ([], [])
        return
    assert (result.verdict, reverse.verdict) == ("divergent", "divergent")
    (found,), (found_in_reverse,) = result.introduced, reverse.introduced
    assert found.a is not None
    assert found.b is not None
    assert (found.a.op_type, found.b.kernel) == ("floor", "compiled_fraction")
    assert "the last bit decides" in found.evidence
    assert (found_in_reverse.a, found_in_reverse.b) == (found.b, found.a)


@needs_compiler
def test_compiled_graph_that_is_closer_to_float64_is_benign(tmp_path: Path) -> None:
    result, reverse = both_ways(tmp_path, CHUNK, "inductor")
    assert (result.verdict, reverse.verdict) == ("benign", "benign")
    assert any("B is closer to float64" in note for note in result.notes)
    assert any("A is closer to float64" in note for note in reverse.notes)


def test_compiled_training_is_benign(tmp_path: Path) -> None:
    for result in both_ways(tmp_path, TRAINING, "aot_eager"):
        assert result.verdict in ("benign", "identical"), result.introduced


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("F.gelu(self.norm(self.first(x)))", "F.gelu(self.norm(self.first(x)), approximate='tanh')"),
        ("nn.BatchNorm1d(8)", "nn.BatchNorm1d(8, eps=1e-3)"),
        ("self.second(F.gelu", "1.01 * self.second(F.gelu"),
    ],
)
def test_other_function_is_divergent(tmp_path: Path, old: str, new: str) -> None:
    assert TRAINING.count(old) == 1
    for result in both_ways(tmp_path, TRAINING, "aot_eager", TRAINING.replace(old, new)):
        assert result.verdict == "divergent"
        first = result.introduced[0]
        assert "compiled_forward" in {first.a and first.a.kernel, first.b and first.b.kernel}


@pytest.mark.parametrize("result", ["hidden.sum(0)", "hidden[:3].sum(1)", "1.5 * hidden.double().sum(1)"])
def test_second_result_of_a_graph_is_compared(tmp_path: Path, result: str) -> None:
    for same in both_ways(tmp_path, SEVERAL, "aot_eager"):
        assert same.verdict == "benign", same.headline
    for other in both_ways(tmp_path, SEVERAL, "aot_eager", SEVERAL.replace("hidden.sum(1)", result)):
        assert other.verdict == "divergent"
        assert "compiled_several" in {each.op_type for each in (other.introduced[0].a, other.introduced[0].b) if each}


def test_a_program_that_was_compiled_as_a_whole_can_be_compared(tmp_path: Path) -> None:
    program = SEVERAL.replace("torch.randn(6, 8)", "DATA")
    results = [both_ways(tmp_path, program, "aot_eager", each) for each in (None, program.replace("* 3", "* 4"))]
    assert [each.verdict for pair in results for each in pair] == ["benign"] * 2 + ["divergent"] * 2


def test_what_cancels_in_float64_leaves_rounding_behind() -> None:
    zero, rounded, summands = np.zeros(2), np.array([1e-9, 0.0]), np.array([1.0, 2.0])
    assert error_of(zero, rounded, summands) == 5e-10
    assert error_of(zero, rounded, None) == math.inf
    assert error_of(zero, np.array([math.nan, 0.0]), summands) == math.inf
    assert error_of(summands, np.array([1.0, 2.5]), 2 * summands) == 0.125
