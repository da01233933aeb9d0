"""The layouts that a plan may name, and what plans and adapters need to know of one. The rest of a layout is in `layouts/`.

>>> facts_of("mindspore-2.3").files
'tensors'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from opdump.errors import ConfigError, ExtensionError
from opdump.extensions import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFacts:
    """What follows from a layout for whoever records. As it stands: every tensor is filed as soon as it is taken, and nothing else."""

    files: Literal["tensors", "operators"] = "tensors"
    """What its writer is handed: tensors one by one (`write_payload`), or whole operators (`write_operator`)."""
    by_model: bool = False
    """Operators belong to a model, by the name that it has itself and with a graph file of it, or to none: as a device tells them."""
    values: bool = True
    """Values that no operator made are filed, too: parameters, inputs."""
    device_extremes: bool = False
    """Its statistics have max and min by the rules of a device."""
    watch: bool = False
    """It has files for what watched memory holds after each operator."""
    copies_elements: bool = False
    """`write_payload` copies elements before it returns: it may be lent memory of the program."""
    unknown_id: int = 0
    """What stands for a task and a stream that nobody knows."""
    fields: frozenset[str] = frozenset()
    """Those fields of a plan that it has a place for and most layouts do not."""


class PlannedLayout(Protocol):
    """The part of a layout that a plan asks for."""

    @property
    def facts(self) -> LayoutFacts: ...


LAYOUTS: Final[Registry[PlannedLayout]] = Registry(
    "opdump.layouts",
    {
        "mindspore-2.3": "opdump.layouts.mindspore_sync.layout:MINDSPORE_2_3",
        "mindspore-2.10": "opdump.layouts.mindspore_sync.layout:MINDSPORE_2_10",
        "mindspore-async": "opdump.layouts.mindspore_async.layout:MINDSPORE_ASYNC",
        "acl": "opdump.layouts.ascend.layout:ACL",
        "packed": "opdump.layouts.packed.layout:PACKED",
    },
)
"""Here and not in `layouts/`, which imports plans: a plan is refused at once where its layout has no such name."""


def facts_of(name: str) -> LayoutFacts:
    """What there is to know of the layout of that name. Raises ConfigError where there is none, with the nearest, and where it is broken."""
    try:
        return LAYOUTS.load(name).facts
    except KeyError:
        from opdump.plan.nearest import with_nearest

        known = LAYOUTS.names()
        text = f"layout is {name!r}, expected one of {', '.join(map(repr, known))}"
        raise ConfigError(with_nearest(text, name, known)) from None
    except ExtensionError as error:
        raise ConfigError(f"layout {error}") from error


def layouts_with(field: str) -> list[str]:
    """Opdump's own layouts that have a place for a field of a plan."""
    return [name for name in LAYOUTS.own if field in LAYOUTS.load(name).facts.fields]
