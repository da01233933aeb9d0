"""Train AlexNet on scikit-learn's handwritten digits.

Plain PyTorch, without any opdump code. It is the network of the dump analysis sample in MindSpore's documentation
(five convolutions, three fully connected layers, weights from a truncated normal distribution), so you can follow
the sample step by step: see docs/analysis.md.

The digits are 8 x 8 pictures with one channel. AlexNet reads 227 x 227 pictures with three, so they are scaled up
and repeated over the channels. This is a poor use of AlexNet, but the data set needs no download.

    python train_alexnet.py --steps 2 --batch 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

PICTURE_SIZE = 227
CHANNELS = 3
CLASSES = 10


def main() -> None:
    """Train for a number of steps and print the loss of each."""
    options = parse_options()
    torch.manual_seed(options.seed)
    network = AlexNet(CLASSES, CHANNELS)
    # 62 million weights: an optimizer with only one state per weight saves memory.
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=options.learning_rate,
        momentum=options.momentum,
    )
    loss_function = nn.CrossEntropyLoss()
    for step, (pictures, labels) in enumerate(batches(options.steps, options.batch)):
        loss = train_one_step(network, loss_function, optimizer, pictures, labels)
        print(f"step {step}: loss {loss:.4f}")


def train_one_step(
    network: nn.Module,
    loss_function: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: Tensor,
    labels: Tensor,
) -> float:
    """Run forward, backward and the optimizer once.

    Returns:
        The loss before the update.
    """
    optimizer.zero_grad()
    loss = loss_function(network(pictures), labels)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train AlexNet on handwritten digits.")
    parser.add_argument(
        "--steps",
        type=int,
        default=2,
        help="number of training steps",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=2,
        help="pictures in a batch",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.002,
        help="step size of the optimizer",
    )
    parser.add_argument(
        "--momentum",
        type=float,
        default=0.9,
        help="momentum of the optimizer",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the random numbers",
    )
    return parser.parse_args()


def batches(steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (pictures, labels) in the order of the data set, starting again at its end.

    Yields:
        Pictures as float32 of shape (size, 3, 227, 227) between 0 and 1, labels as int64 of shape (size,).
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    for step in range(steps):
        rows = torch.arange(step * size, (step + 1) * size) % len(images)
        yield enlarge(images[rows]), labels[rows]


def enlarge(images: Tensor) -> Tensor:
    """Scale pictures up to the size that AlexNet reads.

    Input of shape (batch, 1, height, width), output of shape (batch, 3, 227, 227).
    """
    pictures = functional.interpolate(
        images,
        size=(PICTURE_SIZE, PICTURE_SIZE),
        mode="nearest",
    )
    return pictures.repeat(1, CHANNELS, 1, 1)


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, pad_mode: str = "valid") -> nn.Conv2d:
    """Make a convolution without a bias; its weight is from a truncated normal distribution."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=pad_mode, bias=False)
    truncated_normal(layer.weight)
    return layer


def fc_with_initialize(input_channels: int, out_channels: int) -> nn.Linear:
    """Make a fully connected layer; weight and bias are from a truncated normal distribution."""
    layer = nn.Linear(input_channels, out_channels)
    truncated_normal(layer.weight)
    truncated_normal(layer.bias)
    return layer


def truncated_normal(parameter: Tensor) -> None:
    """Fill a parameter from a normal distribution with standard deviation 0.02, truncated at two standard deviations."""
    nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)


class AlexNet(nn.Module):
    """AlexNet.

    Input pictures of shape (batch, channel, 227, 227), output scores of shape (batch, num_classes).
    """

    def __init__(self, num_classes: int = 10, channel: int = 3) -> None:
        super().__init__()
        self.conv1 = conv(channel, 96, 11, stride=4)
        self.conv2 = conv(96, 256, 5, pad_mode="same")
        self.conv3 = conv(256, 384, 3, pad_mode="same")
        self.conv4 = conv(384, 384, 3, pad_mode="same")
        self.conv5 = conv(384, 256, 3, pad_mode="same")
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=3, stride=2)
        self.flatten = nn.Flatten()
        self.fc1 = fc_with_initialize(6 * 6 * 256, 4096)
        self.fc2 = fc_with_initialize(4096, 4096)
        self.fc3 = fc_with_initialize(4096, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        x = self.conv1(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.conv2(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.conv3(x)
        x = self.relu(x)
        x = self.conv4(x)
        x = self.relu(x)
        x = self.conv5(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.flatten(x)
        x = self.fc1(x)
        x = self.relu(x)
        x = self.fc2(x)
        x = self.relu(x)
        return self.fc3(x)


if __name__ == "__main__":
    main()
