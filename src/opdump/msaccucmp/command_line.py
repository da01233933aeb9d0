"""Parses and checks the command line in the order of the original.

See docs/msaccucmp.md#options-of-convert.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Sequence
from typing import Final

from opdump.interpreter.late_imports import imported_for_good
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log

_ALGORITHM_OPTIONS: Final = ("-alg", "--algorithm")
_SAFE: Final = re.compile(r"[_A-Za-z0-9/.,-]*")


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code. Usage errors and -h leave through SystemExit, as argparse does."""
    started = time.monotonic()
    if os.geteuid() == 0:
        log("WARNING", "running as root; an ordinary user is safer")
    parser = _parser()
    options = parser.parse_args(_joined(arguments))
    try:
        code = _dispatch(parser, options)
    except CommandError as error:
        log("ERROR", str(error))
        code = error.code
    except AbortError as error:
        log("ERROR", f"the run was ended: {error}")
        code = ExitCode.UNEXPECTED
    except Exception as error:  # noqa: BLE001  # the original ends with 1 whatever comes
        log("ERROR", f"the run was ended: {type(error).__name__}: {error}")
        code = ExitCode.UNEXPECTED
    log("INFO", f"finished after {int(time.monotonic() - started)} seconds")
    return int(code)


def _dispatch(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ExitCode:
    if options.command == "convert":
        with imported_for_good("opdump.msaccucmp.conversion"):
            from opdump.msaccucmp.conversion import run_convert
        return run_convert(options)
    if options.command == "overflow":
        from opdump.msaccucmp.conversion import run_overflow

        return run_overflow(options)
    if options.command == "compare":
        from opdump.msaccucmp.comparison.command import run_compare

        return run_compare(options)
    if options.command == "file_compare":
        from opdump.msaccucmp.comparison.command import run_file_compare

        return run_file_compare(options)
    parser.print_help()
    return ExitCode.BAD_PARAMETER


def _joined(arguments: Sequence[str]) -> list[str]:
    """The arguments, with several numbers after `-alg` joined: `-alg 3 1` becomes `-alg 3,1`."""
    result: list[str] = []
    listing = False
    for argument in arguments:
        number = argument.isdecimal()
        if listing and number and result[-1].replace(",", "").isdecimal():
            result[-1] += f",{argument}"
            continue
        listing = argument in _ALGORITHM_OPTIONS or (listing and number)
        result.append(argument)
    return result


def _safe_path(text: str) -> str:
    if not _SAFE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: only letters, digits and the characters _/.,- may be in this path")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msaccucmp", description="Convert dump files of Ascend devices, like msaccucmp.py of CANN."
    )
    commands = parser.add_subparsers(dest="command")
    _add_compare(commands.add_parser("compare", help="compare dumps with dumps, or with the results of the framework"))
    convert = commands.add_parser("convert", help="convert dump files to npy, bin or pt files")
    _add_convert(convert)
    overflow = commands.add_parser("overflow", help="report overflows, from the overflow files of a directory")
    overflow.add_argument("-d", "--dump_path", required=True, type=_safe_path, help="dump directory")
    overflow.add_argument(
        "-out", "--output", dest="output_path", required=True, type=_safe_path, help="output directory"
    )
    overflow.add_argument(
        "-n", "--top_n", type=int, choices=range(1, 6), default=1, help="number of overflows, default 1"
    )
    files = commands.add_parser("file_compare", help="compare two npy files")
    _add_sides(files)
    files.add_argument("-out", "--output", dest="output_path", required=True, type=_safe_path, help="output directory")
    return parser


