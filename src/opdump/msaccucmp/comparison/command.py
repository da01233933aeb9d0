"""Runs `msaccucmp compare`: checks the options, matches the two sides, and writes the tables."""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.msaccucmp.comparison.algorithms import (
    ALGORITHMS,
    NOT_A_NUMBER,
    ChosenAlgorithms,
    Columns,
    Measured,
    Row,
    choose_algorithms,
    measure,
    write_table,
)
from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleGroup, check_choice, choose_groups, read_rules
from opdump.msaccucmp.comparison.golden_tensors import (
    DumpKind,
    DumpSide,
    FrameworkTruth,
    GroundTruth,
    UnfusedTruth,
    read_array,
    read_side,
)
from opdump.msaccucmp.comparison.network import (
    DumpPairs,
    Network,
    compare_network,
    compare_pairs,
    mapping_header,
    mapping_rows,
)
from opdump.msaccucmp.dump_source import check_path, load_scripts
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import OutputFolder, make_output_folder


def run_compare(options: argparse.Namespace) -> ExitCode:
    """Compare by the options. Raises CommandError, or AbortError if the original ends the whole run."""
    check_options(options)
    paths = (os.path.realpath(options.my_dump_path), os.path.realpath(options.golden_dump_path))
    for path in paths:
        check_path(path)
        if not os.path.exists(path):
            raise CommandError(ExitCode.BAD_PATH, f"{path} does not exist")
    scripts = _script_folder(options.custom_script_path)
    chosen = choose_algorithms(options.algorithm, options.algorithm_options, scripts)
    if all(path.endswith(".h5") for path in paths):
        return _refuse_h5(options, chosen)
    if all(os.path.isfile(path) for path in paths):
        compare_files((existing_file(paths[0]), existing_file(paths[1])), chosen)
        return ExitCode.OK
    if options.fusion_rule_file and os.path.isdir(options.fusion_rule_file):
        raise CommandError(
            ExitCode.BAD_PATH,
            f"-f {options.fusion_rule_file} is a directory: several models at once are not compared by this command; "
            "call it once for each",
        )
    return compare_directories(options, paths, chosen, scripts)


def _refuse_h5(options: argparse.Namespace, chosen: ChosenAlgorithms) -> ExitCode:
    """End like the original if h5py is missing: a table without rows, and exit code 1."""
    header = ["Index", "NPUDump", "NPUDumpPath", "GroundTruthPath", "DataType", "Shape", *chosen.names]
    write_table(_output(options), "result", [*header, "CompareFailReason"], ())
    raise AbortError("dumps of PyTorch in .h5 files are not compared by this command, nor by others of opdump")


def _output(options: argparse.Namespace) -> OutputFolder:
    path = os.path.realpath(options.output_path or ".")
    if not os.path.exists(path):
        make_output_folder(path)
    return OutputFolder(path)


def compare_directories(
    options: argparse.Namespace, paths: tuple[str, str], chosen: ChosenAlgorithms, scripts: str
) -> ExitCode:
    """Compare the dumps of two directories. Raises CommandError and AbortError."""
    mine, golden = (read_side(path) for path in paths)
    output = _output(options)
    network = _network(options, mine, golden, chosen, scripts)
    if network is None:
        return _compare_dumps(options, output, mine, golden, chosen)
    groups = choose_groups(network.known_groups(), len(network.rules.operators), options.range, options.select)
    if options.op_name:
        from opdump.msaccucmp.comparison.network import detail_by_rules

        return detail_by_rules(options, output, network)
    if options.mapping:
        header = mapping_header(with_sequence=_has_sequence(options))
        rows = list(mapping_rows(network, groups, with_sequence=_has_sequence(options)))
        write_table(output, "mapping", header, rows)
        return ExitCode.OK
    return _compare_network(options, output, network, groups)


def _script_folder(text: str | None) -> str:
    if not text:
        return ""
    path = os.path.realpath(text)
    if not os.path.isdir(path):
        raise CommandError(
            ExitCode.BAD_PATH, f"{path} is not a directory; -c must name a directory with custom scripts"
        )
    return path


def _rules(option: str, text: str) -> FusionRules | None:
    if not text:
        return None
    path = os.path.realpath(text)
    check_path(path)
    if not os.path.isfile(path):
        raise CommandError(ExitCode.BAD_PATH, f"{option} {path} is not a file")
    return read_rules(path)


