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

from opdump.interpreter.lasting_imports import imported_for_good
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log

_SAFE: Final = re.compile(r"[_A-Za-z0-9/.,-]*")
_LATER: Final = ("compare", "file_compare")


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code. Usage errors and -h leave through SystemExit, as argparse does."""
    started = time.monotonic()
    if os.geteuid() == 0:
        log("WARNING", "running as root; an ordinary user is safer")
    parser = _parser()
    if arguments and arguments[0] in _LATER:
        log("ERROR", f"{arguments[0]} comes with a later version of opdump; convert and overflow are here")
        return int(ExitCode.NOT_SUPPORTED_YET)
    options = parser.parse_args(arguments)
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
        with imported_for_good("opdump.msaccucmp.convert"):
            from opdump.msaccucmp.convert import run_convert
        return run_convert(options)
    if options.command == "overflow":
        from opdump.msaccucmp.overflow import run_overflow

        return run_overflow(options)
    parser.print_help()
    return ExitCode.BAD_PARAMETER


def _safe_path(text: str) -> str:
    if not _SAFE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: only letters, digits and the characters _/.,- may be in this path")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msaccucmp", description="Converts dump files of Ascend devices, as msaccucmp.py of CANN does."
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("compare", help="comes with a later version", add_help=False)
    convert = commands.add_parser("convert", help="dump files to npy, bin or pt files")
    _add_convert(convert)
    overflow = commands.add_parser("overflow", help="what overflowed, from the overflow files of a directory")
    overflow.add_argument("-d", "--dump_path", required=True, type=_safe_path, help="the dump directory")
    overflow.add_argument(
        "-out", "--output", dest="output_path", required=True, type=_safe_path, help="where the results go"
    )
    overflow.add_argument(
        "-n", "--top_n", type=int, choices=range(1, 6), default=1, help="how many overflows, 1 without it"
    )
    commands.add_parser("file_compare", help="comes with a later version", add_help=False)
    return parser


def _add_convert(convert: argparse.ArgumentParser) -> None:
    convert.add_argument(
        "-d",
        "--dump_file",
        dest="dump_path",
        required=True,
        type=_safe_path,
        help="a dump file, a directory (its files, not those below it), or several files with commas between them",
    )
    convert.add_argument("-f", "--format", help="convert to this format, such as NCHW")
    convert.add_argument("-s", "--shape", help="the shape in that format, such as 1,3,224,224")
    index = convert.add_mutually_exclusive_group()
    index.add_argument("-o", "--output_tensor", dest="output", help="only the output of this index, with -f")
    index.add_argument("-i", "--input_tensor", dest="input", help="only the input of this index, with -f")
    convert.add_argument("-c", "--custom_script_path", help="directory of format_convert/*.py, with -f")
    convert.add_argument("-out", "--output", dest="output_path", default="", help="where the results go, else here")
    convert.add_argument(
        "-v", "--version", dest="dump_version", type=int, choices=(1, 2), default=2, help="taken for 2 whatever it says"
    )
    convert.add_argument(
        "-t",
        "--type",
        dest="output_file_type",
        choices=("npy", "bin", "msnpy", "pt"),
        default="npy",
        help="npy without it",
    )
