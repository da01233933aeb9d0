"""Compiled, traced, exported and transformed code under a recording mode: it stays what it is, and its results are the same, bit for bit."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import opdump
from opdump.adapters.torch.compiled import CompiledCall, CompiledRegions
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, recording_here, suspended, take_off
from opdump.adapters.torch.private_names import GUARDS_SEE_MODES
from opdump.adapters.torch.reader import TensorReader
from opdump.plan import SavedData
from tests.torch.compiled_programs import (
    BACKENDS,
    Counter,
    Network,
    assert_same,
    compiled_at,
    compiled_names,
    compiled_with,
    formula,
    jit,
    layers,
    onnx,
    second_derivatives,
    train,
)
from tests.torch.recording import Operators, recording
from tests.torch.releases import NAMES_COMPILED_GRADIENTS, RECORDS_BETWEEN_GRAPHS, gradient_of

# Warnings of PyTorch itself: parts of it use deprecated functions, and dynamo accesses the gradient of each tensor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_compiled_training_are_the_same_to_the_bit(backend: str, fullgraph: bool) -> None:
    expected = train(compiled_with(Network(), backend=backend, fullgraph=fullgraph))
    torch._dynamo.reset()
    with recording() as mode:
        found = train(compiled_with(Network(), backend=backend, fullgraph=fullgraph))
    assert_same(found, expected)
    assert compiled_names(mode)[0] == "compiled_forward"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_compiled_before_capture_is_one_operator_with_inputs_and_outputs(backend: str) -> None:
    counter = Counter(backend)
    network = compiled_with(Network(), backend=counter)
    x = torch.randn(6, 4)
    expected = network(x)
    with recording() as mode:
        found = network(x)
    assert counter.graphs == 1
    assert mode.names == ["compiled_forward"]
    operator = mode.all[0]
    assert any(torch.equal(tensor, x) for tensor in operator.inputs)
    assert any(torch.equal(tensor, network._orig_mod.wide.weight) for tensor in operator.inputs)
    assert_same(operator.outputs[0], found)
    assert found.shape == expected.shape


@NAMES_COMPILED_GRADIENTS
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.compiler])]
)
def test_a_compiled_backward_is_one_operator_too(backend: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sin().sum()

    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    compiled = compiled_with(function, backend=backend)
    with recording() as mode:
        loss: Any = compiled(x, w)
        backward = len(mode.all)
        loss.backward()
    assert mode.names[:backward] == ["compiled_function"]
    assert [name for name in mode.names[backward:] if not name.startswith("aten.")] == ["compiled_function_backward"]
    assert not {name for name in mode.names if "mm" in name or "relu" in name or "sin" in name}
    assert w.grad is not None
    assert_same(mode.all[mode.names.index("compiled_function_backward")].outputs[0], w.grad)


def test_the_backend_eager_has_a_backward_of_single_operators() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    x = torch.randn(3, requires_grad=True)
    with recording() as mode:
        compiled_with(function, backend="eager")(x).backward()
    assert mode.names[0] == "compiled_function"
    assert "aten.cos.default" in mode.names


@RECORDS_BETWEEN_GRAPHS
def test_what_runs_eagerly_between_two_graphs_is_recorded_as_operators() -> None:
    between: Any = torch.compiler.disable(torch.tan)

    def function(x: torch.Tensor) -> Any:
        return between(x.sin()).cos()

    x = torch.randn(3)
    compiled = compiled_with(function, backend="eager")
    for _ in range(2):
        with recording() as mode:
            found = compiled(x)
        assert mode.names == ["compiled_function", "aten.tan.default", "compiled_function"]
        assert_same(found, function(x))


@RECORDS_BETWEEN_GRAPHS
def test_dynamo_does_not_compile_the_mode_itself() -> None:
    def function(x: torch.Tensor) -> Any:
        x = x.sin()
        torch._dynamo.graph_break()
        return eval("x.cos()", {"x": x})  # an eager part whose operators dynamo sees

    with recording() as mode:
        compiled_with(function, backend="eager")(torch.randn(3))
    assert "aten.cos.default" in mode.names
    seen = [code() for code in torch._dynamo.convert_frame.input_codes.seen]
    assert not [code for code in seen if code is not None and code.co_name in ("__torch_dispatch__", "_copies")]


@NAMES_COMPILED_GRADIENTS
def test_a_gradient_has_its_name_where_dynamo_dropped_the_code_meanwhile() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    with recording() as mode:
        out = compiled_with(scaled, backend="aot_eager")(torch.ones(4, 3, requires_grad=True))
        entries: list[Any] = torch._dynamo.eval_frame._debug_get_cache_entry_list(scaled.__code__)
        (entry,) = entries
        # As after an object in dynamo's guards was deleted.
        entry.guard_manager.extra_state.invalidate(entry, torch._dynamo.guards.DeletedGuardManagerWrapper("gone"))
        assert entry.code is None
        out.sum().backward()
    assert compiled_names(mode) == ["compiled_scaled", "compiled_scaled_backward"]


def test_switching_the_mode_on_and_off_compiles_nothing_again() -> None:
    counter = Counter("aot_eager")
    network = compiled_with(Network(), backend=counter)
    train(network, steps=1)
    for _ in range(2):
        with recording():
            train(network, steps=1)
        train(network, steps=1)
    assert counter.graphs == 1


def test_a_compiled_optimizer_lists_what_it_updates_as_inputs_and_outputs() -> None:
    parameter = nn.Parameter(torch.randn(3))
    parameter.grad = torch.randn(3)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    before = parameter.detach().clone()
    step = compiled_with(optimizer.step, backend="aot_eager")
    with recording() as mode:
        step()
    operator = mode.all[compiled_at(mode, "compiled_step")]
    assert any(torch.equal(tensor, before) for tensor in operator.inputs)
    assert any(torch.equal(tensor, parameter) for tensor in operator.outputs)
    assert not torch.equal(parameter, before)


def test_running_statistics_that_a_graph_writes_are_outputs() -> None:
    network = compiled_with(Network(), backend="aot_eager")
    with recording() as mode:
        network(torch.randn(6, 4))
    mean = network._orig_mod.norm.running_mean
    operator = mode.all[compiled_at(mode, "compiled_forward")]
    assert any(torch.equal(tensor, mean) for tensor in operator.outputs)
    assert any(torch.equal(tensor, torch.zeros(8)) for tensor in operator.inputs)


def test_a_module_of_pytorch_itself_has_a_plain_label() -> None:
    torch._dynamo.reset()  # earlier tests compiled the same method of PyTorch, and dynamo gives up after several times
    x, network = torch.ones(1, 2), compiled_with(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    with recording() as mode:
        network(x)
    assert mode.names == ["compiled"]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_eager_captures_inside_and_gives_the_results_of_plain_code(fullgraph: bool) -> None:
    counter = Counter("aot_eager")
    network = compiled_with(Network(), backend=counter, fullgraph=fullgraph)
    with recording(eager=True) as mode:
        found = train(network)
    assert counter.graphs == 0
    assert not compiled_names(mode)
    assert "aten.native_batch_norm.default" in mode.names
    assert_same(found, train(Network()))
    train(network, steps=1)
    assert counter.graphs == 1


def test_eager_leaves_a_stance_alone_that_the_program_chose_meanwhile() -> None:
    with recording(eager=True):
        chosen = torch.compiler.set_stance("fail_on_recompile")
    try:
        assert torch._dynamo.eval_frame._stance is chosen.stance
    finally:
        torch.compiler.set_stance("default")


def test_a_failing_compiled_function_raises_as_before_and_leaves_the_mode_on() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(7)

    compiled = compiled_with(function, backend=lambda graph, inputs: graph.forward)
    with recording() as mode:
        with pytest.raises(Exception, match="shape"):
            compiled(torch.ones(3))
        torch.ones(2).sin()
    assert mode.names[-1] == "aten.sin.default"


@NAMES_COMPILED_GRADIENTS
def test_detach_puts_everything_back() -> None:
    from torch._dynamo.utils import CleanupHook
    from torch._functorch._aot_autograd.runtime_wrappers import _AutogradBackwardCompiler

    def public() -> list[Any]:
        return [
            vars(CleanupHook)["create"],
            vars(_AutogradBackwardCompiler)["get_or_compile"],
            jit._trace._trace_impl,
            vars(torch.export)["_trace"]._export,
            torch._dynamo.export,
            torch.onnx.export,
            torch._dynamo.eval_frame._stance,
        ]

    network = compiled_with(Network(), backend="eager")
    network(torch.ones(2, 4))
    scope = vars(sys.modules[Network.__module__])
    graphs = {name: value for name, value in scope.items() if name.startswith("__compiled_fn")}
    before = public()
    with recording(), recording(eager=True):
        assert public() != before
    assert public() == before
    assert graphs
    assert {name: value for name, value in scope.items() if name.startswith("__compiled_fn")} == graphs


@NAMES_COMPILED_GRADIENTS
def test_a_region_outlives_the_capture_that_it_was_compiled_in() -> None:
    network = compiled_with(Network(), backend="aot_eager")
    with recording() as mode:
        train(network, steps=1)
    recorded = len(mode.all)
    with recording() as second:
        train(network, steps=1)
    train(network, steps=1)
    assert len(mode.all) == recorded
    assert compiled_names(second) == ["compiled_forward", "compiled_forward_backward"]


@RECORDS_BETWEEN_GRAPHS
def test_compiled_autograd_is_one_operator() -> None:
    w = torch.randn(4, 4, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().sum()

    x = torch.randn(4, 4)
    expected = torch.autograd.grad(function(x), w)[0]
    with recording() as mode, torch._dynamo.compiled_autograd._enable(compiled_with(backend="eager")):
        loss: Any = function(x)
        loss.backward()
    assert w.grad is not None
    assert_same(w.grad, expected)
    assert len(compiled_names(mode)) == 1
    assert "aten.cos.default" not in mode.names


def test_dynamic_shapes_record_the_tensors_of_a_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.shape[0]

    compiled = compiled_with(function, backend="aot_eager", dynamic=True)
    with recording() as mode:
        for size in (3, 5):
            assert_same(compiled(torch.ones(size)), torch.ones(size).sin() * size)
    assert mode.names.count("compiled_function") == 2
    assert [operator.inputs[0].shape[0] for operator in mode.all if operator.name == "compiled_function"] == [3, 5]


@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_dump_holds_each_compiled_graph_as_one_operator(tmp_path: Path, compiled_before: bool) -> None:
    def trained(path: Path | None) -> tuple[list[torch.Tensor], opdump.CaptureReport | None]:
        torch._dynamo.reset()
        network = compiled_with(Network(), backend="aot_eager")
        results = train(network, steps=1) if compiled_before else []
        if path is None:
            return results + train(network), None
        with opdump.capture(path=path, saved_data="full", iteration="all") as dump:
            results += train(network)
        return results, dump.report

    expected, _ = trained(None)
    found, report = trained(tmp_path)
    assert_same(found, expected)
    assert report is not None
    catalog = opdump.open(tmp_path)
    step = report.steps[-1]
    forward = [op for op in catalog.ops(step=step) if op.kernel == "compiled_forward"]
    backward = [op for op in catalog.ops(step=step) if op.kernel == gradient_of("compiled_forward")]
    assert [op.op_name.rpartition("-op")[0] for op in forward] == ["Default/network-Network/compiled_forward"]
    assert [op.forward_op for op in backward] == [forward[0].op_name]
    assert "in forward" in str(forward[0].stack) or any(frame.function == "forward" for frame in forward[0].stack)
    kernels = {op.kernel for op in catalog.ops(step=step)}
    assert not {kernel for kernel in kernels if "batch_norm" in kernel or "addmm" in kernel}
    # The weights that the graph read were written by the optimizer in the step before.
    records = [tensor for tensor in catalog if tensor.op == forward[0].op]
    assert {(4,), (8, 4), (6, 4), (2, 8)} - {tensor.shape for tensor in records if tensor.io == "input"} == {(4,)}
    assert (6, 2) in {tensor.shape for tensor in records if tensor.io == "output"}
    assert all(tensor.payload is not None for tensor in records)


def test_an_eager_dump_goes_inside(tmp_path: Path) -> None:
    network = compiled_with(Network(), backend="aot_eager")
    with opdump.capture(path=tmp_path, iteration="all", eager=True):
        train(network, steps=1)
    kernels = {op.kernel for op in opdump.open(tmp_path).ops()}
    assert not {kernel for kernel in kernels if "compiled" in kernel}
    assert "aten::native_batch_norm" in kernels


def test_a_dump_does_not_hold_what_was_traced(tmp_path: Path) -> None:
    network = layers()
    x = torch.ones(2, 3)
    with opdump.capture(path=tmp_path, iteration="all"):
        jit.trace(formula, (x,))
        jit.trace(network, (x,))
        torch.export.export(network, (x,))
        network(x)
    kernels = [op.kernel for op in opdump.open(tmp_path).ops()]
    assert kernels.count("aten::addmm") == 2
    assert "aten::sin" not in kernels


def test_a_whole_step_in_one_compiled_function_is_dumped_and_opdump_itself_not_compiled(tmp_path: Path) -> None:
    def trained(path: Path | None) -> list[torch.Tensor]:
        torch._dynamo.reset()
        network = Network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        @compiled_with(backend="aot_eager")  # type: ignore[untyped-decorator]
        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss: Any = network(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        torch.manual_seed(2)
        inputs = torch.randn(3, 6, 4)
        losses = []
        if path is None:
            losses += [step(x).detach() for x in inputs]
        else:
            with opdump.capture(path=path, iteration="1") as dump:
                for x in inputs:
                    losses.append(step(x).detach())
                    dump.step()  # dynamo compiles the optimizer too, so its end is not seen
        return [*losses, *(v.detach().clone() for v in network.state_dict().values())]

    expected = trained(None)
    assert_same(trained(tmp_path), expected)
    kernels = [op.kernel for op in opdump.open(tmp_path).ops(step=1)]
    # The step breaks into two graphs around its backward, which is not recorded in releases whose compiled code bypasses modes.
    assert (gradient_of("compiled_step") in kernels) is not GUARDS_SEE_MODES
    own = str(Path(opdump.__file__).parent)
    codes = [code() for code in torch._dynamo.convert_frame.input_codes.seen]
    assert not [code for code in codes if code is not None and code.co_filename.startswith(own)]


class Interrupted(nn.Module):
    """Dynamo gives up on the outer function and compiles the inner one separately."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Network()

    def forward(self, x: torch.Tensor) -> Any:
        try:
            y = self.inner(x.sin())
            torch._dynamo.graph_break()
            return y.cos()
        finally:
            pass


