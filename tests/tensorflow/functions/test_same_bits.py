"""Programs return the same bits without, under and after a capture: Keras, custom loops, random numbers, control flow, data sets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.tensorflow.functions.programs import PROGRAMS
from tests.tensorflow.functions.recording import recorded

NOTES = {
    # A loop over a data set is an operator of the data set, which runs the body.
    "fed_from_a_dataset": [
        "the functions that ScanDataset",
        "the functions that ReduceDataset",
        "the operators of Dataset_map_lambda are not shown: a data set runs it in threads of the runtime",
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_bits_under_capture_and_after_it(name: str) -> None:
    program = PROGRAMS[name]
    plain = _bits(program())
    assert _bits(program()) == plain, "the program itself does not give the same numbers twice"
    tensors, notes = [], []
    for steps in ("0-1000", "0|2"):
        with recorded(steps=steps) as recording:
            captured = _bits(program())
        recorder = recording.recorder
        assert captured == plain, steps
        assert recorder.tally.executed == recorder.tally.captured + recorder.tally.skipped.total(), steps
        tensors.append(len(recording.writer.tensors))
        notes.append(recorder.warnings)
    assert {op.step for op in recording.ops()} <= {0, 2}
    assert tensors[0] >= tensors[1] > 0
    assert notes[0] == notes[1]
    assert [re.split(r" \(|; ", note)[0] for note in notes[0]] == NOTES.get(name, [])
    assert _bits(program()) == plain, "after the captures"


def _bits(results: list[Any]) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in results]
