"""A vision transformer on small digits: patches by a convolution, class token, nn.MultiheadAttention, Adam with amsgrad."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(17)
torch.manual_seed(17)


class Encoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)  # <attention-init>
        self.ln2 = nn.LayerNorm(width)  # <ln2-init>
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))  # <mlp-init>
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        y = self.ln1(x)  # <ln1>
        y, _ = self.attention(y, y, y, need_weights=False)  # <attention>
        x = x + self.scale * y  # <residual1>
        y = self.ln2(x)  # <ln2>
        y = self.mlp(y)  # <mlp>
        return x + self.scale * y  # <residual2>


class ViT(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)  # <patches-init>
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 10, width) * 0.02)
        self.blocks = nn.Sequential(*[Encoder(width, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, images):
        x = self.patches(images)  # <patches>
        x = x.flatten(2).transpose(1, 2)  # <flatten>
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)  # <token>
        x = x + self.places  # <places>
        x = self.blocks(x)  # <blocks>
        x = self.norm(x)  # <norm>
        return self.head(x[:, 0])  # <head>


vit = ViT()
adam = torch.optim.Adam(vit.parameters(), lr=1e-3, amsgrad=True, weight_decay=0.01)  # <adam>
images = torch.from_numpy(rng.random((12, 1, 12, 12), dtype=np.float32))  # <images>
labels = torch.from_numpy(rng.integers(0, 5, 12))  # <labels>
mean, std = images.mean(), images.std()  # <mean>
images = images.sub_(mean).div_(std)  # <normalise>

for step in range(3):
    vit.train()
    x, y = images[step::3], labels[step::3]  # <rows>
    logits = vit(x)  # <call>
    penalty = logits.logsumexp(1).square().mean()  # <penalty>
    loss = nn.functional.cross_entropy(logits, y) + 1e-2 * penalty  # <loss>
    adam.zero_grad()  # <zero>
    loss.backward()  # <backward>
    vit.patches.weight.grad.mul_(0.5)  # <grad-scale>
    adam.step()  # <step>
    print(step, loss.item())
