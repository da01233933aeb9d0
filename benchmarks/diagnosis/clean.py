"""Pairs without a fault."""

from benchmarks.diagnosis.programs import NAMES, Program
from benchmarks.diagnosis.suite import Clean

CLEAN = (
    *(Clean("twice", f"{name} twice", Program(name), Program(name)) for name in NAMES[:4]),
    *(Clean("refactored", f"{name} refactored", Program(name), Program(f"{name}_twin")) for name in NAMES),
)
