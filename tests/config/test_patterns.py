"""What the expressions of a config select: kernels, models, steps; in bounded time, with the meaning of C++."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.configs.mindspore import load_plan
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, Exclusion, KernelPattern, ModelFilter, ModelSelection, OperatorRange, StepSet
from opdump.plan.bounded_pattern import BoundedPattern, to_python_pattern, translated
from tests.config.verdicts import load, says

# Names and types as MindSpore reported them for the net of observed_kernels.json.
NODES: Mapping[str, str] = MappingProxyType(
    {
        "Default/fc-Dense/MatMul-op0": "MatMul",
        "Default/fc-Dense/BiasAdd-op0": "BiasAdd",
        "Default/relu-ReLU/ReLU-op0": "ReLU",
        "fc.weight": "Parameter",
        "fc.bias": "Parameter",
        "x": "Parameter",
    }
)
ESCAPED = "MindSpore keeps JSON's escapes, so that a backslash matches a backslash; opdump reads what JSON means"
DIFFERENCES: Mapping[str, tuple[list[str] | type[ConfigError], str]] = MappingProxyType(
    {
        r"name-regex(fc\.weight)": (["fc.weight"], ESCAPED),
        r"name-regex((a)\2)": (ConfigError, ESCAPED),
        "name-regex(\\)": (ConfigError, ESCAPED),
        r"name-regex([\d-x]+)": (ConfigError, ESCAPED),
        r"name-regex(.*\d)": ([name for name in NODES if name.endswith("0")], ESCAPED),
        '"MatMul"': (["Default/fc-Dense/MatMul-op0"], ESCAPED),
        "name-regex(.{1,100000})": (list(NODES), "MindSpore's library limits the size of an expression"),
    }
)


def _config(kernels: list[Any], root: Path) -> Path:
    file = root / "data_dump.json"
    common = {
        "dump_mode": 1,
        "path": str(root / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": kernels,
        "support_device": [0],
    }
    file.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {}}), encoding="utf-8")
    return file


@pytest.mark.parametrize("case", load("observed_kernels.json"), ids=lambda case: json.dumps(case["kernels"]))
def test_kernels_select_what_mindspore_selects(case: Mapping[str, Any], root: Path) -> None:
    file = _config(case["kernels"], root)
    expected: list[str] | type[ConfigError] = ConfigError if case["exit_code"] else case["selected"]
    difference = DIFFERENCES.get(case["kernels"][0]) if isinstance(case["kernels"][0], str) else None
    if difference is not None:
        assert difference[0] != expected, "the table of differences is out of date"
        expected = difference[0]
    if isinstance(expected, list):
        plan = load_plan(file, environ={})
        assert sorted(name for name, kind in NODES.items() if plan.selects(name, kind)) == sorted(expected)
        return
    with pytest.raises(ConfigError) as caught:
        load_plan(file, environ={})
    if difference is None:
        assert says(caught.value, case["exception"])


def test_a_type_is_found_in_the_last_component_in_any_case() -> None:
    pattern = KernelPattern.parse("conv2d")
    assert pattern.kind == "type"
    assert pattern.matches("Default/conv1-Conv2d/Conv2D-op0", "Conv2D")
    assert pattern.matches("Gradients/Default/conv1-Conv2d/Conv2DBackpropFilter-op3", "Conv2DBackpropFilter")
    assert not pattern.matches("Default/conv1-Conv2d/ReLU-op0", "ReLU")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("Conv2D", ["convolution", "convolution_backward"]),
        ("MatMul", ["mm", "addmm", "bmm", "baddbmm", "linear", "matmul"]),
        ("BiasAdd", ["addmm", "linear"]),
        ("ReLU", ["relu", "threshold_backward", "leaky_relu"]),
        ("ReluGrad", ["threshold_backward"]),
        ("MaxPool", ["max_pool2d_with_indices", "max_pool2d_with_indices_backward"]),
        ("LayerNorm", ["native_layer_norm", "native_layer_norm_backward"]),
        ("BatchNorm", ["native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"]),
        ("Softmax", ["_softmax", "_log_softmax"]),
        ("NLLLoss", ["nll_loss_forward"]),
        ("AdamWeightDecay", ["_fused_adamw"]),
        ("ApplyMomentum", ["_fused_sgd"]),
        ("Gelu", ["gelu"]),
        ("ReduceMean", ["mean"]),
    ],
)
def test_a_type_also_knows_other_frameworks_names(wanted: str, found: list[str]) -> None:
    pattern = KernelPattern.parse(wanted)
    for op_type in found:
        assert pattern.matches(f"Default/layer/{op_type}-op0", op_type), op_type
    assert not pattern.matches("Default/layer/cumsum-op0", "cumsum")


def test_a_name_is_compared_whole_and_with_its_case() -> None:
    pattern = KernelPattern.parse("Default/fc-Dense/MatMul-op0")
    assert pattern.kind == "name"
    assert pattern.matches("Default/fc-Dense/MatMul-op0", "MatMul")
    assert not pattern.matches("Default/fc-Dense/matmul-op0", "MatMul")
    assert not KernelPattern.parse("MatMul-op0").matches("Default/fc-Dense/MatMul-op0", "MatMul")


def test_a_parameter_is_matched_with_and_without_its_prefix() -> None:
    for name in ("fc.weight", "Parameter.fc.weight"):
        assert KernelPattern.parse("fc.weight").matches(name, "Parameter")
        assert KernelPattern.parse("name-regex(fc[.].*)").matches(name, "Parameter")
        assert not KernelPattern.parse("Parameter").matches(name, "Parameter")
    assert KernelPattern.parse("Parameter.fc.weight").matches("Parameter.fc.weight", "Parameter")


def test_a_parameter_is_no_operator_of_its_owners_name() -> None:
    assert not KernelPattern.parse("MatMul").matches("Parameter.mm", "Parameter")


def test_the_empty_entry_selects_everything() -> None:
    pattern = KernelPattern.parse(' "" ')
    assert pattern.text == ""
    assert all(pattern.matches(name, kind) for name, kind in NODES.items())


def test_entries_that_never_matched_are_reported_in_order(tmp_path: Path) -> None:
    kernels = tuple(KernelPattern.parse(text) for text in ("ReLU", "NoSuch", "name-regex(.*fc2.*)", "Default/nope-op1"))
    plan = DumpPlan(path=tmp_path, selection="kernels", kernels=kernels)
    matched = set(plan.matching_kernels("Default/relu-op0", "relu"))
    assert matched == {"ReLU"}
    assert plan.unused_kernels(matched) == ("Default/nope-op1", "NoSuch", "name-regex(.*fc2.*)")
    assert DumpPlan(path=tmp_path).unused_kernels(()) == ()


HARD = {
    "repetitions within each other": ("(a+)+$", "a" * 60 + "b"),
    "without an end": ("(a*)*", "a" * 60 + "b"),
    "three within each other": ("((a+)+)+", "a" * 60 + "b"),
    "a choice of the same": ("(a|a)*", "a" * 60 + "b"),
    "a choice of beginnings": ("(a|aa|aaa)+", "a" * 60 + "b"),
    "anything, again and again": ("(.*)*x", "a" * 200),
    "many repetitions": ("a*" * 30 + "b", "a" * 200),
    "many choices": ("(a|a)" * 60 + "x", "a" * 60),
    "what may be missing": ("a?" * 60 + "a" * 60, "a" * 59 + "b"),
    "counts": ("(a{1,30}){1,30}b", "a" * 200),
    "lazy repetitions": ("(a+?)+?b", "a" * 60),
    "words": (r"(\w+\s?)+", "a" * 60 + "!"),
    "scopes": ("Default/(.*-.*/)*(.*-.*)*op", "Default/" + "net-Net/" * 30),
    "a look ahead": ("((?=(a+)+b)a|a)*c", "a" * 60),
    "a long name": ("(a+)+", "a" * 50_000 + "b"),
}
_PROGRAM = """
import json, resource, sys
from opdump.plan import KernelPattern
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for expression, text in json.load(sys.stdin):
    print(expression, KernelPattern.parse(f"name-regex({expression})").matches(text, "Add"), flush=True)
