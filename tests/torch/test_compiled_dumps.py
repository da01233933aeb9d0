"""Dumps of compiled code: each graph is one operator, and the same graphs are compiled as without capture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.adapters.torch.private_names import GUARDS_SEE_MODES
from tests.torch.compiled_programs import Network, assert_same, compiled_with, formula, jit, layers, train
from tests.torch.releases import gradient_of

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
