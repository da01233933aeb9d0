r"""rFills tables of repeated text with numbers: the twin of the compiled `TableText`, used if the compiled module is missing.

    TableText("a,%d,%g\nb,%d,%g\n").fill([np.array([1.0, 2.0]), np.array([0.5, np.nan])])    # b"a,1,0.5\nb,2,nan\n"

The output equals `template % values`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PLACES: Final = re.compile("%[dgs%]")


class TableText:
    """A reusable template for `%` with `%d`, `%g`, `%s` and `%%`. Raises ValueError for other conversions."""

    def __init__(self, template: str) -> None:
        if "%" in _PLACES.sub("", template):
            raise ValueError("a template has %d, %g, %s and %%, and no other sign of percent")
        self._template = template

    def fill(self, columns: list[NDArray[np.float64] | list[Any]]) -> bytes:
        """The text in UTF-8, with other characters escaped: row by row, one value of each column.

        Raises ValueError if the columns differ in length, and for NaN as an integer; TypeError if the template has another number
        of placeholders, and for a value that is not a number where one is needed.
        """
        if len({*map(len, columns)}) > 1:
            raise ValueError("the columns of a table are of one length")
        # Row by row: assigning whole columns takes a third of the time of one tuple per row.
        cells: list[Any] = [0] * sum(map(len, columns))
        for place, column in enumerate(columns):
            cells[place :: len(columns)] = column if isinstance(column, list) else column.tolist()
        return (self._template % tuple(cells)).encode("utf-8", "backslashreplace")
