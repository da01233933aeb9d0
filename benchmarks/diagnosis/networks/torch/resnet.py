"""Three residual blocks on small images: convolutions, batch norm, in-place ReLU, Nesterov momentum."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(11)
images = np.random.default_rng(11).normal(size=(12, 3, 12, 12)).astype("float32")  # <images>
kinds = np.arange(12) % 4  # <kinds>


class Block(nn.Module):
    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)  # <conv2-init>
        self.bn2 = nn.BatchNorm2d(after, eps=1e-3)  # <bn2-init>
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.conv1(x)  # <conv1>
        y = self.relu(self.bn1(y))  # <bn1>
        y = self.conv2(y)  # <conv2>
        y = self.bn2(y)  # <bn2>
        y += self.shortcut(x)  # <shortcut>
        return self.relu(y)  # <relu>


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.stages = nn.ModuleList([Block(6, 6), Block(6, 8, 2), Block(8, 8)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu_(self.norm(self.stem(x)))  # <stem>
        x = F.max_pool2d(x, 2, ceil_mode=True)  # <pool>
        for number, stage in enumerate(self.stages):
            x = stage(x)  # <stage>
        x = x.mean((2, 3))  # <mean>
        return self.head(x)  # <head>


net = ResNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)  # <sgd>
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)  # <criterion>

for epoch in range(3):
    batch = torch.as_tensor(images[epoch * 4 : epoch * 4 + 4])  # <batch>
    truth = torch.as_tensor(kinds[epoch * 4 : epoch * 4 + 4])
    optimizer.zero_grad(set_to_none=False)  # <zero>
    output = net(batch)  # <call>
    loss = criterion(output, truth)  # <loss>
    loss.backward()  # <backward>
    nn.utils.clip_grad_value_(net.head.parameters(), 0.2)  # <clip>
    optimizer.step()  # <step>
    print(epoch, loss.item())
