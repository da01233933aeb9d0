"""A GAN on points of a ring: a custom Adam for one network, RMSprop for the other, a gradient penalty."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(41)
angles = np.random.default_rng(41).uniform(0, 2 * np.pi, (3, 10))
ring = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)  # <ring>


class OwnAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, beta1=0.5, beta2=0.9, eps=1e-8):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1  # <t>
                m, v, t = state["m"], state["v"], state["t"]
                m.mul_(group["beta1"]).add_(p.grad, alpha=1 - group["beta1"])  # <first>
                v.mul_(group["beta2"]).addcmul_(p.grad, p.grad, value=1 - group["beta2"])  # <second>
                m_hat = m / (1 - group["beta1"] ** t)  # <m-hat>
                v_hat = v / (1 - group["beta2"] ** t)  # <v-hat>
                denominator = v_hat.sqrt().add_(group["eps"])  # <denominator>
                p.addcdiv_(m_hat, denominator, value=-group["lr"])  # <update>


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 16)
        self.bn = nn.BatchNorm1d(16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, z):
        h = self.fc1(z)  # <g-fc1>
        h = torch.relu_(self.bn(h))  # <g-bn>
        return torch.tanh(self.fc2(h)) * 1.5  # <g-out>


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 16)
        self.fc2 = nn.Linear(16, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = nn.functional.elu(self.fc1(x), alpha=0.7)  # <d-fc1>
        h = h + nn.functional.elu(self.fc2(h), alpha=0.7)  # <d-fc2>
        return self.out(h)[:, 0]  # <d-out>


generator, critic = Generator(), Critic()
g_rule = OwnAdam(generator.parameters(), lr=2e-3)  # <own-adam>
d_rule = torch.optim.RMSprop(critic.parameters(), lr=1e-3, alpha=0.9, centered=True)  # <rmsprop>

for step in range(2):
    real = torch.from_numpy(ring[step])  # <real>
    z = torch.randn(10, 4)  # <z>
    fake = generator(z).detach()  # <fake>
    critic.zero_grad()  # <d-zero>
    mix = torch.rand(10, 1)  # <mix>
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)  # <between>
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)  # <slopes>
    penalty = ((slopes.norm(2, dim=1) - 1) ** 2).mean()  # <penalty>
    d_loss = critic(fake).mean() - critic(real).mean() + 10 * penalty  # <d-loss>
    d_loss.backward()  # <d-backward>
    d_rule.step()  # <d-step>
    generator.zero_grad()  # <g-zero>
    g_loss = -critic(generator(z)).mean()  # <g-loss>
    g_loss.backward()  # <g-backward>
    g_rule.step()  # <g-step>
    print(step, d_loss.item(), g_loss.item())
