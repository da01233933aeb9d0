"""What statistics alone show about two programs: where values begin that the other program lacks; nothing if the values
meet again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest

import opdump
from opdump.comparison.memory import read_step
from opdump.comparison.trace import leaf_name
from tests.comparison import programs
from tests.comparison.test_compare_programs import PROGRAM
from tests.comparison.test_refactored_programs import ATTENTION, MICRO_BATCHES, OPTIMIZERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tmp_path_factory.mktemp("statistics")


def dumped(folder: Path, name: str, program: str) -> Path:
    """The dump of a program, which is run unless its dump exists."""
    return folder / name if (folder / name).exists() else programs.dumped(folder, name, program, "statistic")


@pytest.mark.parametrize(
    "pair", [ATTENTION, OPTIMIZERS, MICRO_BATCHES], ids=["attention", "optimizers", "micro_batches"]
)
def test_program_written_anew_is_benign_by_statistics(tmp_path: Path, pair: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    result = opdump.compare(dumped(tmp_path, "a", pair[0]), dumped(tmp_path, "b", pair[1]))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "op_type"),
    [
        ("stomp", "x = norm(x)", "x = norm(x); x.detach().numpy()[1, 2] += 3", 13, "gelu"),
        ("label", "torch.tensor([0, 2, 1, 0])", "torch.tensor([0, 2, 1, 2])", 16, "nll_loss_forward"),
        ("residual", "x = x + other(x)", "x = other(x)", 15, "addmm"),
        ("order", "x = first(data)", "x = first(data.roll(1, 0))", 16, "nll_loss_forward"),
        ("rate", "lr=0.01", "lr=0.011", 19, "addcdiv_"),
    ],
)
def test_fault_is_named_by_statistics(folder: Path, name: str, old: str, new: str, line: int, op_type: str) -> None:
    assert PROGRAM.count(old) == 1
    result = opdump.compare(dumped(folder, "original", PROGRAM), dumped(folder, name, PROGRAM.replace(old, new)))
    named = [(each.b.stack[0].line, each.b.op_type) for each in result.introduced[:3] if each.b is not None]
    assert (line, op_type) in named


@pytest.mark.parametrize(
    ("name", "pair", "old", "new", "line"),
    [
        ("factor", ATTENTION, "self.out(y) + x", "self.out(y) + x * 1.01", 22),
        ("momentum", OPTIMIZERS, "before * 0.5", "before * 0.51", 21),
        ("values", ATTENTION, ".softmax(-1) @ v", ".softmax(-1) @ k", 21),
    ],
)
def test_fault_in_a_program_written_anew_is_named_by_statistics(
    folder: Path, name: str, pair: tuple[str, str], old: str, new: str, line: int
) -> None:
    assert pair[1].count(old) == 1
    result = opdump.compare(dumped(folder, f"before_{name}", pair[0]), dumped(folder, name, pair[1].replace(old, new)))
    lines = [each.b.stack[0].line for each in result.introduced[:3] if each.b is not None]
    assert (result.verdict, line in lines) == ("divergent", True)


@pytest.mark.parametrize(
    ("name", "pair", "old", "new", "line", "op_type"),
    [
        (
            "eps",
            ATTENTION,
            "made.out_proj, nn.LayerNorm(4)",
            "made.out_proj, nn.LayerNorm(4, eps=0.5)",
            22,
            "native_layer_norm",
        ),
        ("slower", OPTIMIZERS, "0.1 * momenta[place]", "0.11 * momenta[place]", 22, "mul"),
    ],
)
def test_fault_in_a_program_written_anew_is_named_first_by_statistics(
    folder: Path, name: str, pair: tuple[str, str], old: str, new: str, line: int, op_type: str
) -> None:
    assert pair[1].count(old) == 1
    result = opdump.compare(dumped(folder, f"before_{name}", pair[0]), dumped(folder, name, pair[1].replace(old, new)))
    first = result.introduced[0].b
    assert first is not None
    assert (first.stack[0].line, first.op_type) == (line, op_type)


ORDERED = """
import torch
from torch import nn

