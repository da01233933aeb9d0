"""HiFloat8, the 8-bit float of Ascend devices with a tapered exponent (arXiv:2409.16626).

After the sign comes the dot, a prefix that gives the number of exponent bits; what is left is the mantissa:

    11   D=4   exponent of 4 bits, mantissa of 1       0001  D=0   no exponent, mantissa of 3
    10   D=3   exponent of 3 bits, mantissa of 2       0000  DML   denormal: 2 ** (mantissa - 23), mantissa of 3
    01   D=2   exponent of 2 bits, mantissa of 3
    001  D=1   exponent of 1 bit,  mantissa of 3

The exponent is sign and magnitude, and the leading one of the magnitude is not stored. 0x00 is zero, 0x80 NaN, 0x6f and 0xef the
infinities; there is no negative zero.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def hifloat8_values() -> npt.NDArray[np.float32]:
    """The value of each of the 256 codes."""
    return np.array([_value(code) for code in range(256)], np.float32)


def _value(code: int) -> float:
    if code == 0x80:
        return math.nan
    sign = -1.0 if code & 0x80 else 1.0
    bits = code & 0x7F
    if bits == 0x6F:
        return sign * math.inf
    if bits >> 3 == 0:
        mantissa = bits & 7
        return sign * 2.0 ** (mantissa - 23) if mantissa else 0.0
    if bits >> 3 == 1:
        return sign * (1 + (bits & 7) / 8)
    for exponent_bits, dot, dot_bits in ((4, 0b11, 2), (3, 0b10, 2), (2, 0b01, 2), (1, 0b001, 3)):
        rest_bits = 7 - dot_bits
        if bits >> rest_bits == dot:
            rest = bits & ((1 << rest_bits) - 1)
            mantissa_bits = rest_bits - exponent_bits
            stored = rest >> mantissa_bits
            magnitude_bits = exponent_bits - 1
            magnitude = 1 << magnitude_bits | stored & ((1 << magnitude_bits) - 1)
            exponent = -magnitude if stored >> magnitude_bits else magnitude
            return sign * 2.0**exponent * (1 + (rest & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits))
    raise AssertionError(f"no dot in {code:#x}")
