"""The same U-Net with levels in lists, functional norms, and the losses in one module."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Pair(nn.Sequential):
    def __init__(self, c_in, c_out):
        conv, norm = nn.Conv2d(c_in, c_out, 3, padding=1), nn.GroupNorm(2, c_out)
        again, norm_again = nn.Conv2d(c_out, c_out, 3, padding=1), nn.GroupNorm(2, c_out)  # <norm_b-init>
        super().__init__(conv, norm, nn.LeakyReLU(0.1), again, norm_again, nn.LeakyReLU(0.1))


class Segmenter(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        self.encoder = nn.ModuleList([Pair(1, c), Pair(c, 2 * c)])
        self.neck = Pair(2 * c, 2 * c)
        self.widen = nn.ConvTranspose2d(2 * c, 2 * c, kernel_size=2, stride=2)
        self.decoder = nn.ModuleList([Pair(4 * c, c), Pair(2 * c, c)])
        self.to_mask = nn.Conv2d(c, 1, kernel_size=1)

    def forward(self, image):
        fine = self.encoder[0](image)  # <down1>
        coarse = self.encoder[1](nn.functional.max_pool2d(fine, 2))  # <down2>
        neck = self.neck(F.avg_pool2d(coarse, 2))  # <bottom>
        up = self.widen(neck)  # <up2>
        up = self.decoder[0](torch.cat((coarse, up), dim=1))  # <cat2>
        up = nn.Upsample(scale_factor=2, mode="bilinear")(up)  # <resize>
        up = torch.cat((fine, up), dim=1)  # <cat1>
        return self.to_mask(self.decoder[1](up))[:, 0]  # <last>


class BothLosses(nn.Module):
    def forward(self, logits, wanted):
        p = logits.sigmoid()  # <probability>
        axes = (-1, -2)
        both = torch.sum(p * wanted, axes)  # <overlap>
        either = torch.sum(wanted, axes) + torch.sum(p, axes)  # <total>
        soft = 1 - torch.mean((1 + 2 * both) / (1 + either))  # <ratio>
        hard = F.binary_cross_entropy_with_logits(logits, wanted)  # <bce>
        return hard + soft  # <loss>


def scenes(count):
    random = np.random.RandomState(3)
    for _ in range(count):
        noise = random.rand(16, 16).astype(np.float32) * 0.3
        top, left = random.randint(2, 10, 2)
        inside = np.zeros_like(noise)
        inside[top : top + 5, left : left + 4] = 1  # <square>
        yield noise + inside, inside


torch.manual_seed(3)
net = Segmenter()
net.to_mask.bias.register_hook(lambda g: g / 2)  # <hook>
losses = BothLosses()
updates = torch.optim.Adam(net.parameters(), 3e-3, (0.9, 0.98), weight_decay=1e-4)  # <adam>
made = list(scenes(6))
for round_ in range(2):
    updates.zero_grad()  # <zero>
    image = torch.from_numpy(np.stack([a for a, _ in made[3 * round_ : 3 * round_ + 3]])).unsqueeze(1)  # <x>
    wanted = torch.from_numpy(np.stack([b for _, b in made[3 * round_ : 3 * round_ + 3]]))  # <y>
    total = losses(net(image), wanted)  # <call>
    total.backward()  # <backward>
    updates.step()  # <step>
    print(f"{round_} {total.item():.9g}")
