"""The difference between two tensors as one number: opdump's own metrics, and those of installed packages.

    METRICS.load("cosine")(a, b)    a metric is a function of two arrays of one shape, of which the first is the reference
    AddedMetrics().of(a, b)         all that packages have added, by their names

A package adds one by an entry point of the group `opdump.metrics`. To compute several of opdump's own, call
`kernels.compare_pair`, which computes all of them in one pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.extensions import Registry
from opdump.kernels import compare_pair

Metric = Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]

_LOG: Final = logging.getLogger("opdump")


def _of_pair(name: str, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    found = getattr(compare_pair(a, b), name)
    return float("nan") if found is None else float(found)


OWN: Final[Mapping[str, Metric]] = {
    name: partial(_of_pair, name)
    for name in (
        "cosine",
        "max_absolute",
        "mean_absolute",
        "max_relative",
        "mean_relative",
        "relative_l2",
        "rmse",
        "snr_db",
        "different",
        "sign_flips",
        "argmax_flips",
    )
}
"""The value of `PairMetrics` with the same name; NaN if it is None."""

METRICS: Final[Registry[Metric]] = Registry("opdump.metrics", dict.fromkeys(OWN, "opdump.metrics:OWN"), loaded=OWN)


class AddedMetrics:
    """The metrics of installed packages. False if there are none.

    If a function raises for a pair, that pair lacks the metric, and one warning is printed. `reasons` has the first error of each
    such metric and the load errors of others, by name.
    """

    def __init__(self) -> None:
        self._metrics = METRICS.added()
        self.reasons = {part.name: part.reason for part in METRICS.listed() if part.reason}

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def of(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[str, float]:
        """The values for two arrays of one shape, which are passed read-only; bfloat16 is passed in the type of ml_dtypes."""
        a, b = a.view(), b.view()
        a.flags.writeable = b.flags.writeable = False  # they may be files
        values = {name: self._value(name, metric, a, b) for name, metric in self._metrics.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _value(self, name: str, metric: Metric, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float | None:
        try:
            with np.errstate(all="ignore"):
                return float(metric(a, b))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the comparison continues without this number
            if name not in self.reasons:
                reason = self.reasons[name] = f"{type(error).__name__}: {error}"
                _LOG.warning("the metric %r of a pair is left out: %s (reported once)", name, reason)
            return None
