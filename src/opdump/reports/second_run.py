"""The settings of a first run that a second run takes over: its directory and its configuration."""

from __future__ import annotations

from typing import Any

from opdump.catalog.catalog import Catalog
from opdump.index.metadata import CONFIG_NAME, METADATA, read_json_object
from opdump.layouts.ascend.places import is_time


def dump_path(catalog: Catalog) -> str:
    """The dump directory of the first run: from its plan or, without one, the parent of `{time}` or `rank_N`, or else the path
    that was opened.
    """
    for run in catalog.runs:
        if run.plan.get("path"):
            return str(run.plan["path"])
    path = catalog.path.absolute()
    for each in (path, *path.parents):
        if is_time(each.name) or each.name.startswith("rank_"):
            return str(each.parent)
    return str(path)


def first_config(catalog: Catalog) -> dict[str, Any]:
    """The data_dump.json stored in the dump; empty if there is none or it cannot be read."""
    path = catalog.path.absolute()
    places = [path, *(path / f"rank_{rank}" for rank in catalog.ranks), *path.parents]
    found = (read_json_object(place / METADATA / CONFIG_NAME) for place in places)
    return next((config for config in found if config), {})
