"""ElementStatistics: the selected statistics that opdump's own summary does not provide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary
from opdump.records import StatisticValue
from opdump.statistics.table import OWN, Statistic, one_spelling, statistic

Array = npt.NDArray[Any]
Values = dict[str, StatisticValue]


class ElementStatistics:
    """Digests, and statistics of installed packages. False if no elements need to be read.

    If a function of a package raises for a tensor, that tensor lacks the statistic, and one warning is printed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        chosen = {name: statistic(name) for name in sorted(one_spelling(names))}
        self._of_bytes = {name: each for name, each in chosen.items() if each.of_bytes is not None}
        self._of_elements = {name: each for name, each in chosen.items() if each.of_elements is not None}
        self.of_summary = {name: each for name, each in chosen.items() if each.of_summary and name not in OWN}
        """The package statistics that a summary provides."""
        self._failed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._of_bytes or self._of_elements)

    @property
    def digests_alone(self) -> tuple[str, ...]:
        """The names of the digests if nothing else is computed from elements: the argument for a `DigestBatch`."""
        own_alone = self._of_bytes.keys() <= OWN.keys() and not self._of_elements
        return tuple(self._of_bytes) if own_alone else ()

    def of(self, raw: Array, widened: Callable[[], Array] | None = None) -> Values:
        """The values for one tensor, from its elements as stored in memory. `widened` returns them in a numpy type if `raw` has
        none.
        """
        found: Values = {}
        for name, each in self._of_bytes.items():
            self._add(found, name, each, each.of_bytes, raw)
        if self._of_elements:
            elements = (raw if widened is None else widened()).view()
            elements.flags.writeable = False  # it may be memory of the program
            for name, each in self._of_elements.items():
                self._add(found, name, each, each.of_elements, elements)
        return found

    def from_summary(self, summary: Summary) -> Values:
        """The values of `of_summary` for one tensor."""
        found: Values = {}
        for name, each in self.of_summary.items():
            self._add(found, name, each, each.of_summary, summary)
        return found

    def _add(self, found: Values, name: str, each: Statistic, function: Callable[[Any], Any] | None, of: Any) -> None:
        assert function is not None
        try:
            with np.errstate(all="ignore"):
                found[name] = each.kind(function(of))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            if name in OWN:
                raise
            if name not in self._failed:
                import logging

                self._failed.add(name)
                reason = f"{type(error).__name__}: {error}"
                logging.getLogger("opdump").warning(
                    "the statistic %r of a tensor is left out: %s (reported once)", name, reason
                )
