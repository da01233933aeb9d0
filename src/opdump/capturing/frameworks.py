"""Chooses the framework of a capture: the requested one, or the imported one."""

from __future__ import annotations

import logging
from collections.abc import Collection

from opdump.adapters.base import Adapter
from opdump.adapters.registry import FRAMEWORKS
from opdump.errors import ConfigError, FrameworkMissingError
from opdump.plan.field_types import shown

_LOG = logging.getLogger("opdump")


def chosen_framework(asked: str, imported: Collection[str]) -> str:
    """Return the framework to capture: the requested one or, for "auto", the imported one (PyTorch if there is none).

    Raises ConfigError for an unknown name.
    """
    known = FRAMEWORKS.names()
    if asked != "auto":
        if asked not in known:
            expected = ", ".join(f'"{name}"' for name in ("auto", *known[:-1]))
            raise ConfigError(f'framework is {shown(asked)}, expected {expected} or "{known[-1]}"')
        return asked
    found = [name for name in known if name in imported]
    if len(found) > 1:
        both = "both " if len(found) == 2 else ""
        _LOG.warning(
            f"{both}{' and '.join(found)} are imported; {found[0]} is captured. "
            f'For the other: opdump.capture(..., framework="{found[1]}")'
        )
    return found[0] if found else "torch"


def adapter_of(name: str) -> Adapter:
    """Import and return the adapter of a framework. Raises FrameworkMissingError if the framework is not installed."""
    try:
        return FRAMEWORKS.load(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FrameworkMissingError(
            f"capture needs {name}, which is not installed here; type: pip install {name} (not needed to read dumps)"
        ) from None
