"""Converts dump files, and finds overflows in them: `opdump convert` and `opdump overflow`.

done = convert(["/data/dump"], Path("out"), ConversionPlan("npy", format="NCHW"), recursive=True)
done.tensors, done.failures                                        # 412, [Failure(path=..., reason=...)]
"""

from __future__ import annotations

from opdump.conversion.formatted import ConversionError, ConversionPlan, Failure, FileResult, FileType
from opdump.conversion.run import Conversion, convert

__all__ = [
    "Conversion",
    "ConversionError",
    "ConversionPlan",
    "Failure",
    "FileResult",
    "FileType",
    "convert",
]
