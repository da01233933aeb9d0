"""A finding of a check, about one tensor or one operator of a dump."""

from __future__ import annotations

from dataclasses import dataclass

from opdump.records import IO

CheckName = str
"""`nan`, `inf`, `overflow`, `all zero`, `extreme`, `killed` (inputs with NaN or infinities, finite outputs), or the name of a
check that an installed package adds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `step` and `rank` are None if the dump does not have them; `slot` is None for a whole operator.

    `origin`: the first operator of the step with NaN or infinities in its outputs and none in its inputs. `inherited`: the
    operator read NaN or infinities, so its own follow from them; this includes a parameter that has contained some since an
    earlier step.
    """

    check: CheckName
    text: str
    op_name: str
    op_type: str = ""
    net_name: str = ""
    rank: int | None = None
    step: int | None = None
    order: int = 0
    occurrence: int = 0
    source: str = ""
    """The line of the program, `train.py:175`; empty if unknown."""
    io: IO | None = None
    slot: int | None = None
    argument: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    status: int = 0
    """The status word of an overflow."""
    file: str = ""
    """The overflow file; empty for a finding in the values."""
    origin: bool = False
    inherited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits of the checks. `extreme` is a fraction of the largest number of the element type; `zeros` is the minimum number
    of elements of a tensor that is reported as all zero.
    """

    extreme: float = 0.9
    zeros: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.extreme <= 1:
            raise ValueError(
                f"extreme is {self.extreme}; expected a fraction of the type's largest number, above 0 and up to 1"
            )
        if self.zeros < 1:
            raise ValueError(f"zeros is {self.zeros}; expected a number of elements, 1 or more")