torch.manual_seed(0)
one, other, last = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(6, 2)
optimizer = torch.optim.SGD([*one.parameters(), *other.parameters(), *last.parameters()], lr=0.1)
data = torch.randn(5, 4)
for step in range(2):
    parts = [one(data), other(data)]
    joined = torch.cat(parts, 1)
    loss = last(joined.tanh()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_operator_that_reorders_parts_is_named(folder: Path) -> None:
    turned = ORDERED.replace("torch.cat(parts, 1)", "torch.cat(parts[::-1], 1)")
    result = opdump.compare(dumped(folder, "ordered", ORDERED), dumped(folder, "turned", turned))
    assert "cat" in [each.b.op_type for each in result.introduced[:3] if each.b is not None]


def test_value_that_loses_precision_is_named_by_statistics(folder: Path) -> None:
    cast = PROGRAM.replace("x = F.gelu(x)", "x = F.gelu(x).bfloat16().float()")
    found = opdump.compare(dumped(folder, "original", PROGRAM), dumped(folder, "cast", cast)).introduced[0]
    assert found.b is not None
    assert (found.kind, found.b.op_type, found.b.stack[0].line) == ("precision", "_to_copy", 13)


def test_the_reader_of_a_changed_parameter_in_backward_is_named_and_not_the_optimizer(folder: Path) -> None:
    changed = PROGRAM.replace("    loss.backward()", "    second.weight.detach().numpy()[0, 1] += 2; loss.backward()")
    result = opdump.compare(dumped(folder, "original", PROGRAM), dumped(folder, "weight", changed))
    found = result.introduced[0].b
    assert found is not None
    assert (found.phase, found.op_type) == ("backward", "mm")


def test_a_different_way_of_joining_is_not_named_with_the_fault(folder: Path) -> None:
    faulty = ATTENTION[1].replace("self.out(y) + x", "self.out(y) + x * 1.01")
    result = opdump.compare(dumped(folder, "joined_apart", ATTENTION[0]), dumped(folder, "factor_apart", faulty))
    first = result.introduced[0].b
    assert first is not None
    assert first.stack[0].line == 22


def test_memory_that_other_code_wrote_is_found_with_statistics(folder: Path) -> None:
    stomped = dumped(folder, "stomp", PROGRAM.replace("x = norm(x)", "x = norm(x); x.detach().numpy()[1, 2] += 3"))
    assert opdump.compare(dumped(folder, "original", PROGRAM), stomped).introduced[0].kind == "memory"


READ_TWICE = """
import torch

torch.manual_seed(0)
w, x = torch.randn(8, 8), torch.randn(4, 8)
for _ in range(40):
    h = torch.tanh(x @ w)
    x = x * 0.9 + h / (h.norm() + 1e-5)
print(x.sum().item())
"""


def test_fault_is_named_where_every_value_is_read_twice(folder: Path) -> None:
    # More than 2**40 paths lead from the last operator back to the first.
    one = dumped(folder, "twice", READ_TWICE)
    result = opdump.compare(one, dumped(folder, "twice_faulty", READ_TWICE.replace("1e-5", "0.5")))
    assert result.verdict == "divergent"
    assert result.introduced[0].op.op_type == "add"
    assert result.introduced[0].op.line.endswith(":8")


GROWS = """
import torch
torch.manual_seed(1)
weight = torch.randn(8, requires_grad=True)
data, noise = torch.randn(16, 8), torch.randn(2, 16, 8)
wanted = torch.stack([noise[0], data * weight.detach() / 3 + 1e-4 * noise[1]])
optimizer = torch.optim.SGD([weight], lr=1e-4, momentum=0.01, foreach=False)
for step in range(2):
    loss = (data * weight / 3 - wanted[step]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""The second step nearly cancels, so rounding of either step is a hundred times larger in its results."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounding_that_grows_from_step_to_step_is_benign_by_statistics(folder: Path, seed: int) -> None:
    program = GROWS.replace("manual_seed(1)", f"manual_seed({seed})")
    rounded_otherwise = program.replace("(data * weight / 3 -", "(data * weight * (1 / 3) -")
    assert rounded_otherwise != program
    result = opdump.compare(
        dumped(folder, f"grows_{seed}", program), dumped(folder, f"grows_otherwise_{seed}", rounded_otherwise)
    )
    assert (result.verdict, list(result.introduced)) == ("benign", [])


KEYS = """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
qkv, head = nn.Linear(8, 24), nn.Linear(8, 4)
with torch.no_grad():
    qkv.bias[8] = 2.0  # of a key
parameters = [*qkv.parameters(), *head.parameters()]
numbers = np.random.default_rng(0).standard_normal((4, 5, 12)).astype(np.float32)
data, wanted = torch.from_numpy(numbers[:, :, :8]), torch.from_numpy(numbers[:, :, 8:])

def loss_of(x, y):
    q, k, v = qkv(x).split(8, -1)
    return (head(torch.softmax(q @ k.mT, -1) @ v) - y).square().mean()

loss_of(data, wanted).backward()
OPTIMIZER.step()
"""
"""The gradient of a key's bias is only rounding, which an optimizer such as Adam turns into a step."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AdamW", "lr=3.9e-5, foreach=False"),
        ("Adam", "lr=3.9e-5, foreach=True"),
        ("Adam", "lr=3.9e-5, fused=True"),
        ("RMSprop", "lr=3.5e-5, foreach=False"),
    ],
)
def test_rounding_that_an_optimizer_divides_by_its_size_is_benign_by_statistics(
    tmp_path: Path, name: str, arguments: str
) -> None:
    program = KEYS.replace("OPTIMIZER", f"torch.optim.{name}(parameters, {arguments})")
    in_parts = program.replace(
        "loss_of(data, wanted).backward()",
        "for i in (0, 2):\n    (loss_of(data[i : i + 2], wanted[i : i + 2]) / 2).backward()",
    )
    assert in_parts != program
    result = opdump.compare(dumped(tmp_path, "whole", program), dumped(tmp_path, "parts", in_parts))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


TWO_OPTIMIZERS = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 3)
scale = nn.Parameter(torch.full((3,), 1.5))
first = torch.optim.SGD([scale], lr=0.1)
second = SECOND
data = torch.randn(6, 4)
for step in range(2):
    (net(data) * scale).square().mean().backward()
    first.step()
    second.step()
"""


@pytest.mark.parametrize("second", ["SGD", "RMSprop"])
@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_second_optimizer_of_a_step_reads_named_parameters_and_gradients_of_the_step(
    tmp_path: Path, second: str, saved_data: Literal["statistic", "full"]
) -> None:
    made = f"torch.optim.{second}(net.parameters(), lr=0.01, weight_decay=1e-3, foreach=False)"
    path = programs.dumped(tmp_path, "a", TWO_OPTIMIZERS.replace("SECOND", made), saved_data)
    for step in range(2):
        trace = read_step(opdump.open(path), step)
        decays = [node for node in trace.nodes if node.bare_type == "add" and node.op.arguments.get("alpha") == 1e-3]
        assert [leaf_name(node.inputs[1]) for node in decays] == ["Parameter.weight", "Parameter.bias"]
        makers = [trace.nodes[node.makers[0][0]] for node in decays]
        assert [(node.op.phase, math.prod(node.outputs[0].shape)) for node in makers] == [
            ("backward", 12),
            ("backward", 3),
        ]
