"""Statistics of a whole from the statistics of its parts: the shards of a tensor on several ranks, or the batches of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from opdump.kernels import Summary
from opdump.kernels.reference import compensated
from opdump.records import StatisticValue
from opdump.statistics.summary_statistics import SummaryStatistics

_NOT_COUNTS: Final = ("max", "min", "sum", "sum_squares")


def merge_statistics(parts: Iterable[Mapping[str, StatisticValue]]) -> SummaryStatistics:
    """The statistics of all elements of `parts` together; each part is the `statistics` of a tensor record.

    Counts, `max` and `min` are exactly those of the concatenated tensor. `avg` and `l2norm` come from the sums of the parts, which are added with
    compensation (Neumaier): they differ from those of the concatenated tensor only in the rounding of the parts' own sums. NaN and infinities
    are treated as in one tensor: NaN in any part makes `max`, `min`, `avg` and `l2norm` NaN. Empty parts change nothing, and no parts are a
    tensor without elements. Digests and statistics of packages cannot be merged, and are left out.

    Raises ValueError for statistics without a summary: of complex tensors, of dumps without opdump's index.

    >>> from opdump.kernels import summarise
    >>> import numpy as np
    >>> halves = np.arange(3.0), np.arange(3.0, 7.0)
    >>> merge_statistics(SummaryStatistics(summarise(half)) for half in halves)["avg"]
    3.0
    """
    summaries = []
    for number, part in enumerate(parts):
        if not isinstance(part, SummaryStatistics):
            named = ", ".join(part) or "none"
            raise ValueError(
                f"part {number} has no summary that could be merged, only these statistics: {named}; expected the statistics of a tensor in "
                "opdump's index (`opdump complete` makes one for a dump that MindSpore wrote)"
            )
        summaries.append(part.summary)
    return SummaryStatistics(_merged(summaries))


def _merged(summaries: list[Summary]) -> Summary:
    has_nan = any(each.nan for each in summaries)
    fields: dict[str, float] = {
        name: math.fsum(getattr(each, name) for each in summaries)
        for name in Summary._fields
        if name not in _NOT_COUNTS
    }
    return Summary(
        **fields,
        max=math.nan if has_nan else max((each.max for each in summaries), default=-math.inf),
        min=math.nan if has_nan else min((each.min for each in summaries), default=math.inf),
        sum=compensated(each.sum for each in summaries),
        sum_squares=compensated(each.sum_squares for each in summaries),
    )
