"""Refactored programs that compute the same over several steps: nothing may be named, except a fault in one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.comparison.programs import dumped

ATTENTION = (
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
            self.linear, self.batch_norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
            return self.batch_norm(self.linear(x).flatten(0, 1)).view_as(x).mean(1)

    net = Block()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data, labels = torch.randn(3, 5, 4), torch.tensor([0, 2, 1])
    for step in range(2):
        loss = F.cross_entropy(net(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """,
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            made = nn.MultiheadAttention(4, 2, batch_first=True)
            self.weights = nn.ParameterList(made.in_proj_weight.detach().clone().chunk(3))
            self.biases = nn.ParameterList(made.in_proj_bias.detach().clone().chunk(3))
            self.out, self.norm = made.out_proj, nn.LayerNorm(4)
            self.linear, self.batch_norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            q, k, v = (
                F.linear(x, weight, bias).unflatten(-1, (2, 2)).transpose(1, 2)
                for weight, bias in zip(self.weights, self.biases)
            )
            y = ((q @ k.mT / 2**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = self.norm(self.out(y) + x)
            return self.batch_norm(self.linear(x).mT).mT.mean(1)

    net = Block()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, foreach=True)
    data, labels = torch.randn(3, 5, 4), torch.tensor([0, 2, 1])
    for step in range(2):
        loss = -net(data).log_softmax(1)[torch.arange(3), labels].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """,
)
"""Joined parameters, a key bias and a bias before a batch norm (both with zero gradients), and an optimizer that
divides by their size.
"""

BEGIN = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 4)
    data, targets = torch.randn(2, 8, 4), torch.randn(2, 8, 4)
"""

OPTIMIZERS = (
    BEGIN
    + """
    one, other = torch.optim.RMSprop(first.parameters(), lr=0.01), torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.5)
    rate = torch.zeros(())
    for step in range(2):
        y = second(first(data[step]).tanh())
        loss = F.mse_loss(y, targets[step])
        one.zero_grad()
        other.zero_grad()
        loss.backward()
        one.step()
        other.step()
        rate = rate * step / (step + 1) + y.detach().sigmoid().mean() / (step + 1)
        print(loss.item(), rate.item())
    """,
    BEGIN
    + """
    net = nn.Sequential(first, nn.Tanh(), second)
    momenta, seen = [None, None], []
    other = torch.optim.RMSprop(first.parameters(), lr=0.01, foreach=True)
    for step in range(2):
        y = net(data[step])
        loss = (y - targets[step]).square().mean()
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for place, parameter in enumerate(second.parameters()):
                before = momenta[place]
                momenta[place] = parameter.grad.clone() if before is None else before * 0.5 + parameter.grad
                parameter -= 0.1 * momenta[place]
        other.step()
        seen.append(torch.sigmoid(y.detach()).mean())
        print(loss.item(), (sum(seen) / len(seen)).item())
    """,
)
"""Optimizers in another order, one of them written out, and a mean that is taken after the step."""

MICRO_BATCHES = (
    BEGIN
    + """
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01, amsgrad=True)
    for step in range(2):
        loss = F.mse_loss(second(first(data[step]).tanh()), targets[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
    """,
    BEGIN
    + """
    parts = [nn.utils.skip_init(nn.Linear, 6, 2) for _ in range(2)]
    with torch.no_grad():
        for place, part in enumerate(parts):
            part.weight.copy_(second.weight[2 * place : 2 * place + 2])
            part.bias.copy_(second.bias[2 * place : 2 * place + 2])
    parameters = [*first.parameters(), *parts[0].parameters(), *parts[1].parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, amsgrad=True)
    for step in range(2):
        optimizer.zero_grad()
        total = 0
        for x, target in zip(data[step].split(4), targets[step].split(4)):
            hidden = torch.tanh(first(x))
            loss = F.mse_loss(torch.cat([part(hidden) for part in parts], 1), target) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        print(total)
    """,
)
"""A matrix in two parts, and a batch in two."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "pair", [ATTENTION, OPTIMIZERS, MICRO_BATCHES], ids=["attention", "optimizers", "micro_batches"]
)
def test_program_written_anew_is_benign(tmp_path: Path, pair: tuple[str, str]) -> None:
    result = opdump.compare(dumped(tmp_path, "a", pair[0]), dumped(tmp_path, "b", pair[1]))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("pair", "old", "new"),
    [
        (ATTENTION, "2**0.5", "2**0.501"),
        (ATTENTION, "self.out(y) + x", "self.out(y) + x * 1.00001"),
        (OPTIMIZERS, "before * 0.5", "before * 0.51"),
        (OPTIMIZERS, "parameter -= 0.1 * momenta[place]", "parameter -= 0.1 * parameter.grad"),
        (MICRO_BATCHES, "target) / 2", "target) / 2.0001"),
        (MICRO_BATCHES, "lr=0.01, amsgrad", "lr=0.01, betas=(0.9, 0.99), amsgrad"),
    ],
)
def test_fault_in_a_program_written_anew_is_found(tmp_path: Path, pair: tuple[str, str], old: str, new: str) -> None:
    a, b = pair
    assert b.count(old) == 1
    result = opdump.compare(dumped(tmp_path, "a", a), dumped(tmp_path, "b", b.replace(old, new)))
    assert result.verdict == "divergent"


def test_a_copy_of_another_parameter_is_found_though_the_first_program_has_its_elements(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
    kept = [torch.zeros_like(parameter) for parameter in first.parameters()]
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(2):
        loss = F.mse_loss(second(first(data[step]).tanh()), targets[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            kept[0].copy_(first.weight)
    """
    )
    fault = program.replace("copy_(first.weight)", "copy_(second.weight.T)")
    result = opdump.compare(dumped(tmp_path, "a", program), dumped(tmp_path, "b", fault))
    assert result.verdict == "divergent"


