"""LeNet in PyTorch: lenet_torch.py DATA.npz. Three steps of SGD with momentum, with the weights and batches in the file."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        output: torch.Tensor = self.fc3(x)
        return output


def main(path: str) -> None:
    data = np.load(path)
    network = LeNet()
    network.load_state_dict({name: torch.from_numpy(data[name]) for name in network.state_dict()})
    optimizer = torch.optim.SGD(network.parameters(), lr=float(data["learning_rate"]), momentum=float(data["momentum"]))
    for images, labels in zip(data["images"], data["labels"], strict=True):
        optimizer.zero_grad()
        loss = cross_entropy(network(torch.from_numpy(images)), torch.from_numpy(labels).long())
        print("loss", loss.item())
        torch.autograd.backward(loss)
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
