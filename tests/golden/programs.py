"""Programs with exact numbers (small integers, powers of two): no CPU and no order of summation changes a bit.

Each is the text of a file. It is run with `SETTINGS`, the keywords of `opdump.capture`.
"""

from __future__ import annotations

from typing import Final

TRAINING: Final = """
import torch
import opdump

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 2)
        self.fc = torch.nn.Linear(8, 2)

    def forward(self, image):
        return self.fc(torch.relu(self.conv(image)).flatten(1))

def whole(*shape):
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 3 - 1).reshape(shape).float()

net = Block()
for parameter in net.parameters():
    parameter.data = whole(*parameter.shape)
optimizer = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
with opdump.capture(**SETTINGS):
    for step in range(2):
        loss = (net(whole(2, 1, 3, 3)) - step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
"""

MEMORY: Final = """
import torch
import opdump

with opdump.capture(**SETTINGS):
    whole = torch.arange(24.0).reshape(2, 3, 4)
    gates = whole.transpose(0, 2).chunk(2)
    gates[0].mul_(2)
    whole[0].add_(gates[1].permute(2, 1, 0)[1, :, :1])
    filled = torch.empty(4)
    filled.numpy()[:] = [1, 2, 4, 8]
    kept = torch.stack([filled * 2, filled + 1]).to(torch.bfloat16)
    torch.where(kept > 4, kept, kept.new_zeros(())).sum(0).tolist()
    (torch.tensor([1 + 2j, 3 - 4j]) * 2).real.to(torch.int8).bool().any().item()
    torch.tensor([]).reshape(0, 3).sum(0)
"""

NONFINITE: Final = """
import torch
import opdump

with opdump.capture(**SETTINGS):
    large = torch.full((4,), 60000.0, dtype=torch.float16)
    doubled = large + large
    zero = torch.zeros(3) / torch.zeros(3)
    masked = torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), float("-inf"))
    (masked.relu().sum() + zero.sum() + doubled.float().sum()).item()
    torch.full((2,), 2.0**127) * 4
"""

FAILING: Final = """
import torch
import opdump

try:
    with opdump.capture(**SETTINGS):
        table = torch.arange(6.0).reshape(3, 2)
        torch.nn.functional.embedding(torch.tensor([1, 7]), table)
except IndexError:
    pass
"""

CALLS: Final = """
import torch
import opdump

net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
for parameter in net.parameters():
    parameter.data = torch.ones_like(parameter)
opdump.name_model(net, "golden")
with opdump.capture(**SETTINGS):
    for step in range(2):
        net(torch.ones(2, 2) * step)
"""

PROGRAMS: Final = {
    "training": TRAINING,
    "memory": MEMORY,
    "nonfinite": NONFINITE,
    "failing": FAILING,
    "calls": CALLS,
}
