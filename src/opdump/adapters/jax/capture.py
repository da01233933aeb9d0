"""Records the calls of a program: its compiled functions by their twins, operators that run by themselves as they are."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from opdump.adapters.graph_runtime import GraphRun, NamedOperator, OperatorSelection, RunEmitter, live_tensor
from opdump.adapters.jax.deviation import deviation
from opdump.adapters.jax.emission import Emitter, Given
from opdump.adapters.jax.frames import program_frames
from opdump.adapters.jax.functions import (
    Function,
    Functions,
    has_bodies,
    obstacle_of,
    single_operator,
)
from opdump.adapters.jax.host import borrowed, copied, host_tensor
from opdump.adapters.jax.interception import Real
from opdump.adapters.jax.materialised import materialised
from opdump.adapters.jax.names import arguments_of
from opdump.adapters.jax.schedule import Level
from opdump.adapters.jax.steps import Steps
from opdump.adapters.jax.twin import Twin, TwinRun
from opdump.graph import PARAMETER_PREFIX, GraphValue
from opdump.plan.model_selection import ModelFilter
from opdump.recorder import LiveTensor, Recorder, beside_the_program

_LOG = logging.getLogger("opdump")
_PARAMETER: Final = "Parameter"


class Capture:
    """The calls of one program, while it runs."""

    def __init__(self, recorder: Recorder, steps: Steps, *, device_id: int) -> None:
        self._recorder = recorder
        self._steps = steps
        self._functions = Functions()
        self._selection = OperatorSelection(recorder.plan, ModelFilter.of(recorder.plan.models, ()))
        self._emitter = RunEmitter(recorder, device_id=device_id)
        self._lock = threading.RLock()
        self._here = threading.local()
        self._eager_names: Counter[str] = Counter()
        self._eager_step = -1

    @property
    def step(self) -> int:
        return self._steps.step

    def may_hurry(self) -> bool:
        """Whether the function that this thread called last need not be seen when it is called again."""
        return self._steps.are_over or not (getattr(self._here, "counts", True) or self._steps.is_wanted)

    def called(self, real: Real, arguments: tuple[Any, ...], closed: Any, name: str, donated: tuple[bool, ...]) -> Any:
        """The program calls a function: see `Interception`."""
        with self._lock:
            function = self._functions.of(closed, name, donated)
            self._here.counts = function.is_programs
            if function.is_programs:
                self._steps.calls(function)
            is_wanted = self._steps.is_wanted
        if not is_wanted or any(getattr(value, "is_deleted", _never)() for value in arguments):
            return real()  # JAX refuses what was given away before
        if function.is_programs or has_bodies(closed):
            return self._compiled_call(real, arguments, function)
        return self._single_call(real, arguments, function)

    def close(self) -> None:
        self._recorder.matched_kernels |= self._selection.matched_kernels
        around, first = self._recorder.circumstances, self._recorder.plan.initial_iteration
        around.framework, around.first_step, around.next_step = "JAX", first, self._steps.step + 1

    # A compiled function.

    def _compiled_call(self, real: Real, arguments: tuple[Any, ...], function: Function) -> Any:
        twin_run = self._run_twin(function, arguments)
        kept = _kept(function, arguments)
        try:
            answer = real()
        except Exception as error:
            with self._lock:
                self._failed(
                    function,
                    self._call_operator(function, {}),
                    error,
                    _arrays(function, arguments, kept),
                    PARAMETER_PREFIX,
                )
            raise
        with self._lock:
            self._emit(function, twin_run, arguments, kept, answer)
        return answer

    def _run_twin(self, function: Function, arguments: Sequence[Any]) -> TwinRun | None:
        """Before the program's own call, which may take its arguments away; None where there is no twin, and a warning says why."""
        if function.obstacle:
            return None
        try:
            if function.twin is None:
                function.obstacle = obstacle_of(function.closed)
                if function.obstacle:
                    self._warn_of(function)
                    return None
                sources = [f"{PARAMETER_PREFIX}{name}" for name in function.argument_names]
                function.twin = Twin(function.closed, self._selection, sources)
            return function.twin.run(arguments)
        except Exception as error:  # noqa: BLE001  told as a warning: the function itself is still recorded
            function.obstacle = f"its twin failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            self._warn_of(function)
            return None

    def _warn_of(self, function: Function) -> None:
        text = f"{function.name}: only its arguments and results are recorded: {function.obstacle}"
        if text not in self._recorder.warnings:
            self._recorder.warnings.append(text)

    @beside_the_program
    def _emit(
        self,
        function: Function,
        twin_run: TwinRun | None,
        arguments: Sequence[Any],
        kept: Sequence[Any],
        answer: Any,
    ) -> None:
        results, executable = answer[0], answer[1]
        run = self._run_of(function)
        arrays = _arrays(function, arguments, kept)
        given = [host_tensor(array, stays=False) for array in arrays]
        facts: dict[str, Any] = {"source": "program"}
        if twin_run is not None and not function.is_told:
            facts["deviation of the twin"] = self._tell(function, twin_run, results, executable)
        call = self._call_operator(function, facts)
        tensors = [host_tensor(borrowed(value), stays=False) for value in results]
        run.emit(
            call,
            _live(given, function.argument_names, PARAMETER_PREFIX) if self._selection.wants_inputs else (),
            _live(tensors, function.result_names) if self._selection.wants_outputs else (),
        )
        if twin_run is not None:
            emitter = Emitter(Given(arrays, given, twin_run.constants), run, function.operators)
            emitter.emit(twin_run.level, twin_run.taps)
        else:
            run.count_skipped({"not observed": len(function.closed.jaxpr.eqns)})
        self._emit_updates(function, run, tensors)

    def _emit_updates(self, function: Function, run: GraphRun, results: Sequence[Any]) -> None:
        """The parameters after their update, as MindSpore files them."""
        plan = self._recorder.plan
        if not (plan.saves_values and plan.outputs):
            return
        for result, argument in sorted(function.updates.items(), key=lambda pair: pair[1]):
            name = function.argument_names[argument]
            if plan.selects(name, _PARAMETER):
                value = NamedOperator(_PARAMETER, name, kernel=_PARAMETER, phase="optimizer")
                run.emit(value, (), [live_tensor(0, "", results[result])])

    @beside_the_program
    def _failed(
        self, function: Function, operator: NamedOperator, error: Exception, arrays: Sequence[Any], prefix: str = ""
    ) -> None:
        given = [host_tensor(array, stays=False) for array in arrays]
        self._run_of(function).fail(operator, error, _live(given, function.argument_names if prefix else (), prefix))

    def _call_operator(self, function: Function, facts: dict[str, Any]) -> NamedOperator:
        return NamedOperator(
            "jit", f"Default/{function.name}-jit", arguments=facts, stack=program_frames(), kernel="jax::jit"
        )

    def _run_of(self, function: Function) -> GraphRun:
        steps, graph_id = self._steps, function.graph_id
        executions = steps.executions.setdefault(graph_id, Counter())
        return GraphRun(
            self._emitter, self._recorder.plan.net_name, graph_id, steps.step, order=steps.order, executions=executions
        )

    def _tell(self, function: Function, twin_run: TwinRun, results: Sequence[Any], executable: Any) -> Any:
        """The graph of a function, and how far its twin is from it: once."""
        function.is_told = True
        graph = self._recorder.graph(function.graph_id, function.name)
        for name, aval in zip(function.argument_names, function.closed.in_avals, strict=True):
            graph.add_parameter(GraphValue(name, str(aval.dtype.name), tuple(aval.shape)))
        for equation in twin_run.level.each():
            graph.add(equation.node)
        function.operators = _with_facts(executable, twin_run.level)
        for primitive, reason in (function.twin.notes if function.twin is not None else {}).items():
            self._recorder.warnings.append(f"{function.name}: what runs within {primitive} is not shown: {reason}")
        found = deviation(function.name, function.result_names, twin_run.results, results)
        _LOG.info("%s", found.text)
        self._recorder.warnings += [found.text] if found.is_large else []
        return found.facts

    # An operator that the program runs by itself.

    def _single_call(self, real: Real, arguments: tuple[Any, ...], function: Function) -> Any:
        kept = _kept(function, arguments)
        try:
            answer = real()
        except Exception as error:
            with self._lock:
                self._failed(function, self._eager_operator(function), error, _arrays(function, arguments, kept))
            raise
        with self._lock:
            self._emit_single(function, _arrays(function, arguments, kept), answer[0])
        return answer

    @beside_the_program
    def _emit_single(self, function: Function, arrays: Sequence[Any], results: Sequence[Any]) -> None:
        operator, run = self._eager_operator(function), self._run_of(function)
        if operator.skip:
            run.skip(operator)
            return
        selection = self._selection
        tensors = [host_tensor(borrowed(value), stays=False) for value in results]
        run.emit(
            operator,
            _live([host_tensor(array, stays=False) for array in arrays], ()) if selection.wants_inputs else (),
            _live(tensors, ()) if selection.wants_outputs else (),
        )

    def _eager_operator(self, function: Function) -> NamedOperator:
        if self._eager_step != self._steps.step:
            self._eager_step = self._steps.step
            self._eager_names.clear()
        equation = single_operator(function.closed)
        kind = function.name.strip("_") if equation is None else equation.primitive.name
        name = f"Default/{kind}-op{self._eager_names[kind]}"
        self._eager_names[kind] += 1
        return NamedOperator(
            kind,
            name,
            arguments={} if equation is None else arguments_of(equation.params),
            stack=program_frames(),
            kernel=f"jnp::{kind}" if equation is None else f"lax::{kind}",
            skip="" if self._selection.selects(name, kind) else "not selected",
        )


