"""Small inference networks with fixed weights, and their dumps under PyTorch and, exported, under ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import opdump
import opdump.onnx


class Block(nn.Module):
    def __init__(self, given: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(made)
        self.second = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.other_norm = nn.BatchNorm2d(made)
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm(self.first(x)))
        return functional.relu(self.other_norm(self.second(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(Block(8, 8), Block(8, 16, 2), Block(16, 16))
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.layers(self.stem(x)), 1).flatten(1)
        return functional.softmax(self.out(x), -1)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.layers(x), -1)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8, eps=1e-3)
        self.second, self.other_norm = nn.Conv2d(8, 16, 3, 1, 1), nn.BatchNorm2d(16, eps=1e-3)
        self.out = nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.avg_pool2d(functional.relu(self.other_norm(self.second(x))), 2)
        result: Tensor = self.out(x.permute(0, 2, 3, 1).flatten(1))
        return result


class Layer(nn.Module):
    """Attention written out, because PyTorch runs its own layer as one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(functional.gelu(self.up(self.other_norm(x))))
        return result


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(1, 7, 16))
        self.layers, self.out = nn.Sequential(Layer(), Layer()), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.layers(self.words(x) + self.places).mean(1))
        return result


class Encoder(nn.Module):
    """PyTorch's own encoder: one operator per layer."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True, norm_first=True)
        self.words, self.layers = nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.layers(self.words(x)).mean(1))
        return result


class Classifier(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.words, self.recurrent = nn.Embedding(20, 8), kind(8, 12, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(x))
        return functional.log_softmax(self.out(torch.tanh(states[:, -1])), -1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _separable(4, 8), _separable(8, 16), _separable(16, 8)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.up(self.second(functional.max_pool2d(fine, 2)))
        coarse = coarse + functional.interpolate(functional.avg_pool2d(coarse, 2), scale_factor=2.0, mode="nearest")
        return torch.sigmoid(self.out(self.third(torch.cat([fine, coarse], 1))))


def _separable(given: int, made: int) -> nn.Sequential:
    deep = nn.Conv2d(given, given, 3, 1, 1, groups=given)
    return nn.Sequential(
        deep, nn.BatchNorm2d(given), nn.Hardswish(), nn.Conv2d(given, made, 1), nn.GroupNorm(2, made), nn.SiLU()
    )


def _image(channels: int) -> Tensor:
    return torch.randn(2, channels, 16, 16)


def _tokens() -> Tensor:
    return torch.randint(0, 20, (2, 7))


NETWORKS: Final[Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]] = {
    "mlp": (Perceptron, lambda: torch.randn(6, 12)),
    "cnn": (ConvNet, lambda: _image(3)),
    "resnet": (ResNet, lambda: _image(3)),
    "transformer": (Transformer, _tokens),
    "encoder": (Encoder, _tokens),
    "lstm": (lambda: Classifier(nn.LSTM), _tokens),
    "gru": (lambda: Classifier(nn.GRU), _tokens),
    "unet": (UNet, lambda: _image(4)),
}
Exporter = Literal["folded", "plain"]


def network(name: str) -> tuple[nn.Module, Tensor]:
    """A network whose weights and statistics differ from freshly initialised ones, and its input."""
    torch.manual_seed(3)
    make, given = NETWORKS[name]
    model = make().eval()
    with torch.no_grad():
        for each, buffer in model.named_buffers():
            if each.endswith("running_mean"):
                buffer.normal_()
            elif each.endswith("running_var"):
                buffer.uniform_(0.01, 1)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model, given()


def dump_torch(model: nn.Module, given: Tensor, path: Path) -> Path:
    """Run a network under PyTorch."""
    with opdump.capture(path=str(path), saved_data="full"), torch.no_grad():
        model(given)
    return path


def dump_onnx(model: nn.Module, given: Tensor, path: Path, exporter: Exporter = "folded") -> Path:
    """Export a network and run it under ONNX Runtime: with batch norms folded into the convolutions, or as an older
    exporter writes it.
    """
    file = path.with_suffix(".onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated, but its files are in use
        if exporter == "folded":
            torch.onnx.export(model, (given,), file, dynamo=True, input_names=["x"], verbose=False)
        else:
            torch.onnx.export(
                model,
                (given,),
                file,
                dynamo=False,
                input_names=["x"],
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                opset_version=14,
            )
    return dump_model(file, given, path)


def dump_model(file: Path, given: Tensor, path: Path) -> Path:
    """Run a file under ONNX Runtime."""
    with opdump.onnx.session(str(file), path=str(path), saved_data="full") as session:
        session.run(None, {"x": given.numpy()})
    return path
