"""The acl.json that `opdump config new --dialect acl` writes."""

from __future__ import annotations

import json
from pathlib import Path

from opdump.configs.acl.path import check_alphabet
from opdump.errors import ConfigError


def acl_starting_file(directory: Path) -> str:
    """The text of an acl.json that dumps inputs and outputs of every model and every operator into `directory`.

    Raises ConfigError for a directory whose name the dump system does not take.
    """
    if wrong := check_alphabet(str(directory)):
        raise ConfigError(
            f"found the dump path {str(directory)!r} with {wrong!r}; a dump path only has letters and digits of ASCII and "
            f"-=[];\\,./!@#$%^&*()_+{{}}:?; choose one with --path, such as /tmp/dump"
        )
    config = {
        "dump": {
            "dump_path": str(directory),
            "dump_list": [{}],
            "dump_mode": "all",
            "dump_level": "all",
            "dump_op_switch": "on",
            "dump_data": "tensor",
            "dump_step": "0",
        }
    }
    return json.dumps(config, indent=2) + "\n"
