"""What a benchmark does about the memory of its process."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Tells the allocator to give no memory back: training frees large tensors, and how many page faults a step has (of a ResNet
    2,300 or 6,900) would depend on what ran long before it. Has no effect where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 << 20)
