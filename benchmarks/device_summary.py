"""The cost of a tensor's summary on its device: `python benchmarks/device_summary.py [--size 4194304] [--dtype bfloat16]`.

Prints the number of dispatched operators and the peak of temporaries, for tensors of the host that stand in for those of a device:

    blocks   the method of the capture: block by block, a row of numbers for each
    whole    the same numbers over the whole tensor in float64, one expression each
    ratio    whole / blocks

Both are properties of the code, not of the machine. A device may allocate more for a kernel than PyTorch reports.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opdump.adapters.torch.device import WIDTH, blocks_of, queue_row

SIZES = (1 << 14, 1 << 20, 1 << 22, 1 << 24)
DTYPES = ("bfloat16", "float32", "int64")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, action="append", help="number of values; repeatable")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="repeatable")
    options = parser.parse_args()
    print(f"{'':10}{'elements':>10}{'operators':>22}{'ratio':>8}{'temporaries / tensor':>26}{'ratio':>8}")
    print(f"{'':20}{'blocks':>12}{'whole':>10}{'':8}{'blocks':>16}{'whole':>10}")
    for name in options.dtype or DTYPES:
        for size in options.size or SIZES:
            tensor = torch.randn(size).mul_(100).to(getattr(torch, name))
            blocks, whole = _counted(_in_blocks, tensor), _counted(_as_a_whole, tensor)
            print(
                f"{name:10}{size:>10,}{blocks.operators:>12}{whole.operators:>10}"
                f"{whole.operators / blocks.operators:>8.2f}"
                f"{blocks.peak / _size(tensor):>16.2f}{whole.peak / _size(tensor):>10.2f}"
                f"{whole.peak / blocks.peak:>8.2f}"
            )


class _Counting(TorchDispatchMode):
    """Counts operators, and the bytes of their results that are still alive."""

    def __init__(self, given: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0
        self.peak = 0
        self._given = given
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._given:
                    self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def _counted(summarise: Callable[[torch.Tensor, torch.Tensor], None], tensor: torch.Tensor) -> _Counting:
    rows = torch.zeros(1024, WIDTH, dtype=torch.float64)
    with _Counting({each.untyped_storage().data_ptr() for each in (tensor, rows)}) as counting:
        summarise(tensor, rows)
    return counting


def _in_blocks(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    width = WIDTH if tensor.is_floating_point() else 6
    for number, block in enumerate(blocks_of(tensor)):
        queue_row(block, rows[number, :width], low_precision=False)


def _as_a_whole(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    values = tensor.to(torch.float64)
    nan, inf = values.isnan(), values.isinf()
    fields = (
        torch.full((), tensor.numel(), dtype=torch.float64),
        nan.sum(),
        (inf & (values > 0)).sum(),
        (inf & (values < 0)).sum(),
        (values == 0).sum(),
        (values < 0).sum(),
        (values > 0).sum(),
        values.amax(),
        values.amin(),
        values.sum(),
        (values * values).sum(),
    )
    rows[0].copy_(torch.stack([field.to(torch.float64) for field in fields])[:WIDTH])


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    main()
