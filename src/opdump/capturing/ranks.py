"""The number of a process in directories and records."""

from __future__ import annotations

from collections.abc import Mapping

from opdump.configs.tensorflow.plan import device_of
from opdump.errors import ConfigError
from opdump.plan import DumpPlan


def rank_of(environ: Mapping[str, str]) -> int:
    """The logical card number: RANK, which torchrun sets, else 0."""
    text = environ.get("RANK", "0")
    if not text.isdecimal():
        raise ConfigError(f"the environment variable RANK is {text!r}, expected a number (torchrun sets it)")
    return int(text)


def rank_under(plan: DumpPlan, environ: Mapping[str, str]) -> int:
    """The same as programs for the plan's kind of configuration say it."""
    return device_of(environ) if plan.dialect == "tensorflow" else rank_of(environ)
