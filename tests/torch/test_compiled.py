"""Compiled code under a recording mode: it stays compiled, and its results are the same, bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.compiled_programs import (
    BACKENDS,
    Counter,
    Network,
    assert_same,
    compiled_at,
    compiled_names,
    compiled_with,
    jit,
    train,
)
from tests.torch.recording import recording
from tests.torch.releases import NAMES_COMPILED_GRADIENTS, RECORDS_BETWEEN_GRAPHS

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
