"""A dump contains every operator that PyTorch itself reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.profiler import ProfilerActivity, profile

import opdump
from opdump.catalog.catalog import Execution
from opdump.commands import main
from tests.torch.programs import PROGRAMS, Trained

# They launch no kernel. The dump must contain everything else that the profiler reports.
VIEWS = frozenset(
    (
        *("_conj", "_neg_view", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "broadcast_to"),
        *("chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "imag"),
        *("lift_fresh", "movedim", "narrow", "numpy_T", "permute", "ravel", "real", "reshape"),
        *("reshape_as", "resolve_conj", "resolve_neg", "select", "slice", "split", "split_with_sizes"),
        *("squeeze", "swapaxes", "t", "to", "transpose", "unbind", "unflatten", "unfold", "unsafe_chunk"),
        *("unsafe_split", "unsqueeze", "view", "view_as"),
    )
)
ALLOCATIONS = frozenset(
    (*("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),)
)
METADATA = frozenset(
    (
        *("_has_compatible_shallow_copy_type", "_version", "as_strided_", "detach_", "is_same_size"),
        *("output_nr", "requires_grad_", "resize_", "resize_as_", "result_type", "set_", "set_data"),
        *("size", "squeeze_", "stride", "t_", "transpose_", "unsqueeze_"),
    )
)
NO_KERNEL = VIEWS | ALLOCATIONS | METADATA

# Under a dispatch mode, PyTorch uses the out-of-place form of a few operators, with the same value.
SAME_VALUE = {"_index_put_impl": "index_put"}


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # PyTorch 2.10 warns in every profile
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_every_operator_of_the_profiler_is_in_the_manifest_in_order(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("transformers" if name == "transformer" else "torch")
    leaves = list(_kernel_leaves(PROGRAMS[name]))
    with opdump.capture(path=tmp_path, saved_data="statistic", strict=True) as dump:
        PROGRAMS[name]()
    catalog = opdump.open(tmp_path)
    executions = [
        execution for execution in catalog.executions(include_skipped=True) if execution.op.op_type != "Parameter"
    ]
    counted = sum(sum(catalog.counted(step).values()) for step in catalog.steps)
    matched = _match(leaves, executions)
    for event, execution in matched:
        assert not execution.op.skip, f"{event.name}: {execution.op.op_name} left no data ({execution.op.skip})"
        _check_that_all_tensors_are_captured(event, execution)
    assert dump.report is not None
    captured = [execution for execution in executions if not execution.op.skip]
    assert dump.report.captured == len(captured)
    assert dump.report.executed == len(executions) + counted
    unmatched = {execution.op.kernel for execution in captured} - {execution.op.kernel for _, execution in matched}
    assert not unmatched, "captured, and unknown to the profiler"
    print(f"{name}: {len(leaves)} leaf operators of the profiler, all found among {len(captured)} captured operators")


def _kernel_leaves(program: Callable[[], Trained]) -> Iterator[Any]:
    """The lowest operators that run a kernel, in the order of their start."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        program()
    events = [event for event in found.events() or () if _runs_a_kernel(event)]
    above = {id(parent) for event in events for parent in _lineage(event)[1:]}
    for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end)):
        if id(event) not in above:
            yield event


def _runs_a_kernel(event: Any) -> bool:
    return bool(event.name.startswith("aten::")) and event.name.removeprefix("aten::") not in NO_KERNEL


def _lineage(event: Any) -> list[Any]:
    """An event and its callers, outermost last."""
    found = []
    while event is not None:
        found.append(event)
        event = event.cpu_parent
    return found


