"""The same classifier, written out: functional calls, running statistics in a helper, other names."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class SelfGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        g = value.sigmoid()  # <gate>
        out = value * g  # <swish>
        ctx.save_for_backward(value, g)  # <save>
        return out

    @staticmethod
    def backward(ctx, upstream):
        value, g = ctx.saved_tensors  # <saved>
        local = g + value * g * (1 - g)  # <slope>
        return upstream * local  # <swish-grad>


def normalised(layer, value):
    layer.num_batches_tracked.add_(1)
    return F.batch_norm(  # <norm>
        value, layer.running_mean, layer.running_var, layer.weight, layer.bias, True, layer.momentum, layer.eps
    )


class TableNet(nn.Module):
    def __init__(self, width_in, width, width_out):
        super().__init__()
        first = nn.Linear(width_in, width)
        second = nn.Linear(width, width)
        head = nn.Linear(width, width_out)
        self.body = nn.ModuleDict({"first": first, "second": second})
        self.stats = nn.ModuleList([nn.BatchNorm1d(width), nn.BatchNorm1d(width, momentum=0.2)])  # <norm2-init>
        self.head = head

    def block(self, value):
        hidden = F.linear(value, self.body["second"].weight, self.body["second"].bias)  # <middle>
        return torch.relu(normalised(self.stats[1], hidden))  # <relu>

    def forward(self, value):
        value = F.linear(value, self.body["first"].weight, self.body["first"].bias)  # <inner>
        value = SelfGate.apply(normalised(self.stats[0], value))  # <apply>
        return self.head(torch.add(self.block(value), value))  # <residual>


def batches():
    generator = np.random.default_rng(7)
    table = generator.standard_normal((24, 6)).astype(np.float32)  # <data>
    kinds = (table.sum(1) > 0).astype(np.int64) + (table[:, 0] > 1)
    table = (table - table.mean(0)) / table.std(0)  # <scaled>
    yield from zip(torch.from_numpy(table).split(8), torch.from_numpy(kinds).split(8), strict=True)


def main():
    torch.manual_seed(7)
    net = TableNet(6, 10, 3)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)  # <sgd>
    for number, (rows, kinds) in enumerate(batches()):
        scores = net(rows)  # <call>
        loss = F.nll_loss(F.log_softmax(scores, -1), kinds)  # <loss>
        sgd.zero_grad()  # <zero>
        loss.backward()  # <backward>
        sgd.step()  # <step>
        print(number, loss.item())
    return net, sgd


net, sgd = main()
