"""A classifier for tabular data: batch norm, a swish with a custom backward, SGD with momentum and weight decay."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(7)
rng = np.random.default_rng(7)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)  # <gate>
        ctx.save_for_backward(x, gate)  # <save>
        return x * gate  # <swish>

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors  # <saved>
        slope = gate * (1 + x * (1 - gate))  # <slope>
        return grad * slope  # <swish-grad>


class Classifier(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.inner = nn.Linear(features, hidden)
        self.norm1 = nn.BatchNorm1d(hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.norm2 = nn.BatchNorm1d(hidden, momentum=0.2)  # <norm2-init>
        self.outer = nn.Linear(hidden, classes)

    def forward(self, x):
        x = self.inner(x)  # <inner>
        x = self.norm1(x)  # <norm1>
        x = Swish.apply(x)  # <apply>
        y = self.middle(x)  # <middle>
        y = self.norm2(y)  # <norm2>
        x = x + y.relu()  # <residual>
        return self.outer(x)  # <outer>


data = rng.standard_normal((24, 6)).astype(np.float32)  # <data>
labels = (data.sum(1) > 0).astype(np.int64) + (data[:, 0] > 1)
data = (data - data.mean(0)) / data.std(0)  # <scaled>

model = Classifier(6, 10, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)  # <sgd>

for step in range(3):
    rows = slice(8 * step, 8 * step + 8)  # <rows>
    x = torch.from_numpy(data[rows])
    target = torch.from_numpy(labels[rows])  # <target>
    optimizer.zero_grad()  # <zero>
    logits = model(x)  # <call>
    loss = F.cross_entropy(logits, target)  # <loss>
    loss.backward()  # <backward>
    optimizer.step()  # <step>
    print(step, loss.item())
