"""A small Stable Diffusion: a network with cross attention, a variational autoencoder, the DPM solver."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, UNet2DConditionModel


def program() -> Any:
    network = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=12, attention_head_dim=4,
    ).eval()  # fmt: skip
    decoder = AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8
    ).eval()
    scheduler = DPMSolverMultistepScheduler(num_train_timesteps=50)
    scheduler.set_timesteps(4)
    words, latents = torch.randn(2, 5, 12), torch.randn(1, 4, 8, 8)
    with torch.inference_mode():
        for time in scheduler.timesteps:
            both = network(torch.cat([latents, latents]), time, encoder_hidden_states=words).sample
            free, led = both.chunk(2)
            latents = scheduler.step(free + 7.5 * (led - free), time, latents).prev_sample
        return latents, decoder.decode(latents).sample, decoder.encode(torch.randn(1, 3, 8, 8)).latent_dist.sample()
