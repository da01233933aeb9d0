"""A U-Net with two levels that finds squares: skip connections by concatenation, group norm, dice loss, Adam with decay."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

rng = np.random.RandomState(3)
torch.manual_seed(3)


def scene():
    picture = rng.rand(16, 16).astype(np.float32) * 0.3
    row, column = rng.randint(2, 10, 2)
    mask = np.zeros((16, 16), np.float32)
    mask[row : row + 5, column : column + 4] = 1  # <square>
    return picture + mask, mask


class Double(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv_a = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm_a = nn.GroupNorm(2, outputs)
        self.conv_b = nn.Conv2d(outputs, outputs, 3, padding=1)  # <conv_b-init>
        self.norm_b = nn.GroupNorm(2, outputs)  # <norm_b-init>

    def forward(self, x):
        x = F.leaky_relu(self.norm_a(self.conv_a(x)), 0.1)  # <conv_a>
        x = self.conv_b(x)  # <conv_b>
        x = self.norm_b(x)  # <norm_b>
        return F.leaky_relu(x, 0.1)  # <act_b>


class UNet(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.down1 = Double(1, width)
        self.down2 = Double(width, 2 * width)
        self.bottom = Double(2 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, 2)
        self.join2 = Double(4 * width, width)
        self.join1 = Double(2 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        one = self.down1(x)  # <down1>
        two = self.down2(F.max_pool2d(one, 2))  # <down2>
        deep = self.bottom(F.avg_pool2d(two, 2))  # <bottom>
        deep = self.up2(deep)  # <up2>
        deep = torch.cat([two, deep], 1)  # <cat2>
        deep = self.join2(deep)  # <join2>
        deep = F.interpolate(deep, scale_factor=2, mode="bilinear", align_corners=False)  # <resize>
        deep = torch.cat([one, deep], dim=1)  # <cat1>
        deep = self.join1(deep)  # <join1>
        return self.last(deep).squeeze(1)  # <last>


def dice(logits, mask):
    p = torch.sigmoid(logits)  # <probability>
    overlap = (p * mask).sum((1, 2))  # <overlap>
    total = p.sum((1, 2)) + mask.sum((1, 2))  # <total>
    return 1 - ((2 * overlap + 1) / (total + 1)).mean()  # <ratio>


unet = UNet()
adam = torch.optim.Adam(unet.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=1e-4)  # <adam>
unet.last.bias.register_hook(lambda grad: grad * 0.5)  # <hook>

for step in range(2):
    pictures, masks = map(np.stack, zip(scene(), scene(), scene()))
    x = torch.tensor(pictures)[:, None]  # <x>
    y = torch.tensor(masks)  # <y>
    prediction = unet(x)  # <call>
    loss = F.binary_cross_entropy_with_logits(prediction, y)  # <bce>
    loss = loss + dice(prediction, y)  # <loss>
    adam.zero_grad()  # <zero>
    loss.backward()  # <backward>
    adam.step()  # <step>
    print(f"{step} {loss.item():.9g}")
