"""The inputs of the programs: the same numbers in every process."""

from __future__ import annotations

import numpy as np

_RNG = np.random.default_rng(7)
IMAGES = _RNG.normal(size=(16, 8, 8, 3)).astype(np.float32)
LABELS = _RNG.integers(0, 4, 16)
VALUES = _RNG.normal(size=(16, 8)).astype(np.float32)
