"""The reasons for an empty capture: one table, and each reason from facts that make it true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opdump.plan import DumpPlan, KernelPattern, ModelSelection, StepSet
from opdump.recorder.program_facts import ProgramFacts, explain_empty_capture

STEPS = StepSet.parse("5-8")
ACL: dict[str, Any] = {"dialect": "acl", "layout": "acl", "single_operators": False, "single_operator_models": False}
TABLE: list[tuple[str, dict[str, Any], dict[str, Any], int, dict[str, int], str, bool]] = [
    ("nothing enabled", {**ACL, "models": ()}, {}, 0, {}, "the acl.json is valid but enables nothing", True),
    (
        "not imported",
        {},
        {"framework": "PyTorch", "is_framework_used": False},
        0,
        {},
        "the program imported no PyTorch",
        True,
    ),
    (
        "another framework",
        {},
        {"framework": "PyTorch", "is_framework_used": False, "others_used": ("JAX", "ONNX Runtime")},
        0,
        {},
        "the program imported no PyTorch; it imported JAX and ONNX Runtime, which `--framework` selects",
        True,
    ),
    (
        "steps not reached",
        {"steps": STEPS},
        {"next_step": 3},
        0,
        {},
        "the program ended steps 0 to 2, but `iteration` selects 5-8",
        True,
    ),
    (
        "one step",
        {"steps": STEPS},
        {"next_step": 1},
        0,
        {},
        "the program ended only step 0, but `iteration` selects",
        True,
    ),
    ("no step ended", {"steps": STEPS}, {"next_step": 0}, 0, {}, "the program ended no step", True),
    (
        "steps of acl.json",
        {**ACL, "steps": STEPS, "models": (ModelSelection(),)},
        {"next_step": 3},
        0,
        {},
        "`dump_step` selects 5-8",
        True,
    ),
    ("children", {}, {"in_children": 2}, 0, {}, "it started 2 others, and they were not captured", True),
    ("threads", {}, {"elsewhere": 4}, 0, {}, "networks were called 4 times in threads", True),
    (
        "no model",
        {**ACL, "models": (ModelSelection(model_name="A"),)},
        {"executions": {}, "models_seen": ("B", "C")},
        9,
        {"not selected": 9},
        "no model in dump_list ran; the models that ran are 'B', 'C'",
        True,
    ),
    (
        "another execution",
        {**ACL, "models": (ModelSelection(model_name="A"),), "steps": STEPS},
        {"executions": {"A": 2}, "models_seen": ("A",)},
        9,
        {"not selected": 9},
        "'A' ran 2 times (0 to 1), but `dump_step` selects 5-8",
        True,
    ),
    ("nothing ran", {}, {"framework": "PyTorch"}, 0, {}, "no operator of PyTorch ran", True),
    ("nothing ran there", {"steps": STEPS}, {"next_step": 7}, 0, {}, "no operator ran in a selected step", True),
    ("no overflow", {"captures": "overflow"}, {}, 9, {"no overflow": 9}, "no operator overflowed", False),
    ("no failure", {"captures": "exception"}, {}, 9, {"no exception": 9}, "no operator failed", False),
    (
        "no marks",
        {"selection": "marked"},
        {},
        9,
        {"not selected": 9},
        "nothing is marked; call opdump.set_dump(net)",
        True,
    ),
    (
        "idle marks",
        {"selection": "marked"},
        {"marks": True},
        9,
        {"not selected": 9},
        "no operator ran in the targets that set_dump",
        True,
    ),
    (
        "no names",
        {"selection": "kernels", "kernels": (KernelPattern.parse("conv"),)},
        {"chose_nothing": "names"},
        9,
        {"not selected": 9},
        "no operator that ran matches a name in `kernels`",
        True,
    ),
    (
        "another device",
        {},
        {},
        9,
        {"device not selected": 7, "view": 2},
        "support_device excludes this device",
        False,
    ),
    (
        "no kernels",
        {},
        {},
        9,
        {"view": 7, "allocation": 2},
        "only operators that compute nothing ran (allocation, view)",
        True,
    ),
    ("gaps", {}, {}, 9, {"opaque": 7, "view": 2}, "all operators that ran were left out (7 opaque, 2 view)", True),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_reason_that_is_true_is_reported(row: tuple[Any, ...]) -> None:
    _, fields, around, executed, skipped, reason, is_gap = row
    plan = DumpPlan(path=Path("dump"), **fields)
    nothing = explain_empty_capture(plan, ProgramFacts(**around), executed=executed, skipped=skipped)
    assert reason in nothing.reason
    assert nothing.is_gap is is_gap


@pytest.mark.parametrize(
    ("dialect", "word"), [("mindspore", "iteration"), ("acl", "dump_step"), ("tensorflow", "dump_step")]
)
def test_a_reason_names_keys_of_its_own_dialect_alone(dialect: Any, word: str) -> None:
    plan = DumpPlan(path=Path("dump"), steps=STEPS, dialect=dialect)
    reason = explain_empty_capture(plan, ProgramFacts(next_step=1), executed=0, skipped={}).reason
    assert f"`{word}`" in reason
    assert {"iteration", "dump_step"} - {word} == {other for other in ("iteration", "dump_step") if other not in reason}