def _network(
    options: argparse.Namespace, mine: DumpSide, golden: DumpSide, chosen: ChosenAlgorithms, scripts: str
) -> Network | None:
    """The network of the rules; None if two devices are compared without any. Raises CommandError for sides that do not match."""
    fused, quantised, unfused = options.fusion_rule_file, options.quant_fusion_rule_file, options.close_fusion_rule_file
    code = ExitCode.BAD_PARAMETER
    kinds = (mine.kind, golden.kind)
    given = {"-f": fused, "-q": quantised, "-cf": unfused}
    if kinds == (DumpKind.DEVICE, DumpKind.DEVICE):
        needed, others = ({"-f", "-cf"} if fused or unfused else set()), {"-q"}
    elif kinds == (DumpKind.DEVICE, DumpKind.FRAMEWORK):
        needed, others = {"-f"}, {"-q", "-cf"}
    elif kinds == (DumpKind.QUANTISED, DumpKind.FRAMEWORK):
        needed, others = {"-q"}, {"-f", "-cf"}
        code = ExitCode.BAD_COMBINATION
    else:
        raise CommandError(
            ExitCode.BAD_COMBINATION, f"-m has {mine.kind.value} and -g {golden.kind.value}, which cannot be compared"
        )
    for option in sorted(needed):
        if not given[option]:
            raise CommandError(code, f"{mine.kind.value} against {golden.kind.value} need {option}")
    for option in sorted(others):
        if given[option]:
            raise CommandError(
                ExitCode.BAD_PARAMETER, f"{option} has no effect for {mine.kind.value} against {golden.kind.value}"
            )
    rules = _rules("-f", fused) or _rules("-q", quantised)
    if rules is None:
        return None
    other = _rules("-cf", unfused)
    truth: GroundTruth = FrameworkTruth(golden) if other is None else UnfusedTruth(golden, other)
    return Network(
        mine,
        truth,
        rules,
        chosen,
        load_scripts(scripts) if scripts else {},
        options.max_cmp_size,
        options.overflow_detection,
    )


def _has_sequence(options: argparse.Namespace) -> bool:
    return options.range is not None or options.select is not None


def _compare_network(
    options: argparse.Namespace, output: OutputFolder, network: Network, groups: Sequence[RuleGroup]
) -> ExitCode:
    columns = Columns(
        network.algorithms.names,
        with_sequence=_has_sequence(options),
        with_golden_address=network.truth.has_addresses,
        with_overflow=options.overflow_detection,
    )
    try:
        outcome = compare_network(network, groups)
    except (AbortError, CommandError):
        _write(output, columns, ())
        raise
    _write(output, columns, outcome.rows)
    if not outcome.matched:
        log("ERROR", "no dump belongs to the rules: the model and the dumps do not match")
        return ExitCode.NO_DUMP
    _advise(options, output, outcome.rows, columns, with_rules=not columns.with_golden_address)
    return outcome.code


def _compare_dumps(
    options: argparse.Namespace, output: OutputFolder, mine: DumpSide, golden: DumpSide, chosen: ChosenAlgorithms
) -> ExitCode:
    if options.op_name:
        from opdump.msaccucmp.comparison.network import detail_of_dumps

        return detail_of_dumps(options, output, mine, golden)
    columns = Columns(chosen.names, with_golden_address=True, with_overflow=options.overflow_detection)
    try:
        outcome = compare_pairs(DumpPairs(mine, golden, chosen, options.overflow_detection))
    except (AbortError, CommandError):
        _write(output, columns, ())
        raise
    _write(output, columns, outcome.rows)
    if not outcome.matched:
        log("ERROR", "no operator is in both directories: the model and the dumps do not match")
        return ExitCode.NO_DUMP
    _advise(options, output, outcome.rows, columns, with_rules=False)
    return outcome.code


def _write(output: OutputFolder, columns: Columns, rows: Sequence[Row]) -> None:
    write_table(output, "result", columns.names, (row.cells(columns) for row in rows))


def _advise(
    options: argparse.Namespace, output: OutputFolder, rows: Sequence[Row], columns: Columns, *, with_rules: bool
) -> None:
    if options.advisor:
        write_advice(output, advise(rows, columns.algorithms, with_rules=with_rules))


# Rejects conflicting options of `compare`, and sets those that follow from others.

_MOST_TOP: Final = 10_000
_LINES: Final = (10_000, 1_000_000)
_DEFAULT_TOP: Final = 20
_DEFAULT_LINES: Final = 1_000_000


def check_options(options: argparse.Namespace) -> None:
    """Raise CommandError if options conflict; fill in missing ones."""
    if options.dump_version == 1:
        log("WARNING", "-v 1 is treated as -v 2")
    if options.post_process is not None and not _are_h5(options):
        raise _refused("-p has an effect only for dumps of PyTorch (.h5)")
    if options.max_cmp_size < 0:
        raise _refused(f"-max {options.max_cmp_size} is less than 0")
    _check_mapping(options)
    _check_choice(options)
    _check_detail(options)
    if options.advisor and (options.op_name or options.range or options.select):
        log("WARNING", "-advisor has no effect together with -op, -r or -s")
        options.advisor = False
    if options.advisor:
        options.overflow_detection = True


def _refused(message: str) -> CommandError:
    return CommandError(ExitCode.BAD_PARAMETER, message)


def _are_h5(options: argparse.Namespace) -> bool:
    return all(os.path.realpath(path).endswith(".h5") for path in (options.my_dump_path, options.golden_dump_path))


def _check_mapping(options: argparse.Namespace) -> None:
    if not options.mapping:
        return
    if options.op_name:
        raise _refused("-map and -op exclude each other")
    if not options.fusion_rule_file and not options.quant_fusion_rule_file:
        raise _refused("-map needs -f or -q")


