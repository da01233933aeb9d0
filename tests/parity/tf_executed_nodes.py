"""Finds the operators in a program's dump that correspond to the nodes of its optimised graphs, by name.

gradients/while_grad/body/_27/gradients/while/MatMul_grad/MatMul      a node of a function's body after inlining
mixed/ArithmeticOptimizer/AddOpsRewrite_Leaf_0_add_2                  a part of the sum mixed/add_2, which grappler splits
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

WITHOUT_RECORD: Final = {
    **dict.fromkeys(("_Arg", "_Retval", "_DeviceArg", "_DeviceRetval"), "hands on what is given to a function, or what it gives"),
    **dict.fromkeys(("_Send", "_Recv", "_HostSend", "_HostRecv"), "carries a tensor from one device to another"),
    **dict.fromkeys(("NoOp", "ControlTrigger"), "computes nothing: others wait for it"),
    **dict.fromkeys(("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "_SwitchN"), "control flow"),
    **dict.fromkeys(("Const", "HostConst", "_EagerConst"), "a constant of the program, or what grappler computed ahead"),
}  # fmt: skip
"""Node types that a dump may lack -> reason."""
INLINED: Final = re.compile(r"(^|/)_\d+$")
"""Names of nodes that the runtime creates when it inlines a function: they pass on its arguments and results."""
OF_HOOKS: Final = re.compile(r"^global_step/")
"""What the hooks of a monitored session fetch in addition to the program's fetches: the number of the step."""
_NUMBER: Final = re.compile(r"/_\d+(?=/)")
_CALLS: Final = re.compile(r"^((Stateful)?PartitionedCall(_\d+)?/)+")
_BRANCH: Final = re.compile(r"/branch(\d+)(?=/)")
_REWRITTEN: Final = (
    (re.compile(r"(^|.*/)ArithmeticOptimizer/[A-Za-z]+_(?:Leaf_\d+_)?(\w+)$"), r"\1\2"),
    (re.compile(r"^(.+)/unary_ops_composition$"), r"\1"),
    (re.compile(r"^(.+?)-\d+-\w+-LayoutOptimizer$"), r"\1"),
)
"""How grappler names the nodes that it creates from an operator -> the operator."""
_UNSEEN: Final = ("not executed", "not observed")


_UNIQUE: Final = re.compile(r"-op[0-9]+\Z")
"""The number that distinguishes operators with the same last component."""


@dataclass
class Found:
    """The number of executed nodes, and those without an operator in the dump."""

    executed: int = 0
    without_record: Counter[str] = field(default_factory=Counter)
    """By type."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why the operators that were found left no data; empty if they left some."""
    missing: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """In the dump as not executed or not observed, although they ran."""

    def __str__(self) -> str:
        told = f"{self.executed} nodes were executed, {self.executed - len(self.missing)} are in the manifest"
        reasons = ", ".join(f"{count} {reason or 'with data'}" for reason, count in sorted(self.reasons.items()))
        types = ", ".join(f"{count} {op_type}" for op_type, count in sorted(self.without_record.items()))
        return f"{told} ({reasons}); not counted: {types}"


def find(told: dict[str, Any], operators: Iterable[Any]) -> Found:
    """Find the nodes that `run_tf_witness.py` reported among the operators of a dump, including those without data."""
    by_name: dict[str, list[Any]] = defaultdict(list)
    by_end: dict[str, list[Any]] = defaultdict(list)
    types: Counter[str] = Counter()
    for operator in operators:
        name = _UNIQUE.sub("", operator.op_name)
        by_name[name].append(operator)
        types[operator.op_type] += 1
        for place, letter in enumerate(name):
            if letter == "/":
                by_end[name[place + 1 :]].append(operator)
    found = Found()
    for name, op_type, original, function, _ in told["executed"]:
        if op_type in WITHOUT_RECORD or INLINED.search(name) or OF_HOOKS.search(name):
            found.without_record[op_type] += 1
            continue
        found.executed += 1
        # A node in a function that is not inlined has no path in its name; its record has one.
        same = next(
            (by_name[each] or by_end[each] for each in _names(name, original) if each in by_name or each in by_end), []
        )
        if not same:
            found.missing.append(f"{name} ({op_type}{f' of {function}' if function else ''})")
        elif all(each.skip in _UNSEEN for each in same):
            found.unseen.append(f"{name} ({op_type}): {same[0].skip}")
        found.reasons.update([each.skip for each in same[:1]])
    for op_type, count in told["eager"].items():
        if op_type in WITHOUT_RECORD:
            found.without_record[op_type] += count
            continue
        found.executed += count
        found.missing += [f"{op_type}, by itself"] * (count - types[op_type])
    return found


def _names(name: str, original: str) -> Iterator[str]:
    """Possible names in a dump of a node's operator."""
    path = _BRANCH.sub(r"/branch_\1", _NUMBER.sub("", name))
    # A node that oneDNN created does not name its origin: the name in the function follows the last number.
    whole = [name, path, original or re.split(r"/_\d+/", name)[-1]]
    for pattern, replacement in _REWRITTEN:
        whole += [pattern.sub(replacement, each) for each in whole[1:] if pattern.match(each)]
    yield from whole
    yield from (_CALLS.sub("", each) for each in whole)
