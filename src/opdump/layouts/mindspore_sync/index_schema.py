"""The index of a rank: `.dump_metadata/index.sqlite`, what file names and csv files lose.

True names, element types before widening, execution order, stacks, arguments, what was skipped and why, and every statistic
in full precision. A plain SQLite file that other tools may query (`SELECT * FROM tensor_records`).

It keeps a rollback journal, not a write-ahead log: such a file can be read from a read-only directory and over a network
file system. Each step is one transaction on a connection of its own, so a process that is killed leaves the last finished
step, and a forked process shares no connection.
"""

from __future__ import annotations

import struct
from typing import Final

INDEX_NAME: Final = "index.sqlite"
SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x6F706475  # "opdu"

SUMMARY: Final = struct.Struct("<11d")
"""A summary as a blob: the fields of `kernels.SUMMARY_FIELDS` in order."""

TABLES: Final = (
    """CREATE TABLE runs(
        id INTEGER PRIMARY KEY, started INTEGER NOT NULL, ended INTEGER, rank_id INTEGER NOT NULL,
        device_target TEXT NOT NULL, framework TEXT NOT NULL, framework_version TEXT NOT NULL,
        opdump_version TEXT NOT NULL, process INTEGER NOT NULL, command TEXT NOT NULL, plan TEXT NOT NULL)""",
    # What one call filed: the rows first <= id < last of executions and of tensors.
    """CREATE TABLE batches(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL,
        first_execution INTEGER NOT NULL, last_execution INTEGER NOT NULL,
        first_tensor INTEGER NOT NULL, last_tensor INTEGER NOT NULL)""",
    # One row for each distinct way in which an operator ran: the same in every step of a regular training.
    """CREATE TABLE operators(
        id INTEGER PRIMARY KEY, op_type TEXT NOT NULL, op_name TEXT NOT NULL, net_name TEXT NOT NULL,
        graph_id INTEGER NOT NULL, rank_id INTEGER NOT NULL, device_id INTEGER NOT NULL, task_id INTEGER NOT NULL,
        stream_id INTEGER NOT NULL, phase TEXT NOT NULL, kernel TEXT NOT NULL, forward_op TEXT NOT NULL,
        position INTEGER NOT NULL, occurrence INTEGER NOT NULL, skip TEXT NOT NULL, stack INTEGER NOT NULL,
        arguments INTEGER NOT NULL)""",
    "CREATE TABLE executions(id INTEGER PRIMARY KEY, operator INTEGER NOT NULL, timestamp INTEGER NOT NULL)",
    """CREATE TABLE frames(
        stack INTEGER NOT NULL, position INTEGER NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL,
        function TEXT NOT NULL, code TEXT NOT NULL, PRIMARY KEY(stack, position)) WITHOUT ROWID""",
    "CREATE TABLE arguments(id INTEGER PRIMARY KEY, json TEXT NOT NULL)",
    """CREATE TABLE signatures(
        id INTEGER PRIMARY KEY, io TEXT NOT NULL, slot INTEGER NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
        format TEXT NOT NULL, data_size INTEGER NOT NULL, argument TEXT NOT NULL, source TEXT NOT NULL,
        skip TEXT NOT NULL)""",
    # `summary`: eleven doubles; `statistics`: JSON of what a summary does not give (digests, or all of them without one);
    # `file`: relative to the rank's directory; `constant`: the data id of a constant, which belongs to no step.
    """CREATE TABLE tensors(
        id INTEGER PRIMARY KEY, execution INTEGER NOT NULL, signature INTEGER NOT NULL, summary BLOB, statistics TEXT,
        file TEXT, constant INTEGER)""",
    "CREATE TABLE totals(run INTEGER NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY(run, name))",
)
VIEWS: Final = (
    """CREATE VIEW tensor_records AS
        SELECT batches.run, batches.step, operators.position, operators.op_type, operators.op_name,
               operators.occurrence, executions.timestamp, operators.graph_id, operators.phase, signatures.io,
               signatures.slot, signatures.dtype, signatures.shape, signatures.data_size, signatures.argument,
               signatures.source, tensors.file, COALESCE(NULLIF(signatures.skip, ''), operators.skip) AS skip
        FROM batches JOIN tensors ON tensors.id >= batches.first_tensor AND tensors.id < batches.last_tensor
        JOIN signatures ON signatures.id = tensors.signature JOIN executions ON executions.id = tensors.execution
        JOIN operators ON operators.id = executions.operator WHERE tensors.constant IS NULL""",
)
TABLE_NAMES: Final = (
    "runs",
    "batches",
    "operators",
    "executions",
    "frames",
    "arguments",
    "signatures",
    "tensors",
    "totals",
)
