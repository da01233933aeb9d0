"""The keyword arguments of `opdump.capture` and `opdump.start` with their types, for completion in editors and for type checkers.

They are the keys of data_dump.json, of any section, and the fields of `DumpPlan` without such a key. docs/config.md explains the
keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from inspect import Parameter, signature
from typing import Any, Literal, TypedDict, get_type_hints

from opdump.plan import (
    FileFormat,
    KernelPattern,
    OnError,
    SavedData,
    Selection,
    StatCalcMode,
    StatPrecision,
    StepSet,
)

StatisticName = Literal[
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
    "hash",
    "hash:sha1",
    "hash:md5",
    "xxh3",
]


class PlanKeywords(TypedDict, total=False):
    """What to record, where and how."""

    path: str | os.PathLike[str]
    net_name: str
    iteration: str | StepSet
    every: int
    ring: int
    triggers: Iterable[str]
    reread: bool
    max_disk: int | str
    min_free_disk: int | str
    max_memory: int | str
    max_overhead: float | str
    saved_data: SavedData
    kernels: Iterable[str | KernelPattern]
    statistic_category: Iterable[StatisticName] | Iterable[str]
    inputs: bool
    outputs: bool
    input_output: Literal[0, 1, 2]
    dump_mode: Literal[0, 1, 2]
    selection: Selection
    support_device: Iterable[int]
    devices: Iterable[int]
    op_debug_mode: Literal[0, 1, 2, 3, 4]
    overflow_number: int
    initial_iteration: int
    sample_mode: Literal[0, 1]
    sample_num: int
    layout: str
    file_format: FileFormat
    class_names_in_scope: bool
    trailing_comma: bool
    trans_flag: bool
    save_kernel_args: bool
    stat_calc_mode: StatCalcMode
    device_stat_precision_mode: StatPrecision
    enable: bool
    step_level: bool
    kernel_by_kernel: bool
    jit_level: Literal["O0", "O1", "O2"]


class CaptureKeywords(PlanKeywords, total=False):
    """The same, and how to observe the program."""

    eager: bool
    stop_after_dump: bool
    strict: bool
    steps: Literal["auto", "manual"]
    overflow: bool
    on_exception: bool
    watch: Any
    framework: str
    device_id: int | None
    on_error: OnError | None
    children: bool


def show_keywords(function: Any, keywords: type) -> None:
    """Give a function with `**keywords` a signature that names them, for `help` and for completion in notebooks."""
    own = signature(function)
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    known = {each.name for each in named}
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(keywords).items()
        if name not in known
    ]
    function.__signature__ = own.replace(parameters=[*named, *added])