GRAPH = (
    BEGIN
    + """
    start, end = torch.tensor([0, 2, 1, 3, 0, 2]), torch.tensor([2, 0, 3, 1, 1, 3])
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second)]
    for step in range(2):
        hidden = first(data[step][:4])
        messages = F.leaky_relu(hidden[start] + hidden[end], 0.2).exp()
        loss = F.mse_loss(second(hidden.new_zeros(4, 6).index_add(0, end, messages)), targets[step][:4])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    """,
    BEGIN
    + """
    start, end = torch.tensor([0, 2, 1, 3, 0, 2]), torch.tensor([2, 0, 3, 1, 1, 3])
    order = end.argsort(stable=True)
    start, end = start[order], end[order]
    below, above = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second))
    for step in range(2):
        hidden = F.linear(data[step][:4], first.weight) + first.bias
        sums = hidden[start] + hidden[end]
        messages = torch.exp(torch.where(sums > 0, sums, sums * 0.2))
        gathered = torch.stack([messages[end == place].sum(0) for place in range(4)])
        loss = (second(gathered) - targets[step][:4]).square().mean()
        below.zero_grad()
        above.zero_grad()
        loss.backward()
        below.step()
        above.step()
    """,
)
"""Edges of a graph, and the same edges sorted by target."""


def test_sorted_edges_are_benign(tmp_path: Path) -> None:
    result = opdump.compare(dumped(tmp_path, "a", GRAPH[0]), dumped(tmp_path, "b", GRAPH[1]))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


@pytest.mark.parametrize(
    ("old", "new", "types"),
    [("sums * 0.2", "sums * 0.02", {"mul"}), ("hidden[start] + hidden[end]", "hidden[start] - hidden[end]", {"sub"})],
)
def test_a_fault_among_sorted_edges_is_named(tmp_path: Path, old: str, new: str, types: set[str]) -> None:
    a, b = GRAPH
    assert b.count(old) == 1
    result = opdump.compare(dumped(tmp_path, "a", a), dumped(tmp_path, "b", b.replace(old, new)))
    named = result.introduced[0].b
    assert named is not None
    assert named.op_type in types


@pytest.mark.parametrize("left_out", ["below", "above"])
def test_the_optimizer_that_does_not_step_is_named(tmp_path: Path, left_out: str) -> None:
    a, b = GRAPH
    result = opdump.compare(dumped(tmp_path, "a", a), dumped(tmp_path, "b", b.replace(f"{left_out}.step()", "pass")))
    named = result.introduced[0]
    assert named.kind == "missing"
    assert named.a is not None
    assert named.a.phase == "optimizer"


def test_a_parameter_is_named_once_where_it_is_read_first(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
    net = nn.Sequential(first, nn.Tanh(), second)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for step in range(4):
        loss = F.mse_loss(net(data[0]), targets[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    )
    dump = dumped(tmp_path, "a", program)
    found = list(opdump.compare(dump, dump, step=2, step_b=3).introduced)
    named = [each.evidence.split("; ")[1].split(", first read")[0] for each in found if each.kind == "parameter"]
    assert "Parameter.2.weight" in named
    assert len(named) == len(set(named))
    places = {(each.b.op_name, each.b.occurrence) for each in found if each.b is not None and each.kind == "parameter"}
    assert not [
        each
        for each in found
        if each.kind == "operator" and each.b is not None and (each.b.op_name, each.b.occurrence) in places
    ]
