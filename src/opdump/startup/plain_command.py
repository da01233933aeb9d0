"""Captures a program that was started without `opdump run`, from its first import of a framework to its end.

What `opdump run` does around a program is done here from within: the config is read just before the framework is imported, errors are printed by
`sys.excepthook`, and the report is printed when the interpreter ends.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
import tokenize
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from opdump.interpreter.imports import stand_down, wait_for
from opdump.interpreter.process_starts import Start, watch_starts

if TYPE_CHECKING:
    from opdump.capturing.dump import Dump
    from opdump.capturing.family import Family
    from opdump.capturing.report import CaptureReport
    from opdump.commands.run_options import RunOptions
    from opdump.plan import DumpPlan
    from opdump.tensorflow.installation import ScriptFacts

_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "mindspore", "onnxruntime")
_DROP_INS: Final = ("npu_bridge", "npu_device")


def await_framework(asked: str) -> None:
    """Capture this process from its first import of a framework on. `asked`: `1`, or options of `opdump run`."""
    command = _PlainCommand(asked)
    # Registered first, so that it runs last and can set the exit code.
    atexit.register(command.leave)
    watch_starts(command.starts)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=command.forked)
    wait_for(_FRAMEWORKS, before=command.check, after=command.begin)
    wait_for(_DROP_INS, before=command.check, after=command.begin, to_be_found=command.begin)


class _PlainCommand:
    """The program of this process."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._process = os.getpid()
        self._options: RunOptions | None = None
        self._facts: ScriptFacts | None = None
        self._plan: DumpPlan | None = None
        self._by_itself = False
        """Whether the program requests its dumps itself."""
        self._began = False
        self._stack = ExitStack()
        self._family: Family | None = None
        """The family of the processes that the program started before it imported a framework."""
        self._starts_unfollowed: Counter[str] = Counter()
        """Number of Python processes started before that import that cannot be followed, by how they were started."""
        self._dump: Dump | None = None
        self._say: Callable[[], int | None] = lambda: None
        """Prints the report if child processes were still running when the capture ended."""
        self._code: int | None = None
        """The exit code of the process, if opdump determines it."""

    def check(self, _name: str = "") -> None:
        """Read the options and the config. If they cannot be used, end the process before the program's first step."""
        if self._options is not None or self._began:
            return
        import click

        from opdump.commands import EXIT_ERROR, EXIT_USAGE
        from opdump.errors import OpdumpError

        try:
            self._read()
        except OpdumpError as error:
            self._end(f"opdump: error: {error}", EXIT_ERROR)
        except click.UsageError as error:
            self._end(f"opdump: error: OPDUMP_START={self._asked!r}: {error.format_message()}", EXIT_USAGE)

    def begin(self, name: str) -> None:
        """Begin the capture if `name` is the framework of the program."""
        self.check()
        options, facts = self._options, self._facts
        if self._began or options is None or facts is None or not self._is_wanted(name, options, facts):
            return
        from opdump.errors import OpdumpError

        self._began = True
        stand_down()
        try:
            self._begin(name, options, facts)
        except OpdumpError as error:
            self._end(f"opdump: error: {error}", 1)

    def starts(self, start: Start) -> None:
        """Handle a process that the program is about to start: it belongs to this run, even if only that process imports a framework."""
        if self._began or self._code is not None or os.getpid() != self._process:
            return
        if start.kind == "replaced" or not start.is_python:
            return
        if start.kind == "started" and start.obstacle:
            self._starts_unfollowed[start.obstacle] += 1
        if self._family is not None:
            return
        import click

        from opdump.configs.plan_fields import made_later
        from opdump.errors import OpdumpError

        try:
            if self._options is None:
                with made_later():
                    self._read()
        except (OpdumpError, click.UsageError):
            return  # reported in the process that imports a framework
        if self._plan is not None:
            self._await_children(self._plan)

    def _await_children(self, plan: DumpPlan) -> None:
        from opdump.capturing.processes import awaiting_children

        options, facts = self._options, self._facts
        assert options is not None, "options are read before the plan"
        assert facts is not None, "facts are read before the plan"
        framework: str = options.framework
        if framework == "auto":
            framework = "" if facts.names_no_framework else facts.framework
        self._family = self._stack.enter_context(
            awaiting_children(plan, framework=framework, eager=options.eager, children=not options.no_children)
        )

    def forked(self) -> None:
        """In a process forked before the program imported a framework: wait for its work as a child of this run."""
        if self._began:
            return
        family, self._family = self._family, None
        if family is not None:
            from opdump.startup.child_process import await_framework_of

            stand_down()
            await_framework_of(str(family.directory))

    def leave(self) -> None:
        """Run at the end of the process, after everything else."""
        if os.getpid() != self._process:
            return
        self._code = self._say() or self._code
        self._tell_children()
        if self._code is not None:
            from opdump.commands.ending import end_with

            end_with(self._code)

    def _read(self) -> None:
        from opdump.commands.run import run
        from opdump.commands.run_options import RunOptions
        from opdump.configs.plan_fields import program_directory
        from opdump.tensorflow.installation import facts_of_script

        words = [] if self._asked == "1" else shlex.split(self._asked)
        found = dict(run.make_context("opdump run", [*words, "--", "program"]).params)
        if found.pop("as_module") or found.pop("arguments") or found.pop("script") != "program":
            import click

            raise click.UsageError(
                "expected 1, or options of `opdump run` without a program: the running program is recorded"
            )
        options = RunOptions(**found)
        facts = facts_of_script(_source_of_main())
        file = options.file(os.environ)
        if file is None and facts.asks_for_dumps:
            options.refuse_unfit("the program")
            self._by_itself = True
        else:
            directory = program_directory()
            where = None if directory is None else str(directory)
            self._plan = options.plan(file, os.environ, program=sys.argv[0] or "python", directory=where)
        self._options, self._facts = options, facts

    def _is_wanted(self, name: str, options: RunOptions, facts: ScriptFacts) -> bool:
        if options.framework != "auto":
            return name == options.framework
        if facts.names_no_framework:  # the first one, unless another framework imported it for its own use
            return name != "jax" or sys.modules.keys().isdisjoint(("torch", "tensorflow"))
        return name == facts.framework or (name in _DROP_INS and facts.framework == "tensorflow")

    def _begin(self, name: str, options: RunOptions, facts: ScriptFacts) -> None:
        from opdump.commands.ending import load_reports, print_warnings
        from opdump.commands.run_options import rank_among_several
        from opdump.tensorflow.installation import prepared_for

        rank = rank_among_several(os.environ)
        self._put_in_hook()
        load_reports(checked=self._plan is not None and self._plan.checks is not None)
        if self._by_itself:
            self._stack.enter_context(prepared_for(facts, options.of_sessions))
            atexit.register(self._finish, rank)
            return
        from opdump.capturing.capture import capture
        from opdump.capturing.report import told_elsewhere
        from opdump.commands.progress import progress_lines

        plan = self._plan
        assert plan is not None, "check() made one"
        if rank in (None, 0):
            print_warnings(plan.warnings)
        self._stack.enter_context(prepared_for(facts))
        framework = "tensorflow" if name in _DROP_INS else name
        manager = capture(replace(plan, warnings=()), framework=framework, **options.settings)
        self._dump = self._stack.enter_context(manager)
        self._dump.when_replaced = lambda report: self._replaced(report, rank)
        self._dump.when_ended = told_elsewhere
        self._dump.may_wait = True
        self._dump.started_before(self._starts_unfollowed)
        # Exit functions run in reverse order: this one has to run before those that the capture registered.
        atexit.register(self._finish, rank)
        self._stack.enter_context(progress_lines(self._dump, enabled=rank in (None, 0)))

    def _finish(self, rank: int | None) -> None:
        """End the capture and print its report. Runs at the end of the interpreter, after the program's own exit functions."""
        if os.getpid() != self._process:
            return
        from opdump.commands import EXIT_INCOMPLETE
        from opdump.commands.ending import print_error, print_reports
        from opdump.tensorflow import finish

        options = self._options
        assert options is not None, "the capture began"
        try:
            self._stack.close()
        except Exception as error:  # noqa: BLE001  any error is printed and sets the exit code
            print_error(error, sys.__excepthook__)
            self._code = 1
        dump = self._dump
        if self._code is None and dump is not None and dump.awaits_children:
            from opdump.commands.ending import tell_at_last

            self._say = lambda: tell_at_last(dump, rank=rank, as_json=options.as_json, strict=options.strict)
            return
        reports = [] if self._dump is None or self._dump.report is None else [self._dump.report]
        if self._by_itself:
            reports = list(finish())
        print_reports(reports, rank=rank, as_json=options.as_json)
        if self._code is None and any(report.failure for report in reports):
            self._code = EXIT_INCOMPLETE

    def _replaced(self, report: CaptureReport, rank: int | None) -> None:
        from opdump.commands.ending import print_reports

        options = self._options
        assert options is not None, "the capture began"
        self._dump = None
        print_reports([report], rank=rank, as_json=options.as_json)

    def _tell_children(self) -> None:
        """Report the children, at the end of a program that imported no framework itself."""
        family, plan = self._family, self._plan
        if self._began or family is None or plan is None or os.getpid() != self._process:
            return
        from opdump.capturing.report import report_of_children
        from opdump.commands.ending import print_reports
        from opdump.commands.run_options import rank_among_several
        from opdump.errors import IncompleteCaptureError

        options = self._options
        assert options is not None, "options are read before the plan"
        report = report_of_children(plan, family, self._starts_unfollowed)
        self._stack.close()
        if report is None:
            return
        if options.strict:
            try:
                report.raise_for_gaps()
            except IncompleteCaptureError as error:
                _say(f"opdump: error: {error}")
                self._code = 1
        print_reports([report], rank=rank_among_several(os.environ), as_json=options.as_json)

    def _put_in_hook(self) -> None:
        """Print the error that ends the program like `opdump run`. If the program sets its own hook, only that one is used."""
        from opdump.adapters.base import DumpComplete
        from opdump.commands.ending import COMPLETE, print_error

        hook = sys.excepthook

        def told(_kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
            if isinstance(error, DumpComplete):
                _say(COMPLETE)
                self._code = 0
            else:
                print_error(error.with_traceback(where), hook)

        def put_back() -> None:
            if sys.excepthook is told:
                sys.excepthook = hook

        sys.excepthook = told
        self._stack.callback(put_back)

    def _end(self, message: str, code: int) -> NoReturn:
        """End the process with `code`, even if the program catches the SystemExit."""
        stand_down()
        self._code = code
        self._began = True
        if sys.stdout is not None:
            sys.stdout.flush()
        _say(message)
        sys.exit(code)


def _say(message: str) -> None:
    import click

    click.echo(message, err=True)


def _source_of_main() -> str:
    """Return the source of the program, or an empty string for `python -c`, an interactive interpreter, and a program without source."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or not os.path.isfile(file):
        return ""
    try:
        with tokenize.open(file) as source:
            return source.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
