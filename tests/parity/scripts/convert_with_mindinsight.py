"""convert_with_mindinsight.py DUMP MSACCUCMP HEADERS: MindSpore Insight's own conversion of an asynchronous dump, in place.

DUMP contains `rank_N/{net}/{graph}/{iteration}` with dump files. MSACCUCMP is the directory of msaccucmp.py (26.2), which
does the conversion. Insight expects the modules of an older msaccucmp: `_tools` provides those of 26.2 under the old names. The
library of CANN that reads the header of a dump file is not available, so HEADERS, a JSON file, contains each header by path.
Prints as JSON what could not be converted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(dump: str, msaccucmp: str, headers: str) -> None:
    sys.path.insert(0, msaccucmp)
    sys.path.append(str(Path(msaccucmp).parents[1]))  # other dependencies, after the packages of Insight
    from mindinsight.debugger.dump import convert  # type: ignore[import-not-found]
    from mindinsight.parser.dump import DumpParser  # type: ignore[import-not-found]

    convert.load_cann_tools = lambda _path=None: _tools(convert, json.loads(Path(headers).read_text()))
    failed = DumpParser(dump).convert_all_data_to_host()
    print(json.dumps(failed))


def _tools(convert: Any, headers: dict[str, Any]) -> Any:
    from cmp_utils import common, log, utils  # type: ignore[import-not-found]
    from cmp_utils.constant.compare_error import CompareError  # type: ignore[import-not-found]
    from conversion.shape_format_conversion import FormatConversionMain  # type: ignore[import-not-found]
    from dump_parse import big_dump_data, dump_utils  # type: ignore[import-not-found]

    def parse_header(parser: Any) -> None:
        parser.dump_json_data = headers[parser.dump_file_path]

    def parse_dump_file(path: str, version: str) -> SimpleNamespace:
        parsed = dump_utils.parse_dump_file(path, version)
        return SimpleNamespace(input=_older(parsed.input_data), output=_older(parsed.output_data))

    big_dump_data.BigDumpDataParser._parse_dump_to_json = parse_header
    utilities = SimpleNamespace(
        parse_dump_file=parse_dump_file,
        deserialize_dump_data_to_array=lambda tensor: tensor.data,
        get_string_from_list=utils.get_string_from_list,
    )
    nothing = CompareError.MSACCUCMP_NONE_ERROR
    return convert.CannTool(utilities, common, log, FormatConversionMain, nothing, CompareError)


def _older(tensors: Any) -> list[SimpleNamespace]:
    """Tensors with the attributes that they had in the older msaccucmp."""
    return [
        SimpleNamespace(data=tensor.data, shape=SimpleNamespace(dim=tensor.shape), format=tensor.tensor_format)
        for tensor in tensors
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
