"""The floats of at most 8 bits that `ml_dtypes` has. Releases before 0.5, which older frameworks pin, lack some of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdump.errors import UndecodableTensorError


def small_float(name: str) -> np.dtype[Any]:
    """The numpy type of that name, such as `float8_e4m3fn`. Raises UndecodableTensorError if ml_dtypes lacks it."""
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise UndecodableTensorError(
            f"the installed ml_dtypes {ml_dtypes.__version__} has no {name}; type: pip install 'ml_dtypes>=0.5'"
        )
    kind: np.dtype[Any] = np.dtype(found)
    return kind
