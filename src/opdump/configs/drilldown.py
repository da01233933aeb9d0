"""The configuration of a second run that dumps the tensors of the operators that were suspicious in the first run.

    text = drilldown_config("mindspore", suspects, path="/tmp/dump", first={})

The documents on offline models recommend this: statistics of everything first, then the tensors of a few operators.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from opdump.configs.json_text import COMMON, E2E, OWN
from opdump.configs.mindspore import is_dump_path
from opdump.errors import ConfigError

SecondDialect = Literal["acl", "mindspore"]

# Maximum number of items in `dump_step` of acl.json.
_MOST_STEPS: Final = 100
# Keys of the first configuration that describe its place and form, and also apply to the second run.
_KEPT: Final = ("path", "net_name", "support_device", "initial_iteration")


@dataclass(frozen=True, slots=True)
class SelectedOperator:
    """An operator to record. `step` is None if it is unknown; every step is then dumped."""

    op_name: str
    net_name: str = ""
    step: int | None = None


def drilldown_config(
    dialect: SecondDialect,
    suspects: Sequence[SelectedOperator],
    *,
    path: str,
    first: Mapping[str, Any],
    recorded_steps: Collection[int] = (),
) -> str:
    """The text of an acl.json or a data_dump.json that dumps the inputs and outputs of these operators, in these steps.

    `path` is the dump directory of the second run. `first` is the data_dump.json of the first run, empty if there was none:
    `net_name`, `support_device` and the settings of the layout are kept. `recorded_steps` are the steps of the first run:
    acl.json lists steps only if some had no findings, because a model without a step counter would dump nothing under
    `dump_step`.

    Raises ConfigError without suspects, and for a path that the dialect does not accept.
    """
    if not suspects:
        raise ConfigError("no operator is suspicious, so there is nothing to dump in a second run")
    steps = None if any(each.step is None for each in suspects) else {each.step or 0 for each in suspects}
    config = (
        _acl(suspects, path, steps, set(recorded_steps))
        if dialect == "acl"
        else _mindspore(suspects, path, steps, first)
    )
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _mindspore(
    suspects: Sequence[SelectedOperator], path: str, steps: set[int] | None, first: Mapping[str, Any]
) -> dict[str, Any]:
    if not is_dump_path(path):
        raise ConfigError(
            f"found the dump path {path!r}; expected for data_dump.json an absolute path of ASCII letters and digits, '-', '_' and '/': "
            "name another one with --path"
        )
    given = first.get(COMMON)
    before = given if isinstance(given, Mapping) else {}
    common = {
        "dump_mode": 1,
        "path": path,
        "net_name": next((each.net_name for each in suspects if each.net_name), "Net"),
        "iteration": "all" if steps is None else _ranges(steps),
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": list(dict.fromkeys(_kernel(each.op_name) for each in suspects)),
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "op_debug_mode": 0,
    }
    common |= {key: before[key] for key in _KEPT if key in before and key != "path"}
    e2e = first.get(E2E)
    kept = {key: value for key, value in e2e.items() if key == "trans_flag"} if isinstance(e2e, Mapping) else {}
    config: dict[str, Any] = {COMMON: common, E2E: {"enable": True, **kept}}
    own = first.get(OWN)
    if isinstance(own, Mapping):
        config[OWN] = dict(own)
    return config


def _kernel(name: str) -> str:
    """An entry of `kernels` that selects only the operator of that full name."""
    is_name = ("/" in name or "-op" in name) and not name.startswith("name-regex(")
    if is_name and " " not in name and '"' not in name:
        return name
    # Without a slash it would be a type. Spaces and quotes are removed from every entry, so a wildcard replaces them.
    return f"name-regex({''.join(_literal(letter) for letter in name)})"


def _literal(letter: str) -> str:
    if letter in ' "':
        return "."
    if letter in "\\^[]":
        return f"\\{letter}"
    return f"[{letter}]" if letter in ".*+?${}()|" else letter


def _acl(suspects: Sequence[SelectedOperator], path: str, steps: set[int] | None, recorded: set[int]) -> dict[str, Any]:
    models: dict[str, dict[str, None]] = {}
    for each in suspects:
        models.setdefault(each.net_name, {})[each.op_name] = None
    dump: dict[str, Any] = {"dump_path": path, "dump_mode": "all", "dump_data": "tensor"}
    if "" in models:
        dump["dump_op_switch"] = "on"  # operators without a model come from single-operator execution
    # Every item counts, and a range of steps counts as one.
    if steps is not None and not recorded <= steps and _ranges(steps).count("|") < _MOST_STEPS:
        dump["dump_step"] = _ranges(steps)
    dump["dump_list"] = [
        {"model_name": model, "layer": list(names)} if model else {"layer": list(names)}
        for model, names in models.items()
    ]
    return {"dump": dump}


def _ranges(steps: Collection[int]) -> str:
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return "|".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
