"""Compares two array files: `compare` of two files prints its table, `file_compare` writes one.

CosineSimilarity: 0.999939
MaxAbsoluteError: 0.010000
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Final

from opdump.msaccucmp.comparison.algorithms import ALGORITHMS, ChosenAlgorithms, Measured, measure
from opdump.msaccucmp.comparison.golden_tensors import read_array
from opdump.msaccucmp.dump_source import check_path
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import OutputFolder, make_output_folder

_NOT_IN_FILES: Final = ("KullbackLeiblerDivergence", "StandardDeviation")


def run_file_compare(options: argparse.Namespace) -> ExitCode:
    """Write `file_result_<time>.txt`. Raises CommandError and AbortError."""
    paths = []
    for text in (options.my_dump_path, options.golden_dump_path):
        path = existing_file(text)
        if not path.endswith(".npy"):
            raise CommandError(ExitCode.BAD_TYPE, f"{path} is not a .npy file, which file_compare needs")
        paths.append(path)
    output = os.path.realpath(options.output_path)
    make_output_folder(output)
    chosen = ChosenAlgorithms({name: run for name, run in ALGORITHMS.items() if name not in _NOT_IN_FILES})
    measured = compare_files((paths[0], paths[1]), chosen)
    lines = [f"{name}: {result}\n" for name, result in zip(chosen.names, measured.results, strict=True)]
    name = time.strftime("file_result_%Y%m%d%H%M%S.txt")
    try:
        written = OutputFolder(output).write(name, ["".join(lines).encode()])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{name} cannot be written ({error.strerror})") from error
    log("INFO", f"the result is in {written}")
    return ExitCode.OK


def existing_file(text: str) -> str:
    """The true path of a file. Raises CommandError if it does not exist."""
    path = os.path.realpath(text)
    check_path(path)
    if not os.path.exists(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} does not exist")
    if not os.path.isfile(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} is not a file")
    return path


def compare_files(paths: tuple[str, str], chosen: ChosenAlgorithms) -> Measured:
    """Compare two arrays of the same shape, and log the results as a table. Raises CommandError and AbortError."""
    log("INFO", f"{paths[0]} is compared with {paths[1]}")
    mine, golden = (read_array(path) for path in paths)
    if mine.shape != golden.shape:
        raise CommandError(
            ExitCode.BAD_SHAPE, f"{paths[0]} has the shape {mine.shape} and {paths[1]} the shape {golden.shape}"
        )
    try:
        measured = measure(mine.reshape(-1), golden.reshape(-1), mine.shape, paths, chosen)
    except (TypeError, ValueError) as error:
        raise AbortError(f"the elements cannot be taken for numbers: {error}") from error
    widths = [max(len(name), len(result)) for name, result in zip(chosen.names, measured.results, strict=True)]
    for cells in (chosen.names, measured.results):
        log("INFO", " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
    return measured