def _match(leaves: list[Any], executions: list[Execution]) -> list[tuple[Any, Execution]]:
    """Each leaf, or its first caller in the manifest, with the matching entry. Fails if the order differs."""
    known: dict[int, Execution] = {}
    matched = []
    position = 0
    for leaf in leaves:
        lineage = [event for event in _lineage(leaf) if event.name.startswith("aten::")]
        if any(id(event) in known for event in lineage):
            continue  # another part of an operator that the manifest contains as a whole
        names = {_plain(event.name): event for event in lineage}  # of equal names, the outermost
        entry = next(
            (index for index in range(position, len(executions)) if _plain(executions[index].op.kernel) in names), None
        )
        assert entry is not None, (
            f"{' < '.join(event.name for event in lineage)} is missing after {executions[max(position - 1, 0)].op.op_name}"
        )
        passed = [execution.op.kernel for execution in executions[position:entry] if not execution.op.skip]
        assert not passed, f"captured before {leaf.name}, and not there in the profiler: {passed}"
        event = names[_plain(executions[entry].op.kernel)]
        known[id(event)] = executions[entry]
        matched.append((event, executions[entry]))
        position = entry + 1
    return matched


def _plain(kernel: str) -> str:
    """A name without its namespace, its overload and the suffix of the in-place form."""
    name = kernel.partition("::")[2].partition(".")[0].rstrip("_")
    return SAME_VALUE.get(name, name)


def _check_that_all_tensors_are_captured(event: Any, execution: Execution) -> None:
    assert all(record.skip in ("", "empty", "allocation") for record in execution.tensors), execution.op.op_name
    recorded = [record.shape for record in execution.inputs.values()]
    for shape in event.input_shapes:
        if shape and all(isinstance(size, int) for size in shape):
            assert tuple(shape) in recorded, f"{execution.op.op_name}: input {shape} was not captured, only {recorded}"


def test_the_list_of_operators_without_a_kernel_is_fixed_and_agrees_with_the_adapter() -> None:
    from opdump.adapters.torch.schemas import kind_of

    may_copy = {"contiguous", "flatten", "ravel", "reshape", "reshape_as", "resolve_conj", "resolve_neg", "to"}
    for name in NO_KERNEL - may_copy:
        packet = getattr(torch.ops.aten, name)
        kinds = {
            kind_of(getattr(packet, overload))
            for overload in packet.overloads()
            if "out" not in overload and not overload.startswith(("Dimname", "dimname"))
        }
        assert "" not in kinds, f"{name} is in the list, and the adapter takes it for a kernel"


def typed(*words: str) -> str:
    return CliRunner().invoke(main, list(words)).output


def train(path: Path, steps: int = 3, **settings: Any) -> None:
    """A training whose second step divides by zero: the gradients, then the parameters, become NaN or infinite."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with opdump.capture(path=path, saved_data="full", statistic_category=["max", "min", "l2norm"], **settings):
        for step in range(steps):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 4)).sum()
            if step == 1:
                loss = loss / 0
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("settings", [{}, {"input_output": 2}], ids=["both sides", "outputs alone"])
def test_the_maker_is_named_in_its_step_and_in_the_next(settings: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path, **settings)
    output = typed("show", str(tmp_path), "--limit", "3")
    table = output[output.index("first with nan/inf") :].splitlines()[1:4]
    assert "div" not in table[0]
    assert "div-op" in table[1]
    assert "in step" not in table[1]
    assert "div-op" in table[2]
    assert "(in step 1)" in table[2]
    found = json.loads(typed("check", str(tmp_path), "--json"))["findings"]
    assert [(each["step"], each["op_type"]) for each in found if each["origin"]] == [(1, "div")]


def test_a_recorded_reader_names_the_maker_of_its_input_that_was_not_recorded(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", kernels=["mul"]):
        (torch.ones(2) / 0).mul(2.0)
    output = typed("show", str(tmp_path))
    assert "div-op" in output[output.index("first with nan/inf") :].splitlines()[1]


def test_biases_initialised_to_zero_are_no_findings(tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    )
    for name, parameter in net.named_parameters():
        if name.endswith("bias") or name == "3.weight":
            torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(net.parameters())
    with opdump.capture(path=tmp_path, saved_data="full"):
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(torch.randn(4, 1, 4, 4)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    found = json.loads(typed("check", str(tmp_path), "--json"))["findings"]
    zeros = [each for each in found if each["check"] == "all zero"]
    assert not [each for each in zeros if "bias" in each["op_name"] or each["argument"] in ("bias", "weight")], zeros
