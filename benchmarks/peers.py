"""The cost of a capture next to msprobe, on the same networks: `python -m benchmarks.peers [--rounds 5] [--only GPT]`.

msprobe runs in its own environment, `.venv-peers`, which is created first (PyTorch and 40 packages). One torch thread; CPU seconds per step
as a ratio to the plain step of the same round in this process: the median of the rounds. Every round runs all kinds in shuffled order; those
of msprobe run in processes that wait in between. The two record different things: opdump every operator of forward, backward and optimizer
with eleven statistics; msprobe (level L1) calls of PyTorch's API and their gradients with four statistics, a CRC-32 for `md5`, and a .pt
file per tensor.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
_ENVIRONMENT: Final = HERE.parent / ".venv-peers"
_PACKAGES: Final = (
    ("torch==2.13.0", "numpy==2.4.6"),
    ("--no-deps", "mindstudio-probe==26.2.0"),
    ("psutil==7.2.2", "protobuf==7.36.2", "ml_dtypes==0.6.0", "pandas", "pyyaml", "tqdm", "packaging", "matplotlib"),
    ("einops", "pytz", "tensorboard"),
)
_ALIKE: Final = ("statistics", "+ md5", "tensors")
"""The kinds of dumps that both tools support."""


class Msprobe:
    """A process that trains one network under msprobe, round by round."""

    def __init__(self, name: str, kind: str) -> None:
        command = [str(_ENVIRONMENT / "bin" / "python"), str(HERE / "msprobe_steps.py"), name, kind]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def end(self) -> None:
        self._process.communicate()

    def round(self, steps: int) -> dict[str, Any]:
        """Seconds and bytes per step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # msprobe also prints there
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"msprobe ended with {self._process.wait()}: {' '.join(map(str, self._process.args))}")


def main() -> None:
    sys.path.insert(0, str(HERE))  # the other benchmarks import each other by name
    import torch
    from memory import keep_freed_memory
    from workloads import STEPS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(STEPS), action="append")
    arguments = parser.parse_args()
    _set_up()
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.getLogger("opdump").setLevel(logging.ERROR)
    print(f"torch {torch.__version__}; CPU seconds, ratios to plain; MB written per step by msprobe")
    print(f"{'':13}{'plain':>10}" + "".join(f"{kind:>34}" for kind in _ALIKE))
    print(f"{'':23}" + f"{'opdump':>12}{'msprobe':>10}{'MB':>12}" * len(_ALIKE))
    for name in arguments.only or STEPS:
        _measure(name, arguments.rounds)


def _measure(name: str, rounds: int) -> None:
    from capture_table import WARM_UP, seconds_of, under
    from workloads import STEPS

    step = STEPS[name]()
    others = {kind: Msprobe(name, kind) for kind in _ALIKE}
    count = 30 if name == "MLP" else 3
    own: dict[str, list[float]] = {kind: [] for kind in ("plain", *_ALIKE)}
    theirs: dict[str, list[float]] = {kind: [] for kind in _ALIKE}
    filed: dict[str, int] = {}
    for number in range(rounds + 1):
        for kind in random.sample(list(own), len(own)):
            with under(kind):
                for steps in (WARM_UP, count):  # from one line: a step called from another line is a different step
                    took = seconds_of(step, steps)
            found = None if kind == "plain" else others[kind].round(min(count, 3))
            if number > 0:  # the first round imports and allocates
                own[kind].append(took)
                if found is not None:
                    theirs[kind].append(found["seconds"])
                    filed[kind] = found["bytes"]
    for other in others.values():
        other.end()
    cells = "".join(
        f"{_ratio(own[kind], own['plain']):12.2f}{_ratio(theirs[kind], own['plain']):10.2f}{filed[kind] / 1e6:12.1f}"
        for kind in _ALIKE
    )
    print(f"{name:13}{statistics.median(own['plain']) * 1e3:7.2f} ms{cells}", flush=True)


def _ratio(seconds: list[float], plain: list[float]) -> float:
    return statistics.median(one / base for one, base in zip(seconds, plain, strict=True))


def _set_up() -> None:
    python = _ENVIRONMENT / "bin" / "python"
    ready = _ENVIRONMENT / ".installed"
    if ready.exists():
        return
    print(f"setting up {_ENVIRONMENT.name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", _ENVIRONMENT], check=True)
    for packages in _PACKAGES:
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True
        )
    ready.touch()


if __name__ == "__main__":
    main()
