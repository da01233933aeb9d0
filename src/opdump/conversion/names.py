"""Names converted files like msaccucmp, so that scripts that search for them keep working.

    Conv2D.conv1.1.5.1732082705016774.output.0.npy                         npy, pt and txt
    Conv2D.conv1.1.5.1732082705016774.output.0.1x3x224x224.npy             with a format asked for: the final shape
    Conv2D.conv1.1.5.1732082705016774.output.0.150528.float16.NC1HWC0.bin  bin: elements, element type, format
    Conv2D.conv1.1.5.1732082705016774.output.0.1_3_224_224.float16.NCHW.bin
    Conv2D.conv1.1.5.1732082705016774.l1buffer.0.bin                       and space.0.bin
    Opdebug.Node_OpDebug.59.1597922031178434.output.0.json                 what an overflow left

A name of more than 255 bytes is replaced by the UUID of the long name in hexadecimal (version 3, DNS name space), and a row of
`mapping.csv` in its directory has both names. See docs/convert.md#other-file-formats.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from opdump.conversion.output_directory import LONGEST_NAME
from opdump.errors import CorruptDumpError

if TYPE_CHECKING:
    from opdump.conversion.plain_tensor import PlainTensor
    from opdump.conversion.plan import ConversionPlan
    from opdump.conversion.stored_tensor import StoredTensor


def tensor_ending(stored: StoredTensor | PlainTensor, plan: ConversionPlan) -> str:
    """The part of the file name of a tensor after the name of the dump."""
    base = f"{stored.tensor.io}.{stored.tensor.slot}"
    shape = stored.shape
    if plan.file_type == "bin":
        sizes = "_".join(map(str, shape)) or "1" if plan.format else str(math.prod(shape))
        return f"{base}.{sizes}.{stored.dtype_name}.{stored.format_name}.bin"
    if plan.format:
        return f"{base}.{'x'.join(map(str, shape)) or '1'}.{plan.file_type}"
    return f"{base}.{plan.file_type}"


def synchronous_name(dump: str, true_name: str, stored: StoredTensor) -> str:
    """The name of a tensor's file in the synchronous layout of MindSpore 2.3; `true_name` is the name in the header.

    Raises CorruptDumpError if the name of the dump file has no task and time.
    """
    from opdump.dump_file.names import UNKNOWN_ID, parse_dump_name
    from opdump.layouts.mindspore_sync.names import FileName, op_name_in_files, sanitise  # imports the whole layout

    name = parse_dump_name(dump)
    if name is None:
        raise CorruptDumpError(
            f"{dump}: is not the name of a dump file, which has the form Conv2D.conv1.1.5.1732082705016774; "
            "it cannot be placed in a MindSpore tree"
        )
    name = name.in_true_order(true_name)
    return str(
        FileName(
            op_type=sanitise(name.op_type),
            op_name=op_name_in_files(name.op_type, true_name or name.op_name, "mindspore-2.3"),
            task_id=name.task_id,
            stream_id=UNKNOWN_ID if name.stream_id is None else name.stream_id,
            timestamp=name.microseconds,
            io=stored.tensor.io,
            slot=stored.tensor.slot,
            format=sanitise(stored.format_name),
        )
    )


def short_name(name: str) -> str:
    """`name`, or its replacement if it is longer than a file system accepts."""
    # A character takes at most four bytes.
    if len(name) <= LONGEST_NAME // 4 or len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    import uuid  # long names are rare

    # Device names are ASCII. Other bytes appear in text as surrogates, which a UUID cannot be computed from.
    plain = os.fsencode(name).decode("utf-8", "backslashreplace")
    return uuid.uuid3(uuid.NAMESPACE_DNS, plain).hex + os.path.splitext(name)[1]