def _add_sides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--my_dump_path", dest="my_dump_path", required=True, type=_safe_path, help="dump to be checked"
    )
    parser.add_argument(
        "-g",
        "--golden_dump_path",
        dest="golden_dump_path",
        required=True,
        type=_safe_path,
        help="reference (ground truth)",
    )


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _add_sides(compare)
    add = compare.add_argument
    add("-f", "--fusion_rule_file", dest="fusion_rule_file", default="", type=_safe_path, help="fusion rules of -m")
    add(
        "-q",
        "--quant_fusion_rule_file",
        dest="quant_fusion_rule_file",
        default="",
        type=_safe_path,
        help="fusion rules of a quantised model",
    )
    add(
        "-cf",
        "--close_fusion_rule_file",
        dest="close_fusion_rule_file",
        default="",
        type=_safe_path,
        help="fusion rules of -g, if it was compiled without fusion",
    )
    add(
        "-out",
        "--output",
        dest="output_path",
        default="",
        type=_safe_path,
        help="output directory, default the current one",
    )
    add(
        "-c",
        "--custom_script_path",
        dest="custom_script_path",
        default="",
        help="directory of algorithm/*.py and format_convert/*.py",
    )
    add("-a", "--algorithm_options", dest="algorithm_options", default="", help="algorithm:name=value,name=value;...")
    add(
        "-alg",
        "--algorithm",
        dest="algorithm",
        default="all",
        type=_safe_path,
        help="algorithms by number or name, separated by commas; default all",
    )
    add("-map", "--mapping", dest="mapping", action="store_true", help="only write the mapping between files")
    add("-overflow_detection", dest="overflow_detection", action="store_true", help="detect float16 overflow")
    add("-r", "--range", dest="range", default=None, help="range start,end,step of operators, counted from 1; with -f")
    add("-s", "--select", dest="select", default=None, help="indices of operators; with -f")
    add("-p", "--post_process", dest="post_process", type=int, choices=(0, 1), help="only for dumps of PyTorch")
    add(
        "-max",
        "--max_cmp_size",
        dest="max_cmp_size",
        type=int,
        default=0,
        help="maximum number of elements compared per tensor",
    )
    add("-advisor", dest="advisor", action="store_true", help="write advice on what to check first")
    add("-v", "--version", dest="dump_version", type=int, choices=(1, 2), default=2, help="always treated as 2")
    add("-op", "--op_name", dest="op_name", default=None, help="compare only this operator, element by element")
    index = compare.add_mutually_exclusive_group()
    index.add_argument("-o", "--output_tensor", dest="output", default=None, help="output of -op, default 0")
    index.add_argument("-i", "--input_tensor", dest="input", default=None, help="input of -op")
    add("--ignore_single_op_result", dest="ignore_result", action="store_true", help="do not list all elements of -op")
    add("-n", "--topn", dest="topn", type=int, default=None, help="number of largest errors of -op, default 20")
    add("-ml", "--max_line", dest="max_line", type=int, default=None, help="maximum lines in a file of -op")
    add("-ffts", dest="ffts", action="store_true", help="do not join threads of FFTS+")


def _add_convert(convert: argparse.ArgumentParser) -> None:
    convert.add_argument(
        "-d",
        "--dump_file",
        dest="dump_path",
        required=True,
        type=_safe_path,
        help="a dump file, a directory (without subdirectories), or several files separated by commas",
    )
    convert.add_argument("-f", "--format", help="convert to this format, such as NCHW")
    convert.add_argument("-s", "--shape", help="the shape in that format, such as 1,3,224,224")
    index = convert.add_mutually_exclusive_group()
    index.add_argument("-o", "--output_tensor", dest="output", help="only the output with this index, with -f")
    index.add_argument("-i", "--input_tensor", dest="input", help="only the input with this index, with -f")
    convert.add_argument("-c", "--custom_script_path", help="directory of format_convert/*.py, with -f")
    convert.add_argument(
        "-out", "--output", dest="output_path", default="", help="output directory, default the current one"
    )
    convert.add_argument(
        "-v", "--version", dest="dump_version", type=int, choices=(1, 2), default=2, help="always treated as 2"
    )
    convert.add_argument(
        "-t",
        "--type",
        dest="output_file_type",
        choices=("npy", "bin", "msnpy", "pt"),
        default="npy",
        help="default npy",
    )
