"""What a release of PyTorch cannot do, as marks of tests with the reason: docs/torch-versions.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch._dynamo

from opdump.adapters.torch.names_by_release import look_up
from opdump.adapters.torch.private_names import GUARDS_SEE_MODES

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])

WRITES_A_NUMBER = "aten::copy_" if RELEASE < (2, 14) else "aten::fill_.Scalar"
"""The operators that `x[0] = 1` runs, as observed with 2.13 and 2.15."""
COMPILES_UNDER_MODES_OF_THE_PROGRAM = pytest.mark.skipif(
    RELEASE < (2, 13),
    reason=f"PyTorch {torch.__version__} guards on the list that a function mode fills, and fails even without a capture (seen with 2.6, 2.10)",
)
PIPELINES_INFER_SHAPES = RELEASE < (2, 13)
"""Stages run copies of tensors on the device `meta` to find the shapes of what they receive: operators without data (seen with 2.10)."""
NOT_WITH_GLOO = {"mixed", "stages_in_turn"} if RELEASE < (2, 10) else set()
"""In 2.6, `fully_shard` fails and `Schedule1F1B` hangs on a CPU, without any capture; 2.7 to 2.9 were not tried."""
GLOO_SENDS_LISTS_TO_ALL = RELEASE >= (2, 13)
"""gloo in 2.10 lacks `all_to_all` of lists; 2.11 and 2.12 were not tried."""
KEEPS_PLACES_OF_WARNINGS = pytest.mark.skipif(
    RELEASE >= (2, 14),
    reason=f"PyTorch {torch.__version__} raises the warnings of operators in torch/_ops.py, not at the line of the program",
)
RECORDS_BETWEEN_GRAPHS = pytest.mark.skipif(
    GUARDS_SEE_MODES,
    reason=f"PyTorch {torch.__version__} ignores modes while it compiles: operators between two graphs are not recorded",
)
_NAMES_REGIONS = look_up("torch._functorch._aot_autograd.runtime_wrappers._AutogradBackwardCompiler", None) is not None
NAMES_COMPILED_GRADIENTS = pytest.mark.skipif(
    not _NAMES_REGIONS,
    reason=f"PyTorch {torch.__version__} does not report the region of a compiled gradient, which is named compiled_backward",
)


def no_default_device() -> None:
    """Undo `torch.set_default_device`. Up to PyTorch 2.9, `get_default_device`, which transformers calls, fails after the device was set to None."""
    torch.set_default_device(None)
    if RELEASE < (2, 10):
        del torch._GLOBAL_DEVICE_CONTEXT.device_context


def lists_told(printed: str) -> list[list[Any]]:
    """The lists that a program with several processes printed as JSON, one per line; gloo of PyTorch 2.8 to 2.10 prints in between."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith('["')]


def gradient_of(region: str) -> str:
    """The name of a compiled region's gradient."""
    return f"{region}_backward" if _NAMES_REGIONS else "compiled_backward"
