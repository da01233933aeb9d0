"""What the first run says of a second one: where it dumped, and under which configuration."""

from __future__ import annotations

from typing import Any

from opdump.catalog.catalog import Catalog
from opdump.index.metadata import CONFIG_NAME, METADATA, read_json_object
from opdump.layouts.ascend.places import is_time


def dump_path(catalog: Catalog) -> str:
    """The directory that the first run was told to dump into: as its plan says; else the one above `{time}` or `rank_N`; else the
    path that was opened.
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
    """The data_dump.json that the dump keeps; empty where it keeps none, or none that can be read."""
    path = catalog.path.absolute()
    places = [path, *(path / f"rank_{rank}" for rank in catalog.ranks), *path.parents]
    found = (read_json_object(place / METADATA / CONFIG_NAME) for place in places)
    return next((config for config in found if config), {})