def _check_choice(options: argparse.Namespace) -> None:
    if options.range and options.select:
        raise _refused("-r and -s exclude each other")
    for option, value in (("-r", options.range), ("-s", options.select)):
        if value and not options.fusion_rule_file:
            raise _refused(f"{option} needs -f")
        if value and options.op_name:
            raise _refused(f"{option} and -op exclude each other")
    check_choice(options.range, options.select)


def _check_detail(options: argparse.Namespace) -> None:
    if options.op_name is None:
        for option, value in (
            ("-o", options.output),
            ("-i", options.input),
            ("-n", options.topn),
            ("-ml", options.max_line),
            ("--ignore_single_op_result", options.ignore_result or None),
        ):
            if value is not None:
                raise _refused(f"{option} has an effect only with -op")
        return
    for text in (options.output, options.input):
        if text is not None and not re.fullmatch(r"[0-9]+", text):
            raise _refused(f"{text!r} is not the index of a tensor; expected a whole number, 0 or more")
    options.topn = _DEFAULT_TOP if options.topn is None else options.topn
    options.max_line = _DEFAULT_LINES if options.max_line is None else options.max_line
    if not 1 <= options.topn <= _MOST_TOP:
        raise CommandError(ExitCode.BAD_INDEX, f"-n {options.topn} is not between 1 and {_MOST_TOP}")
    if not _LINES[0] <= options.max_line <= _LINES[1]:
        raise _refused(f"-ml {options.max_line} is not between {_LINES[0]} and {_LINES[1]}")


# `compare -advisor`: reads the table that was just written and recommends what to check first, in `advisor_summary.txt`.

_FILE: Final = "advisor_summary.txt"
_COSINE: Final = "CosineSimilarity"
_ENOUGH: Final = 0.99
_NOTHING: Final = "NA"
_OVERFLOW: Final = "Float16 data overflow occurs. Rectify the fault and perform comparison again."
_INPUT: Final = (
    "The input data of NPUDump is inconsistent with that of GroundTruth. Use the same data or check the data preprocessing "
    "process."
)
_CONSISTENT: Final = (
    "All data in the comparison result meets the accuracy requirements. If data accuracy of the model is still not up to "
    "standard in practical application, please check the post-processing process of model outputs."
)
_LOW: Final = "The accuracy of some tensors is low, "
_LOW_AT_THE_END: Final = _LOW + (
    "resulting in an unqualified final accuracy. This may be caused by quantization. Calibrate the data or contact Huawei for "
    "further diagnosis. "
)
_LOW_ON_THE_WAY: Final = _LOW + (
    "while the final accuracy is qualified. This may be caused by Ascend internal optimization. Ignore or contact Huawei for "
    "further diagnosis. "
)


@dataclass(frozen=True, slots=True)
class Advice:
    """The finding, its operator, and what to do."""

    kind: str = _NOTHING
    index: str = _NOTHING
    text: str = _NOTHING

    def __str__(self) -> str:
        return f"Detection Type: {self.kind}\nOperator Index: {self.index}\nExpert Advice: {self.text}\n"


def advise(rows: Sequence[Row], algorithms: Sequence[str], *, with_rules: bool) -> Advice:
    """The first problem in a table. `with_rules`: whether the types of operators come from fusion rules."""
    for row in rows:
        if row.overflow == "YES":
            return Advice("FP16 Overflow", str(row.index), _OVERFLOW)
    if _COSINE not in algorithms:
        log("WARNING", f"the table has no {_COSINE}, so there is little advice")
        return Advice()
    place = list(algorithms).index(_COSINE)
    measured = [(row, float(row.results[place])) for row in rows if row.results and row.results[place] != NOT_A_NUMBER]
    return _advise_by_cosine(measured, with_rules=with_rules) if measured else Advice()


def _advise_by_cosine(measured: Sequence[tuple[Row, float]], *, with_rules: bool) -> Advice:
    low = [row for row, cosine in measured if cosine < _ENOUGH]
    for row in low:
        if with_rules and row.op_type == "Data" and "," not in row.mine:
            return Advice("Input Inconsistent", str(row.index), _INPUT)
    if not low:
        return Advice("Global Consistency", _NOTHING, _CONSISTENT)
    final = [cosine for _, cosine in measured if not math.isnan(cosine)][-1]
    return Advice("Global Consistency", str(low[0].index), _LOW_AT_THE_END if final < _ENOUGH else _LOW_ON_THE_WAY)


def write_advice(folder: OutputFolder, advice: Advice) -> None:
    """Write the advice to its file and the log. Raises CommandError."""
    for line in str(advice).splitlines():
        log("INFO", line)
    try:
        path = folder.write(_FILE, [str(advice).encode()])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_WRITE, f"{_FILE} cannot be written ({error.strerror})") from error
    log("INFO", f"the advice is in {path}")


# Compares two array files: `compare` of two files prints its table, `file_compare` writes one.

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
        raise AbortError(f"the elements cannot be used as numbers: {error}") from error
    widths = [max(len(name), len(result)) for name, result in zip(chosen.names, measured.results, strict=True)]
    for cells in (chosen.names, measured.results):
        log("INFO", " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
    return measured
