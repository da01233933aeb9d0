"""The dialect of acl.json, and the starting file that `opdump config new --dialect acl` writes."""

from __future__ import annotations

import json
from pathlib import Path

from opdump.configs.acl.path import check_alphabet
from opdump.configs.acl.plan import load_acl_plan
from opdump.errors import ConfigError
from opdump.plan.dialects import Dialect, DialectWords


def acl_starting_file(directory: Path | None) -> str:
    """The text of an acl.json that dumps inputs and outputs of every model and every operator into `directory`, or `dump`.

    Raises ConfigError for a directory name that the dump system does not accept.
    """
    directory = directory or Path("dump").absolute()
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


DIALECT = Dialect(
    words=DialectWords(
        article="an",
        file="acl.json",
        path="dump_path",
        steps="dump_step",
        operators="dump_list",
        list_key="dump_list.{}",
        marked='an acl.json chooses by dump_list, and a data_dump.json with "dump_mode": 2 by marks',
    ),
    signs=("dump",),
    load=lambda path, how, overrides: load_acl_plan(
        path,
        environ=how.environ,
        strict=how.strict,
        dialect_version=how.dialect_version,
        program_directory=how.program_directory,
        **overrides,
    ),
    starting_file=acl_starting_file,
    directory_must_exist=True,
    files_api_calls=True,
)
