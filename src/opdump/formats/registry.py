"""The registry of formats. A new device format is one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from opdump.formats.c1hwncoc0 import C1HWNCOC0
from opdump.formats.device_format import DeviceFormat
from opdump.formats.fractal_nz import FRACTAL_NZ
from opdump.formats.fractal_z import FRACTAL_Z, FRACTAL_Z_3D
from opdump.formats.fractal_z_c04 import FRACTAL_Z_C04
from opdump.formats.nc1hwc0 import NC1HWC0, NC1HWC0_C04, NDC1HWC0

PLAIN_FORMATS: Final = (
    *("NCHW", "NHWC", "HWCN", "CHWN"),
    *("NCDHW", "NDHWC", "DHWCN", "DHWNC"),
    *("NC", "CN", "ND"),
)
"""Formats without blocks or padding. ND is the tensor's own shape, whatever its axes mean."""


def _by_name(formats: Iterable[DeviceFormat]) -> Mapping[str, DeviceFormat]:
    table: dict[str, DeviceFormat] = {}
    for known in formats:
        if known.name in table or known.name in PLAIN_FORMATS:
            raise ValueError(f"the format {known.name} is in the registry already")
        table[known.name] = known
    return MappingProxyType(table)


DEVICE_FORMATS: Final = _by_name(
    [
        NC1HWC0,
        NC1HWC0_C04,
        NDC1HWC0,
        C1HWNCOC0,
        FRACTAL_Z,
        FRACTAL_Z_3D,
        FRACTAL_Z_C04,
        FRACTAL_NZ,
    ]
)
FORMATS: Final = (*PLAIN_FORMATS, *DEVICE_FORMATS)
