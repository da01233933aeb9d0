"""A DumpPlan as JSON and back, whole: what a child process is to capture.

>>> from pathlib import Path
>>> plan = DumpPlan(path=Path("/dump"), kernels=(KernelPattern.parse("Conv2D"),), selection="kernels")
>>> plan_of_text(text_of_plan(plan)) == plan
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from opdump.plan import DumpPlan, KernelPattern, ModelSelection, StepSet
from opdump.plan.model_selection import Exclusion, OperatorRange

_KIND: Final = "kind"
_MAKERS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "Path": Path,
        "KernelPattern": KernelPattern.parse,
        "tuple": tuple,
        "frozenset": frozenset,
        "DumpPlan": lambda pairs: DumpPlan(**dict(pairs)),
        "StepSet": lambda pairs: StepSet(**dict(pairs)),
        "ModelSelection": lambda pairs: ModelSelection(**dict(pairs)),
        "Exclusion": lambda pairs: Exclusion(**dict(pairs)),
        "OperatorRange": lambda pairs: OperatorRange(**dict(pairs)),
    }
)


def text_of_plan(plan: DumpPlan) -> str:
    """The plan as JSON text."""
    return json.dumps(_encoded(plan))


def plan_of_text(text: str) -> DumpPlan:
    """The plan that `text_of_plan` wrote."""
    plan = json.loads(text, object_hook=lambda found: _MAKERS[found[_KIND]](found["value"]))
    assert isinstance(plan, DumpPlan)
    return plan


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return {_KIND: "Path", "value": str(value)}
    if isinstance(value, KernelPattern):
        return {_KIND: "KernelPattern", "value": value.text}
    if isinstance(value, tuple | frozenset):
        return {_KIND: type(value).__name__, "value": [_encoded(item) for item in value]}
    if is_dataclass(value):
        pairs = [[item.name, _encoded(getattr(value, item.name))] for item in fields(value)]
        return {_KIND: type(value).__name__, "value": pairs}
    return value
