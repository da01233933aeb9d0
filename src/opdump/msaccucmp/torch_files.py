"""Writes tensors as torch saves them (`-t pt`). The one place of this package that needs PyTorch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.msaccucmp.exit_codes import CommandError, ExitCode


def check_torch() -> None:
    """Raise CommandError where PyTorch is not installed."""
    try:
        import_module("torch")
    except ImportError as error:
        raise CommandError(
            ExitCode.BAD_PARAMETER, "-t pt needs PyTorch, which is not installed: pip install torch, or use -t npy"
        ) from error


def pt_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    """The bytes of `torch.save` of the array."""
    torch: Any = import_module("torch")
    buffer = io.BytesIO()
    torch.save(torch.from_numpy(np.array(array, order="C")), buffer)
    yield buffer.getvalue()
