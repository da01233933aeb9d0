"""Runs of one JAX program in two modes, compiled and operator by operator: they share only values, and neither can be run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opdump.comparison.differences import epsilon_of, unshaped_difference
from opdump.comparison.statistics_apart import apart
from opdump.comparison.trace import Trace, has_elements
from opdump.records import TensorRecord

CALL: Final = "jax::jit"
_COMPILED: Final = 0.25
"""The modes are two where one run has so much larger a share of its operators in compiled functions."""
_ROUNDINGS: Final = 100.0
OTHER_STEPS: Final = (
    "one run compiles its step and has {} steps, the other runs operator by operator and has {}: they were not compared; call dump.step() at "
    "the end of each step of both programs, and record again"
)
OTHER_RESULTS: Final = (
    "one run compiles what the other runs operator by operator. Output {} of {}, which is a result, has no counterpart within rounding; the "
    "cause cannot be found, since JAX operators cannot be run again: compare two compiled runs, or two that are not compiled"
)


def of_two_modes(a: Trace, b: Trace) -> bool:
    """Whether one run compiles what the other runs operator by operator."""
    shares = [_compiled_share(trace) for trace in (a, b)]
    return None not in shares and abs((shares[0] or 0.0) - (shares[1] or 0.0)) > _COMPILED


def _compiled_share(trace: Trace) -> float | None:
    """How many of the operators ran in compiled functions; None of a run that is none of JAX."""
    kernels = [node.op.kernel for node in trace.nodes]
    if not any(kernel.startswith(("jax::", "lax::", "jnp::")) for kernel in kernels):
        return None
    return sum(bool(node.op.graph_id) for node in trace.nodes) / len(kernels)


def without_counterpart(a: Trace, b: Trace) -> str:
    """What a reader has to know of a result of either run that the other has nowhere; empty where it has all of them."""
    for here, there in ((a, b), (b, a)):
        others = [record for node in there.nodes for record in node.outputs.values()]
        for name, slot, record in _results(here):
            if not any(_is_near(record, other) for other in others):
                return OTHER_RESULTS.format(slot, name)
    return ""


def _results(trace: Trace) -> Iterator[tuple[str, int, TensorRecord]]:
    """What compiled functions give, and what no operator reads of those that ran by themselves."""
    for node in trace.nodes:
        for slot, record in node.outputs.items() if node.op.kernel == CALL else ():
            if not record.skip:
                yield node.op.op_name, slot, record
    for index, slot in trace.rows.unread:
        node = trace.nodes[index]
        if not node.op.graph_id and epsilon_of(node.outputs[slot].dtype):
            yield node.op.op_name, slot, node.outputs[slot]


def _is_near(one: TensorRecord, other: TensorRecord) -> bool:
    if other.skip or one.shape != other.shape or one.dtype != other.dtype:
        return False
    allowed = _ROUNDINGS * epsilon_of(one.dtype)
    if has_elements(one) and has_elements(other):
        return unshaped_difference(one.numpy(), other.numpy()).relative <= allowed
    distance = apart(one, other)
    return distance is not None and distance <= allowed
