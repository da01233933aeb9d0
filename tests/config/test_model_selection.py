"""The operators that an entry of `dump_list` selects."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from opdump.plan import Exclusion, ModelFilter, ModelSelection, OperatorRange

ORDER = ("data", "conv1", "relu1", "pool1", "conv2", "fc", "softmax")


def _chosen(entries: tuple[ModelSelection, ...] | None, *names: str) -> list[str]:
    """The operators of ORDER that are selected in a model with these names."""
    chosen = ModelFilter.of(entries, names)
    held = chosen.in_ranges(ORDER)
    return [op_name for op_name in ORDER if chosen.selects(op_name, (), held)]


def _ranged(*pairs: tuple[str, str], layers: tuple[str, ...] | None = None) -> ModelSelection:
    return ModelSelection(model_name="m", layers=layers, ranges=tuple(OperatorRange(*pair) for pair in pairs))


def test_without_a_list_every_model_is_dumped_whole() -> None:
    assert _chosen(None, "m") == list(ORDER)
    assert not ModelFilter.of(None, ("m",)).is_empty


def test_an_empty_list_selects_nothing() -> None:
    assert _chosen((), "m") == []
    assert ModelFilter.of((), ("m",)).is_empty


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        ((ModelSelection(),), ORDER),
        ((ModelSelection(model_name="m"),), ORDER),
        ((ModelSelection(model_name="M"),), ()),
        ((ModelSelection(model_name="graph"),), ORDER),
        ((ModelSelection(model_name="other"),), ()),
        ((ModelSelection(model_name="m", layers=("conv1", "fc", "nope")),), ("conv1", "fc")),
        ((ModelSelection(layers=("conv1",)),), ("conv1",)),
        ((ModelSelection(layers=("Conv1", "conv")),), ()),
        # an entry without a model name adds to the entry of the model
        ((ModelSelection(layers=("conv1",)), ModelSelection(model_name="m", layers=("fc",))), ("conv1", "fc")),
        ((ModelSelection(), ModelSelection(model_name="m", layers=("fc",))), ORDER),
        ((ModelSelection(model_name="other"), ModelSelection(model_name="m", layers=("fc",))), ("fc",)),
    ],
)
def test_names_and_layers(entries: tuple[ModelSelection, ...], chosen: Collection[str]) -> None:
    assert _chosen(entries, "m", "graph") == list(chosen)


def test_a_fused_operator_is_found_by_the_names_of_its_parts() -> None:
    chosen = ModelFilter.of((ModelSelection(layers=("relu1",)),), ("m",))
    assert chosen.selects("conv1relu1", ("conv1", "relu1"))
    assert not chosen.selects("conv1relu1", ("conv1",))
    assert not chosen.selects("conv1relu1")


@pytest.mark.parametrize(
    ("entry", "chosen"),
    [
        (_ranged(("conv1", "pool1")), ("conv1", "relu1", "pool1")),
        (_ranged(("fc", "fc")), ("fc",)),
        (_ranged(("conv1", "relu1"), ("fc", "softmax")), ("conv1", "relu1", "fc", "softmax")),
        (_ranged(("conv1", "pool1"), ("relu1", "conv2")), ("conv1", "relu1", "pool1", "conv2")),
        (_ranged(("pool1", "conv1")), ()),
        (_ranged(("pool1", "conv1"), ("fc", "fc")), ("fc",)),
        (_ranged(("fc", "nope")), ("fc", "softmax")),
        (_ranged(("nope", "fc")), ()),
        (_ranged(("fc", "fc"), layers=("conv1",)), ("conv1", "fc")),
    ],
)
def test_a_range_holds_what_runs_from_its_begin_to_its_end(entry: ModelSelection, chosen: Collection[str]) -> None:
    assert _chosen((entry,), "m") == list(chosen)


def test_a_begin_within_a_running_range_changes_nothing() -> None:
    chosen = ModelFilter.of((_ranged(("a", "c")),), ("m",))
    assert chosen.in_ranges(("a", "b", "a", "b", "c", "d")) == frozenset({"a", "b", "c"})


def test_a_range_of_one_entry_does_not_narrow_another() -> None:
    assert _chosen((ModelSelection(layers=("data",)), _ranged(("fc", "softmax"))), "m") == ["data", "fc", "softmax"]
    assert _chosen((ModelSelection(), _ranged(("fc", "softmax"))), "m") == list(ORDER)
    assert _chosen((ModelSelection(), _ranged(("fc", "softmax"))), "other") == list(ORDER)


def test_without_a_range_none_is_held_and_without_an_order_ranges_do_not_count() -> None:
    assert ModelFilter.of((ModelSelection(layers=("fc",)),), ("m",)).in_ranges(ORDER) is None
    assert ModelFilter.of((_ranged(("fc", "fc")),), ("m",)).selects("data")


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        (None, ORDER),
        ((), ORDER),
        ((ModelSelection(),), ORDER),
        ((ModelSelection(model_name="m", layers=("fc",)),), ORDER),
        ((ModelSelection(model_name="m"), ModelSelection(layers=("fc",))), ("fc",)),
    ],
)
def test_single_operators_are_chosen_by_entries_without_a_model(
    entries: tuple[ModelSelection, ...] | None, chosen: Collection[str]
) -> None:
    single = ModelFilter.of_single_operators(entries)
    assert [op_name for op_name in ORDER if single.selects(op_name)] == list(chosen)


def test_blacklists_of_types_and_names_and_entries_add_up() -> None:
    chosen = ModelFilter.of(
        (
            ModelSelection(
                model_name="m",
                type_exclusions=(Exclusion("Conv", inputs=frozenset({1, 2})),),
                name_exclusions=(Exclusion("conv1", inputs=frozenset({3}), outputs=frozenset({0})),),
            ),
            ModelSelection(name_exclusions=(Exclusion("conv1", inputs=frozenset({5})),)),
            ModelSelection(model_name="other", name_exclusions=(Exclusion("conv1", inputs=frozenset({7})),)),
        ),
        ("m",),
    )
    assert chosen.excluded("conv1", "Conv", "input") == {1, 2, 3, 5}
    assert chosen.excluded("conv1", "Conv", "output") == {0}
    assert chosen.excluded("conv2", "Conv", "input") == {1, 2}
    assert chosen.excluded("conv2", "conv", "input") == frozenset()
    assert chosen.excluded("Conv", "Relu", "input") == frozenset()


def test_an_exclusion_without_slots_leaves_nothing_out() -> None:
    chosen = ModelFilter.of((ModelSelection(type_exclusions=(Exclusion("Conv"),)),), ("m",))
    assert chosen.excluded("conv1", "Conv", "input") == frozenset()
    assert chosen.excluded("conv1", "Conv", "output") == frozenset()
