"""Captures into the directory of a rank: what is known of each, the configuration and environment beside them, and the files that they lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from opdump import amounts
from opdump.amounts import html_facts
from opdump.degradation import Degradation, told
from opdump.errors import CorruptDumpError
from opdump.records import TensorRecord

if TYPE_CHECKING:
    from opdump.plan import DumpPlan

RunChoice = int | Literal["latest", "all"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One capture into the directory of a rank. Times are in microseconds since the Unix epoch.

    `ended` is None for a run that was killed or is still going on. A dump of MindSpore or of a device has no information about its runs: they are
    separated by time stamps, and `command`, `plan` and `totals` are empty.
    """

    id: int
    rank_id: int
    started: int
    ended: int | None = None
    device_target: str = ""
    framework: str = ""
    framework_version: str = ""
    opdump_version: str = ""
    process: int = 0
    command: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    """What the run left out from a certain step on because a limit was reached, in chronological order."""
    end_unknown: str = ""
    """Why it is unknown whether it ended: its index is missing or cannot be read."""

    @property
    def complete(self) -> bool:
        """Whether the run ended regularly, so that every file that it lists is on disk."""
        return self.ended is not None

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Names and texts of the most important facts of the run. The text of an unknown fact is empty."""
        captured = self.totals.get("captured")
        ended = "ended" if self.complete else self.end_unknown or "interrupted, or still running"
        return (
            ("run", str(self.id)),
            ("rank", str(self.rank_id)),
            ("framework", f"{self.framework} {self.framework_version}".strip()),
            ("captured", amounts.count(captured, "operator") if captured is not None else ""),
            ("started", datetime.fromtimestamp(self.started / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")),
            ("end", ended if self.opdump_version else ""),
            ("left out", told(self.degraded)),
            ("command", _command(self.command)),
        )

    def __repr__(self) -> str:
        facts = dict(self.facts)
        parts = (f"rank {self.rank_id}", facts["framework"], facts["captured"], facts["started"], facts["end"])
        return f"Run({', '.join((str(self.id), *filter(None, parts)))})"

    def _repr_html_(self) -> str:
        return html_facts(self.facts)


def _command(words: Sequence[str]) -> str:
    if words and words[0].endswith("ipykernel_launcher.py"):
        return "a notebook"  # the command line of its kernel does not identify it
    return " ".join(words)


# Writes and reads the configuration and the environment of a dump, in `.dump_metadata/`.
#
#     data_dump.json   the configuration
#     config.json      {"device_target":"CPU","framework":"torch","framework_version":"2.13.0",...}
#
# Readers of MindSpore's dumps need `net_name` and `input_output` in `data_dump.json`, and `enable` if `e2e_dump_settings` is not empty. `config.json`
# may lack `ms_version`, but the version in it must be MindSpore's, so opdump does not write one.

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


# Finds files that an index lists and that do not exist: the run was cut off, the disk was full, or they were removed.


class LostFiles:
    """Finds missing files by listing each directory once, because many records share a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, frozenset[str] | None] = {}

    def without_payload(
        self, records: Iterable[tuple[TensorRecord, str | None]], problems: list[CorruptDumpError], *, is_complete: bool
    ) -> list[TensorRecord]:
        """Return the records. Each is passed with its path below the root; if its file is missing, it has no payload and is reported in `problems`.

        `is_complete`: the run ended regularly, so every file existed.
        """
        cause = "it was removed after the run" if is_complete else "the run was cut off before it was written"
        found = []
        lost: dict[str, list[str]] = {}
        for record, relative in records:
            if relative is None or self._is_there(relative):
                found.append(record)
            else:
                found.append(replace(record, payload=None))
                directory, _, name = relative.rpartition("/")
                lost.setdefault(directory, []).append(name)
        for directory, names in lost.items():
            where = self._root / directory
            if len(names) > 1 and not self._names[directory]:
                text = f"{where}: is empty or missing, and the index lists {len(names)} tensors in it: {cause}"
                problems.append(CorruptDumpError(text))
            else:
                problems += [
                    CorruptDumpError(f"{where / name}: is in the index but not on disk: {cause}")
                    for name in dict.fromkeys(names)
                ]
        return found

    def _is_there(self, relative: str) -> bool:
        if "\0" in relative:
            return True  # not a valid path: the payload reports it
        directory, _, name = relative.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._names_in(directory)
        names = self._names[directory]
        return names is None or name in names

    def _names_in(self, directory: str) -> frozenset[str] | None:
        """Return the names in a directory of the dump, or None for a directory outside of it: its payloads raise an error."""
        root = os.path.realpath(self._root)
        try:
            path = os.path.realpath(os.path.join(root, directory))
            if path != root and not path.startswith(root.rstrip(os.sep) + os.sep):
                return None
            return frozenset(os.listdir(path))
        except OSError:
            return frozenset()


def cut_off(where: Path | str, step: int, operators: int) -> CorruptDumpError:
    """Return the problem of a step whose operators are known only from their files."""
    return CorruptDumpError(
        f"{where}: step {step} was not finished: {operators} of its operators are known only from their files and not listed in the index; the "
        "run was cut off"
    )


def left_out(where: Path | str, operators: int) -> CorruptDumpError:
    """Return the problem of operators after the last finished step, whose step is unknown."""
    return CorruptDumpError(
        f"{where}: {operators} operators after the last step in the index are left out: the run was cut off in a step that was "
        "not finished, and the number of that step is unknown"
    )
