"""The values on disk are those that the operators read and wrote, for every operator."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opdump
from opdump.adapters.torch.naming import Site, arguments_of
from opdump.adapters.torch.schemas import schema_of
from opdump.catalog.catalog import Execution
from opdump.errors import NoElementsError, PackageMissingError
from opdump.records import HostPayload, OpRecord, TensorRecord, format_statistic
from opdump.statistics import OWN
from tests.torch.programs import ConvNet, train_convnet, train_transformer
from tests.torch.test_completeness import NO_KERNEL

TWELVE = (
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
)


def elements(record: TensorRecord) -> npt.NDArray[np.generic]:
    assert record.payload is not None, record.name
    return record.payload.to_host()


def test_npy_files_equal_what_plain_hooks_see(tmp_path: Path) -> None:
    seen: list[tuple[str, Tensor, Tensor]] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((type(module).__name__, inputs[0].detach().clone(), output.detach().clone()))

    def train(watch: bool) -> ConvNet:
        torch.manual_seed(0)
        model = ConvNet()
        if watch:
            for module in (model.conv1, model.conv2, model.fc):
                module.register_forward_hook(hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        functional.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 2])).backward()
        optimizer.step()
        return model

    hooked = train(watch=True)
    with opdump.capture(path=tmp_path):
        train(watch=False)
    catalog = opdump.open(tmp_path)
    convolutions = [catalog.op(op.op_name) for op in catalog.ops(step=0) if op.op_type == "convolution"]
    products = [catalog.op(op.op_name) for op in catalog.ops(step=0) if op.op_type == "addmm"]
    recorded = [
        (execution.inputs[position], execution.outputs[0])
        for execution, position in ((convolutions[0], 0), (convolutions[1], 0), (products[0], 1))
    ]
    for (_, inputs, output), (read, wrote) in zip(seen, recorded, strict=True):
        assert np.array_equal(elements(read), inputs.numpy())
        assert np.array_equal(elements(wrote), output.numpy())
    for name, parameter in hooked.named_parameters():
        (after,) = [record for record in catalog.tensors(step=0) if record.op.op_name == name]
        assert after.op.op_type == "Parameter"
        assert np.array_equal(elements(after), parameter.detach().numpy()), name


def test_every_recorded_operator_gives_its_recorded_outputs_again(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1"):
        train_convnet()
    checked = 0
    for execution in opdump.open(tmp_path).executions(step=1):
        op = execution.op
        if op.op_type not in ("relu_", "threshold_backward", "mul", "addmm", "mm", "convolution", "sqrt", "addcmul_"):
            continue
        again = _run_again(op.kernel, {**op.arguments}, list(execution.inputs.values()))
        # PyTorch multiplies a transposed view with another kernel than its contiguous copy.
        limit = 1e-5 if op.op_type in ("addmm", "mm") else 0
        assert np.allclose(again.numpy(), elements(execution.outputs[0]), rtol=limit, atol=limit), op.op_name
        checked += 1
    assert checked >= 29


def _run_again(kernel: str, arguments: dict[str, object], inputs: list[TensorRecord]) -> Tensor:
    namespace, _, name = kernel.partition("::")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    values = {record.argument: torch.from_numpy(np.array(elements(record))) for record in inputs}
    result = operator(**values, **arguments)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("program", [train_convnet, train_transformer])
def test_statistics_equal_float64_numpy_and_the_csv_prints_them(program: object, tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", iteration="1", statistic_category=TWELVE):
        assert callable(program)
        program()
    catalog = opdump.open(tmp_path)
    records = [record for record in catalog.tensors(step=1) if record.dtype != "complex64"]
    assert len(records) > 300
    with (tmp_path / "rank_0" / "Net" / "0" / "1" / "statistic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records)
    for record, row in zip(records, rows, strict=True):
        values = elements(record)
        expected = _reference(values)
        for name in TWELVE:
            wanted, got = expected[name], record.statistics[name]
            if isinstance(wanted, float) and isinstance(got, float):
                assert got == wanted or (math.isnan(got) and math.isnan(wanted)) or _close(got, wanted, values), record
            else:
                assert got == wanted, (record.name, name)
            assert row[OWN[name].heading] == format_statistic(got)
        assert row["Op Name"] == record.op.op_name.rpartition("/")[2].replace(".", "_")
        assert (row["IO"], row["Slot"]) == (record.io, str(record.slot))
        assert row["Shape"] == "(" + ",".join(map(str, record.shape)) + ")"
        assert row["Data Size"] == str(values.nbytes)


def _close(got: float, wanted: float, values: npt.NDArray[np.generic]) -> bool:
    # The mean of values that cancel out is as exact as its terms: 1e-12 of their mean magnitude.
    size = float(np.mean(np.abs(values.astype(np.float64))))
    return abs(got - wanted) <= 1e-12 * max(abs(wanted), size)


def _reference(values: npt.NDArray[np.generic]) -> dict[str, float | int | str]:
    x = values.astype(np.float64)
    return {
        "max": float(np.max(x)),
        "min": float(np.min(x)),
        "avg": float(np.mean(x)),
        "count": x.size,
        "negative zero count": int(np.sum(x < 0)),
        "positive zero count": int(np.sum(x > 0)),
        "nan count": int(np.sum(np.isnan(x))),
        "negative inf count": int(np.sum(np.isneginf(x))),
        "positive inf count": int(np.sum(np.isposinf(x))),
        "zero count": int(np.sum(x == 0)),
        "md5": hashlib.md5(values.tobytes()).hexdigest(),
        "l2norm": float(np.sqrt(np.sum(x * x))),
    }


def test_an_inplace_operator_keeps_its_true_input(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        x = torch.arange(4.0)
        x.mul_(3)
    execution = opdump.open(tmp_path).op("mul_-op1")
    assert elements(execution.inputs[0]).tolist() == [0, 1, 2, 3]
    assert elements(execution.outputs[0]).tolist() == [0, 3, 6, 9]


def test_running_statistics_of_batch_norm_are_recorded_before_and_after(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(2)
    with opdump.capture(path=tmp_path):
        norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    execution = next(e for e in opdump.open(tmp_path).executions() if "batch_norm" in e.op.op_type)
    means = {record.argument: elements(record).tolist() for record in execution.inputs.values()}
    assert means["running_mean"] == [0, 0]
    after = [elements(record).tolist() for record in execution.outputs.values() if record.argument == "running_mean"]
    assert after == [norm.running_mean.tolist()]  # type: ignore[union-attr]


def test_tensors_in_lists_and_keyword_arguments_are_recorded_with_their_argument_names(tmp_path: Path) -> None:
    a, b = torch.ones(2), torch.zeros(3)
    with opdump.capture(path=tmp_path):
        torch.cat([a, b])
        torch.add(input=a, other=a, out=torch.empty(2))
    catalog = opdump.open(tmp_path)
    (cat,) = [e for e in catalog.executions() if e.op.op_type == "cat"]
    assert [record.argument for record in cat.inputs.values()] == ["tensors[0]", "tensors[1]"]
    assert [record.shape for record in cat.inputs.values()] == [(2,), (3,)]
    (add,) = [e for e in catalog.executions() if e.op.op_type == "add"]
    assert {record.argument for record in add.inputs.values()} == {"self", "other"}
    assert elements(add.outputs[0]).tolist() == [2, 2]


def test_none_leaves_its_slot_empty(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2))
    (execution,) = [e for e in opdump.open(tmp_path).executions() if e.op.op_type == "convolution"]
    assert {slot: record.argument for slot, record in execution.inputs.items()} == {0: "input", 1: "weight"}


def test_arguments_are_recorded_well_enough_to_call_the_operator_again(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, save_kernel_args=True):
        functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), stride=2, padding=(1, 0))
        torch.full((2,), float("inf"), dtype=torch.float16)
    ops = {op.op_type: op for op in opdump.open(tmp_path).ops()}
    assert ops["convolution"].arguments["stride"] == [2, 2]
    assert ops["convolution"].arguments["padding"] == [1, 0]
    assert ops["full"].arguments["fill_value"] == {"float": "inf"}
    assert ops["full"].arguments["dtype"] == "torch.float16"
    files = list((tmp_path / "rank_0" / "Net" / "0" / "0").glob("convolution.*.json"))
    assert len(files) == 1
    assert json.loads(files[0].read_text())["stride"] == "[2, 2]"


def test_a_sample_is_the_first_elements_and_all_else_is_of_the_whole_tensor(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", sample_num=5, statistic_category=["max", "count"]):
        x = torch.arange(12.0).reshape(3, 4).t() * 1
        torch.ones(4) + 1
    catalog = opdump.open(tmp_path)
    (product,) = [e for e in catalog.executions() if e.op.op_type == "mul"]
    assert elements(product.inputs[0]).tolist() == x.reshape(-1)[:5].tolist() == [0, 4, 8, 1, 5]
    assert (product.inputs[0].shape, product.inputs[0].sample, product.inputs[0].data_size) == ((4, 3), 5, 48)
    assert (product.inputs[0].statistics["max"], product.inputs[0].statistics["count"]) == (11, 12)
    (small,) = [e for e in catalog.executions() if e.op.op_type == "add"]
    assert (small.inputs[0].shape, small.inputs[0].sample) == ((4,), 0)
    assert elements(small.inputs[0]).shape == (4,)


def test_constants_are_what_no_operator_made(tmp_path: Path) -> None:
    model = ConvNet().eval()
    with torch.no_grad(), opdump.capture(path=tmp_path):
        model(torch.ones(1, 1, 8, 8))
    folder = tmp_path / "rank_0" / "Net" / "0" / "constants"
    values = [np.load(path) for path in sorted(folder.iterdir())]
    assert any(np.array_equal(value, np.full(3, 0.5, np.float32)) for value in values)
    assert all(path.name.startswith("Parameter.data-") for path in folder.iterdir())
    # The weights and the image are not constants.
    assert all(value.shape in ((3,), (4,), ()) for value in values)
    assert {record.op.op_name for record in opdump.open(tmp_path).constants()} == {
        path.name.split(".")[1] for path in folder.iterdir()
    }


_Seen = tuple[str, list[npt.NDArray[Any]], list[npt.NDArray[Any]]]
PROFILER = {"_record_function_enter_new", "_record_function_exit"}
WITHOUT_A_KERNEL = NO_KERNEL | PROFILER | {"is_pinned", "view_as_real", "view_as_complex"}
NO_ELEMENTS = ("empty", "uninitialised", "allocation", "no storage")


def host(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers that a tensor represents now."""
    with torch._C._DisableTorchDispatch():
        dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
        dense = dense.resolve_conj().resolve_neg()
        return np.array((dense.float() if dense.dtype is torch.bfloat16 else dense).numpy(), order="C", copy=True)


