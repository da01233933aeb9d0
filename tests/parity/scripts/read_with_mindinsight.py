"""read_with_mindinsight.py DUMP XLSX_DIRECTORY QUERY...: what the DumpParser of MindSpore Insight finds, as JSON.

operators: full name -> type and source lines.   queries: query -> full name -> rank -> step -> input and output files.
"""

from __future__ import annotations

import json
import sys

from mindinsight.parser.dump import DumpParser  # type: ignore[import-not-found]


def main(dump: str, directory: str, *queries: str) -> None:
    parser = DumpParser(dump)
    found = {
        "operators": {
            operator.full_name: {"type": operator.type, "stack": [source.to_dict() for source in operator.stack]}
            for operator in parser._operators
        },
        "queries": {
            query: {name: paths.to_dict() for name, paths in parser.get_tensor_files(query).items()}
            for query in queries
        },
        "xlsx": parser.export_xlsx(directory),
    }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
