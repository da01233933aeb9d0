r"""Fills tables whose text repeats but for numbers: the twin of the compiled `TableText`, and what runs where that is missing.

    TableText("a,%d,%g\nb,%d,%g\n").fill([np.array([1.0, 2.0]), np.array([0.5, np.nan])])    # b"a,1,0.5\nb,2,nan\n"

What is printed is what `template % values` gives.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PLACES: Final = re.compile("%[dgs%]")


class TableText:
    """A template for `%` with `%d`, `%g`, `%s` and `%%`, filled again and again. ValueError for a template with others."""

    def __init__(self, template: str) -> None:
        if "%" in _PLACES.sub("", template):
            raise ValueError("a template has %d, %g, %s and %%, and no other sign of percent")
        self._template = template

    def fill(self, columns: list[NDArray[np.float64] | list[Any]]) -> bytes:
        """The text in UTF-8, what that lacks escaped: row by row a value of each column.

        ValueError where the columns are not of one length, and for NaN as a whole number; TypeError where the template has another number of
        places, and for a value that is no number where there must be one.
        """
        if len({*map(len, columns)}) > 1:
            raise ValueError("the columns of a table are of one length")
        # Row by row: to set whole columns takes a third of the time of a tuple for each row.
        cells: list[Any] = [0] * sum(map(len, columns))
        for place, column in enumerate(columns):
            cells[place :: len(columns)] = column if isinstance(column, list) else column.tolist()
        return (self._template % tuple(cells)).encode("utf-8", "backslashreplace")