@dataclass
class _PlainMode(TorchDispatchMode):
    seen: list[_Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func._schema.name.partition("::")[2]
        inputs = [] if name in WITHOUT_A_KERNEL else [host(tensor) for tensor in given]
        result = func(*args, **kwargs)
        if name not in WITHOUT_A_KERNEL:
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.seen.append((name, inputs, [host(tensor) for tensor in outputs]))
        return result


def trained(model: nn.Module, data: Tensor, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    updates = optimizer(model.parameters(), lr=0.1)
    for _ in range(2):
        updates.zero_grad()
        model(data).float().square().mean().backward()
        updates.step()


def convolutions() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.25))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 5))
    trained(model, torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.optim.Adam)


def attention() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    trained(nn.Sequential(layer, nn.LayerNorm(8)), torch.randn(2, 5, 8), torch.optim.AdamW)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 6, num_layers=2, bidirectional=True)
        self.embedding = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.cell(self.embedding(x))[0]
        return outputs


def recurrent() -> None:
    trained(Recurrent(), torch.randint(0, 7, (3, 2)), partial(torch.optim.SGD, momentum=0.9))


def sparse() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    matrix = torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.randn(3), (2, 4), check_invariants=True
    )
    (torch.sparse.mm(matrix, weight) * 2).sum().backward()
    (matrix @ torch.randn(4, 2)).exp()


