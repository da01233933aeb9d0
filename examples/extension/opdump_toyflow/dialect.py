"""A dialect: toyflow.json, with two keys for the path of the dump and the steps.

{"toyflow_dump": "/tmp/dump", "toyflow_steps": "0|2-3"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opdump.configs.plan_fields import with_fields
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, StepSet
from opdump.plan.dialects import Dialect, DialectWords, HowToRead


def load(path: str | os.PathLike[str], how: HowToRead, overrides: Mapping[str, Any]) -> DumpPlan:
    """The plan of a file; `overrides` are fields of the plan that take precedence."""
    keys = json.loads(Path(path).read_text(encoding="utf-8"))
    if unknown := sorted(keys.keys() - {"toyflow_dump", "toyflow_steps"}):
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}, expected toyflow_dump and toyflow_steps")
    directory = Path(how.program_directory or ".") / keys.get("toyflow_dump", "dump")
    steps = StepSet.parse(keys.get("toyflow_steps", "all"), "toyflow_steps")
    plan = DumpPlan(path=directory.absolute(), net_name="Toy", steps=steps, saved_data="statistic", dialect="toyflow")
    return with_fields(plan, {key: value for key, value in overrides.items() if value is not None})


def starting_file(directory: Path | None) -> str:
    """A file that dumps the first step."""
    return json.dumps({"toyflow_dump": str(directory or "dump"), "toyflow_steps": "0"}, indent=2) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        file="toyflow.json",
        path="toyflow_dump",
        steps="toyflow_steps",
        operators="kernels",
        list_key="models: {}",
        marked="toyflow.json dumps every operator",
    ),
    signs=("toyflow_dump", "toyflow_steps"),
    load=load,
    starting_file=starting_file,
)