def _with_facts(executable: Any, level: Level) -> dict[str, NamedOperator]:
    """The operators by name, with two more arguments: that a twin computed them, and what became of them in the compiled program."""
    outcomes = materialised(executable, level)
    found = {}
    for equation in level.each():
        operator = equation.operator
        facts = {"source": "twin", "materialised": outcomes.get(operator.op_name, "unknown")}
        found[operator.op_name] = replace(operator, arguments={**operator.arguments, **facts})
    return found


def _never() -> bool:
    return False


def _kept(function: Function, arguments: Sequence[Any]) -> list[Any]:
    """Copies of what the function takes away from the program; None for what stays."""
    avals = function.closed.in_avals
    donated = function.donated or (False,) * len(arguments)
    return [
        copied(value, aval.dtype) if gone else None for value, aval, gone in zip(arguments, avals, donated, strict=True)
    ]


def _arrays(function: Function, arguments: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """The arguments as arrays of numpy; a text is the type of what is no such array."""
    return [
        borrowed(value, aval.dtype) if copy is None else copy
        for value, aval, copy in zip(arguments, function.closed.in_avals, kept, strict=True)
    ]


def _live(tensors: Sequence[Any], names: Sequence[str], prefix: str = "") -> list[LiveTensor]:
    return [
        live_tensor(slot, names[slot] if names else "", tensor, f"{prefix}{names[slot]}" if prefix and names else "")
        for slot, tensor in enumerate(tensors)
    ]