def complex_numbers() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    spectrum = torch.fft.rfft(x)
    (spectrum * spectrum.conj()).real.sum().backward()
    (torch.randn(3, 3, dtype=torch.complex64).conj().T @ torch.randn(3, 3, dtype=torch.complex64)).imag.neg().exp()


def autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    with torch.autocast("cpu", torch.bfloat16):
        trained(model, torch.randn(5, 4), torch.optim.SGD)


def views_in_place() -> None:
    base = torch.randn(4, 6)
    base[1:3, ::2].mul_(3)
    base.T[2].copy_(torch.arange(4.0))
    base.diagonal().fill_(float("nan"))
    base.view(-1)[::5].clamp_(min=0)
    base[base > 1] = -1
    base.unfold(1, 2, 2).exp_()
    torch.add(base[0], base[1], out=base[2])
    torch._foreach_add_([base[0], base[3, :2]], 1.0)
    base.transpose(0, 1).sort(dim=1)
    base.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 6)).nan_to_num_()
    torch.randn(3).expand(2, 3).add(base[:2, :3])


PROGRAMS = (convolutions, attention, recurrent, sparse, complex_numbers, autocast, views_in_place)


def filed(execution: Execution) -> Iterator[list[npt.NDArray[Any] | None]]:
    """The values of the inputs, then of the outputs; None if the dump has none."""
    for side in (execution.inputs, execution.outputs):
        elements: list[npt.NDArray[Any] | None] = []
        for tensor in side.values():
            assert tensor.skip in ("", *NO_ELEMENTS), (execution.op.op_type, tensor.skip)
            elements.append(None if tensor.payload is None else np.asarray(tensor.payload.to_host()))
        yield elements


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_value_of_a_dump_is_what_a_plain_mode_sees(
    program: Callable[[], None], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    torch.manual_seed(0)
    with _PlainMode() as reference:
        program()
    torch.manual_seed(0)
    with opdump.capture(path=tmp_path, saved_data="full"):
        program()
    executions = [
        each
        for each in opdump.open(tmp_path).executions(include_skipped=True)
        if not each.op.skip and each.op.op_type != "Parameter"
    ]
    assert [each.op.op_type for each in executions] == [name for name, _, _ in reference.seen]
    compared = without = 0
    for execution, (name, *sides) in zip(executions, reference.seen, strict=True):
        for found, expected in zip(filed(execution), sides, strict=True):
            assert len(found) >= len(expected), name  # more: tensors that an operator writes but does not return
            for one, other in zip(found, expected, strict=False):
                if one is None:
                    without += 1
                    continue
                assert (one.shape, one.tobytes()) == (other.shape, other.astype(one.dtype).tobytes()), name
                compared += 1
    record_property("compared", compared)
    print(f"{program.__name__}: {len(executions)} operators, {compared} tensors compared, {without} without elements")
    assert compared > 20
    assert without <= compared // 10


def arguments(path: Path, program: Callable[[], object], **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """The arguments of each execution, by operator type."""
    with opdump.capture(path=path, **{"saved_data": "statistic", **settings}):
        program()
    found: dict[str, list[dict[str, Any]]] = {}
    for each in opdump.open(path).ops(include_skipped=True):
        found.setdefault(each.op.op_type, []).append(dict(each.op.arguments))
    return found


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_numbers_stand_under_the_name_of_the_tensor(saved_data: str, tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        x + 1
        x.mul_(0.9)
        1.5 - x
        x * True
        x * (1 + 2j)
        torch.add(x, 2, alpha=3)

    found = arguments(tmp_path, program, saved_data=saved_data)
    assert found["add"] == [{"other": 1}, {"alpha": 3, "other": 2}]
    assert found["mul_"] == [{"other": 0.9}]
    assert found["rsub"] == [{"other": 1.5, "alpha": 1}] or found["rsub"] == [{"other": 1.5}]
    assert found["mul"] == [{"other": True}, {"other": {"complex": [1.0, 2.0]}}]
    assert type(found["mul"][0]["other"]) is bool


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    found = arguments(tmp_path, lambda: torch.ones(2) * float("inf") + float("nan"))
    assert found["mul"] == [{"other": {"float": "inf"}}]
    assert found["add"] == [{"other": {"float": "nan"}}]


def test_an_exception_has_them_too(tmp_path: Path) -> None:
    def program() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(3, dtype=torch.int64).mul_(0.5)

    found = arguments(tmp_path, program, saved_data=None, on_exception=True)
    assert {"other": 0.5} in found["mul_"]


def test_a_number_that_changes_at_one_line_is_reported_each_time(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        for number in (1, 2, 2, 2.0, True):
            x + number

    numbers = [each["other"] for each in arguments(tmp_path, program)["add"]]
    assert list(map(repr, numbers)) == ["1", "2", "2", "2.0", "True"]


def test_equal_arguments_share_one_mapping() -> None:
    site, schema, x = Site("add"), schema_of(torch.ops.aten.add.Tensor), torch.ones(2)
    first = arguments_of(site, schema, (x, 1), {})
    assert first == {"other": 1}
    assert arguments_of(site, schema, (x, 1), {}) is first
    assert arguments_of(site, schema, (x, 1.0), {}) is not first
    assert not arguments_of(site, schema, (x, x), {})
    assert arguments_of(site, schema, (x, 1j), {}) is arguments_of(site, schema, (x, 1j), {})


def test_numbers_in_a_list_of_tensors_keep_their_places() -> None:
    schema = schema_of(torch.ops.aten.index.Tensor)
    x = torch.ones(2)
    assert schema.numbers_among((x, [None, x.long()]), {}) == ()
    assert schema.numbers_among((x, [None, 3]), {}) == (("indices", [None, 3]),)
    assert schema.numbers_among((x, [x.long(), 3]), {}) == (("indices", [None, 3]),)
    assert schema.numbers_among((x, []), {}) == ()
    assert schema.numbers_among((x,), {"indices": [1, True]}) == (("indices", [1, True]),)


_OP = OpRecord(op_type="add", op_name="add-op0", timestamp=1)
_FLOAT8 = [
    name
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]


def _record(array: Any, dtype: str, shape: tuple[int, ...] | None = None) -> TensorRecord:
    return TensorRecord(_OP, "output", 0, dtype, array.shape if shape is None else shape, payload=HostPayload(array))


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def _dumped(value: torch.Tensor, path: Path) -> TensorRecord:
    with opdump.capture(path=path, saved_data="full"):
        value.clone()
    record: TensorRecord = next(opdump.open(path).tensors("clone", io="input"))
    return record


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "complex32",
        "complex64",
        "int64",
        "int8",
        "uint8",
        "uint16",
        "bool",
        *_FLOAT8,
    ],
)
@pytest.mark.parametrize("shape", [(), (3, 5), (4,)])
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_dumped_tensor_comes_back_as_it_was(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    value = torch.linspace(-3, 4, max(1, int(np.prod(shape)))).reshape(shape).to(kind)
    record = _dumped(value, tmp_path / "dump")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = record.torch()
    assert (found.dtype, found.shape) == (kind, value.shape)
    assert _bits(found) == _bits(value)
    found.zero_()  # writable, and separate memory
    assert _bits(record.torch()) == _bits(value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_bit_of_a_half_is_kept_with_those_of_nan(dtype: str, tmp_path: Path) -> None:
    value = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    assert _bits(_dumped(value, tmp_path / "dump").torch()) == _bits(value)


@pytest.mark.parametrize("dtype", _FLOAT8)
def test_every_number_of_a_small_float_is_kept_and_nan_stays_nan(dtype: str, tmp_path: Path) -> None:
    value = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(getattr(torch, dtype))
    found = _dumped(value, tmp_path / "dump").torch()
    is_nan = value.float().isnan()
    assert torch.equal(found.float().isnan(), is_nan)
    assert torch.equal(found.view(torch.uint8)[~is_nan], value.view(torch.uint8)[~is_nan])


def test_no_elements_are_an_empty_tensor_of_the_type() -> None:
    for dtype in ("bfloat16", "float8_e5m2", "complex32", "float32"):
        found = TensorRecord(_OP, "input", 0, dtype, (0, 3), skip="empty").torch()
        assert (found.dtype, found.shape) == (getattr(torch, dtype), (0, 3))


def test_types_that_pytorch_lacks_come_widened() -> None:
    for dtype, array in (
        ("int4", np.array([-8, 7], "int8")),
        ("hifloat8", np.array([0.5], "float32")),
        ("qint8", np.array([0.25], "float32")),
    ):
        found = _record(array, dtype).torch()
        assert found.numpy().dtype == array.dtype
        assert found.tolist() == array.tolist()


def test_a_sample_has_one_axis_and_bytes_of_another_order_are_turned() -> None:
    array = np.arange(6, dtype=">f4")[::2]
    array.flags.writeable = False
    record = TensorRecord(_OP, "output", 0, "float32", (4, 5), payload=HostPayload(array), sample=3)
    assert record.torch().tolist() == [0, 2, 4]


def test_without_elements_the_error_is_that_of_numpy() -> None:
    with pytest.raises(NoElementsError, match="add-op0:output:0"):
        TensorRecord(_OP, "output", 0, "float32", (3,), statistics={"max": 1.0}).torch()


def test_without_pytorch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(PackageMissingError, match=r"pip install torch, or use numpy\(\)"):
        _record(np.zeros(2, "float32"), "float32").torch()
