"""What goes wrong in a machine: bits that flip, memory that somebody else writes, kernels that compute one value wrong.

Nothing here runs an operator of PyTorch, so that a recorder sees its effect alone.
"""

import warnings

import numpy as np
import torch


def flip(tensor, index=0, bit=24):
    """Flips a bit of one element of a float32 tensor, wherever its memory is."""
    array = tensor.detach().numpy()
    place = np.unravel_index(index, array.shape)
    array[place] = (array[place].view(np.int32) ^ np.int32(1 << bit)).view(np.float32)


def poke(tensor, index=0, value=0.25):
    """Writes a value into one element."""
    array = tensor.detach().numpy()
    array[np.unravel_index(index, array.shape)] = value


def scribble(tensor, begin=0, count=4, factor=-1.5):
    """Multiplies some elements in a row, as a buffer that another thread thinks is its own."""
    array = tensor.detach().numpy()
    for index in range(begin, begin + count):
        array[np.unravel_index(index, array.shape)] *= factor


def stale(tensor, name=""):
    """Leaves a tensor with what it held when this was last called: a buffer that was not filled again."""
    array = tensor.detach().numpy()
    before, KEPT[name] = KEPT.get(name), array.copy()
    if before is not None:
        array[...] = before


def bad_kernel(name, call, index=0, bit=24):
    """From now on the given call of an operator of the CPU (0: the next) gives one wrong element."""
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
