"""The schema of the index of a rank, `.dump_metadata/index.sqlite`.

It has true names, element types before widening, execution order, stacks, arguments, what was skipped and why, and every statistic in full precision.
It is a plain SQLite file that other tools may query (`SELECT * FROM tensor_records`, from SQLite 3.38 on).

A regular training runs the same operators on the same tensors in every step, so a step is one row of `batches`: the number of its pattern, and what
differs from step to step. The way in which an operator ran is a row of `operators`, the description of a tensor a row of `signatures`, and the
sequence of both in a step a row of `patterns`. Rows are only ever added to these three tables.

The index has a rollback journal, not a write-ahead log: such a file can be read from a read-only directory and over a network file system. Each step
is one transaction, so a killed process leaves the last finished step. The connection is kept for the next step, but closed before a fork.

This file is the only definition of the content of an index. Readers reject a file with any other table, view or column (`opening.py`), so each
change of `TABLES` or `VIEWS`, except of spaces, needs a new `SCHEMA_VERSION`. What the version before had instead goes to `SCHEMAS`, so that existing
dumps stay readable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

INDEX_NAME: Final = "index.sqlite"
SCHEMA_VERSION: Final = 8
APPLICATION_ID: Final = 0x6F706475  # "opdu"

SUMMARY: Final = struct.Struct("<11d")
"""A summary in a blob: the fields of `kernels.SUMMARY_FIELDS` in order."""

OPERATOR_FIELDS: Final = (
    *("op_type", "op_name", "net_name", "graph_id", "rank_id", "device_id", "task_id", "stream_id"),
    *("phase", "kernel", "forward_op", "order", "occurrence", "skip"),
)
"""The fields of an operator's record in the columns of `operators`, in order. They are followed by its stack and its arguments."""

TABLES: Final = (
    """CREATE TABLE runs(
        id INTEGER PRIMARY KEY, started INTEGER NOT NULL, ended INTEGER, rank_id INTEGER NOT NULL,
        device_target TEXT NOT NULL, framework TEXT NOT NULL, framework_version TEXT NOT NULL,
        opdump_version TEXT NOT NULL, process INTEGER NOT NULL, command TEXT NOT NULL, plan TEXT NOT NULL)""",
    # What one call wrote: a step, or a part of it. `timestamps`: JSON array, one for each operator of the pattern.
    # `summaries`: eleven doubles for each tensor of the pattern, NULL if no tensor has any. `counted`: JSON object, the number of operators without
    # data that an earlier batch lists, by reason. `arguments`: JSON array of pairs, the index of an operator in the pattern and a row of `arguments`,
    # for each operator whose arguments differ from its row of `operators`. What only some tensors have is a JSON object by their indices in the
    # pattern, from 0, and NULL if none has any: `files`, relative to the rank's directory; `statistics`, objects with what is not in a summary
    # (digests, or all statistics of a tensor without a summary).
    """CREATE TABLE batches(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, pattern INTEGER NOT NULL,
        timestamps TEXT NOT NULL, summaries BLOB, counted TEXT NOT NULL, arguments TEXT NOT NULL,
        files TEXT, statistics TEXT)""",
    # JSON arrays. `operators`: a row of `operators` for each execution, in execution order. `tensors`: for each tensor, a
    # pair of the index of its execution in `operators`, from 0, and its row of `signatures`.
    "CREATE TABLE patterns(id INTEGER PRIMARY KEY, operators TEXT NOT NULL, tensors TEXT NOT NULL)",
    # Constants belong to no step: `step` is the one in which the constant was written.
    """CREATE TABLE constants(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, data_id INTEGER NOT NULL,
        operator INTEGER NOT NULL, timestamp INTEGER NOT NULL, signature INTEGER NOT NULL, summary BLOB, statistics TEXT,
        file TEXT NOT NULL)""",
    # One row for each distinct way in which an operator ran, which is the same in every step of a regular training. `stack`, `arguments`: rows of
    # `stacks` and `arguments`, 0 for none.
    """CREATE TABLE operators(
        id INTEGER PRIMARY KEY, op_type TEXT NOT NULL, op_name TEXT NOT NULL, net_name TEXT NOT NULL,
        graph_id INTEGER NOT NULL, rank_id INTEGER NOT NULL, device_id INTEGER NOT NULL, task_id INTEGER NOT NULL,
        stream_id INTEGER NOT NULL, phase TEXT NOT NULL, kernel TEXT NOT NULL, forward_op TEXT NOT NULL,
        position INTEGER NOT NULL, occurrence INTEGER NOT NULL, skip TEXT NOT NULL, stack INTEGER NOT NULL,
        arguments INTEGER NOT NULL)""",
    # `line`: a row of `lines`, the innermost one. `callers`: the row of the stack that called it, a smaller number, or 0.
    "CREATE TABLE stacks(id INTEGER PRIMARY KEY, callers INTEGER NOT NULL, line INTEGER NOT NULL)",
    """CREATE TABLE lines(
        id INTEGER PRIMARY KEY, file TEXT NOT NULL, line INTEGER NOT NULL, function TEXT NOT NULL, code TEXT NOT NULL)""",
    "CREATE TABLE arguments(id INTEGER PRIMARY KEY, json TEXT NOT NULL)",
    # `sample`: the number of elements, the first ones, in the file of the tensor; 0 if the file has all of them. `memory`: JSON array of
    # storage, offset, strides (an array) and version; empty if unknown.
    """CREATE TABLE signatures(
        id INTEGER PRIMARY KEY, io TEXT NOT NULL, slot INTEGER NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
        format TEXT NOT NULL, data_size INTEGER NOT NULL, argument TEXT NOT NULL, source TEXT NOT NULL,
        skip TEXT NOT NULL, sample INTEGER NOT NULL, memory TEXT NOT NULL)""",
    "CREATE TABLE totals(run INTEGER NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY(run, name))",
    # What a run left out from some step on because a limit was reached: the fields of `Degradation`.
    """CREATE TABLE degradations(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, time INTEGER NOT NULL, bound TEXT NOT NULL,
        now TEXT NOT NULL, why TEXT NOT NULL)""",
)
VIEWS: Final = (
    # CROSS JOIN makes SQLite use this order, in which every later row is found by its number.
    """CREATE VIEW tensor_records AS
        SELECT batches.run, batches.step, operators.position, operators.op_type, operators.op_name,
               operators.occurrence,
               json_extract(batches.timestamps, '$[' || json_extract(tensors.value, '$[0]') || ']') AS timestamp,
               operators.graph_id, operators.phase, signatures.io, signatures.slot, signatures.dtype, signatures.shape,
               signatures.data_size, signatures.argument, signatures.source,
               json_extract(batches.files, '$."' || tensors.key || '"') AS file, signatures.sample,
               COALESCE(NULLIF(signatures.skip, ''), operators.skip) AS skip
        FROM batches CROSS JOIN patterns ON patterns.id = batches.pattern
        CROSS JOIN json_each(patterns.tensors) AS tensors
        CROSS JOIN operators
            ON operators.id = json_extract(patterns.operators, '$[' || json_extract(tensors.value, '$[0]') || ']')
        CROSS JOIN signatures ON signatures.id = json_extract(tensors.value, '$[1]')""",
)