"""


def test_an_expression_that_tries_every_way_ends() -> None:
    # The child gets a minute of CPU time; with `re`, each of these takes days.
    pairs = json.dumps(list(HARD.values()))
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=False, input=pairs, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == [f"{expression} False" for expression, _ in HARD.values()]


@pytest.mark.parametrize(
    "expression", ["(a+)+", "(?:ab|a)(?:bc|c)*", "(a|b)*?c{2,3}", r"\b(a|b|_)+\b", "^(a|^b)+$", "(?!ab)(a|b)+"]
)
def test_an_expression_that_is_followed_by_states_finds_names(expression: str) -> None:
    python, tokens = translated(expression)
    pattern, judge = BoundedPattern(tokens), re.compile(python, re.ASCII)
    chance = random.Random(expression)
    names = ["".join(chance.choices("abc_ -", k=chance.randrange(7))) for _ in range(500)]
    assert [pattern.matches(name) for name in names] == [judge.fullmatch(name) is not None for name in names]


def test_any_expression_means_what_re_says() -> None:
    chance = random.Random(13)
    compared = found = 0
    while compared < 1_500:
        expression = _expression(chance, 3)
        python, tokens = translated(expression)
        judge, pattern = re.compile(python, re.ASCII), BoundedPattern(tokens)
        for _ in range(6):
            # Names are not empty: Python's `re`, unlike others, does not match \\B in an empty string.
            name = "".join(chance.choices("ab/\n", k=chance.randrange(1, 6)))
            assert pattern.matches(name) == (judge.fullmatch(name) is not None), (expression, name)
            found += pattern.matches(name)
        compared += 1
    assert found > 500


def _expression(chance: random.Random, depth: int) -> str:
    def atom() -> str:
        if depth and chance.random() < 0.4:
            head = chance.choice(("(", "(?:", "(", "(?=", "(?!"))
            inner = _expression(chance, depth - 1)
            # Python refuses to repeat a group of only assertions; ECMAScript never repeats a lookahead.
            return f"{head}{inner})" if head in ("(?=", "(?!") else f"{head}{inner}){repetition()}"
        if chance.random() < 0.15:
            return chance.choice(("^", "$", r"\b", r"\B"))
        return chance.choice(("a", "b", ".", "[ab]", "[^a]", r"\w", "/", "[^]")) + repetition()

    def repetition() -> str:
        return chance.choice(("", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{0}"))

    branches = ["".join(atom() for _ in range(chance.randrange(3))) for _ in range(chance.choice((1, 1, 2)))]
    return "|".join(branches)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (r"(a+)+\1", "back reference"),
        (r"(a|b)(a|b)(a|b)\1", "back reference"),
        ("((a{1000}){1000}){1000}", "smaller counts"),
        ("((){1000}){1000}", "smaller counts"),
        ("(" * 150 + "a+" + ")" * 150 + "+b", "are nested"),
    ],
)
def test_what_has_no_bound_is_refused_when_it_is_read(expression: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"could take unlimited time to match: .*{why}"):
        KernelPattern.parse(f"name-regex({expression})")


def test_a_short_back_reference_is_kept() -> None:
    assert KernelPattern.parse(r"name-regex((conv)[12]-\1d)").matches("conv1-convd", "Conv")


def test_a_pattern_reaches_another_process() -> None:
    for text in ("name-regex((a+)+)", "name-regex(a+)"):
        assert pickle.loads(pickle.dumps(KernelPattern.parse(text))).matches("aaa", "Add")


def _matches(expression: str, text: str) -> bool:
    return re.compile(to_python_pattern(expression), re.ASCII).fullmatch(text) is not None


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("Default/.+", "Default/x"),
        ("op[[:digit:]]+", "op12"),
        ("[[:alpha:][:digit:]_]+", "a_1"),
        ("[^[:space:]]+", "abc"),
        ("[[:w:]]+", "a_1"),
        ("[[.a.]-c]", "b"),
        (r"\d{2,}", "12"),
        (r"a\.b", "a.b"),
        (r"\q", "q"),
        (r"\A\Z", "AZ"),
        (r"\x41B", "AB"),
        (r"\cJ", "\n"),
        (r"[\b]", "\b"),
        ("[a&&b||c~~d-]+", "a&b|c~d-"),
        ("[[a]+", "[a["),
        (r"[\]\-^]+", "]-^"),
        ("[^]+", "a\nb"),
        ("a**", "aaa"),
        ("(ab)*+", "abab"),
        ("a{2}{3}", "aaaaaa"),
        ("x*?y", "xxy"),
        (r"(a)(b)\2\1", "abba"),
        ("(?:a|b)(?=c)c", "ac"),
        ("(?!b)[ab]", "a"),
        ("^a$", "a"),
        ("", ""),
        ("|a", "a"),
        ("]}", "]}"),
        ("é+", "éé"),
        ("[é]+", "éé"),
    ],
)
def test_an_expression_matches(expression: str, text: str) -> None:
    assert _matches(expression, text)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a$", "a\n"),
        (".", "\n"),
        ("[]", "a"),
        ("[]", ""),
        (r"\d", "٣"),
        (r"\w", "é"),
        ("[[:upper:]]", "a"),
        ("Default", "Default/x"),
        ("a.c", "ac"),
    ],
)
def test_an_expression_does_not_match(expression: str, text: str) -> None:
    assert not _matches(expression, text)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(a", "not closed"),
        ("a)", "without a"),
        ("[a", "not closed"),
        ("[a-", "not closed"),
        ("[[:digit:]", "not closed"),
        ("[[:digit]", "not closed"),
        ("[\\", "not closed"),
        ("*a", "nothing to repeat"),
        ("(*a)", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("(?=a)*", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a{", "expected a count"),
        ("a{,2}", "expected a count"),
        ("(?i)a", "does not start a group"),
        ("(?P<n>a)", "does not start a group"),
        ("(?<=a)b", "does not start a group"),
        ("(?", "does not start a group"),
        ("[[:foo:]]", "not a character class"),
        ("[[.ab.]]", "not a single character"),
        (r"[\d-x]", "start a range"),
        (r"[a-\d]", "end a range"),
        (r"\x4", "hexadecimal"),
        (r"\uzzzz", "hexadecimal"),
        ("\\c", "a letter after"),
        ("a\\", "lone backslash"),
    ],
)
def test_what_cpp_refuses_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        to_python_pattern(expression)


@pytest.mark.parametrize("expression", ["[z-a]", "[d--]", "a{2,1}", r"(a)\2"])
def test_what_only_the_compiler_sees_is_refused_there(expression: str) -> None:
    with pytest.raises(re.error):
        re.compile(to_python_pattern(expression))


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


def test_items_are_numbers_and_inclusive_ranges() -> None:
    steps = StepSet.parse("0|5-8|100-120")
    assert [step for step in range(130) if step in steps] == [0, 5, 6, 7, 8, *range(100, 121)]
    assert steps.last == 120
    assert str(steps) == "0|5-8|100-120"


def test_all_has_every_step_and_no_last_one() -> None:
    assert StepSet.parse("all") == StepSet.all()
    assert 10**30 in StepSet.all()
    assert -1 not in StepSet.all()
    assert StepSet.all().last is None
    assert str(StepSet.all()) == "all"


def test_a_huge_range_is_not_expanded() -> None:
    steps = StepSet.parse("0-4000000000|18446744073709551615")
    assert 3_999_999_999 in steps
    assert 4_000_000_001 not in steps
    assert steps.last == 2**64 - 1
    assert steps.ranges == ((0, 4_000_000_000), (2**64 - 1, 2**64 - 1))


def test_empty_items_are_skipped() -> None:
    assert StepSet.parse("|1||4|") == StepSet.of(1, 4)


def test_order_overlap_and_leading_zeros_do_not_matter() -> None:
    assert StepSet.parse("7|3-5|0004|6|7") == StepSet.parse("3-7")
    assert 0 in StepSet.parse("0" * 5000)


def test_values_that_are_not_numbers_are_not_steps() -> None:
    assert "1" not in StepSet.parse("1")
    assert 1.0 not in StepSet.parse("1")


@pytest.mark.parametrize("text", ["", "ALL", "All", "0 | 1", "0,1", "1e3", "+1", "0x1", "٣", "all|1", "0\n", "0–1"])
def test_other_characters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"only supports digits, '-' and '\|'"):
        StepSet.parse(text)


@pytest.mark.parametrize("text", ["1-", "-3", "2-3-4", "-", "0--1", "5|1-", "--"])
def test_an_item_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="matches no step; expected a number"):
        StepSet.parse(text)


def test_a_range_that_runs_backwards_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match='write "1-3"'):
        StepSet.parse("0|3-1")


@pytest.mark.parametrize("text", ["18446744073709551616", "0-99999999999999999999|1", "9" * 5000])
def test_a_number_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        StepSet.parse(text)


@pytest.mark.parametrize("text", ["|", "||||"])
def test_no_item_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no step"):
        StepSet.parse(text)


@pytest.mark.parametrize("steps", [(), (1, -1)])
def test_steps_in_code_must_be_there_and_not_negative(steps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected one or more"):
        StepSet.of(*steps)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), min_size=1, max_size=6))
def test_a_set_holds_the_union_of_its_items_and_prints_itself(items: list[tuple[int, int]]) -> None:
    text = "|".join(f"{first}-{first + more}" if more else str(first) for first, more in items)
    wanted = {step for first, more in items for step in range(first, first + more + 1)}
    steps = StepSet.parse(text)
    assert {step for step in range(60) if step in steps} == wanted
    assert steps.last == max(wanted)
    assert StepSet.parse(str(steps)) == steps
