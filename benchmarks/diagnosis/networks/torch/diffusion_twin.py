"""The same denoiser with a schedule object, linear attention weights, functional norms, and an explicit loss."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Schedule:
    def __init__(self, count=20):
        beta = torch.linspace(1e-3, 0.2, count)  # <betas>
        self.kept = (1 - beta).cumprod(dim=0)  # <alphas>

    def spoil(self, image, when, noise):
        kept = self.kept.index_select(0, when)[:, None, None, None]  # <keep>
        spoiled = torch.sqrt(kept) * image + torch.sqrt(1 - kept) * noise  # <noisy>
        return spoiled, torch.clamp(kept / (1 - kept), max=5.0)  # <weight>


class Waves(nn.Module):
    def __init__(self, size):
        super().__init__()
        powers = torch.arange(size // 2) / (size // 2)  # <frequencies>
        self.register_buffer("rate", torch.exp(powers * -float(np.log(100.0))), persistent=False)

    def forward(self, when):
        phase = torch.outer(when.float(), self.rate)  # <angles>
        return torch.hstack((torch.sin(phase), torch.cos(phase)))  # <sincos>


class Cell(nn.Module):
    def __init__(self, c, looks_around):
        super().__init__()
        self.pre = nn.GroupNorm(4, c)
        self.spread = nn.Conv2d(c, c, 3, padding="same")
        self.modulation = nn.Linear(12, 2 * c)
        self.mid = nn.GroupNorm(4, c, eps=1e-6)  # <norm2-init>
        self.gather = nn.Conv2d(c, c, 3, padding="same")
        self.look = nn.Conv2d(c, 3 * c, 1) if looks_around else None

    def forward(self, image, moment):
        inner = self.spread(nn.functional.silu(self.pre(image)))  # <conv1>
        gain, offset = self.modulation(moment).chunk(2, dim=-1)  # <time>
        inner = torch.addcmul(offset[..., None, None], self.mid(inner), 1 + gain[..., None, None])  # <modulate>
        inner = F.dropout2d(F.silu(inner), 0.1, self.training)  # <drop>
        image = (self.gather(inner) + image) * 0.5**0.5  # <residual>
        return image if self.look is None else image + self.attend(image)  # <attended>

    def attend(self, image):
        b, c, h, w = image.shape
        pixels = image.reshape(b, c, h * w).transpose(1, 2)
        fused = F.linear(pixels, self.look.weight.view(3 * c, c), self.look.bias)  # <qkv>
        asks, keys, values = fused.split(c, -1)
        shares = torch.softmax(torch.baddbmm(torch.zeros(b, 1, 1), asks, keys.mT, beta=0, alpha=c**-0.5), 2)  # <scores>
        return torch.bmm(shares, values).mT.reshape(b, c, h, w)  # <mixed>


class Cleaner(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.waves = Waves(12)
        self.inlet = nn.Conv2d(1, c, 3, padding="same")
        self.moment1, self.moment2 = nn.Linear(12, 12), nn.Linear(12, 12)
        self.cells = nn.ModuleList([Cell(c, False), Cell(c, True)])
        self.outlet = nn.Conv2d(c, 1, 3, padding="same")

    def forward(self, image, when):
        image = self.inlet(image)  # <enter>
        moment = self.moment2(F.silu(self.moment1(self.waves(when))))  # <embed>
        for cell in self.cells:
            image = cell(image, moment)  # <block>
        return self.outlet(image)  # <leave>


def main():
    torch.manual_seed(31)
    schedule = Schedule()
    cleaner = Cleaner()
    slow = [p.detach().clone() for p in cleaner.parameters()]
    images = np.random.default_rng(31).uniform(-1, 1, (6, 1, 6, 6)).astype(np.float32)  # <clean>
    whens = torch.tensor([3, 11, 17, 0, 8, 14])  # <times>
    rule = torch.optim.AdamW(cleaner.parameters(), lr=2e-3, weight_decay=0.02)  # <adamw>
    for turn in (0, 1):
        image = torch.from_numpy(images[turn::2])  # <rows>
        noise = torch.randn(image.shape)  # <noise>
        spoiled, weight = schedule.spoil(image, whens[turn::2], noise)  # <spoil>
        error = cleaner(spoiled, whens[turn::2]) - noise  # <call>
        loss = torch.sum(weight * error * error) / error.numel()  # <loss>
        rule.zero_grad()  # <zero>
        loss.backward()  # <backward>
        nn.utils.clip_grad_norm_(cleaner.parameters(), 1.0)  # <clip>
        rule.step()  # <step>
        for mean, p in zip(slow, cleaner.parameters()):
            mean.lerp_(p.detach(), 0.1)  # <average>
        print(turn, loss.item())
    return cleaner, rule, slow


cleaner, rule, slow = main()
