"""The settings of `opdump run`, from its options or from an environment variable.

Without a config, the options select what is recorded. The default is statistics of all operators, from the first step on, in a
new directory; with --full, elements go into one file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

if TYPE_CHECKING:
    from opdump.plan import DumpPlan
    from opdump.tensorflow.installation import SessionOptions

_LAYOUTS: Final = ("mindspore-2.3", "mindspore-2.10", "packed")
_FOR_ELEMENTS: Final = "packed"
"""The default layout for elements if neither a config nor an option names one: one file per tensor would take as long as several
steps of the program.
"""
_BOUNDS: Final = ("max_disk", "min_free_disk", "max_memory", "max_overhead")
_CATEGORIES: Final = ("max", "min", "avg", "l2norm", "nan count", "negative inf count", "positive inf count")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `opdump run`, by their names."""

    config: str | None = None
    path: str | None = None
    full: bool = False
    steps: str | None = None
    every: int | None = None
    ring: int | None = None
    triggers: tuple[str, ...] = ()
    reread: bool = False
    max_disk: str | None = None
    min_free_disk: str | None = None
    max_memory: str | None = None
    max_overhead: str | None = None
    kernels: tuple[str, ...] = ()
    eager: bool = False
    stop_after_dump: bool = False
    first: bool = False
    strict: bool = False
    on_error: Literal["continue", "stop"] | None = None
    layout: str | None = None
    framework: str = "auto"
    stream_in_names: bool = False
    streams: bool = False
    short_names: bool = False
    as_json: bool = False
    no_children: bool = False
    check: bool = False
    watch: tuple[str, ...] = ()

    def file(self, environ: Mapping[str, str]) -> str | None:
        """The config named by the options or the environment; None if there is none.

        Raises ConfigError if the environment names two.
        """
        from opdump.configs.mindspore import ACL_VARIABLE, CONFIG_VARIABLE, named_file

        if self.config:
            return self.config
        if environ.get(CONFIG_VARIABLE) or environ.get(ACL_VARIABLE):
            return named_file(environ)
        return None

    def plan(self, file: str | None, environ: Mapping[str, str], *, program: str, directory: str | None) -> DumpPlan:
        """Read the config and create its directory, which is the first access to the disk. `directory` is that of `program`."""
        from opdump.configs.acl_plan import plan_from_environment
        from opdump.configs.dialects import resolve_plan

        check_watchpoints(self.watch)  # invalid options are reported before anything else
        if self.triggers and not self.ring:
            raise click.UsageError("--trigger selects when the steps in memory are written; give --ring N, too")
        asked = {
            "path": self.path,
            "saved_data": "full" if self.full else None,
            "steps": self.steps,
            "every": self.every,
            "ring": self.ring,
            "triggers": list(self.triggers),
            "reread": self.reread or None,
            **{name: getattr(self, name) for name in _BOUNDS},
            "kernels": list(self.kernels),
            "layout": self.layout,
            "class_names_in_scope": False if self.short_names else None,
        }
        overrides = {key: value for key, value in asked.items() if value is not None and value != []}
        config = plan_from_environment(environ) if file is None else file
        if config is None:
            overrides = {**self._statistics_of(program, environ), **overrides}
        plan = resolve_plan(config, overrides, environ=environ, strict=self.strict, beside=directory)
        if config is None and self.full and self.layout is None:
            # The layout is the default, not chosen (`layout_chosen`): a framework with a dump of its own keeps its own
            # layout.
            plan = replace(plan, layout=_FOR_ELEMENTS)
        plan = replace(plan, warnings=(*plan.warnings, *self._passed_over(environ)))
        return with_first(with_checks(plan, check=self.check, watch=self.watch), first=self.first)

    def _statistics_of(self, program: str, environ: Mapping[str, str]) -> dict[str, Any]:
        """The statistics to record without a config."""
        settings: dict[str, Any] = {} if self.full else {"saved_data": "statistic"}
        if self.path is None:
            settings["path"] = new_directory(program, environ)
        return {**settings, "statistic_category": _CATEGORIES}

    def refuse_unfit(self, program: str) -> None:
        """Raises UsageError for options that need a config, if the program has a dump config of its own."""
        needy = ("check", "watch", "eager", "every", "first", "full", "kernels", "layout", "reread", "ring", "steps")
        unfit = [f"--{name.replace('_', '-')}" for name in sorted((*needy, *_BOUNDS)) if getattr(self, name)]
        if unfit:
            raise click.UsageError(
                f"{program} has a dump config of its own; {', '.join(unfit)} needs a config file: give -c FILE"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `opdump.capture` other than the plan."""
        return {
            "eager": self.eager,
            "stop_after_dump": self.stop_after_dump,
            "strict": self.strict,
            "on_error": self.on_error,
            "children": not self.no_children,
        }

    @property
    def of_sessions(self) -> SessionOptions:
        """The settings for a program with a dump config of its own."""
        from opdump.tensorflow.installation import SessionOptions

        return SessionOptions(
            path=None if self.path is None else Path(self.path),
            stream_in_names=self.stream_in_names,
            streams=self.streams,
            on_error=self.on_error or ("stop" if self.strict else None),
        )

    def _passed_over(self, environ: Mapping[str, str]) -> list[str]:
        """Warn about files in environment variables that `-c` overrides."""
        from opdump.configs.mindspore import ACL_VARIABLE, CONFIG_VARIABLE

        if self.config is None:
            return []
        return [
            f"{variable} names {named!r}, which is ignored: -c names {self.config!r}"
            for variable in (CONFIG_VARIABLE, ACL_VARIABLE)
            if (named := environ.get(variable, "")) not in ("", "1")
            and os.path.realpath(named) != os.path.realpath(self.config)
        ]


def checked_layout(_context: object, _option: object, name: str | None) -> str | None:
    """The layout of that name. Raises BadParameter for an unknown one, and suggests the nearest."""
    if name is None or name in _LAYOUTS:
        return name
    from opdump.plan.layouts import LAYOUTS
    from opdump.plan.unmatched_names import with_nearest

    known = (*_LAYOUTS, *LAYOUTS.others())
    if name not in known:
        raise click.BadParameter(with_nearest(f"{name!r} is not one of {', '.join(map(repr, known))}", name, known))
    return name


def new_directory(program: str, environ: Mapping[str, str]) -> str:
    """`opdump-train-4711`: a new directory here, named after the program and its process; with several ranks, after the process
    of the launcher.
    """
    rank = rank_among_several(environ)
    stem = os.path.basename(program.rstrip("/")).removesuffix(".py")
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in stem)
    path = os.path.abspath(f"opdump-{name}-{os.getpid() if rank is None else os.getppid()}")
    taken = path
    for number in itertools.count(2):
        if rank is not None or not os.path.lexists(taken):
            break
        taken = f"{path}-{number}"
    return taken


def rank_among_several(environ: Mapping[str, str]) -> int | None:
    """The rank of this process if a launcher started several; None for a single process."""
    from opdump.plan.dialects import rank_variables

    rank, ranks = (environ.get(name, "") for name in rank_variables(environ))
    return int(rank) if ranks not in ("", "1") and rank.isdecimal() else None


def first_option() -> Callable[[Any], Any]:
    return click.option("--first", is_flag=True, help="In overflow mode, dump only the first operator that overflows.")


def with_first(plan: DumpPlan, *, first: bool) -> DumpPlan:
    """The plan, limited to the first overflow if `first` is given. Raises UsageError in other modes."""
    if not first:
        return plan
    if not plan.mode.detects_overflow:
        raise click.UsageError(
            '--first needs a config in overflow mode: "dump_debug": "on" in an acl.json, op_debug_mode 1 to 3 in a data_dump.json'
        )
    return replace(plan, overflow_number=1)


def checking_options() -> Callable[[Any], Any]:
    """`--check` and `--watch`, for commands that run a program or a model."""
    check = click.option(
        "--check",
        is_flag=True,
        help="Check tensors during the run, and print the findings of `opdump check` at the end.",
    )
    watch = click.option(
        "--watch",
        metavar="CONDITION",
        multiple=True,
        help="Like --check, with a watchpoint such as 'gradient_vanishing abs_mean_lt=1e-9', or 'recommended'. All values are "
        "checked, whether or not they are dumped. Repeatable.",
    )
    return lambda command: check(watch(command))


def bound_options() -> Callable[[Any], Any]:
    """`--max-disk` and the other limits, which reduce what is recorded."""
    options = (
        ("--max-disk", "SIZE", "Limit the size of the dump, for example 20GB."),
        ("--min-free-disk", "SIZE", "Keep SIZE free on the disk."),
        ("--max-memory", "SIZE", "Limit the memory for data that waits to be written, and for the steps of --ring."),
        ("--max-overhead", "PERCENT", "Limit the overhead to PERCENT of the program's own time, for example 10%."),
    )
    order = " Near the limit, values are left out first, then whole steps, then everything that follows."

    def add(command: Any) -> Any:
        for name, metavar, text in reversed(options):
            command = click.option(name, metavar=metavar, help=text + (order if name == "--max-disk" else ""))(command)
        return command

    return add


def check_watchpoints(conditions: Iterable[str]) -> None:
    """Raises ConfigError for invalid conditions."""
    from opdump.configs.watchpoints import watchpoints_of

    watchpoints_of(conditions)


def with_checks(plan: DumpPlan, *, check: bool, watch: tuple[str, ...]) -> DumpPlan:
    """The plan, with checks during the run if one of the two options is given."""
    return replace(plan, checks=watch) if check or watch else plan
