"""The dialect of data_dump.json, and the starting file that `opdump config new` writes."""

from __future__ import annotations

import json
from pathlib import Path

from opdump.configs.mindspore.plan import load_plan
from opdump.configs.mindspore.settings import is_dump_path
from opdump.configs.shared.known_keys import COMMON, E2E
from opdump.errors import ConfigError
from opdump.plan.dialects import Dialect, DialectWords


def starting_file(directory: Path | None) -> str:
    """The text of a data_dump.json that dumps all of the first step into `directory`.

    None means `dump` in the working directory, or /tmp/dump if MindSpore's rules forbid that path. The text contains the most
    important keys, each with a working value.

    Raises ConfigError for a directory that those rules forbid.
    """
    if directory is None:
        here = Path.cwd() / "dump"
        directory = here if is_dump_path(str(here)) else Path("/tmp/dump")  # noqa: S108  a suggestion, shown to the user
    elif not is_dump_path(str(directory)):
        raise ConfigError(
            f"found the dump path {str(directory)!r}, expected an absolute path of letters and digits of ASCII, '-', "
            f"'_' and '/'; choose one such as \"/tmp/dump\""
        )
    config = {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(directory),
            "net_name": "Net",
            "iteration": "0",
            "saved_data": "full",
            "input_output": 0,
            "kernels": [],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "op_debug_mode": 0,
            "statistic_category": ["max", "min", "avg", "l2norm", "nan count", "positive inf count"],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True, "stat_calc_mode": "host"},
    }
    return json.dumps(config, indent=2) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        file="data_dump.json",
        path="path",
        steps="iteration",
        operators="kernels",
        list_key="models: {}",
        marked='write "dump_mode": 2 to dump what is marked',
    ),
    signs=(COMMON, E2E),
    load=lambda path, how, overrides: load_plan(path, environ=how.environ, strict=how.strict, **overrides),
    starting_file=starting_file,
)
