"""Runs programs plainly and under capture, and says of each whether the same bits came out and what was captured.

usage: tf_functions_same.py [program...]
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import numpy as np

from tests.parity.scripts.tf_functions_programs import PROGRAMS
from tests.parity.scripts.tf_functions_recording import recorded

STEPS = ("0-1000", "0|2")


def bits(results: list[Any]) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in results]


def main(names: list[str]) -> None:
    for name in names or PROGRAMS:
        program = PROGRAMS[name]
        try:
            plain = bits(program())
            assert bits(program()) == plain, "the program itself does not give the same numbers twice"
            for steps in STEPS:
                with recorded(steps=steps) as recording:
                    results = bits(program())
                ops = [op for op in recording.writer.ops if not op.skip]
                found = {
                    "same": results == plain,
                    "steps": sorted({op.step for op in ops}),
                    "types": sorted({op.op_type for op in ops}),
                    "tensors": len(recording.writer.tensors),
                    "notes": recording.recorder.warnings,
                    "counted": recording.recorder.tally.executed
                    == recording.recorder.tally.captured + recording.recorder.tally.skipped.total(),
                }
                print(json.dumps({"case": f"{name} {steps}", **found}), flush=True)
            print(json.dumps({"case": f"{name} after", "same": bits(program()) == plain}), flush=True)
        except Exception:  # noqa: BLE001  one program that fails does not hide the others
            print(json.dumps({"case": name, "failed": traceback.format_exc()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
