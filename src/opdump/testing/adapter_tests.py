"""The contract of every adapter: a test class to subclass.

class TestTorchAdapter(AdapterTests):
    def adapter(self): return ADAPTER
    def tensor(self, array): return torch.from_numpy(array)
    def array(self, tensor): return tensor.numpy()
    def multiply(self, one, other): return one * other
    def add_in_place(self, tensor, other): tensor.add_(other)  # if it has operators that write into their inputs
    def view(self, tensor): return tensor.reshape(-1)  # if it has views

Tests that need a method that the subclass does not have, or a mode that it does not list, are left out. pytest runs the tests,
but this module does not import it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Adapter, Settings, StepController
from opdump.plan import Captures, DumpPlan, StepSet
from opdump.recorder import Recorder, make_recorder
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import ElementStatistics
from opdump.testing.stand_ins import CollectingWriter

Array = npt.NDArray[Any]
OPERATOR_FILES: dict[str, Any] = {"layout": "acl", "file_format": "bin", "saved_data": "tensor"}
"""The plan settings of a layout that writes whole operators, as the event modes do."""
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@runtime_checkable
class SupportsInPlace(Protocol):
    """Tests of an adapter whose framework has operators that write into their inputs."""

    def add_in_place(self, tensor: Any, other: Any) -> None:
        """Add `other` to `tensor`, by one operator that overwrites its first input."""


@runtime_checkable
class SupportsViews(Protocol):
    """Tests of an adapter whose framework has views."""

    def view(self, tensor: Any) -> Any:
        """A view of the same memory, by an operator that runs no kernel."""


Test = TypeVar("Test", bound=Callable[..., None])


def _where(condition: Callable[[type[AdapterTests]], bool]) -> Callable[[Test], Test]:
    """A test for the classes that fulfil this condition."""

    def mark(test: Test) -> Test:
        setattr(test, "is_for", condition)  # noqa: B010  functions have no such attribute, says mypy
        return test

    return mark


def _for_each(**values: tuple[str, ...]) -> Callable[[Test], Test]:
    """A test for each of these values of an argument."""

    def mark(test: Test) -> Test:
        setattr(test, "values", values)  # noqa: B010  functions have no such attribute, says mypy
        return test

    return mark


class AdapterTests(ABC):
    """Runs small programs under an adapter and checks what a recorder received."""

    modes: ClassVar[tuple[Captures, ...]] = ("data", "overflow", "exception")
    """The modes of a plan (`captures`) that the adapter supports."""

    def __init_subclass__(cls) -> None:
        """Leave out the tests that do not apply to the class."""
        super().__init_subclass__()
        for name, test in vars(AdapterTests).items():
            is_for = getattr(test, "is_for", None)
            if is_for is not None and getattr(cls, name) in (test, None):  # otherwise it is the class's own
                setattr(cls, name, test if is_for(cls) else None)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Called by pytest."""
        for name, values in getattr(metafunc.function, "values", {}).items():
            metafunc.parametrize(name, values)

    @abstractmethod
    def adapter(self) -> Adapter:
        """The adapter under test; a new one for each call if it has state."""

    @abstractmethod
    def tensor(self, array: Array) -> Any:
        """A live tensor of the framework with these elements. Runs outside of every capture."""

    @abstractmethod
    def array(self, tensor: Any) -> Array:
        """The elements of a live tensor. Runs outside of every capture."""

    @abstractmethod
    def multiply(self, one: Any, other: Any) -> Any:
        """The elementwise product, by one operator; raises the framework's own error if the shapes do not match."""

    @contextmanager
    def captured(self, path: Path, **settings: Any) -> Iterator[tuple[StepController, CollectingWriter, Recorder]]:
        """Capture into memory while the block runs; only `manual_step` ends a step."""
        plan = DumpPlan(path=path, **{"saved_data": "full", **settings})
        adapter = self.adapter()
        writer = CollectingWriter()
        recorder = make_recorder(plan, writer, adapter.reader(plan))
        with adapter.attach(recorder, Settings(steps="manual")) as clock:
            yield clock, writer, recorder

    @_for_each(dtype=DTYPES)
    def test_an_operator_returns_the_same_bits_and_its_inputs_and_outputs_are_recorded(
        self, tmp_path: Path, dtype: str
    ) -> None:
        a, b = _numbers(dtype, (3, 5), seed=1), _numbers(dtype, (3, 5), seed=2)
        one, other = self.tensor(a), self.tensor(b)
        plain = self.array(self.multiply(one, other))
        with self.captured(tmp_path) as (clock, writer, _):
            result = self.multiply(one, other)
            clock.manual_step()
        assert _same_bits(self.array(result), plain)
        records = _by_place(writer.tensors)
        assert set(records) == {("input", 0), ("input", 1), ("output", 0)}
        for place, expected in ((("input", 0), a), (("input", 1), b), (("output", 0), plain)):
            record = records[place]
            assert (record.dtype, record.shape, record.data_size) == (dtype, (3, 5), expected.nbytes)
            assert record.payload is not None
            assert _same_bits(record.payload.to_host(), expected)

    @_where(lambda cls: issubclass(cls, SupportsInPlace))
    def test_an_inplace_operator_keeps_its_true_input(self, tmp_path: Path) -> None:
        assert isinstance(self, SupportsInPlace)
        before, addend = _numbers("float32", (4,), seed=3), _numbers("float32", (4,), seed=4)
        tensor, other = self.tensor(before.copy()), self.tensor(addend)
        with self.captured(tmp_path) as (clock, writer, _):
            self.add_in_place(tensor, other)
            clock.manual_step()
        records = _by_place(writer.tensors)
        assert _same_bits(_elements(records["input", 0]), before)
        assert _same_bits(_elements(records["output", 0]), before + addend)

    def test_statistics_are_computed_in_float64(self, tmp_path: Path) -> None:
        numbers = _numbers("float32", (7, 9), seed=5)
        numbers[0, :4] = 0.0, -0.0, math.inf, -math.inf
        ones = np.ones_like(numbers)
        one, other = self.tensor(numbers), self.tensor(ones)
        with self.captured(tmp_path, saved_data="statistic") as (clock, writer, _):
            self.multiply(one, other)
            clock.manual_step()
        record = _by_place(writer.tensors)["input", 0]
        assert record.payload is None
        found = record.statistics
        assert (found["max"], found["min"], found["count"]) == (math.inf, -math.inf, 63)
        assert (found["zero count"], found["nan count"]) == (int((numbers == 0).sum()), 0)
        finite = _by_place(writer.tensors)["input", 1].statistics
        assert (finite["avg"], finite["l2norm"]) == (1.0, math.sqrt(63))

    @_for_each(saved_data=("statistic", "full", "tensor"))
    def test_a_sample_is_recorded_and_everything_else_describes_the_whole_tensor(
        self, tmp_path: Path, saved_data: str
    ) -> None:
        numbers = _numbers("float32", (20, 50), seed=10)
        numbers[18, 0] = math.nan
        one, other = self.tensor(numbers), self.tensor(np.ones_like(numbers))
        with self.captured(tmp_path, saved_data=saved_data, sample_num=7, statistic_category=("md5",)) as captured:
            clock, writer, _ = captured
            self.multiply(one, other)
            clock.manual_step()
        for place in (("input", 0), ("output", 0)):
            record = _by_place(writer.tensors)[place]
            assert (record.shape, record.data_size) == ((20, 50), 4000)
            if saved_data == "statistic":
                assert (record.payload, record.sample) == (None, 0)
            else:
                assert (record.sample, record.payload_shape) == (7, (7,))
                assert _same_bits(_elements(record), numbers.reshape(-1)[:7])
            if saved_data != "tensor":
                assert (record.statistics["nan count"], record.statistics["count"]) == (1, 1000)
                assert record.statistics["md5"] == ElementStatistics(("md5",)).of(numbers)["md5"]

    def test_a_tensor_no_larger_than_the_sample_is_recorded_completely(self, tmp_path: Path) -> None:
        numbers = _numbers("float32", (2, 3), seed=11)
        one, other = self.tensor(numbers), self.tensor(np.ones_like(numbers))
        with self.captured(tmp_path, sample_num=6) as (clock, writer, _):
            self.multiply(one, other)
            clock.manual_step()
        record = _by_place(writer.tensors)["input", 0]
        assert (record.sample, record.shape) == (0, (2, 3))
        assert _same_bits(_elements(record), numbers)

    @_where(lambda cls: issubclass(cls, SupportsViews))
    def test_a_view_is_listed_without_data(self, tmp_path: Path) -> None:
        assert isinstance(self, SupportsViews)
        tensor = self.tensor(_numbers("float32", (2, 3), seed=6))
        with self.captured(tmp_path) as (clock, writer, recorder):
            self.view(tensor)
            clock.manual_step()
        assert [op.skip for op in _operators(writer)] == ["view"]
        assert writer.tensors == []
        assert (recorder.tally.executed, recorder.tally.captured, dict(recorder.tally.skipped)) == (1, 0, {"view": 1})

    def test_an_empty_tensor_is_counted_without_elements(self, tmp_path: Path) -> None:
        empty = self.tensor(np.empty((0, 3), np.float32))
        with self.captured(tmp_path) as (clock, writer, recorder):
            self.multiply(empty, empty)
            clock.manual_step()
        assert {record.skip for record in writer.tensors} == {"empty"}
        assert recorder.tally.tensors_skipped == Counter(empty=len(writer.tensors))

    def test_every_operator_is_captured_or_skipped_with_a_reason(self, tmp_path: Path) -> None:
        tensor = self.tensor(_numbers("float32", (2, 3), seed=7))
        ran = 0
        with self.captured(tmp_path) as (clock, _, recorder):
            for _ in range(3):
                product = self.multiply(tensor, tensor)
                ran += 1
                if isinstance(self, SupportsViews):
                    self.view(product)
                    ran += 1
                if isinstance(self, SupportsInPlace):
                    self.add_in_place(tensor, tensor)
                    ran += 1
                clock.manual_step()
        assert recorder.tally.executed == ran
        assert recorder.tally.executed == recorder.tally.captured + recorder.tally.skipped.total()

    def test_only_the_wanted_steps_are_recorded(self, tmp_path: Path) -> None:
        tensor = self.tensor(_numbers("float32", (2, 3), seed=8))
        with self.captured(tmp_path, steps=StepSet.parse("1|3")) as (clock, writer, _):
            for _ in range(5):
                self.multiply(tensor, tensor)
                clock.manual_step()
        assert writer.steps == [1, 3]
        assert [op.step for op in _operators(writer)] == [1, 3]

    def test_nothing_is_recorded_after_the_capture(self, tmp_path: Path) -> None:
        tensor = self.tensor(_numbers("float32", (2, 3), seed=9))
        with self.captured(tmp_path) as (clock, writer, recorder):
            clock.manual_step()
        self.multiply(tensor, tensor)
        assert (writer.ops, writer.tensors, recorder.tally.executed) == ([], [], 0)

    def test_an_operator_that_fails_raises_its_own_error_and_capture_goes_on(self, tmp_path: Path) -> None:
        tensor, other = self.tensor(np.ones((2, 3), np.float32)), self.tensor(np.ones((4, 5), np.float32))
        plain = _error(lambda: self.multiply(tensor, other))
        with self.captured(tmp_path) as (clock, writer, _):
            raised = _error(lambda: self.multiply(tensor, other))
            self.multiply(tensor, tensor)
            clock.manual_step()
        assert (type(raised), str(raised)) == (type(plain), str(plain))
        assert [record.io for record in writer.tensors if record.op is writer.tensors[-1].op] == [
            "input",
            "input",
            "output",
        ]

    @_where(lambda cls: "overflow" in cls.modes)
    def test_overflow_mode_records_only_the_operator_that_overflows(self, tmp_path: Path) -> None:
        numbers = np.array([1.0, 3e38], np.float32)
        large, ones = self.tensor(numbers), self.tensor(np.ones_like(numbers))
        captured = self.captured(tmp_path, captures="overflow", **OPERATOR_FILES)
        with np.errstate(over="ignore"), captured as (clock, writer, recorder):
            self.multiply(large, ones)
            self.multiply(large, large)
            clock.manual_step()
        records = _by_place(writer.tensors)
        assert {place: _elements(record).tolist() for place, record in records.items()} == {
            ("input", 0): numbers.tolist(),
            ("input", 1): numbers.tolist(),
            ("output", 0): [1.0, math.inf],
        }
        assert (recorder.tally.executed, recorder.tally.captured, dict(recorder.tally.skipped)) == (
            2,
            1,
            {"no overflow": 1},
        )

    @_where(lambda cls: "exception" in cls.modes)
    def test_exception_mode_records_the_inputs_of_the_operator_that_fails(self, tmp_path: Path) -> None:
        a, b = _numbers("float32", (2, 3), seed=12), _numbers("float32", (4, 5), seed=13)
        one, other = self.tensor(a), self.tensor(b)
        plain = _error(lambda: self.multiply(one, other))
        with self.captured(tmp_path, captures="exception", **OPERATOR_FILES) as (clock, writer, recorder):
            self.multiply(one, one)
            raised = _error(lambda: self.multiply(one, other))
            clock.manual_step()
        assert (type(raised), str(raised)) == (type(plain), str(plain))
        records = _by_place(writer.tensors)
        assert set(records) == {("input", 0), ("input", 1)}
        assert _same_bits(_elements(records["input", 0]), a)
        assert _same_bits(_elements(records["input", 1]), b)
        assert dict(recorder.tally.skipped) == {"no exception": 1}

    def test_a_failing_program_leaves_no_hook_behind(self, tmp_path: Path) -> None:
        tensor = self.tensor(np.ones((2, 3), np.float32))
        written: list[CollectingWriter] = []

        def program() -> None:
            with self.captured(tmp_path) as (_, writer, _):
                written.append(writer)
                self.multiply(tensor, tensor)
                raise ZeroDivisionError

        assert isinstance(_error(program), ZeroDivisionError)
        (writer,) = written
        recorded = len(writer.ops)
        self.multiply(tensor, tensor)
        assert len(writer.ops) == recorded

    def test_time_stamps_are_unique_and_grow_with_the_order(self, tmp_path: Path) -> None:
        tensor = self.tensor(np.ones((2,), np.float32))
        with self.captured(tmp_path, saved_data="statistic") as (clock, writer, _):
            for _ in range(50):
                self.multiply(tensor, tensor)
            clock.manual_step()
        operators = _operators(writer)
        assert len({(op.op_name, op.occurrence) for op in operators}) == 50
        for key in ("timestamp", "order"):
            values = [getattr(op, key) for op in operators]
            assert values == sorted(set(values))


def _numbers(dtype: str, shape: tuple[int, ...], *, seed: int) -> Array:
    """Small numbers whose products fit every type."""
    numbers = np.random.default_rng(seed).integers(0, 11, shape)
    array: Array = (numbers / 7 if dtype.startswith("float") else numbers).astype(dtype)
    return array


def _by_place(records: list[TensorRecord]) -> dict[tuple[str, int], TensorRecord]:
    found: dict[tuple[str, int], TensorRecord] = {
        (record.io, record.slot): record for record in records if record.op.op_type != "Parameter"
    }
    assert len(found) == len(records), "more than one operator was captured"
    return found


def _operators(writer: CollectingWriter) -> list[OpRecord]:
    return [op for op in writer.ops if op.op_type != "Parameter"]


def _elements(record: TensorRecord) -> Array:
    assert record.payload is not None
    return record.payload.to_host()


def _same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _error(call: Callable[[], object]) -> BaseException:
    """The exception of the call, of any type that the framework raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  it is looked at
        return error
    raise AssertionError("the framework raised nothing")
