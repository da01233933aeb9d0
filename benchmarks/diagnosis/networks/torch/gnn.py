"""A graph network that passes messages over edges: degrees, scatter, edge attention, a custom segment sum, hand-written SGD."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(47)
rng = np.random.default_rng(47)
NODES, EDGES = 14, 40

pairs = rng.integers(0, NODES, (2, EDGES))  # <pairs>
features = rng.standard_normal((NODES, 5)).astype(np.float32)  # <features>
groups = torch.from_numpy(rng.integers(0, 3, NODES))  # <groups>
seen = torch.arange(NODES) % 3 != 0  # <seen>
edges = torch.cat([torch.from_numpy(pairs), torch.arange(NODES).expand(2, -1)], 1)  # <loops>


class SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, index, count):
        ctx.save_for_backward(index)
        return values.new_zeros(count, values.shape[1]).index_add_(0, index, values)  # <segment-sum>

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors  # <segment-saved>
        return grad.index_select(0, index), None, None  # <segment-grad>


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, source, target):
        degree = torch.zeros(NODES).scatter_add_(0, target, torch.ones(len(target)))  # <degree>
        root = degree.clamp(min=1).pow(-0.5)  # <root>
        norm = root[source] * root[target]  # <norm>
        x = x @ self.weight  # <transform>
        messages = x[source] * norm[:, None]  # <messages>
        return SegmentSum.apply(messages, target, NODES) + self.bias  # <gathered>


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        self.left = nn.Parameter(torch.randn(width) * 0.3)
        self.right = nn.Parameter(torch.randn(width) * 0.3)

    def forward(self, x, source, target):
        h = self.project(x)  # <project>
        e = (h @ self.left)[source] + (h @ self.right)[target]  # <edge-score>
        e = F.leaky_relu(e, 0.2)  # <edge-act>
        top = torch.full((NODES,), -1e30).scatter_reduce(0, target, e, "amax")  # <top>
        e = torch.exp(e - top[target].detach())  # <exp>
        total = torch.zeros(NODES).index_add(0, target, e)  # <attention-total>
        share = e / total[target]  # <share>
        return torch.zeros_like(h).index_add(0, target, share[:, None] * h[source])  # <attended>


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Convolution(5, 8)
        self.second = Attention(8)
        self.third = Convolution(8, 3)

    def forward(self, x, edges):
        source, target = edges  # <ends>
        x = F.elu(self.first(x, source, target))  # <first>
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-6)  # <unit>
        x = x + self.second(x, source, target)  # <second>
        x = F.dropout(x, 0.3, self.training)  # <drop>
        return self.third(x, source, target)  # <third>


net = GraphNet()
velocity = {p: torch.zeros_like(p) for p in net.parameters()}

for step in range(3):
    out = net(torch.from_numpy(features), edges)  # <call>
    loss = F.nll_loss(F.log_softmax(out[seen], 1), groups[seen])  # <loss>
    loss = loss + 1e-3 * net.first.weight.pow(2).sum()  # <decay>
    loss.backward()  # <backward>
    with torch.no_grad():
        for p in net.parameters():
            velocity[p].mul_(0.9).add_(p.grad)  # <velocity>
            p -= 0.1 * velocity[p]  # <update>
            p.grad = None  # <clear>
    print(step, loss.item())
