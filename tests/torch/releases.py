"""What a release of PyTorch cannot do, as marks of tests with their reason: docs/torch-versions.md."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo

from opdump.adapters.torch.names_by_release import look_up
from opdump.adapters.torch.private_names import GUARDS_SEE_MODES

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])

WRITES_A_NUMBER = "aten::copy_" if RELEASE < (2, 14) else "aten::fill_.Scalar"
"""What `x[0] = 1` runs, as tried with 2.13 and 2.15."""
KEEPS_PLACES_OF_WARNINGS = pytest.mark.skipif(
    RELEASE >= (2, 14),
    reason=f"PyTorch {torch.__version__} gives warnings of operators before they return to the line of the program: torch/_ops.py",
)
RECORDS_BETWEEN_GRAPHS = pytest.mark.skipif(
    GUARDS_SEE_MODES,
    reason=f"PyTorch {torch.__version__} compiles apart from modes: what runs between two graphs is not recorded",
)
NAMES_COMPILED_GRADIENTS = pytest.mark.skipif(
    look_up("torch._functorch._aot_autograd.runtime_wrappers._AutogradBackwardCompiler", None) is None,
    reason=f"PyTorch {torch.__version__} does not say which region a compiled gradient belongs to: it is called compiled_backward",
)
