"""The number of a process in directories and records."""

from __future__ import annotations

from collections.abc import Mapping

from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.plan.dialects import DIALECTS


def rank_of(environ: Mapping[str, str]) -> int:
    """The logical card number: RANK, which torchrun sets, else 0."""
    text = environ.get("RANK", "0")
    if not text.isdecimal():
        raise ConfigError(f"the environment variable RANK is {text!r}, expected a number (torchrun sets it)")
    return int(text)


def rank_under(plan: DumpPlan, environ: Mapping[str, str]) -> int:
    """The same as programs for the plan's kind of configuration say it."""
    return (DIALECTS.load(plan.dialect).rank_of or rank_of)(environ)
