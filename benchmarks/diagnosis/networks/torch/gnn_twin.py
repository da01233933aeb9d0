"""The same graph network: an adjacency matrix for the convolutions, edges sorted by target, an optimizer of PyTorch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

COUNT = 14


def neighbours(start, end):
    matrix = torch.zeros(COUNT, COUNT).index_put_((end, start), torch.ones(()), accumulate=True)  # <matrix>
    degree = matrix.sum(1)  # <degree>
    scale = torch.rsqrt(torch.clamp(degree, min=1))  # <root>
    return scale[:, None] * matrix * scale[None, :]  # <norm>


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(5, 8) / 5**0.5)
        self.look = nn.Linear(8, 8, bias=False)
        self.a_from, self.a_to = nn.Parameter(torch.randn(8) * 0.3), nn.Parameter(torch.randn(8) * 0.3)
        self.w3 = nn.Parameter(torch.randn(8, 3) / 8**0.5)
        self.b1, self.b3 = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(3))

    def attend(self, nodes, start, end):
        seen = self.look(nodes)  # <project>
        raw = torch.mv(seen, self.a_from)[start] + torch.mv(seen, self.a_to)[end]  # <edge-score>
        raw = torch.where(raw > 0, raw, 0.2 * raw)  # <edge-act>
        highest = torch.full((COUNT,), float("-inf")).index_reduce(0, end, raw.detach(), "amax")  # <top>
        powers = (raw - highest[end]).exp()  # <exp>
        sums = powers.new_zeros(COUNT).scatter_add(0, end, powers)  # <attention-total>
        mixed = nodes.new_zeros(COUNT, 8)
        mixed = mixed.index_add(0, end, seen[start] * powers[:, None])  # <attended>
        return mixed / sums[:, None]  # <share>

    def forward(self, nodes, start, end):
        spread = neighbours(start, end)  # <neighbours>
        nodes = spread @ (nodes @ self.w1) + self.b1  # <transform>
        nodes = F.normalize(F.elu(nodes), dim=1, eps=1e-6)  # <unit>
        nodes = self.attend(nodes, start, end) + nodes  # <second>
        nodes = F.dropout(nodes, p=0.3, training=self.training)  # <drop>
        return spread @ (nodes @ self.w3) + self.b3  # <third>


def data():
    random = np.random.default_rng(47)
    ends = torch.from_numpy(random.integers(0, COUNT, (2, 40)))  # <pairs>
    inputs = torch.from_numpy(random.standard_normal((COUNT, 5)).astype(np.float32))  # <features>
    kinds = torch.from_numpy(random.integers(0, 3, COUNT))  # <groups>
    start, end = (torch.cat([e, torch.arange(COUNT)]) for e in ends)  # <loops>
    order = torch.argsort(end, stable=True)  # <sort>
    return inputs, start[order], end[order], kinds  # <ordered>


inputs, start, end, kinds = data()
torch.manual_seed(47)
graph = Graph()
sgd = torch.optim.SGD(graph.parameters(), lr=0.1, momentum=0.9)  # <sgd>
known = torch.nonzero(torch.arange(COUNT) % 3)[:, 0]  # <seen>
for turn in range(3):
    sgd.zero_grad()  # <zero>
    scores = graph(inputs, start, end)  # <call>
    loss = F.cross_entropy(scores[known], kinds[known])  # <loss>
    loss = loss + (graph.w1 * graph.w1).sum() / 1000  # <decay>
    loss.backward()  # <backward>
    sgd.step()  # <step>
    print(turn, loss.item())
