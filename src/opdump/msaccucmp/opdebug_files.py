"""Converts overflow files to JSON, one file for each output."""

from __future__ import annotations

import os
import struct

from opdump.dump_file import DumpFile
from opdump.dump_file.opdebug import ACCELERATORS, OPDEBUG_MAGIC, OpdebugRecord, decode_opdebug, opdebug_json
from opdump.errors import CorruptDumpError
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_elements import check_data_type, decode
from opdump.msaccucmp.output_folder import OutputFolder, write_whole


def convert_opdebug(path: str, file: DumpFile, output: OutputFolder) -> list[OpdebugRecord]:
    """Write `<name>.output.<i>.json` for every output; returns the records.

    Long names are not shortened. Raises CommandError if a record is not an overflow record or its file cannot be written, and
    AbortError if it is cut off.
    """
    for tensor in (*file.outputs, *file.inputs):
        check_data_type(tensor)
    records = []
    for tensor in file.outputs:
        record = read_record(decode(tensor).tobytes(), path)
        for problem in record.problems:
            log("ERROR", problem)
        target = os.path.join(output.path, f"{os.path.basename(path)}.{tensor.io}.{tensor.slot}.json")
        try:
            write_whole(target, [opdebug_json(record).encode()])
        except OSError as error:
            raise CommandError(ExitCode.CANNOT_WRITE, f"{target} cannot be written ({error.strerror})") from error
        log("INFO", f"{tensor.name} has been converted to {target}")
        records.append(record)
    return records


def read_record(payload: bytes, path: str) -> OpdebugRecord:
    """The record, with the errors of the original for an invalid one."""
    try:
        return decode_opdebug(payload, path)
    except CorruptDumpError as error:
        magic = struct.unpack_from("<I", payload)[0] if len(payload) >= 4 else None
        if magic is None:
            raise AbortError(str(error)) from error
        if magic != OPDEBUG_MAGIC:
            raise CommandError(ExitCode.BAD_DUMP, str(error)) from error
        if len(payload) >= 24 and struct.unpack_from("<I", payload, 12)[0] >= len(ACCELERATORS):
            raise CommandError(ExitCode.BAD_ACCELERATOR, str(error)) from error
        raise AbortError(str(error)) from error
