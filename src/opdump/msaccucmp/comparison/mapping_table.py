"""`compare -map`: writes which file of the device and which of the framework would be compared for each tensor, in
`mapping_<time>.csv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER
from opdump.msaccucmp.comparison.fusion_rules import RuleGroup, RuleOperator
from opdump.msaccucmp.comparison.network import Network, device_outputs, truth_path
from opdump.msaccucmp.comparison.result_table import MISSING
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.exit_codes import CommandError
from opdump.msaccucmp.journal import log

_NAMES: Final = ("OpType", "NPUDump", "GroundTruth", "TensorIndex", "NPUDumpPath", "GroundTruthPath")


def mapping_header(*, with_sequence: bool) -> list[str]:
    return ["Index", *(["OpSequence"] if with_sequence else []), *_NAMES]


def mapping_rows(network: Network, groups: Iterable[RuleGroup], *, with_sequence: bool) -> Iterator[list[str]]:
    """The rows of the table. Raises AbortError if a dump cannot be read."""
    for group in groups:
        golden = network.golden_names(group) or MISSING
        for operator in group.operators:
            number = [str(group.index), *([str(operator.number)] if with_sequence else [])]
            for cells in _tensor_cells(network, operator):
                yield [*number, operator.op_type, group.names, golden, *cells]


def _tensor_cells(network: Network, operator: RuleOperator) -> Iterator[tuple[str, str, str]]:
    """Tensor, file of the device and file of the framework."""
    dump = network.dump_of(operator)
    if dump is None:
        log("WARNING", f"[{operator.name}] there is no dump of the device")
        yield NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER
        return
    try:
        file = read_converted(dump.path)
    except CommandError as error:
        log("ERROR", str(error))
        yield NOT_A_NUMBER, dump.path, NOT_A_NUMBER
        return
    for output in device_outputs(operator, file, dump.path):
        try:
            path = truth_path(network, output)[1]
        except CommandError as error:
            log("WARNING", str(error))
            path = NOT_A_NUMBER
        yield output.name, dump.path, path
