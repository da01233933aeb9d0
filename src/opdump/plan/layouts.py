"""The layouts that a plan may name, with the properties that plans and adapters need. The rest of a layout is in `layouts/`.

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
    """The properties of a layout that matter to a recorder. By default, every tensor is written as soon as it is recorded, and
    nothing else is.
    """

    files: Literal["tensors", "operators"] = "tensors"
    """What its writer receives: single tensors (`write_payload`), or whole operators (`write_operator`)."""
    by_model: bool = False
    """Operators belong to a model, identified by its own name and with its graph file, or to none, as on a device."""
    values: bool = True
    """Values that no operator made are written, too: parameters, inputs."""
    device_extremes: bool = False
    """Its statistics have max and min by the rules of a device."""
    watch: bool = False
    """It has files for the content of watched memory after each operator."""
    copies_elements: bool = False
    """`write_payload` copies elements before it returns, so it may be passed memory of the program."""
    unknown_id: int = 0
    """Replaces an unknown task and stream."""
    fields: frozenset[str] = frozenset()
    """The fields of a plan that it supports and most layouts do not."""


class PlannedLayout(Protocol):
    """The part of a layout that a plan needs."""

    @property
    def facts(self) -> LayoutFacts: ...


LAYOUTS: Final[Registry[PlannedLayout]] = Registry(
    "opdump.layouts",
    {
        "mindspore-2.3": "opdump.layouts.own:MINDSPORE_2_3",
        "mindspore-2.10": "opdump.layouts.own:MINDSPORE_2_10",
        "mindspore-async": "opdump.layouts.own:MINDSPORE_ASYNC",
        "acl": "opdump.layouts.own:ACL",
        "packed": "opdump.layouts.own:PACKED",
    },
)
"""Here and not in `layouts/`, which imports plans: an unknown layout is rejected when the plan is made."""


def facts_of(name: str) -> LayoutFacts:
    """The properties of the layout with that name. Raises ConfigError, with the nearest name, if there is none, and if the layout
    is broken.
    """
    try:
        return LAYOUTS.load(name).facts
    except KeyError:
        from opdump.plan.unmatched_names import with_nearest

        known = LAYOUTS.names()
        text = f"layout is {name!r}, expected one of {', '.join(map(repr, known))}"
        raise ConfigError(with_nearest(text, name, known)) from None
    except ExtensionError as error:
        raise ConfigError(f"layout {error}") from error


def layouts_with(field: str) -> list[str]:
    """The layouts of opdump itself that support a field of a plan."""
    return [name for name in LAYOUTS.own if field in LAYOUTS.load(name).facts.fields]
