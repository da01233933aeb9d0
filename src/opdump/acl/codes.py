"""Return codes of the calls, with the names of the public headers.

Source: section 1 of the dump specification for those that its calls return; the others are facts of the public headers.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """What a call returns."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    UNINITIALIZE = 100001
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    PARSE_FILE = 100006
    INVALID_DUMP_CONFIG = 100009
    INVALID_MODEL_ID = 100011
    MODEL_INPUT_NOT_MATCH = 100017
    MODEL_OUTPUT_NOT_MATCH = 100018
    OP_INPUT_NOT_MATCH = 100021
    OP_OUTPUT_NOT_MATCH = 100022
    OP_NOT_FOUND = 100024
    UNSUPPORTED_DATA_TYPE = 100026
    REPEAT_FINALIZE = 100037
    DUMP_ALREADY_RUN = 100044
    DUMP_NOT_RUN = 100045
    INVALID_DEVICE_ID = 107001
    INTERNAL_ERROR = 500000
    FAILURE = 500001
