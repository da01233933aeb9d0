"""Results that differ are never called benign, whatever made them differ, from elements and from statistics only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import opdump
from opdump.comparison.result import Result
from tests.comparison.programs import dumped

Saved = Literal["statistic", "full"]
BOTH = pytest.mark.parametrize("saved", ["full", "statistic"])

FILLED = """
import torch
a = torch.MAKER(4)
a.numpy()[:] = VALUE
print((torch.ones(4) * a).sum().item())
"""
LOADED = """
import torch
torch.manual_seed(1)
data, net = torch.randn(2, 8), torch.nn.Linear(8, 1)
net.weight.data.numpy()[0, 3] = VALUE
print(net(data).tolist())
"""
ROLLED = """
import torch
torch.manual_seed(0)
print(torch.roll(torch.randn(6, 8), VALUE, 1).tolist())
"""
CLAMPED = """
import torch
torch.manual_seed(0)
print(torch.clamp(torch.randn(6, 8), -1, VALUE).sum().item())
"""
GELU = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
data, net = torch.randn(6, 8), torch.nn.Linear(8, 8)
print(F.gelu(net(data), approximate="VALUE").sum().item())
"""
NORMED = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
print(F.layer_norm(torch.randn(6, 8) @ torch.randn(8, 8), (8,), eps=VALUE).exp().sum().item())
"""
LOSS = """
import torch
torch.manual_seed(0)
data, net = torch.randn(6, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(data).square().mean() + VALUE
loss.backward()
optimizer.step()
"""
DAMPENED = """
import torch
torch.manual_seed(0)
data, net = torch.randn(6, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=VALUE)
for step in range(3):
    optimizer.zero_grad()
    net(data).square().mean().backward()
    optimizer.step()
"""
MEAN = """
import torch
torch.manual_seed(0)
data = torch.randn(6, 8) @ torch.randn(8, 8)
mean = data.mean(-1, keepdim=True, dtype=torch.VALUE).float()
print((data - mean).tanh().tolist())
"""
TABLE = """
import torch
torch.manual_seed(0)
table, data = torch.randn(5, 4), torch.randn(5, 5, 4)
places = torch.from_numpy((torch.arange(5)[:, None] * 2 - torch.arange(5)).remainder(5).numpy().VALUE.copy())
print((table[places] * data).sum(-1).tanh().tolist())
"""
SQUARE = """
import torch
torch.manual_seed(0)
data, weight = torch.randn(6, 8), torch.randn(8, 8)
print((data @ torch.from_numpy(weight.numpy().VALUE.copy())).tanh().tolist())
"""
ACTIVATED = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
print(F.VALUE(torch.randn(6, 8) @ torch.randn(8, 8)).sum().item())
"""
BACKWARD = """
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return VALUE * ctx.saved_tensors[0] * grad

torch.manual_seed(0)
data, net = torch.randn(6, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(2):
    optimizer.zero_grad()
    Square.apply(net(data)).mean().backward()
    optimizer.step()
"""


def compared(folder: Path, program: str, values: tuple[str, str], saved: Saved) -> Result:
    a, b = (
        dumped(folder, name, program.replace("VALUE", value), saved) for name, value in zip("ab", values, strict=True)
    )
    return opdump.compare(a, b)


@BOTH
@pytest.mark.parametrize(
    ("program", "values"),
    [
        pytest.param(FILLED.replace("MAKER", "empty"), ("5", "6"), id="memory_filled"),
        pytest.param(FILLED.replace("MAKER", "zeros"), ("5", "6"), id="memory_filled_over"),
        pytest.param(LOADED, ("0.5", "1.5"), id="one_weight"),
        pytest.param(ROLLED, ("1", "-1"), id="other_direction"),
        pytest.param(CLAMPED, ("1.0", "0.999"), id="tighter_clamp"),
        pytest.param(GELU, ("none", "tanh"), id="gelu"),
        pytest.param(NORMED, ("1e-5", "1e-3"), id="epsilon"),
        pytest.param(LOSS, ("0.0", "0.001"), id="constant_of_a_loss"),
        pytest.param(DAMPENED, ("0.0", "0.1"), id="dampening"),
        pytest.param(MEAN, ("float32", "float16"), id="narrow_mean"),
        pytest.param(TABLE, ("T.T", "T"), id="transposed_indices"),
        pytest.param(SQUARE, ("T.T", "T"), id="transposed_weight"),
        pytest.param(ACTIVATED, ("silu", "gelu"), id="activation"),
        pytest.param(BACKWARD, ("2", "2.1"), id="custom_backward"),
    ],
)
def test_programs_whose_results_differ_are_divergent(
    tmp_path: Path, program: str, values: tuple[str, str], saved: Saved
) -> None:
    assert compared(tmp_path, program, values, saved).verdict == "divergent"


@pytest.mark.parametrize(
    ("program", "values", "told"),
    [
        pytest.param(GELU, ("none", "tanh"), "approximate: none in A, tanh in B", id="gelu"),
        pytest.param(NORMED, ("1e-5", "1e-3"), "eps: 1e-05 in A, 0.001 in B", id="epsilon"),
        pytest.param(CLAMPED, ("1.0", "0.999"), "max: 1.0 in A, 0.999 in B", id="clamp"),
    ],
)
def test_other_arguments_at_equal_inputs_are_named_by_statistics(
    tmp_path: Path, program: str, values: tuple[str, str], told: str
) -> None:
    first = compared(tmp_path, program, values, "statistic").introduced[0]
    assert first.kind == "argument"
    assert told.lower() in first.evidence.lower()


def test_a_transposed_weight_is_named_where_it_is_read(tmp_path: Path) -> None:
    result = compared(tmp_path, SQUARE, ("T.T", "T"), "full")
    assert (result.verdict, result.introduced[0].op.op_type, result.introduced[0].io) == ("divergent", "mm", "input")
    assert "data differ: 56 of 64 elements" in result.headline


@BOTH
def test_other_arguments_without_effect_are_noted(tmp_path: Path, saved: Saved) -> None:
    result = compared(tmp_path, CLAMPED, ("99.0", "98.0"), saved)
    assert result.verdict in ("benign", "identical")
    assert any("99.0 in A, 98.0 in B" in note for note in result.notes)


REDUCED = """
import torch
torch.manual_seed(0)
image = torch.randn(2, 8, 4, 4)
weight = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    ((VALUE).reshape(2, 8) * weight).square().sum().backward()
    optimizer.step()
"""


@BOTH
@pytest.mark.parametrize("function", ["mean", "sum", "amax"])
def test_a_reduction_that_keeps_its_axes_is_no_other_result(tmp_path: Path, function: str, saved: Saved) -> None:
    values = f"image.{function}((2, 3))", f"image.{function}((-1, -2), keepdim=True)"
    result = compared(tmp_path, REDUCED, values, saved)
    assert list(result.introduced) == []
    assert result.verdict in ("benign", "identical")


LEFTOVER = """
import torch
torch.manual_seed(0)
torch.arange(VALUE)
print((torch.randn(6, 8) @ torch.randn(8, 8)).tolist())
"""


@BOTH
def test_what_depends_on_no_data_and_is_left_over_is_no_result(tmp_path: Path, saved: Saved) -> None:
    assert compared(tmp_path, LEFTOVER, ("4", "5"), saved).verdict == "benign"


ROUNDED = """
import torch
torch.manual_seed(0)
data, weight = torch.randn(8, 512), torch.randn(512, 8)
print((VALUE).exp().mean().item())
"""


@BOTH
def test_sums_in_another_order_are_benign(tmp_path: Path, saved: Saved) -> None:
    values = "data @ weight / 512", "(data[:, :200] @ weight[:200] + data[:, 200:] @ weight[200:]) / 512"
    assert compared(tmp_path, ROUNDED, values, saved).verdict == "benign"


READ_BY_THREADS = """
import threading
import torch
torch.set_num_threads(1)

def read(number):
    memory = torch.empty(2, dtype=torch.uint8)
    memory.numpy()[:] = [(0, 0, 88, 120, 0, 17)[number], number]
    numbers.append(memory[0].item())

numbers = []
for number in VALUE:
    THREAD
print(sorted(numbers))
"""
IN_THREADS = "thread = threading.Thread(target=read, args=(number,)); thread.start(); thread.join()"
GIVEN_BY_THREADS = READ_BY_THREADS.replace(
    "numbers.append(memory[0].item())", "numbers.append(memory.float() * 3)"
).replace("sorted(numbers)", "len(numbers)")
OF_A_POOL = READ_BY_THREADS.replace("import threading", "from concurrent.futures import ThreadPoolExecutor").replace(
    "THREAD", "with ThreadPoolExecutor(1) as pool: pool.submit(read, number).result()"
)


@BOTH
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(READ_BY_THREADS.replace("THREAD", IN_THREADS), id="numbers"),
        pytest.param(GIVEN_BY_THREADS.replace("THREAD", IN_THREADS), id="outputs"),
        pytest.param(OF_A_POOL, id="pool"),
    ],
)
def test_threads_that_run_in_another_order_differ_in_nothing(tmp_path: Path, program: str, saved: Saved) -> None:
    result = compared(tmp_path, program, ("(0, 1, 2, 3, 4, 5)", "(2, 0, 3, 5, 4, 1)"), saved)
    assert result.verdict in ("benign", "identical")


