"""Configures MindSpore's own dump of compiled code.

MindSpore reads the file named by MINDSPORE_DUMP_CONFIG once, when it first compiles something, and dumps until the process ends. So a
process has only one such dump. All captures read it, and each removes the files that it has read.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.adapters.replacements import Replacements
from opdump.errors import DumpPathError
from opdump.layouts.mindspore_sync.files import PARAMETER
from opdump.layouts.mindspore_sync.from_files import TrueNames
from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.records import IO, OpRecord
from opdump.sink.outside import remove_own, temporary_directory

VARIABLE: Final = "MINDSPORE_DUMP_CONFIG"
# MindSpore rejects other characters in the path of a dump.
_DUMPED_INTO: Final = re.compile(r"[A-Za-z0-9_/-]+", re.ASCII)
_EVERY_DEVICE: Final = list(range(8))


class OwnDump:
    """The dump of this process. `root` is its directory, once MindSpore has begun to write."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._given: dict[str, Any] = {}
        """The configuration that MindSpore has read or will read."""
        self._is_read = False

    @property
    def root(self) -> Path:
        assert self._directory is not None, "ask_for was called"
        return self._directory / "dump"

    def ask_for(self, plan: DumpPlan) -> str:
        """Make MindSpore dump what a plan needs. Returns a warning if it is too late for that."""
        wanted = config_of(plan)
        if self._directory is None:
            self._directory = _directory_for(plan)
            atexit.register(remove_own, self._directory)
        if not self._is_read:
            self._given = wanted
            text = json.dumps({**wanted, _COMMON: {**wanted[_COMMON], "path": str(self.root)}}, indent=2)
            (self._directory / "data_dump.json").write_text(text, encoding="utf-8")
            return ""
        if wanted == self._given:
            return ""
        differing = sorted(key for key, value in wanted[_COMMON].items() if value != self._given[_COMMON].get(key))
        return (
            f"MindSpore reads its dump configuration only once per process, and an earlier capture set a different {', '.join(differing)}; "
            "the earlier values stay in effect for compiled code"
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hide the user's configuration from MindSpore in the block. MindSpore also looks for one when it runs single operators."""
        before = os.environ.pop(VARIABLE, None)
        try:
            yield
        finally:
            if before is not None:
                os.environ.setdefault(VARIABLE, before)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Show the configuration to MindSpore in the block, which compiles something. Processes that the program starts do not see it."""
        if self._is_read or self._directory is None:
            yield
            return
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self._directory / "data_dump.json")
        try:
            yield
        finally:
            self._is_read = True
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


def _directory_for(plan: DumpPlan) -> Path:
    """A directory for the dump of this process: in the final dump if its files can be moved there, otherwise among temporary files.

    Raises DumpPathError if MindSpore accepts none of these paths.
    """
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")]  # noqa: S108  a name of its own below
    if plan.saves_tensors and plan.layout_facts.files == "tensors" and plan.mode.files_selected and plan.path.is_dir():
        places.insert(0, plan.path)
    for place in places:
        real = os.path.realpath(place)
        if _DUMPED_INTO.fullmatch(real) and os.access(real, os.W_OK | os.X_OK):
            return temporary_directory("mindspore", Path(real))
    raise DumpPathError(
        f"{places[0]}: MindSpore accepts only dump paths of letters, digits, '-' and '_', and no directory for temporary files has such a "
        "path; set TMPDIR to one"
    )


OWN_DUMP: Final = OwnDump()
_COMMON: Final = "common_dump_settings"


def chooses_by_name(plan: DumpPlan) -> bool:
    """Whether MindSpore itself applies `kernels`. This needs files with MindSpore's own operator names."""
    return plan.selection == "kernels" and plan.mode.files_selected and plan.layout != "mindspore-2.3"


def config_of(plan: DumpPlan) -> dict[str, Any]:
    """The configuration for MindSpore that a plan needs, without the path. It asks for values, because MindSpore dumps no statistics on a CPU.

    If the recorder selects operators itself, by other names or by their values, MindSpore must dump all operators. If steps are executions
    of models, it must dump all iterations.
    """
    by_name = chooses_by_name(plan)
    io = 0 if plan.inputs == plan.outputs or plan.mode.detects_overflow else 1 if plan.inputs else 2
    common = {
        "op_debug_mode": 0,
        "dump_mode": 1 if by_name else 0,
        "net_name": plan.net_name,
        "iteration": "all" if plan.mode.files_selected and plan.layout_facts.by_model else str(plan.steps),
        "saved_data": "tensor",
        "input_output": io,
        "kernels": [pattern.text for pattern in plan.kernels] if by_name else [],
        "support_device": sorted(plan.devices) if plan.devices is not None else _EVERY_DEVICE,
    }
    return {_COMMON: common, "e2e_dump_settings": {"enable": True, "trans_flag": plan.trans_flag}}


# Intercepts the compilation and the calls of compiled code.
#
#     network(x) in GRAPH_MODE                        GraphExecutor_.compile, GraphExecutor_()
#     a function of @ms.jit, an optimizer of nn       GraphExecutor_.compile or JitExecutor_.compile, PyNativeExecutor_.grad_jit
#
# The three classes are C++ classes of MindSpore. Their methods can be replaced, but a method that a program took before stays the original.

Ran = Callable[[BaseException | None], None]
_COMPILING: Final = (("GraphExecutor_", "compile"), ("JitExecutor_", "compile"))
_RUNNING: Final = (("GraphExecutor_", "__call__"), ("PyNativeExecutor_", "grad_jit"))


class Interception:
    """Calls `ran` in the program's thread after each call of compiled code, with its error or None.

    `compiling` is called before a possible compilation, and `failed` with the error if it fails. They may raise only to end the program.
    """

    def __init__(
        self,
        module: Any,
        ran: Ran,
        compiling: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._module = module
        self._compiles = compiling
        self._ran = ran
        self._failed = failed
        self._replacements = Replacements()

    def lacks(self) -> str:
        """The first of these names that this MindSpore lacks; empty if it has all."""
        for owner, name in (*_COMPILING, *_RUNNING):
            if not hasattr(getattr(self._module, owner, None), name):
                return f"{owner}.{name}"
        return ""

    def open(self) -> None:
        for owner, name in _COMPILING:
            self._replace(owner, name, self._compiling)
        for owner, name in _RUNNING:
            self._replace(owner, name, self._running)

    def close(self) -> None:
        self._replacements.restore()

    def _replace(self, owner_name: str, name: str, wrapping: Callable[[Any], Any]) -> None:
        owner = getattr(self._module, owner_name)
        self._replacements.replace(owner, name, wrapping(getattr(owner, name)))

    def _compiling(self, original: Any) -> Any:
        def compile_it(executor: Any, *args: Any, **kwargs: Any) -> Any:
            with OWN_DUMP.configured():
                self._compiles()
                try:
                    return original(executor, *args, **kwargs)
                except BaseException as error:
                    self._failed(error)
                    raise

        return compile_it

    def _running(self, original: Any) -> Any:
        def run_it(executor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(executor, *args, **kwargs)
            except BaseException as error:
                self._ran(error)
                raise
            self._ran(None)
            return result

        return run_it


# Selects the operators of a compiled graph to record, among those that MindSpore's own dump contains.
#
# "dump_mode": 0 and 1      selected by MindSpore; parameters only if the mode and the layout record them
# "dump_mode": 2            operators that the graph marks (`set_dump`), backward ones too
# "dump_list" of acl.json   layers, ranges and blacklists, by the names in the graph

_MARK = "dump"


class GraphSelection:
    """The selection of one graph. `marked_classes` are the names of Cell classes that `set_dump` marked; `names_in_files` maps names of
    operators in the graph to those in files, if they differ.
    """

    def __init__(
        self,
        plan: DumpPlan,
        names: TrueNames,
        order: Iterable[str],
        marked_classes: Iterable[str],
        names_in_files: Mapping[str, str],
    ) -> None:
        self._in_files = names_in_files
        self._plan = plan
        self._names = names
        model_filter = ModelFilter.of(plan.models, (plan.net_name,))
        self._slots = OperatorSelection(plan, model_filter, model_filter.in_ranges(list(order)))
        # A component of a full name is `{cell}-{class}/`.
        classes = "|".join(map(re.escape, sorted(marked_classes)))
        self._in_class = re.compile(rf"(?:^|/)[^/]*-(?:{classes})/") if classes else None

    @property
    def matched_kernels(self) -> set[str]:
        return self._slots.matched_kernels

    def is_value(self, op: OpRecord) -> bool:
        """Whether the record is a value that no operator made: a parameter."""
        return op.op_type == PARAMETER

    def selects(self, op: OpRecord) -> bool:
        if self.is_value(op):
            return self._plan.saves_values and self._plan.selection != "marked"
        if self._plan.selection == "marked":
            return self._is_marked(op) and self._slots.selects(op.op_name, op.op_type)
        op_name = self._in_files.get(op.op_name, op.op_name)
        if chooses_by_name(self._plan):
            # MindSpore has already applied `kernels`, in its own way. This call only notes which entries matched.
            self._slots.selects(op.op_name, op.op_type)
            return self._slots.names(op.op_name)
        return self._slots.selects(op_name, op.op_type)

    def excluded(self, op: OpRecord, io: IO) -> frozenset[int]:
        return self._slots.excluded(op.op_name, op.op_type, io)

    def _is_marked(self, op: OpRecord) -> bool:
        node = self._names.node(op.op_name)
        if node is not None and node.attributes.get(_MARK) == "true":
            return True
        return self._in_class is not None and self._in_class.search(op.op_name) is not None
