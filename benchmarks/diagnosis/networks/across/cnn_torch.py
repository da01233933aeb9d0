"""A convolutional classifier in PyTorch: batch norm, a residual, max pooling, SGD."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CHANNELS, CLASSES = 6, 5

numbers = np.random.default_rng(2)
images = numbers.normal(0.2, 1.0, (8, 8, 8, 3)).astype(np.float32)  # <images>
labels = numbers.integers(0, CLASSES, 8)  # <labels>


def kernel(size, given, made):
    return numbers.normal(0, 0.25, (size, size, given, made)).astype(np.float32)


class Block(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.conv = nn.Conv2d(given, CHANNELS, 3, padding=1, bias=False)
        self.conv.weight.data = torch.from_numpy(kernel(3, given, CHANNELS)).permute(3, 2, 0, 1).contiguous()
        self.norm = nn.BatchNorm2d(CHANNELS, eps=1e-5, momentum=0.1)  # <norm-init>

    def forward(self, x):
        x = self.conv(x)  # <conv>
        return self.norm(x)  # <norm>


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(3), Block(CHANNELS)
        self.head = nn.Linear(CHANNELS, CLASSES)
        self.head.weight.data = torch.from_numpy(kernel(1, CHANNELS, CLASSES)[0, 0].T.copy())
        self.head.bias.data = torch.zeros(CLASSES)

    def forward(self, x):
        x = F.relu(self.first(x))  # <relu1>
        x = F.relu(x + self.second(x))  # <residual>
        x = F.max_pool2d(x, 2, 2)  # <pool>
        x = x.mean((2, 3))  # <average>
        return self.head(x)  # <head>


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # <optimizer>
for step in range(2):
    part = slice(4 * step, 4 * step + 4)  # <part>
    x = torch.from_numpy(images[part]).permute(0, 3, 1, 2)
    loss = F.cross_entropy(model(x), torch.from_numpy(labels[part]), label_smoothing=0.1)  # <loss>
    optimizer.zero_grad()
    loss.backward()  # <backward>
    optimizer.step()  # <update>
    print(f"step {step} loss {loss.item()!r}")
