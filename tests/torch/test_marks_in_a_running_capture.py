"""Marks that the program sets while a capture runs take effect at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opdump


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.squashed(self.fc(x))
        for layer in self.layers:
            x = layer(x)
        return x

    def squashed(self, x: Tensor) -> Tensor:
        return x.tanh()


def train(model: nn.Module, steps: int = 1, between: Callable[[int], None] = lambda _: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        between(step)
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


@contextmanager
def marking(path: Path, **settings: Any) -> Iterator[list[tuple[Any, bool]]]:
    """A capture by marks; afterwards, all marks that were set in it are removed."""
    made: list[tuple[Any, bool]] = []
    try:
        with opdump.capture(path=path, selection="marked", **settings) as dump:
            yield made
    finally:
        for target, _ in made:
            opdump.set_dump(target, enabled=False)
    assert dump.report is not None
    made.append((dump.report, True))


def mark(made: list[tuple[Any, bool]], target: Any, enabled: bool = True) -> None:
    opdump.set_dump(target, enabled=enabled)
    made.append((target, enabled))


def scopes(path: Path, step: int | None = None) -> set[str]:
    """The scopes of the dumped forward and backward operators, without the last component."""
    return {
        op.op_name.rpartition("/")[0].removeprefix("Gradients/").removeprefix("Default/network-")
        for op in opdump.open(path).ops()
        if not op.skip and step in (None, op.step)
    }


def phases(path: Path) -> set[str]:
    return {op.phase for op in opdump.open(path).ops() if not op.skip}


def test_a_mark_counts_from_the_moment_when_it_is_made(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        train(model, 3, lambda step: mark(made, model.fc) if step == 1 else None)
    assert {op.step for op in opdump.open(tmp_path).ops() if not op.skip} == {1, 2}
    assert scopes(tmp_path) == {"Encoder/fc-Linear"}
    assert phases(tmp_path) == {"forward", "backward"}
    assert made[-1][0].warnings == ()


def test_an_unmarked_module_is_dumped_no_more(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, model)
        train(model, 3, lambda step: mark(made, model, False) if step == 2 else None)
    assert {op.step for op in opdump.open(tmp_path).ops() if not op.skip} == {0, 1}


def test_a_part_of_a_marked_module_is_unmarked_also_where_its_class_is_marked(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, nn.Linear)
        mark(made, model.layers[1], False)
        train(model)
    assert scopes(tmp_path) == {"Encoder/fc-Linear", "Encoder/layers-ModuleList/0-Linear"}


def test_a_mark_within_a_running_forward_counts_and_says_what_it_missed(tmp_path: Path) -> None:
    class Marking(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            mark(made, self)
            mark(made, self)
            for layer in self.layers:
                x = layer(x)
            return x

    with marking(tmp_path) as made:
        train(Marking())
    assert scopes(tmp_path) >= {"Marking/layers-ModuleList/0-Linear", "Marking/layers-ModuleList/1-Linear"}
    forward = [op for op in opdump.open(tmp_path).ops() if not op.skip and op.phase == "forward"]
    assert not any("/fc-" in op.op_name for op in forward)
    (warning,) = made[-1][0].warnings
    assert "network-Marking was marked after some of its operators had run in step 0" in warning


def test_a_mark_between_forward_and_backward_takes_the_gradients_and_says_that_it_was_late(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        loss = model(torch.ones(2, 3)).sum()
        mark(made, model.layers)
        loss.backward()
    assert phases(tmp_path) == {"backward"}
    assert scopes(tmp_path) == {"Encoder/layers-ModuleList/0-Linear", "Encoder/layers-ModuleList/1-Linear"}
    (warning,) = made[-1][0].warnings
    assert "layers-ModuleList was marked after" in warning
    assert "step 0" in warning


def test_gradients_of_a_module_that_was_unmarked_after_its_forward_are_left_out(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, model)
        loss = model(torch.ones(2, 3)).sum()
        mark(made, model, False)
        loss.backward()
    assert phases(tmp_path) == {"forward"}


def test_modules_that_are_made_later_have_the_mark_of_their_class_and_of_the_module_around_them(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, nn.Bilinear)
        mark(made, model.layers)
        train(model)
        model.layers.append(nn.Linear(3, 3))
        model.layers.append(Encoder())
        train(model)
        nn.Bilinear(2, 2, 2)(torch.ones(1, 2), torch.ones(1, 2))
    found = scopes(tmp_path)
    assert "Encoder/layers-ModuleList/2-Linear" in found
    assert "Encoder/layers-ModuleList/3-Encoder/fc-Linear" in found
    assert any("Bilinear" in scope for scope in found)
    assert "Encoder/fc-Linear" not in found


def test_a_function_and_a_method_of_one_object_are_marked(tmp_path: Path) -> None:
    @torch.no_grad()
    def halved(x: Tensor) -> Tensor:
        return x / 2

    @torch.no_grad()
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    first, second = Encoder(), Encoder()
    with marking(tmp_path) as made:
        halved(torch.ones(2))
        mark(made, halved)
        mark(made, first.squashed)
        halved(doubled(torch.ones(2)))
        train(first)
        train(second)
    kinds = [op.op_type for op in opdump.open(tmp_path).ops() if not op.skip]
    assert kinds == ["div", "tanh", "tanh_backward"]
    (warning,) = made[-1][0].warnings
    assert "halved was marked after" in warning


@pytest.mark.parametrize("choose", [lambda net, compiled: net, lambda net, compiled: compiled])
def test_a_compiled_module_is_marked_by_either_of_its_two_objects(
    choose: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    torch._dynamo.reset()
    net = Encoder()
    compiled = torch.compile(net, backend="eager")
    other = nn.Linear(3, 3)
    with marking(tmp_path) as made:
        mark(made, choose(net, compiled))
        with torch.no_grad():
            compiled(other(torch.ones(2, 3)))
    assert [op.op_type for op in opdump.open(tmp_path).ops() if not op.skip] == ["compiled_forward"]
    assert made[-1][0].warnings == ()


def test_a_compiled_function_is_marked_by_either_of_its_two_objects(tmp_path: Path) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x.sin() * 3

    for number, target in enumerate((scaled, torch.compile(scaled, backend="eager"))):
        torch._dynamo.reset()
        compiled = torch.compile(scaled, backend="eager")
        with marking(tmp_path / str(number)) as made:
            mark(made, target)
            compiled(torch.ones(3).cos())
        assert [op.op_type for op in opdump.open(tmp_path / str(number)).ops() if not op.skip] == ["compiled_scaled"]


def test_a_mark_that_nothing_ran_in_is_reported_at_the_end(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, model.fc)
        mark(made, nn.Conv2d)
        mark(made, train)
        mark(made, phases)
        train(model)
    texts = made[-1][0].warnings
    assert len(texts) == 2
    assert "no operator ran in the class Conv2d" in texts[0]
    assert "no operator ran in the function phases" in texts[1]


def test_marks_that_the_capture_ignores_are_reported(tmp_path: Path) -> None:
    model = Encoder()
    opdump.set_dump(model)
    try:
        with opdump.capture(path=tmp_path) as dump:
            train(model)
    finally:
        opdump.set_dump(model, enabled=False)
    assert dump.report is not None
    (warning,) = dump.report.warnings
    assert 'write "dump_mode": 2' in warning


def test_marks_do_not_change_the_answer(tmp_path: Path) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = Encoder()
        found: list[float] = []

        def between(step: int) -> None:
            opdump.set_dump(model, enabled=step % 2 == 0)
            opdump.set_dump(model.squashed, enabled=step % 3 == 0)
            found.append(model(torch.ones(2, 3)).sum().item())

        train(model, 4, between)
        opdump.set_dump(model, enabled=False)
        opdump.set_dump(model.squashed, enabled=False)
        return found

    plain = losses()
    with opdump.capture(path=tmp_path, selection="marked"):
        assert losses() == plain


def test_marks_that_were_taken_back_at_the_end_are_no_missing_marks(tmp_path: Path) -> None:
    model = Encoder()
    with marking(tmp_path) as made:
        mark(made, model)
        train(model)
        mark(made, model, False)
    assert made[-1][0].warnings == ()
    assert made[-1][0].captured > 0


def test_a_mark_dies_with_the_object_that_has_it(tmp_path: Path) -> None:
    model = Encoder()
    opdump.set_dump(model.squashed)
    opdump.set_dump(model)
    del model
    gc.collect()
    with opdump.capture(path=tmp_path) as dump:
        torch.ones(2) + 1
    assert dump.report is not None
    assert dump.report.warnings == ()
