"""Every node test of the `onnx` package that ONNX Runtime runs returns the same bits under full recording, and has a
complete manifest.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import onnxruntime
import pytest

from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from tests.onnx.node_cases import feeds_of, node_cases
from tests.onnx.recording import Recording, plain_run

_LEAST = 1450
_PARTS = 6


def _plain_answers(case: Any, content: bytes) -> tuple[list[tuple[dict[str, Any], list[Any]]], str]:
    """The feeds and outputs of a plain session, or the reason why it cannot load or run the model."""
    found = []
    try:
        for feeds in feeds_of(case):
            onnxruntime.set_seed(1)
            found.append((feeds, plain_run(content, feeds)))
    except Exception as error:  # noqa: BLE001  the runtime's errors have no common class
        return [], _reason(error)
    return found, ""


def _reason(error: Exception) -> str:
    text = str(error)
    found = re.search(r"NOT_IMPLEMENTED|INVALID_GRAPH|INVALID_ARGUMENT|RUNTIME_EXCEPTION|NO_SUCHFILE|FAIL\b", text)
    if found is not None:
        return found[0]
    for mark in ("No corresponding Numpy type", "can't be converted to MLDataType", "Required inputs", "Opset"):
        if mark in text:
            return mark
    return type(error).__name__


def _problem(case: Any, content: bytes, feeds: dict[str, Any], plain: list[Any]) -> str:
    onnxruntime.set_seed(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    recording = Recording(content, session_options=options)
    answer = recording.run(feeds)
    recorder, session = recording.recorder, recording.session
    if not same_bits(answer, plain):
        return "other bits"
    notes = [note for note in session.notes if "are not shown" not in note]
    if notes:
        return f"not recorded: {notes}"
    nodes = {node.name: node for top in session.nodes for node in top.with_bodies}
    if len(nodes) != sum(1 for top in session.nodes for _ in top.with_bodies):
        return "a name twice"
    if recorder.tally.executed != recorder.tally.captured + recorder.tally.skipped.total():
        return (
            f"{recorder.tally.executed} operators, {recorder.tally.captured} captured, {recorder.tally.skipped} skipped"
        )
    told = Counter(op.op_name for op in recording.writer.ops)
    if not told.keys() <= nodes.keys() or any(told[node.name] != 1 for node in session.nodes):
        return f"told of {told}, ran {sorted(nodes)}"
    if recorder.tally.executed != told.total() + recording.writer.counted.total():
        return f"{recorder.tally.executed} operators, told of {told} and {recording.writer.counted}"
    for op in recording.writer.ops:
        if op.skip:
            continue
        node = nodes[op.op_name]
        outer = node.reads.difference(node.inputs)  # read by bodies
        expected = {("input", slot) for slot, value in enumerate((*node.inputs, *outer)) if value}
        expected |= {("output", slot) for slot, value in enumerate(node.outputs) if value}
        tensors = recording.tensors(op.op_name, op.occurrence)
        if set(tensors) != expected:
            return f"{op.op_name}: tensors {sorted(tensors)}, expected {sorted(expected)}"
        for record in tensors.values():
            if (record.payload is None) == (record.skip == ""):
                return f"{record.name}: skip {record.skip!r} and payload {record.payload}"
            if record.payload is not None and record.payload.to_host().shape != record.shape:
                return f"{record.name}: {record.payload.to_host().shape} for {record.shape}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.sampled(_PARTS)
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_node_test_gives_the_same_bits_under_full_recording_and_a_complete_manifest(
    part: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package stamps its newest, not yet final operator set on models that have not changed for years.
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    cases = node_cases()[part::_PARTS]
    ran = 0
    refused: Counter[str] = Counter()
    problems: dict[str, str] = {}
    for case in cases:
        content = case.model.SerializeToString()
        answers, reason = _plain_answers(case, content)
        if reason:
            refused[reason] += 1
            continue
        ran += 1
        for feeds, plain in answers:
            problem = _problem(case, content, feeds, plain)
            if problem:
                problems[case.name] = problem
    with capsys.disabled():
        print(
            f"\n{len(cases)} node tests: ONNX Runtime {onnxruntime.__version__} runs {ran}; the others: {dict(refused)}"
        )
    assert problems == {}
    assert ran >= _LEAST // _PARTS - 30  # those that ONNX Runtime refuses are not spread evenly
    assert ran + refused.total() == len(cases)
