"""A denoising network of diffusers is trained, then generates a picture with two schedulers."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from torch.nn import functional

from tests.parity.training_run import trained


def program() -> Any:
    model = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4,
    ).train()  # fmt: skip
    noisy = DDPMScheduler(num_train_timesteps=20)
    images = torch.randn(2, 1, 8, 8)

    def loss() -> torch.Tensor:
        noise, times = torch.randn_like(images), torch.randint(20, (2,))
        return functional.mse_loss(model(noisy.add_noise(images, noise, times), times).sample, noise)

    learned = trained(model, loss)
    drawn = []
    for scheduler in (noisy, DDIMScheduler(num_train_timesteps=20)):
        scheduler.set_timesteps(3)
        sample = torch.randn(1, 1, 8, 8)
        for time in scheduler.timesteps:
            with torch.no_grad():
                sample = scheduler.step(model(sample, time).sample, time, sample).prev_sample
        drawn.append(sample)
    return learned, drawn
