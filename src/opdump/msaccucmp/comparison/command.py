"""Runs `msaccucmp compare`: checks the options, matches the two sides, and writes the tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from opdump.msaccucmp.comparison.advisor import advise, write_advice
from opdump.msaccucmp.comparison.algorithm_choice import ChosenAlgorithms, choose_algorithms
from opdump.msaccucmp.comparison.dump_directory import DumpKind, DumpSide, read_side
from opdump.msaccucmp.comparison.dump_pairs import DumpPairs, compare_pairs
from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleGroup, read_rules
from opdump.msaccucmp.comparison.golden_tensors import FrameworkTruth, GroundTruth, UnfusedTruth
from opdump.msaccucmp.comparison.group_choice import choose_groups
from opdump.msaccucmp.comparison.mapping_table import mapping_header, mapping_rows
from opdump.msaccucmp.comparison.network import Network, compare_network
from opdump.msaccucmp.comparison.numpy_files import compare_files, existing_file
from opdump.msaccucmp.comparison.option_checks import check_options
from opdump.msaccucmp.comparison.result_table import Columns, Row, write_table
from opdump.msaccucmp.custom_scripts import load_scripts
from opdump.msaccucmp.dump_source import check_path
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
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
        from opdump.msaccucmp.comparison.single_operator import detail_by_rules

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
        raise CommandError(ExitCode.BAD_PATH, f"{path} is no directory; -c names one with the user's scripts")
    return path


def _rules(option: str, text: str) -> FusionRules | None:
    if not text:
        return None
    path = os.path.realpath(text)
    check_path(path)
    if not os.path.isfile(path):
        raise CommandError(ExitCode.BAD_PATH, f"{option} {path} is no file")
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
                ExitCode.BAD_PARAMETER, f"{option} has no meaning for {mine.kind.value} against {golden.kind.value}"
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
        from opdump.msaccucmp.comparison.single_operator import detail_of_dumps

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
