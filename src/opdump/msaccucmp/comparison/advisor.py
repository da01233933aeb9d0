"""`compare -advisor`: reads the table that was just written and recommends what to check first, in `advisor_summary.txt`.

Detection Type: FP16 Overflow
Operator Index: 12
Expert Advice: Float16 data overflow occurs. Rectify the fault and perform comparison again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER
from opdump.msaccucmp.comparison.result_table import Row
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.output_folder import OutputFolder

_FILE: Final = "advisor_summary.txt"
_COSINE: Final = "CosineSimilarity"
_ENOUGH: Final = 0.99
_NOTHING: Final = "NA"
_OVERFLOW: Final = "Float16 data overflow occurs. Rectify the fault and perform comparison again."
_INPUT: Final = (
    "The input data of NPUDump is inconsistent with that of GroundTruth. Use the same data or check the data preprocessing "
    "process."
)
_CONSISTENT: Final = (
    "All data in the comparison result meets the accuracy requirements. If data accuracy of the model is still not up to "
    "standard in practical application, please check the post-processing process of model outputs."
)
_LOW: Final = "The accuracy of some tensors is low, "
_LOW_AT_THE_END: Final = _LOW + (
    "resulting in an unqualified final accuracy. This may be caused by quantization. Calibrate the data or contact Huawei for "
    "further diagnosis. "
)
_LOW_ON_THE_WAY: Final = _LOW + (
    "while the final accuracy is qualified. This may be caused by Ascend internal optimization. Ignore or contact Huawei for "
    "further diagnosis. "
)


@dataclass(frozen=True, slots=True)
class Advice:
    """The finding, its operator, and what to do."""

    kind: str = _NOTHING
    index: str = _NOTHING
    text: str = _NOTHING

    def __str__(self) -> str:
        return f"Detection Type: {self.kind}\nOperator Index: {self.index}\nExpert Advice: {self.text}\n"


def advise(rows: Sequence[Row], algorithms: Sequence[str], *, with_rules: bool) -> Advice:
    """The first problem in a table. `with_rules`: whether the types of operators come from fusion rules."""
    for row in rows:
        if row.overflow == "YES":
            return Advice("FP16 Overflow", str(row.index), _OVERFLOW)
    if _COSINE not in algorithms:
        log("WARNING", f"the table has no {_COSINE}, without which there is little to say")
        return Advice()
    place = list(algorithms).index(_COSINE)
    measured = [(row, float(row.results[place])) for row in rows if row.results and row.results[place] != NOT_A_NUMBER]
    if not measured:
        return Advice()
    low = [row for row, cosine in measured if cosine < _ENOUGH]
    if with_rules:
        for row in low:
            if row.op_type == "Data" and "," not in row.mine:
                return Advice("Input Inconsistent", str(row.index), _INPUT)
    if not low:
        return Advice("Global Consistency", _NOTHING, _CONSISTENT)
    final = [cosine for _, cosine in measured if not math.isnan(cosine)][-1]
    return Advice("Global Consistency", str(low[0].index), _LOW_AT_THE_END if final < _ENOUGH else _LOW_ON_THE_WAY)


def write_advice(folder: OutputFolder, advice: Advice) -> None:
    """Write the advice to its file and the log. Raises CommandError."""
    for line in str(advice).splitlines():
        log("INFO", line)
    try:
        path = folder.write(_FILE, [str(advice).encode()])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_WRITE, f"{_FILE} cannot be written ({error.strerror})") from error
    log("INFO", f"the advice is in {path}")
