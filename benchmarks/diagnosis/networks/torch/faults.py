"""Faults of a machine: flipped bits, memory overwritten by other code, kernels that compute one wrong value.

Nothing here runs a PyTorch operator, so a recorder sees only the effect.
"""

import warnings

import numpy as np
import torch


def flip(tensor, index=0, bit=24):
    """Flip a bit of one value of a float32 tensor, in any memory layout."""
    array = tensor.detach().numpy()
    place = np.unravel_index(index, array.shape)
    array[place] = (array[place].view(np.int32) ^ np.int32(1 << bit)).view(np.float32)


def poke(tensor, index=0, value=0.25):
    """Overwrite one value."""
    array = tensor.detach().numpy()
    array[np.unravel_index(index, array.shape)] = value


def scribble(tensor, begin=0, count=4, factor=-1.5):
    """Multiply some consecutive values, like a thread that writes into a buffer that it no longer owns."""
    array = tensor.detach().numpy()
    for index in range(begin, begin + count):
        array[np.unravel_index(index, array.shape)] *= factor


def stale(tensor, name=""):
    """Restore the content that the tensor had at the last call, like a buffer that was not refilled."""
    array = tensor.detach().numpy()
    before, KEPT[name] = KEPT.get(name), array.copy()
    if before is not None:
        array[...] = before


def bad_kernel(name, call, index=0, bit=24):
    """Make the given call of a CPU operator (0: the next) return one wrong value."""
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
    library = torch.library.Library("aten", "IMPL")
    calls = iter(range(1_000_000))

    def wrong(keys, *arguments):
        result = kernel.call_boxed(keys, *arguments)
        if next(calls) == call:
            flip(result[0] if isinstance(result, tuple) else result, index, bit)
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, wrong, "CPU", with_keyset=True)
    LIBRARIES.append(library)


LIBRARIES = []
KEPT = {}
