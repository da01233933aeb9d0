"""Rejects conflicting options of `compare`, and sets those that follow from others."""

from __future__ import annotations

import argparse
import os
import re
from typing import Final

from opdump.msaccucmp.comparison.group_choice import check_choice
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from opdump.msaccucmp.journal import log

_MOST_TOP: Final = 10_000
_LINES: Final = (10_000, 1_000_000)
_DEFAULT_TOP: Final = 20
_DEFAULT_LINES: Final = 1_000_000


def check_options(options: argparse.Namespace) -> None:
    """Raise CommandError if options conflict; fill in missing ones."""
    if options.dump_version == 1:
        log("WARNING", "-v 1 is taken for -v 2")
    if options.post_process is not None and not _are_h5(options):
        raise _refused("-p has a meaning only for dumps of PyTorch (.h5)")
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
        raise _refused("-map and -op do not go together")
    if not options.fusion_rule_file and not options.quant_fusion_rule_file:
        raise _refused("-map needs -f or -q")


def _check_choice(options: argparse.Namespace) -> None:
    if options.range and options.select:
        raise _refused("-r and -s do not go together")
    for option, value in (("-r", options.range), ("-s", options.select)):
        if value and not options.fusion_rule_file:
            raise _refused(f"{option} needs -f")
        if value and options.op_name:
            raise _refused(f"{option} and -op do not go together")
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
                raise _refused(f"{option} has a meaning only together with -op")
        return
    for text in (options.output, options.input):
        if text is not None and not re.fullmatch(r"[0-9]+", text):
            raise _refused(f"{text!r} is no index of a tensor; they are whole numbers from 0")
    options.topn = _DEFAULT_TOP if options.topn is None else options.topn
    options.max_line = _DEFAULT_LINES if options.max_line is None else options.max_line
    if not 1 <= options.topn <= _MOST_TOP:
        raise CommandError(ExitCode.BAD_INDEX, f"-n {options.topn} is not between 1 and {_MOST_TOP}")
    if not _LINES[0] <= options.max_line <= _LINES[1]:
        raise _refused(f"-ml {options.max_line} is not between {_LINES[0]} and {_LINES[1]}")
