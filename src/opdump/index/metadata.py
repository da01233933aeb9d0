"""Writes and reads the configuration and the environment of a dump, in `.dump_metadata/`.

    data_dump.json   the configuration
    config.json      {"device_target":"CPU","framework":"torch","framework_version":"2.13.0",...}

Readers of MindSpore's dumps need `net_name` and `input_output` in `data_dump.json`, and `enable` if `e2e_dump_settings` is not empty. `config.json`
may lack `ms_version`, but the version in it must be MindSpore's, so opdump does not write one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opdump.plan import DumpPlan

METADATA: Final = ".dump_metadata"
CONFIG_NAME: Final = "data_dump.json"
ENVIRONMENT_NAME: Final = "config.json"
_LARGEST_JSON: Final = 1 << 22


def config_text(plan: DumpPlan) -> str:
    """Return the text for data_dump.json: the unchanged config file, or an equivalent one for a plan without a file.

    There is one change to a config file: `enable` is added if `e2e_dump_settings` has other keys but not this one. MindSpore does not require it on a
    CPU, but its readers fail without it.
    """
    if not plan.config_text:
        return json.dumps(_equivalent_config(plan), indent=2) + "\n"
    try:
        config = json.loads(plan.config_text)
    except ValueError:
        return plan.config_text
    settings = config.get("e2e_dump_settings") if isinstance(config, dict) else None
    if isinstance(settings, dict) and settings and "enable" not in settings:
        config["e2e_dump_settings"] = {"enable": True, **settings}
        return json.dumps(config, indent=2) + "\n"
    return plan.config_text


def environment_text(
    *, device_target: str, framework: str, framework_version: str, opdump_version: str, layout: str
) -> str:
    """Return the text for config.json, with the spacing of MindSpore."""
    facts = {
        "device_target": device_target,
        "framework": framework,
        "framework_version": framework_version,
        "opdump_version": opdump_version,
        "layout": layout,
    }
    return json.dumps(facts, separators=(",", ":"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file in `.dump_metadata`. Return an empty one if the file is missing, too large, or something else."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_JSON:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _equivalent_config(plan: DumpPlan) -> dict[str, Any]:
    both = plan.inputs and plan.outputs
    common = {
        "dump_mode": {"all": 0, "kernels": 1, "marked": 2}[plan.selection],
        "path": str(plan.path),
        "net_name": plan.net_name,
        "iteration": str(plan.steps),
        "saved_data": plan.saved_data,
        "input_output": 0 if both else 1 if plan.inputs else 2,
        "kernels": [pattern.text for pattern in plan.kernels],
        "support_device": list(range(8)) if plan.devices is None else sorted(plan.devices),
        "op_debug_mode": plan.op_debug_mode,
        "statistic_category": list(plan.statistic_category),
    }
    e2e: dict[str, Any] = {
        "enable": True,
        "trans_flag": plan.trans_flag,
        "save_kernel_args": plan.save_kernel_args,
        "stat_calc_mode": plan.stat_calc_mode,
        "device_stat_precision_mode": plan.device_stat_precision_mode,
    }
    if plan.initial_iteration:
        common["initial_iteration"] = plan.initial_iteration
    if plan.sample_num is not None:
        e2e |= {"sample_mode": 1, "sample_num": plan.sample_num}
    return {"common_dump_settings": common, "e2e_dump_settings": e2e}
