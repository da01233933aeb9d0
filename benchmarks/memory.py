"""Settings for the memory of a benchmark's process."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Make the allocator keep freed memory. Training frees large tensors; otherwise the number of page faults of a step (2,300 or 6,900 for
    a ResNet) would depend on what ran long before. Has no effect if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 << 20)