@BOTH
@pytest.mark.parametrize(
    ("program", "numbers"),
    [
        pytest.param(READ_BY_THREADS.replace("THREAD", IN_THREADS), "(2, 0, 3, 3, 4, 1)", id="a_thread_reads_another"),
        pytest.param(READ_BY_THREADS.replace("THREAD", "read(number)"), "(2, 0, 3, 5, 4, 1)", id="without_threads"),
    ],
)
def test_other_numbers_and_another_order_of_the_program_are_divergent(
    tmp_path: Path, program: str, numbers: str, saved: Saved
) -> None:
    assert compared(tmp_path, program, ("(0, 1, 2, 3, 4, 5)", numbers), saved).verdict == "divergent"


RUNNING_MEAN = """
import torch
torch.manual_seed(0)
weight, mean = torch.nn.Parameter(torch.randn(4)), torch.zeros(())
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    loss = (weight * VALUE).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = mean * step / (step + 1) + loss.detach() / (step + 1)
    print(mean.item())
"""


@BOTH
def test_operators_after_the_last_step_are_matched_in_their_order(tmp_path: Path, saved: Saved) -> None:
    assert compared(tmp_path / "same", RUNNING_MEAN, ("1", "1"), saved).verdict == "identical"
    assert compared(tmp_path / "other", RUNNING_MEAN, ("1", "1.5"), saved).verdict == "divergent"
