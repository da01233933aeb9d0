"""Runs all models in a folder, as a program of a user does, and saves the answers: `onnx_program.py FOLDER ANSWERS`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import onnxruntime

answers = {}
for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    answers[path.stem] = session.run(None, pickle.loads(path.with_suffix(".inputs").read_bytes()))
Path(sys.argv[2]).write_bytes(pickle.dumps(answers))
