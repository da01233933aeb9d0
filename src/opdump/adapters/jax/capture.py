"""Records the calls of a JAX program: compiled functions through their twins, single operators directly."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jax
from jax._src import source_info_util

from opdump.adapters.graph_runtime import (
    Block,
    BlockOperator,
    BlockSlot,
    GraphRun,
    NamedOperator,
    OperatorSelection,
    RunEmitter,
    live_tensor,
)
from opdump.adapters.host import Choice
from opdump.adapters.jax.functions import (
    EagerOperator,
    Function,
    Functions,
    Steps,
    has_bodies,
    obstacle_of,
)
from opdump.adapters.jax.host import (
    Arguments,
    Memory,
    borrowed,
    deviation,
    facts_of,
    host_tensor,
    memory_of,
    pointers_of,
)
from opdump.adapters.jax.interception import HostCalls, Real, Told
from opdump.adapters.jax.names import Makers, phase_of, program_frames, stack_text
from opdump.adapters.jax.schedule import Argument, Blocks, Level, Prepared, Reads, Ref, Tap, with_sources
from opdump.adapters.jax.twin import Emitter, Given, PieceRun, Twin, TwinRun, Values, emit_prepared
from opdump.graph import PARAMETER_PREFIX, GraphValue
from opdump.interpreter.critical_sections import no_garbage_collection
from opdump.plan.selection import ModelFilter
from opdump.plan.unmatched_names import ListMatches
from opdump.recorder import LiveTensor, Recorder, isolated_from_program
from opdump.records import CALL, Frame

_LOG = logging.getLogger("opdump")
_PARAMETER: Final = "Parameter"
MOST_CALLS: Final = 256
"""Maximum number of prepared calls of a function, one for each stack of the program."""
OF_THE_PROGRAM: Final[Mapping[str, Any]] = {"source": "program"}
"""Always the same object, because the index recognises arguments by identity."""


class Capture:
    """The calls of one program, while it runs."""

    def __init__(self, recorder: Recorder, steps: Steps, *, rank_id: int) -> None:
        self._recorder = recorder
        self._steps = steps
        self.host_calls = HostCalls()
        self._functions = Functions()
        plan = recorder.plan
        self._matches = ListMatches(plan.models, plan.dialect) if plan.models else None
        self._selection = OperatorSelection(plan, ModelFilter.of(plan.models, ()), matches=self._matches)
        self._emitter = RunEmitter(recorder, rank_id=rank_id, device_id=rank_id)
        self._lock = threading.RLock()
        self._here = threading.local()
        self._eager_names: Counter[str] = Counter()
        self._eager_step = -1
        self._follow_backward: set[str] = set()
        """Of the step `_eager_step`; see `_follow_backward_of_step`."""
        self._makers = Makers()
        self._is_closed = False

    @property
    def step(self) -> int:
        return self._steps.step

    def may_hurry(self) -> bool | Told:
        """Whether further calls of the function that this thread called last may take the fast path.

        If they must be counted, returns the function to call for each.
        """
        steps = self._steps
        function: Function | None = getattr(self._here, "function", None)
        if steps.are_over:
            return True
        if function is None or steps.is_wanted:
            return False
        if not function.is_programs:
            return not steps.are_of_operators
        if not steps.counts(function):
            return True
        return not steps.next_is_wanted and partial(self._counted, function)

    def _counted(self, function: Function) -> None:
        """Count a call on the fast path. Neither this step nor the next is recorded."""
        if not self._is_closed:
            with self._lock:
                self._steps.calls(function)
                self._steps.file()

    def called(self, real: Real, arguments: tuple[Any, ...], closed: Any, name: str, donated: tuple[bool, ...]) -> Any:
        """Record a call of the program; a `Handler` of `interception`."""
        is_wanted = None
        with self._recorder.losing(name), self._lock:
            self._steps.file()  # a step that another thread ended, or the call around this one if a host callback makes it
            function = self._functions.of(closed, name, donated)
            self._here.function = function
            if function.is_programs:
                self._steps.calls(function)
            else:
                self._steps.runs(_running_stack())
            is_wanted = self._steps.is_wanted
        if is_wanted is None:
            return real()
        if not is_wanted or any(getattr(value, "is_deleted", _never)() for value in arguments):
            try:
                return real()  # if an argument was already donated, JAX raises
            finally:
                self._file()
        # Wait for the arguments, since their memory is read. An error in them also reaches the program's own call.
        _error_of(arguments)
        if function.is_programs or has_bodies(closed):
            return self._compiled_call(real, arguments, function)
        return self._single_call(real, arguments, function)

    def _file(self) -> None:
        """File the previous step, now that JAX is busy with the next call."""
        with self._lock:
            self._steps.file()

    def close(self) -> None:
        self._is_closed = True
        self._recorder.matched_kernels |= self._selection.matched_kernels
        around, first = self._recorder.circumstances, self._recorder.plan.initial_iteration
        around.framework, around.first_step, around.next_step = "JAX", first, self._steps.step + 1
        if self._matches is not None:
            self._recorder.warnings += self._matches.texts()
            around.chose_nothing = self._matches.chose_nothing

    # A compiled function.

    def _compiled_call(self, real: Real, arguments: tuple[Any, ...], function: Function) -> Any:
        # Neither the twin nor the function is waited for: the values of the twin are recorded while the function runs.
        prepared = self._prepared(function, arguments)
        self._file()
        if prepared is None:
            return real()
        comes_first, twin_run, given = prepared
        with self.host_calls.watched(function.callbacks) as calls:
            try:
                answer = real()
                # Host functions may call JAX, and these calls take the lock. So wait for them without holding it.
                met = _error_of(answer[0]) if function.calls_host else None
            except Exception as error:
                with self._lock:
                    if not (comes_first or function.callbacks):
                        twin_run = self._run_twin(function, given)
                    self._emit_failed(function, twin_run, given, error)
                raise
        with self._lock, no_garbage_collection():
            # A twin of several pieces runs after the function, so that only some values are in memory at once; so does a twin with
            # callbacks, which needs their results.
            if not comes_first and (met is None or not function.callbacks):
                self.host_calls.given_again = calls
                twin_run = self._run_twin(function, given)
            self._emit(function, twin_run, given, answer)
            if calls.left and twin_run is not None:
                self._warn(
                    f"{function.name}: its twin used {calls.left} fewer results of host functions than these returned; values may "
                    "belong to other calls"
                )
        return answer

    def _prepared(
        self, function: Function, arguments: tuple[Any, ...]
    ) -> tuple[bool, TwinRun | None, Arguments] | None:
        """Whether the twin runs before the function, its run if so, and the arguments. None if a defect prevented this."""
        with self._recorder.losing(function):
            twin = self._twin_of(function)
            comes_first = twin is not None and twin.count == 1 and not function.callbacks
            twin_run = self._run_twin(function, arguments) if comes_first else None
            return comes_first, twin_run, self._given(function, twin_run, arguments)
        return None

    def _given(self, function: Function, twin_run: TwinRun | None, values: Sequence[Any]) -> Arguments:
        """The arguments, readable after the function has run: donated ones are copied or read ahead."""
        facts = function.argument_facts.of(values)
        dtypes = [aval.dtype for aval in function.closed.in_avals]
        donated = function.donated or (False,) * len(values)
        if twin_run is None or function.blocks is None or not self._recorder.takes_blocks:
            return Arguments(values, facts, dtypes, donated)
        known = function.reads
        if known is None or known[0] is not facts or known[1] is not twin_run.level or not known[2].are_ready:
            known = function.reads = facts, twin_run.level, function.blocks.reads(twin_run.level, facts)
        reads = known[2]
        if not reads.are_ready:
            return Arguments(values, facts, dtypes, donated)
        kept = [gone and place in reads.in_memory for place, gone in enumerate(donated)]
        given = Arguments(values, facts, dtypes, kept)
        if reads.ahead is None:
            reads.ahead = self._readable_ahead(given, reads, donated)
        self._recorder.read_ahead(reads.ahead.of(given.columns))
        given.are_read = bool(reads.ahead.facts)
        return given

    def _readable_ahead(self, given: Arguments, reads: Reads, donated: Sequence[bool]) -> Choice:
        named = reads.as_a_whole | set(range(len(donated)) if self._selection.wants_inputs else ())
        places = [place for place in sorted(named - reads.in_memory) if donated[place]]
        return Choice([*map(given.tensor, places)], [(0, place) for place in places])

    def _twin_of(self, function: Function) -> Twin | None:
        """The twin of a function. If there is none, returns None and warns once with the reason."""
        if function.twin is None and not function.obstacle:
            function.obstacle = obstacle_of(function)
            if function.obstacle:
                self._warn_of(function)
            else:
                sources = [f"{PARAMETER_PREFIX}{name}" for name in function.argument_names]
                function.twin = Twin(function.closed, self._selection, sources, self.host_calls.again)
        return None if function.obstacle else function.twin

    def _run_twin(self, function: Function, arguments: Sequence[Any] | Arguments) -> TwinRun | None:
        """Start a run of the twin; None if there is no twin or it fails. After the program's call, the arguments must be passed as `Arguments`."""
        twin = self._twin_of(function)
        try:
            if twin is None:
                return None
            return twin.run(arguments.again() if isinstance(arguments, Arguments) else arguments)
        except Exception as error:  # noqa: BLE001  reported as a warning; the function itself is still recorded
            self._twin_failed(function, error)
            return None

    def _twin_failed(self, function: Function, error: Exception) -> None:
        function.obstacle = f"its twin failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        self._warn_of(function)

    def _warn_of(self, function: Function) -> None:
        self._warn(f"{function.name}: only its arguments and results are recorded: {function.obstacle}")

    def _warn(self, text: str) -> None:
        if text not in self._recorder.warnings:
            self._recorder.warnings.append(text)

    @isolated_from_program
    def _emit(self, function: Function, twin_run: TwinRun | None, given: Arguments, answer: Any) -> None:
        results, executable = answer[0], answer[1]
        run = self._run_of(function)
        begun, twin_run = twin_run, None
        with self._recorder.losing(function):  # a defect in here does not prevent the record of the call itself
            twin_run = self._emit_inside(function, begun, run, given, executable)
        error = _error_of(results)
        if error is not None:  # the program gets it when it reads the results
            self._fail(function, run, given, error)
            return
        told = {}
        if twin_run is not None and not function.is_told:
            told = {"deviation of the twin": self._tell_deviation(function, twin_run, results)}
        self._makers.made(_call_name(function), results, run.step)
        if function.has_backward and not function.returns_state:
            self._follow_backward_of_step().add(_call_name(function))
        facts = function.result_facts.of(results)
        first = given.columns.extend(pointers_of(results, facts))
        values = Values(Given(given, ()), partial(_result, results), facts, first)
        emit_prepared(self._call_block(function, told), values, run)

    @isolated_from_program
    def _emit_failed(self, function: Function, twin_run: TwinRun | None, given: Arguments, error: Exception) -> None:
        run = self._run_of(function)
        self._emit_inside(function, twin_run, run, given, None)
        self._fail(function, run, given, error)

    def _fail(self, function: Function, run: GraphRun, given: Arguments, error: Exception) -> None:
        operator = self._call_operator(function, OF_THE_PROGRAM, program_frames())
        # If the arguments were read ahead, their memory may be gone.
        inputs = () if given.are_read else _live(given.tensors(), function.argument_names, PARAMETER_PREFIX)
        run.fail(operator, error, inputs)

    def _emit_inside(
        self, function: Function, twin_run: TwinRun | None, run: GraphRun, given: Arguments, executable: Any
    ) -> TwinRun | None:
        """Emit the operators of the twin. Returns its run; None if there is none or it failed. `executable` is None if the call failed."""
        count, emitter, sources = 0, None, self._sources_of_operands(function, given)
        for piece in self._pieces(function, twin_run) if twin_run is not None else ():
            blocks = self._blocks_of(function, piece, executable)
            if emitter is None:
                emitter = Emitter(Given(given, function.closed.consts), run, blocks)
            piece.level = self._level_with(sources, function, piece.level)
            emitter.emit(piece)
            count += 1
            del piece
        for note in (function.twin.notes if function.twin is not None else {}).values():
            self._warn(f"{function.name}: {note}")
        if function.twin is None or count < function.twin.count:
            run.count_skipped({"not observed": len(function.closed.jaxpr.eqns)})
            return None
        return twin_run

    def _sources_of_operands(self, function: Function, given: Arguments) -> dict[str, str]:
        """The makers of arguments that have only a number, because JAX and not the program calls the function (an uncompiled `scan`), by their usual
        source. Other arguments keep their names, by which parameters are found again in later steps.
        """
        step = self._steps.step
        numbered = (
            (f"{PARAMETER_PREFIX}{name}", self._makers.source_of(value, step))
            for name, value in zip(function.argument_names, given.values, strict=True)
            if _NUMBERED.fullmatch(name)
        )
        return {usual: maker for usual, maker in numbered if maker}

    def _level_with(self, sources: Mapping[str, str], function: Function, level: Level) -> Level:
        if not sources:
            return level
        key = id(level), frozenset(sources.items())
        if key not in function.by_sources:
            if len(function.by_sources) >= MOST_CALLS:  # a program that calls it with other makers each time
                return level
            function.by_sources[key] = with_sources(level, sources)
        return function.by_sources[key]

    def _pieces(self, function: Function, twin_run: TwinRun) -> Iterator[PieceRun]:
        """The pieces of a run. If one fails, the iteration ends with a warning."""
        try:
            for piece in twin_run.pieces():
                piece.wait()
                yield piece
                del piece  # frees its memory before the next piece is started
        except Exception as error:  # noqa: BLE001  reported as a warning; the function itself is still recorded
            self._twin_failed(function, error)

    def _blocks_of(self, function: Function, piece: PieceRun, executable: Any) -> Blocks:
        """The blocks of a function. Adds the operators of this piece to the graph of the dump."""
        if function.blocks is None:
            graph = self._recorder.graph(function.graph_id, function.name)
            for name, aval in zip(function.argument_names, function.closed.in_avals, strict=True):
                graph.add_parameter(GraphValue(name, str(aval.dtype.name), tuple(aval.shape)))
        if function.blocks is None or (executable is not None and not function.blocks.has_outcomes):
            function.blocks = Blocks(executable)
        if id(piece.level) not in function.shown:
            function.shown[id(piece.level)] = piece.level
            graph = self._recorder.graph(function.graph_id, function.name)
            for equation in piece.level.each():
                graph.add(equation.node)
        return function.blocks

    def _call_block(self, function: Function, told: Mapping[str, Any]) -> Prepared:
        """The call as an operator, followed by updated parameters in MindSpore's form. `told` are additional arguments of the operator."""
        stack = program_frames()
        known = None if told else function.calls.get(stack)
        if known is None:
            facts = {**OF_THE_PROGRAM, **told} if told else OF_THE_PROGRAM
            known = self._new_call_block(function, self._call_operator(function, facts, stack))
            if not told:
                if len(function.calls) >= MOST_CALLS:
                    function.calls.clear()
                function.calls[stack] = known
        return known

    def _new_call_block(self, function: Function, operator: NamedOperator) -> Prepared:
        plan, selection = self._recorder.plan, self._selection
        arguments, results = function.argument_names, function.result_names
        places: dict[Ref, int] = {}
        """The results are taps of the call."""

        def slot(number: int, name: str, source: str, ref: Ref) -> BlockSlot:
            return BlockSlot(number, name, source, places.setdefault(ref, len(places)))

        inputs, outputs = [], []
        if not operator.skip and selection.wants_inputs:
            inputs = [slot(at, name, f"{PARAMETER_PREFIX}{name}", Argument(at)) for at, name in enumerate(arguments)]
        made_by = function.twin.result_sources if function.twin is not None else [""] * len(results)
        if not operator.skip and selection.wants_outputs:
            outputs = [slot(at, name, made_by[at], Tap(at)) for at, name in enumerate(results)]
        operators = [BlockOperator(operator, inputs, outputs)]
        if plan.saves_values and plan.outputs:
            for result, argument in sorted(function.updates.items(), key=lambda pair: pair[1]):
                name = arguments[argument]
                if plan.selects(name, _PARAMETER):
                    value = NamedOperator(_PARAMETER, name, kernel=_PARAMETER, phase="optimizer")
                    operators.append(BlockOperator(value, (), [slot(0, "", made_by[result], Tap(result))]))
        return Prepared(Block(operators), tuple(places))

    def _call_operator(self, function: Function, facts: Mapping[str, Any], stack: Sequence[Frame]) -> NamedOperator:
        name = _call_name(function)
        return NamedOperator(
            "jit",
            name,
            arguments=facts,
            stack=stack,
            kernel=CALL,
            skip="" if self._selection.selects(name, "jit") else "not selected",
        )

    def _run_of(self, function: Function) -> GraphRun:
        steps, graph_id = self._steps, function.graph_id
        executions = steps.executions.setdefault(graph_id, Counter())
        return GraphRun(
            self._emitter, self._recorder.plan.net_name, graph_id, steps.step, order=steps.order, executions=executions
        )

    def _tell_deviation(self, function: Function, twin_run: TwinRun, results: Sequence[Any]) -> Any:
        """Measure the deviation of a twin from its function. This is done once for each function."""
        function.is_told = True
        assert function.twin is not None, "it has run"
        found = deviation(function.name, function.result_names, function.twin.results(twin_run), results)
        _LOG.info("%s", found.text)
        self._recorder.warnings += [found.text] if found.is_large else []
        return found.facts

    # A single operator of the program.

    def _single_call(self, real: Real, arguments: tuple[Any, ...], function: Function) -> Any:
        given = self._given_singly(function, arguments)
        self._file()
        if given is None:
            return real()
        sources = self._sources(arguments)
        try:
            answer = real()
        except Exception as error:
            with self._lock:
                self._fail_single(function, given, error, sources)
            raise
        with self._lock:
            self._emit_single(function, given, answer[0], sources)
        return answer

    @isolated_from_program
    def _given_singly(self, function: Function, arguments: tuple[Any, ...]) -> Arguments:
        facts = tuple(map(facts_of, arguments))
        return Arguments(arguments, facts, [aval.dtype for aval in function.closed.in_avals], function.donated)

    def _sources(self, arguments: Sequence[Any]) -> list[str]:
        step = self._steps.step
        return [self._makers.source_of(each, step) for each in arguments]

    @isolated_from_program
    def _fail_single(self, function: Function, given: Arguments, error: Exception, sources: Sequence[str]) -> None:
        run = self._run_of(function)
        operator, inputs = self._eager_operator(function, given, sources)
        run.fail(operator, error, inputs)

    @isolated_from_program
    def _emit_single(
        self, function: Function, given: Arguments, results: Sequence[Any], sources: Sequence[str]
    ) -> None:
        operator, inputs = self._eager_operator(function, given, sources)
        run = self._run_of(function)
        self._makers.made(operator.op_name, results, run.step)
        if operator.phase in ("backward", "recomputation", "optimizer"):
            self._follow_backward_of_step().add(operator.op_name)
        if operator.skip:
            run.skip(operator)
            return
        selection = self._selection
        tensors = [host_tensor(borrowed(value), stays=False) for value in results]
        run.emit(
            operator, inputs if selection.wants_inputs else (), _live(tensors, ()) if selection.wants_outputs else ()
        )

    def _follow_backward_of_step(self) -> set[str]:
        """The operators and functions of this step that have a backward pass, or depend on one."""
        if self._eager_step != self._steps.step:
            self._eager_step = self._steps.step
            self._eager_names.clear()
            self._follow_backward.clear()
        return self._follow_backward

    def _eager_operator(
        self, function: Function, given: Arguments, sources: Sequence[str]
    ) -> tuple[NamedOperator, list[LiveTensor]]:
        """The call as an operator, and its inputs."""
        follow_backward = self._follow_backward_of_step()
        if function.as_operator is None:
            function.as_operator = EagerOperator.of(function.closed, function.name)
        known = function.as_operator
        arguments, operands = known.given(given.values)
        follows = any(source.rpartition(":")[0] in follow_backward for source in sources)
        name = f"Default/{known.kind}-op{self._eager_names[known.kind]}"
        self._eager_names[known.kind] += 1
        operator = NamedOperator(
            known.kind,
            name,
            arguments=arguments,
            stack=program_frames(),
            phase=phase_of(_running_stack(), follows_backward=follows),
            kernel=known.kernel,
            skip="" if self._selection.selects(name, known.kind) else "not selected",
        )
        tensors = given.tensors()
        return operator, [live_tensor(slot, "", tensors[place], sources[place]) for slot, place in operands]


_NUMBERED: Final = re.compile(r"args\.\d+")
"""The name of an argument that is only known by its number."""


def _call_name(function: Function) -> str:
    return f"Default/{function.name}-jit"


def _running_stack() -> str:
    """The name stack that JAX is evaluating; it contains the transformations around single operators."""
    current = getattr(source_info_util, "current", None)
    return "" if current is None else stack_text(current().name_stack)


def _result(results: Sequence[Any], place: int) -> Memory:
    return memory_of(borrowed(results[place]), stays=False)


def _error_of(results: Sequence[Any]) -> Exception | None:
    """Wait for results that JAX computes asynchronously, and return the error of their computation."""
    try:
        jax.block_until_ready(results)
    except Exception as error:  # noqa: BLE001  any error also reaches the program
        return error
    return None


def _never() -> bool:
    return False


def _live(tensors: Sequence[Any], names: Sequence[str], prefix: str = "") -> list[LiveTensor]:
    return [
        live_tensor(slot, names[slot] if names else "", tensor, f"{prefix}{names[slot]}" if prefix and names else "")
        for slot, tensor in enumerate(tensors)
    ]
