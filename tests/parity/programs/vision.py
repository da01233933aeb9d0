"""Models of images: diffusers, timm, torchvision, transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.parity.training_run import left_behind, trained


def clip_contrastive() -> Any:
    """CLIP: two towers and one contrastive loss."""
    from transformers import CLIPConfig, CLIPModel

    text = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    sight = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
    }
    config = CLIPConfig(
        text_config={**text, "max_position_embeddings": 12, "eos_token_id": 39, "bos_token_id": 0},
        vision_config={**sight, "patch_size": 4},
        projection_dim=8,
    )
    model = CLIPModel(config).train()
    tokens, images = torch.randint(39, (3, 6)), torch.randn(3, 3, 16, 16)
    return trained(model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss)


def detection_transformer() -> Any:
    """Object detection: YOLOS from transformers, because DETR with a timm backbone is large."""
    from transformers import YolosConfig, YolosModel

    config = YolosConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[16, 16], patch_size=4,
        num_detection_tokens=5,
    )  # fmt: skip
    model = YolosModel(config).train()
    images = torch.randn(2, 3, 24, 24)  # larger than image_size, so positions are interpolated
    return trained(model, lambda: model(pixel_values=images).last_hidden_state.square().mean())


def diffusers_conditional() -> Any:
    """A small Stable Diffusion: a network with cross attention, a variational autoencoder, the DPM solver."""
    from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, UNet2DConditionModel

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


def diffusers_unet_ddpm() -> Any:
    """A denoising network of diffusers is trained, then generates a picture with two schedulers."""
    from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

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


def timm_efficientnet() -> Any:
    """A mobile network of timm: depthwise convolutions, squeeze and excitation, in-place activations."""
    import timm

    model = timm.create_model("mobilenetv3_small_050", num_classes=4, drop_rate=0.1).train()
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])
    learned = trained(model, lambda: functional.cross_entropy(model(images), labels), steps=1)
    with torch.inference_mode():
        return learned, model.eval()(images)


def timm_resnet() -> Any:
    """A residual network of timm, channels last, with an exponential moving average of its weights."""
    import timm
    from timm.utils import ModelEmaV3

    model = timm.create_model("resnet10t", num_classes=4).to(memory_format=torch.channels_last).train()
    average = ModelEmaV3(model, decay=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(2):
        images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
        loss = functional.cross_entropy(model(images), torch.tensor([1, 3]), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        losses.append(loss)
    return losses, left_behind(model), left_behind(average.module)


def timm_swin() -> Any:
    """Shifted windows: a tiny Swin transformer of timm, and its features."""
    from timm.models.swin_transformer import SwinTransformer

    model = SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=8, depths=(2, 2), num_heads=(2, 2), num_classes=3
    ).train()
    images = torch.randn(2, 3, 32, 32)
    return trained(model, lambda: model(images).square().mean(), steps=1), model.forward_features(images)


def timm_vit_drop_path() -> Any:
    """A small vision transformer of timm with stochastic depth, layer scale and mixup."""
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import create_optimizer_v2

    model = VisionTransformer(
        img_size=16,
        patch_size=4,
        num_classes=5,
        embed_dim=16,
        depth=3,
        num_heads=2,
        drop_path_rate=0.3,
        init_values=0.1,
    ).train()
    mixup, loss = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, num_classes=5), SoftTargetCrossEntropy()
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])

    def step() -> torch.Tensor:
        mixed, targets = mixup(images.clone(), labels)
        answer: torch.Tensor = loss(model(mixed), targets)
        return answer

    optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-2, weight_decay=0.02)
    return trained(model, step, optimizer=optimizer)


def torchvision_transforms() -> Any:
    """Random torchvision transforms change pictures before a torchvision network reads them."""
    from torchvision.models import shufflenet_v2_x0_5
    from torchvision.transforms import v2

    change = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )
    model = shufflenet_v2_x0_5(num_classes=3).train()
    images, labels = torch.randint(256, (2, 3, 40, 40), dtype=torch.uint8), torch.tensor([0, 1])
    return trained(model, lambda: functional.cross_entropy(model(change(images)), labels), steps=1)


def transformers_vit() -> Any:
    """A vision transformer of transformers is trained with a fused optimizer."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=3,
    )
    model = ViTForImageClassification(config).train()
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([0, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss, optimizer=optimizer)


def vector_quantisation() -> Any:
    """An autoencoder with residual vector quantisation: codes are learned by moving averages and random choice."""
    from vector_quantize_pytorch import ResidualVQ

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Conv1d(2, 8, 3, padding=1), nn.Conv1d(8, 2, 3, padding=1)
            self.codes = ResidualVQ(dim=8, codebook_size=6, num_quantizers=2, kmeans_init=True, kmeans_iters=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            coded, _, penalty = self.codes(self.encode(x).transpose(1, 2))
            answer: torch.Tensor = (self.decode(coded.transpose(1, 2)) - x).square().mean() + penalty.sum()
            return answer

    model, sound = Quantised().train(), torch.randn(3, 2, 10)
    return trained(model, lambda: model(sound), steps=3)