@pytest.mark.parametrize("method", [False, True], ids=["torch.compile", "Module.compile"])
@pytest.mark.parametrize("make", [Network, Interrupted, layers])
def test_the_same_graphs_are_compiled_as_without_capture(tmp_path: Path, make: Any, method: bool) -> None:
    def graphs(path: Path | None) -> list[str]:
        torch._dynamo.reset()
        codes: list[str] = []

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            codes.append(graph.code)
            return graph.forward

        module = make()
        if method:
            module.compile(backend=backend)
        run = module if method else compiled_with(module, backend=backend)
        x = torch.ones(2, 3 if make is layers else 4)
        if path is None:
            run(x)
        else:
            with opdump.capture(path=path, iteration="all"):
                run(x)
        return codes

    assert graphs(tmp_path) == graphs(None)


class Others(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode of the user's program."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def depth() -> int:
    return torch._C._len_torch_dispatch_stack()


def test_a_mode_goes_below_those_of_the_program_and_comes_off_from_there() -> None:
    mode, others = Operators(), Others()
    with others:
        put_on(mode)
        torch.ones(2)
    torch.ones(3)
    with others:
        assert take_off(mode)
        torch.ones(4)
    assert others.names == ["aten.ones.default"] * 2
    assert [operator.outputs[0].shape[0] for operator in mode.all] == [2, 3]
    assert depth() == 0
    assert not take_off(mode)


def test_suspending_leaves_the_modes_of_the_program_on() -> None:
    mode, others = Operators(), Others()
    put_on(mode)
    with others:
        with suspended():
            assert not recording_here()
            torch.ones(2)
        assert recording_here()
    assert take_off(mode)
    assert (mode.names, others.names) == ([], ["aten.ones.default"])


def test_a_mode_that_is_closed_while_suspended_does_not_come_back() -> None:
    mode = Operators()
    put_on(mode)
    with suspended():
        mode.closed = True
    assert depth() == 0


def test_a_mode_that_does_not_record_at_present_leaves_compiled_graphs_alone() -> None:
    class Idle(RecordingMode):
        recording = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def refuse(name: str, function: CompiledCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise AssertionError("recorded")

    mode = Idle()
    regions = CompiledRegions(refuse)
    regions.attach()
    put_on(mode)
    try:
        assert_same(compiled_with(formula, backend="eager")(torch.ones(3)), formula(torch.ones(3)))
    finally:
        take_off(mode)
        regions.detach()


TRACERS: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "jit.trace of a function": (lambda: formula, lambda program, x: jit.trace(program, (x,))),
    "jit.trace of a module": (layers, lambda program, x: jit.trace(program, (x,))),
    "jit.trace_module": (layers, lambda program, x: jit.trace_module(program, {"forward": (x,)})),
    "jit.script": (lambda: formula, lambda program, x: jit.script(program)),
    "export": (layers, lambda program, x: torch.export.export(program, (x,)).module()),
    "strict export": (layers, lambda program, x: torch.export.export(program, (x,), strict=True).module()),
    "decompositions": (layers, lambda program, x: torch.export.export(program, (x,)).run_decompositions().module()),
    "make_fx": (lambda: formula, lambda program, x: make_fx(program)(x)),
    "make_fx, fake": (lambda: formula, lambda program, x: make_fx(program, tracing_mode="fake")(x)),
    "make_fx, symbolic": (lambda: formula, lambda program, x: make_fx(program, tracing_mode="symbolic")(x)),
    "make_fx, pre-dispatch": (lambda: formula, lambda program, x: make_fx(program, pre_dispatch=True)(x)),
    "fx.symbolic_trace": (layers, lambda program, x: torch.fx.symbolic_trace(program)),
    "dynamo.export": (lambda: formula, lambda program, x: torch._dynamo.export(program)(x).graph_module),
}


def code_of(program: Any) -> str:
    return str(getattr(program, "code", ""))


@pytest.mark.parametrize("name", TRACERS)
def test_tracing_records_nothing_and_gives_the_same_program(name: str) -> None:
    make, trace = TRACERS[name]
    program, x = make(), torch.randn(5, 3)
    expected = trace(program, x)
    with recording() as mode:
        found = trace(program, x)
    assert mode.names == []
    assert code_of(found) == code_of(expected)
    assert_same(found(x), expected(x))


def test_a_traced_and_a_scripted_function_run_as_the_operators_that_they_are() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    for program in (jit.trace(formula, (x,)), jit.script(formula)):
        expected = [(program(x), torch.autograd.grad(program(x), x)) for _ in range(4)]
        with recording() as mode:
            found = [(program(x), torch.autograd.grad(program(x), x)) for _ in range(4)]
        assert_same(found, expected)
        assert {"aten.sin.default", "aten.sum.default", "aten.cos.default"} <= set(mode.names)


def test_an_export_that_fails_leaves_recording_on() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(7)

    with recording() as mode:
        with pytest.raises(Exception, match="shape"):
            torch.export.export(Wrong(), (torch.ones(3),))
        torch.ones(2).sin()
    assert mode.names == ["aten.ones.default", "aten.ones.default", "aten.sin.default"]


def test_onnx_export_is_suspended_and_ends_as_it_does_plain() -> None:
    def exported() -> str:
        try:
            onnx.export(layers().eval(), (torch.ones(1, 3),), io.BytesIO(), dynamo=False)
        except Exception as error:  # noqa: BLE001  releases differ in whether and how it fails here
            return f"{type(error).__name__}: {error}"
        return "exported"

    plain = exported()
    with recording() as mode:
        assert exported() == plain
        torch.ones(2).sin()
    assert not [name for name in mode.names if "addmm" in name]
    assert mode.names[-1] == "aten.sin.default"


COMPUTATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": torch.vmap(formula),
    "vmap of a network": torch.vmap(layers()),
    "vmap with random numbers": torch.vmap(lambda row: row + torch.rand(3), randomness="different"),
    "grad": torch.func.grad(formula),
    "vmap of grad": torch.vmap(torch.func.grad(formula)),
    "vjp": lambda x: torch.func.vjp(formula, x)[1](torch.ones(())),
    "jvp": lambda x: torch.func.jvp(formula, (x,), (x,)),
    "jacrev": torch.func.jacrev(torch.sin),
    "jacfwd": torch.func.jacfwd(torch.sin),
    "hessian": torch.func.hessian(formula),
    "functionalize": torch.func.functionalize(lambda x: x.clone().add_(1)),
    "functional_call": lambda x: torch.func.functional_call(layers(), dict(layers().named_parameters()), (x,)),
    "autograd.functional.hessian": lambda x: second_derivatives(formula, x[0]),
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_transforms_give_the_same_results_and_show_plain_tensors_only(name: str) -> None:
    compute = COMPUTATIONS[name]
    x = torch.randn(5, 3)
    torch.manual_seed(5)
    expected = compute(x)
    kinds: list[Any] = []

    class Kinds(Operators):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            leaves = torch.utils._pytree.tree_leaves((args, kwargs))
            kinds.extend(
                (type(leaf), torch._C._functorch.is_functorch_wrapped_tensor(leaf))
                for leaf in leaves
                if isinstance(leaf, torch.Tensor)
            )
            return func(*args, **(kwargs or {}))

    mode = Kinds()
    put_on(mode)
    try:
        torch.manual_seed(5)
        found = compute(x)
    finally:
        take_off(mode)
    assert_same(found, expected)
    assert kinds
    assert {wrapped for _, wrapped in kinds} == {False}
    assert {kind for kind, _ in kinds} <= {torch.Tensor, nn.Parameter}


def test_fake_tensors_arrive_as_fake_tensors() -> None:
    class Kinds(Operators):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.kinds = [kind.__name__ for kind in types]
            return func(*args, **(kwargs or {}))

    mode = Kinds()
    put_on(mode)
    with FakeTensorMode():
        found = torch.ones(3) + 1
    take_off(mode)
    assert mode.kinds == ["FakeTensor"]
    assert found.shape == (3,)


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_addresses_of_fake_tensors_of_a_network_are_not_read(saved_data: SavedData, tmp_path: Path) -> None:
    with warnings.catch_warnings(), opdump.capture(path=tmp_path, saved_data=saved_data):
        warnings.simplefilter("error")
        with FakeTensorMode():
            network = nn.Linear(3, 4)
            network(torch.randn(2, 3)).sum().backward()
            torch.optim.Adam(network.parameters()).step()
            given = torch.randn(2, 3)
    reader = TensorReader(statistics=True, elements=saved_data == "full")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.take(given).skip == "no storage"
        assert reader.memory_of(given) is None
