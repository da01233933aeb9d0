"""The dialect of npu_dump.json, and the starting file that `opdump config new --dialect tensorflow` writes."""

from __future__ import annotations

import json
from pathlib import Path

from opdump.configs.tensorflow.file import load_tensorflow_plan
from opdump.configs.tensorflow.plan import device_of
from opdump.plan.dialects import Dialect, DialectWords


def tensorflow_starting_file(directory: Path | None) -> str:
    """The text of an npu_dump.json that dumps inputs and outputs of every operator of the first step into `directory`, or `dump`."""
    config = {
        "enable_dump": True,
        "dump_path": str(directory or Path("dump").absolute()),
        "dump_step": "0",
        "dump_mode": "all",
        "dump_data": "tensor",
    }
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        article="an",
        file="npu_dump.json",
        path="dump_path",
        steps="dump_step",
        operators="dump_layer",
        list_key="dump_layer",
        marked="programs of TensorFlow choose by dump_layer",
    ),
    signs=("enable_dump", "enable_dump_debug", "dump_path"),
    load=lambda path, how, overrides: load_tensorflow_plan(
        path, environ=how.environ, strict=how.strict, program_directory=how.program_directory, **overrides
    ),
    starting_file=tensorflow_starting_file,
    directory_must_exist=True,
    names_models=False,
    rank_of=device_of,
)
