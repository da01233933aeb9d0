"""A small training that notes its state after each step, and meets one fault on its way.

    python -m tests.chaos.training JOURNAL [TROUBLE [OPERAND]]

It notes the same under `opdump run` as under plain Python. It imports nothing from opdump.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from unittest import mock

import torch

STEPS: Final = 6
STRIKES: Final = 2
"""The step in which the fault occurs."""


def _directory_removed(_training: Training, operand: str) -> None:
    # Another program removes it while this one writes, and does not wait for files that are in its way.
    for _ in range(1000):
        shutil.rmtree(operand, ignore_errors=True)
        if not os.path.lexists(operand):
            return
    raise SystemExit(f"{operand}: cannot be removed")


def _descriptors(_training: Training, _operand: str) -> None:
    """Forbid descriptors beyond the ones that are open."""
    taken = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _small_files(_training: Training, operand: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(operand), resource.RLIM_INFINITY))


def _writes(do: Callable[[int], None]) -> None:
    """Call `do` with the size of each write before the write."""
    write, writev = os.write, os.writev

    def writing(descriptor: int, data: bytes) -> int:
        do(len(data))
        return write(descriptor, data)

    def writing_views(descriptor: int, views: list[memoryview]) -> int:
        do(sum(map(len, views)))
        return writev(descriptor, views)

    mock.patch.multiple(os, write=writing, writev=writing_views).start()  # until the process ends


def _quota(_training: Training, _operand: str) -> None:
    def refuse(size: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    _writes(refuse)


def _slow_disk(training: Training, operand: str) -> None:
    """Delay each megabyte by this many seconds; the next forward creates 320 MB to write and prints the memory it took."""
    _writes(lambda size: time.sleep(float(operand) * size / 1e6))
    training.network[0].large = torch.linspace(0, 1, 1 << 20)


def _run_large(values: torch.Tensor) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current memory
    before = _most_memory()
    for _ in range(40):
        torch.exp(values)
    print(_most_memory() - before)


def _most_memory() -> int:
    """Peak memory in kilobytes."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def _ended_in_a_write(_training: Training, operand: str) -> None:
    """Send SIGTERM after this many writes, while a writer is at work."""
    left = int(operand)

    def end(_: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    _writes(end)


def _ended_in_a_write_by_a_handler(training: Training, operand: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    _ended_in_a_write(training, operand)


def _fork(_training: Training, operand: str) -> None:
    """Train one step in a forked copy of this process, which ends as the operand says."""
    child = os.fork()
    if child == 0:
        Training().step()
        if operand == "exit":
            sys.exit(0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"the child ended with {status}")


TROUBLES: Final[Mapping[str, Callable[[Training, str], None]]] = MappingProxyType(
    {
        "directory removed": _directory_removed,
        "descriptors": _descriptors,
        "file size": _small_files,
        "quota": _quota,
        "slow disk": _slow_disk,
        "SIGTERM": _ended_in_a_write,
        "SIGTERM handled": _ended_in_a_write_by_a_handler,
        "fork": _fork,
    }
)


class Layer(torch.nn.Module):
    """A linear layer. PyTorch's own leaves memory uninitialised, and a dump would show it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(out, width) - 0.5)
        self.bias = torch.nn.Parameter(torch.zeros(out))
        self.large: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.large is not None:
            values, self.large = self.large, None
            _run_large(values)
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Training:
    """A fixed network of two layers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.network = torch.nn.Sequential(Layer(8, 16), torch.nn.ReLU(), Layer(16, 2))
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.1, momentum=0.9)
        self.data, self.target = torch.randn(4, 8), torch.randn(4, 2)

    def step(self) -> None:
        self.optimizer.zero_grad()
        ((self.network(self.data) - self.target) ** 2).mean().backward()
        self.optimizer.step()

    def digest(self) -> str:
        """A digest of the bytes of all parameters."""
        digest = hashlib.sha256()
        for parameter in self.network.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()[:16]


def main(journal: str, trouble: str = "", operand: str = "") -> None:
    noted = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write  # the original, before any fault replaces it
    training = Training()
    for step in range(STEPS):
        if trouble and step == STRIKES:
            TROUBLES[trouble](training, operand)
        training.step()
        write(noted, f"{step} {training.digest()}\n".encode())
    write(noted, b"end\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
