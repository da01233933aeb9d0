"""LeNet in PyTorch: opdump run -c data_dump.json lenet_torch.py."""

from __future__ import annotations

import lenet_data
import torch
from torch import Tensor, nn
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
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = x.flatten(1)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


network = LeNet()
for layer, parameters in lenet_data.weights().items():
    network.get_submodule(layer).load_state_dict({name: torch.from_numpy(each) for name, each in parameters.items()})
optimizer = torch.optim.SGD(network.parameters(), lr=lenet_data.LEARNING_RATE, momentum=lenet_data.MOMENTUM)

for images, labels in lenet_data.batches():
    optimizer.zero_grad()
    loss = cross_entropy(network(torch.from_numpy(images)), torch.from_numpy(labels).long())
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