_BY_SIGNATURE: Final = "JOIN signatures ON signatures.id = json_extract(tensors.value, '$[1]')"

FRAMES: Final = """CREATE TABLE frames(
        stack INTEGER NOT NULL, position INTEGER NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL,
        function TEXT NOT NULL, code TEXT NOT NULL, PRIMARY KEY(stack, position)) WITHOUT ROWID"""
EXTRAS: Final = """CREATE TABLE extras(
    batch INTEGER NOT NULL, tensor INTEGER NOT NULL, statistics TEXT, file TEXT, PRIMARY KEY(batch, tensor))
    WITHOUT ROWID"""
_WITHOUT_PLACES: Final = (
    (",\n        files TEXT, statistics TEXT)", ")"),  # of `batches`
    ("json_extract(batches.files, '$.\"' || tensors.key || '\"') AS file,", "extras.file,"),  # of the view
    (_BY_SIGNATURE, f"{_BY_SIGNATURE} LEFT JOIN extras ON extras.batch = batches.id AND extras.tensor = tensors.key"),
)
_WITHOUT_ARGUMENTS: Final = ((", arguments TEXT NOT NULL)", ")"),)  # of `batches`
_WITHOUT_MEMORY: Final = (
    *_WITHOUT_ARGUMENTS,
    (", memory TEXT NOT NULL)", ")"),  # of `signatures`
)
_WITHOUT_SAMPLE: Final = (
    *_WITHOUT_MEMORY,
    (", sample INTEGER NOT NULL)", ")"),  # of `signatures`
    (" signatures.sample,", ""),  # of the view
)


def _without(later: Iterable[tuple[str, str]], statements: Iterable[str]) -> tuple[str, ...]:
    """Return the statements without later additions. Each addition is given with the text that it replaced."""
    former = tuple(statements)
    for added, before in later:
        former = tuple(statement.replace(added, before) for statement in former)
    return former


_ALL: Final = (*TABLES, *VIEWS)
_UNTIL_STACKS: Final = tuple(FRAMES if "TABLE stacks" in each else each for each in _ALL if "TABLE lines" not in each)
_UNTIL_PLACES: Final = _without(
    _WITHOUT_PLACES,
    (part for each in _UNTIL_STACKS for part in ((each, EXTRAS) if "TABLE patterns" in each else (each,))),
)
_WITHOUT_BOUNDS: Final = tuple(each for each in _UNTIL_PLACES if "TABLE degradations" not in each)
BOUNDS_SINCE: Final = 5
"""The first version with a table of degradations."""
ARGUMENTS_SINCE: Final = 6
"""The first version in which a batch lists arguments that differ from its pattern. Before, each variant was a pattern of its own."""
PLACES_SINCE: Final = 7
"""The first version in which a batch lists the tensors with files and other statistics. Before, each had a row of `extras`."""
STACKS_SINCE: Final = 8
"""The first version in which stacks share their callers. Before, each stack had all its lines in `frames`."""

SCHEMAS: Final = {
    2: _without(_WITHOUT_SAMPLE, _WITHOUT_BOUNDS),
    3: _without(_WITHOUT_MEMORY, _WITHOUT_BOUNDS),
    4: _without(_WITHOUT_ARGUMENTS, _WITHOUT_BOUNDS),
    5: _without(_WITHOUT_ARGUMENTS, _UNTIL_PLACES),
    6: _UNTIL_PLACES,
    7: _UNTIL_STACKS,
    SCHEMA_VERSION: _ALL,
}
"""The tables and views of each version that can be read. Version 2: a sampled tensor was recorded as if the sample were the whole tensor.
Version 3: memory was not recorded. Version 4: runs had no limits."""


def may_lack_summaries(tensors: int, timestamps: str, extras: int) -> bool:
    """Return whether the summaries of a batch may be NULL: only if its row has two characters of `timestamps` for each tensor that is not in
    `extras`. This keeps a file from describing many more tensors than it has bytes.
    """
    return tensors - extras <= len(timestamps) // 2
