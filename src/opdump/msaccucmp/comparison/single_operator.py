"""`compare -op`: one tensor of one operator, element by element.

Index,N C H W,NPUDump,GroundTruth,AbsoluteError,RelativeError
0,0 0 0 0,0.430664	,0.430335	,0.000329	,0.000765
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpFile
from opdump.msaccucmp.comparison.alignment import align
from opdump.msaccucmp.comparison.dump_directory import DumpSide
from opdump.msaccucmp.comparison.element_table import ElementNames, ElementTable, write_element_table
from opdump.msaccucmp.comparison.golden_tensors import file_key
from opdump.msaccucmp.comparison.network import DeviceOutput, Network, stored_tensor, truth_path
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_elements import decode, original_shape_of
from opdump.msaccucmp.original_formats import Stored, can_convert, convert_format
from opdump.msaccucmp.output_folder import OutputFolder, npy_parts

_Array = npt.NDArray[Any]
_AXES: Final = {"NCDHW": "N C D H W"}
_DEFAULT_AXES: Final = "N C H W"
_SCALAR_AXES: Final = "ID"


def detail_by_rules(options: argparse.Namespace, output: OutputFolder, network: Network) -> ExitCode:
    """Compare a tensor of `-op` with its counterpart. Raises CommandError and AbortError."""
    name: str = options.op_name
    operator = network.rules.operators.get(name)
    if operator is None:
        raise CommandError(ExitCode.BAD_PARAMETER, f"-op {name} is not in the rules")
    dump = network.dump_of(operator)
    if dump is None:
        raise CommandError(ExitCode.NO_DUMP, f"there is no dump of {name}")
    file = read_converted(dump.path)
    io, index = _chosen(options, file, name)
    arrays = {tensor.name: decode(tensor) for tensor in file.tensors}
    tensor = (file.inputs if io == "input" else file.outputs)[index]
    device = DeviceOutput(operator, tensor, arrays[tensor.name], dump.path)
    origin, path = truth_path(network, device)
    truth = network.truth.read(origin, path)
    stored = stored_tensor(device)
    if network.is_quantised:
        mine, golden = network.aligned(device, truth)
    else:
        mine, golden = align(stored, truth.array, truth.format, network.scripts, flatten=False)
        mine, golden = _in_nchw(mine, truth.format), _in_nchw(golden, truth.format)
    group = network.rules.group_of[name]
    axes = _SCALAR_AXES if not truth.array.shape else _AXES.get(truth.format, _DEFAULT_AXES)
    names = (group.names.replace(",", " "), network.golden_names(group).replace(",", " ") or "*")
    return _write(options, output, f"{file_key(name)}_{io}_{index}", mine, golden, ElementNames(*names, axes))


def detail_of_dumps(options: argparse.Namespace, output: OutputFolder, mine: DumpSide, golden: DumpSide) -> ExitCode:
    """Compare a tensor of `-op` in two dumps of devices, in the stored order. Raises CommandError and AbortError."""
    name: str = options.op_name
    files = []
    for option, side in (("-m", mine), ("-g", golden)):
        found = side.newest(name)
        if found is None:
            raise CommandError(ExitCode.NO_DUMP, f"{option} has no dump of {name}")
        log("INFO", f"{option}: {found.path}")
        files.append(read_converted(found.path))
    arrays = []
    for file in files:
        io, index = _chosen(options, file, name)
        tensor = (file.inputs if io == "input" else file.outputs)[index]
        arrays.append(decode(tensor).reshape(original_shape_of(tensor)))
    left, right = arrays
    if left.shape != right.shape:
        raise CommandError(
            ExitCode.BAD_DUMP, f"{name} has the shape {left.shape} on the left and {right.shape} on the right"
        )
    return _write(options, output, f"{name}_{io}_{index}", left, right, ElementNames(name, name, _DEFAULT_AXES))


def _chosen(options: argparse.Namespace, file: DumpFile, name: str) -> tuple[str, int]:
    """Whether an input or an output is selected, and its number; the default is the first output."""
    io = "output" if options.input is None else "input"
    index = int(options.output or options.input or 0)
    count = len(file.outputs if io == "output" else file.inputs)
    if index >= count:
        raise CommandError(ExitCode.BAD_INDEX, f"{name} has {count} {io}s; {index} is none of them (they count from 0)")
    return io, index


def _in_nchw(array: _Array, format_name: str) -> _Array:
    if array.ndim == 4 and can_convert(format_name, "NCHW"):
        return convert_format(format_name, "NCHW", array, Stored(array.shape))
    return array


def _write(
    options: argparse.Namespace, output: OutputFolder, base: str, mine: _Array, golden: _Array, names: ElementNames
) -> ExitCode:
    try:
        output.write(f"{base}.npy", npy_parts(np.ascontiguousarray(mine)))
        table = ElementTable.of(np.ascontiguousarray(mine), golden)
        write_element_table(
            output, base, table, names, top=options.topn, lines=None if options.ignore_result else options.max_line
        )
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{base} cannot be written ({error.strerror})") from error
    log("INFO", f"the elements are in {output.path}")
    return ExitCode.OK
