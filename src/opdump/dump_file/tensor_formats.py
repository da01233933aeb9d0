"""Numbers and names of tensor formats in dump files: `3` is `NC1HWC0` (docs/dump-files.md#the-header)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from opdump.errors import UnknownFormatError

_NAMES: Final = (
    *("NCHW", "NHWC", "ND", "NC1HWC0", "FRACTAL_Z", "NC1C0HWPAD", "NHWC1C0", "FSR_NCHW", "FRACTAL_DECONV", "C1HWNC0"),
    *("FRACTAL_DECONV_TRANSPOSE", "FRACTAL_DECONV_SP_STRIDE_TRANS", "NC1HWC0_C04", "FRACTAL_Z_C04", "CHWN"),
    *("FRACTAL_DECONV_SP_STRIDE8_TRANS", "HWCN", "NC1KHKWHWC0", "BN_WEIGHT", "FILTER_HWCK", "HASHTABLE_LOOKUP_LOOKUPS"),
    *("HASHTABLE_LOOKUP_KEYS", "HASHTABLE_LOOKUP_VALUE", "HASHTABLE_LOOKUP_OUTPUT", "HASHTABLE_LOOKUP_HITS"),
    *("C1HWNCoC0", "MD", "NDHWC", "FRACTAL_ZZ", "FRACTAL_NZ", "NCDHW", "DHWCN", "NDC1HWC0", "FRACTAL_Z_3D", "CN", "NC"),
    *("DHWNC", "FRACTAL_Z_3D_TRANSPOSE", "FRACTAL_ZN_LSTM", "FRACTAL_Z_G", "RESERVED", "ALL", "NULL", "ND_RNN_BIAS"),
    *("FRACTAL_ZN_RNN", "YUV", "YUV_A", "NCL", "FRACTAL_Z_WINO", "C1HWC0"),
)
FORMAT_NAMES: Final[Mapping[int, str]] = MappingProxyType({**dict(enumerate(_NAMES)), 255: "MAX"})
FORMAT_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({name: number for number, name in FORMAT_NAMES.items()})


def format_name(number: int) -> str:
    """The name of a format; the number itself if it has none."""
    return FORMAT_NAMES.get(number, str(number))


def format_number(name: str) -> int:
    """The number of `NC1HWC0`. Raises UnknownFormatError if dump files have no such format."""
    number = FORMAT_NUMBERS.get(name.removeprefix("FORMAT_"))
    if number is None:
        raise UnknownFormatError(f"{name}: dump files have no such format; they have {', '.join(FORMAT_NUMBERS)}")
    return number
