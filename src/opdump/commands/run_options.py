"""What `opdump run` was asked for, beside the program: by its options, or by a variable in place of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from opdump.commands.first_overflow import with_first

if TYPE_CHECKING:
    from opdump.plan import DumpPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `opdump run`, by their names."""

    config: str | None = None
    path: str | None = None
    eager: bool = False
    stop_after_dump: bool = False
    first: bool = False
    strict: bool = False
    on_error: Literal["continue", "stop"] | None = None
    layout: str | None = None
    framework: Literal["auto", "torch", "tensorflow"] = "auto"
    stream_in_names: bool = False
    streams: bool = False
    short_names: bool = False
    as_json: bool = False
    no_children: bool = False

    def file(self, environ: Mapping[str, str], *, asks_itself: bool) -> str | None:
        """The config that the options or the environment name; None where variables ask for failures without one, or the program asks.

        Raises ConfigError where the environment names two, UsageError where nothing does.
        """
        from opdump.configs.mindspore import ACL_VARIABLE, CONFIG_VARIABLE, named_file

        if self.config:
            return self.config
        if environ.get(CONFIG_VARIABLE) or environ.get(ACL_VARIABLE):
            return named_file(environ)
        if asks_itself or environ.get("ASCEND_DUMP_SCENE") or environ.get("NPU_COLLECT_PATH"):
            return None
        raise click.UsageError(
            "no config: give -c data_dump.json or set MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH. "
            "To write one: opdump config new data_dump.json. (A TensorFlow program that imports npu_bridge or npu_device, or names "
            "NpuOptimizer, needs none.)"
        )

    def plan(self, file: str | None, environ: Mapping[str, str], *, directory: str | None) -> DumpPlan:
        """Read the config and make its directory; the first thing that may touch the disk. `directory` is the program's."""
        from opdump.configs.acl import plan_from_environment
        from opdump.configs.dialects import load_plan

        overrides: dict[str, Any] = {}
        if self.path is not None:
            overrides["path"] = self.path
        if self.layout is not None:
            overrides["layout"] = self.layout
        if self.short_names:
            overrides["class_names_in_scope"] = False
        asked = plan_from_environment(environ) if file is None else None
        if asked is not None:
            plan = replace(asked, **{**overrides, **({"path": Path(self.path)} if self.path is not None else {})})
        else:
            plan = load_plan(file, environ=environ, strict=self.strict, program_directory=directory, **overrides)
            plan = replace(plan, warnings=(*plan.warnings, *self._passed_over(environ)))
        return with_first(plan, first=self.first)

    def refuse_unfit(self, program: str) -> None:
        """Raises UsageError for options that need a config, where the program asks for its dumps itself."""
        unfit = [
            name
            for name, value in (("--eager", self.eager), ("--first", self.first), ("--layout", self.layout))
            if value
        ]
        if unfit:
            raise click.UsageError(
                f"{program} asks for its dumps itself; {', '.join(unfit)} needs a config: give -c FILE"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What `opdump.capture` takes beside the plan."""
        return {
            "eager": self.eager,
            "stop_after_dump": self.stop_after_dump,
            "strict": self.strict,
            "on_error": self.on_error,
            "children": not self.no_children,
        }

    def _passed_over(self, environ: Mapping[str, str]) -> list[str]:
        """Files that variables name and `-c` passes over."""
        from opdump.configs.mindspore import ACL_VARIABLE, CONFIG_VARIABLE

        if self.config is None:
            return []
        return [
            f"{variable} names {named!r}, which counts for nothing: -c names {self.config!r}"
            for variable in (CONFIG_VARIABLE, ACL_VARIABLE)
            if (named := environ.get(variable, "")) not in ("", "1")
            and os.path.realpath(named) != os.path.realpath(self.config)
        ]


def rank_among_several(environ: Mapping[str, str]) -> int | None:
    """The rank of this process where a launcher started several; None for one process by itself."""
    rank = environ.get("RANK", "")
    several = environ.get("WORLD_SIZE", "1") not in ("", "1")
    return int(rank) if several and rank.isdecimal() else None
