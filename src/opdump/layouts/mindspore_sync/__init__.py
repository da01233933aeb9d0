"""MindSpore's synchronous dump: files named by operator, one directory per rank, net, graph and iteration."""

from __future__ import annotations

from opdump.index.payload import FilePayload
from opdump.layouts.mindspore_sync.names import FileName, parse_file_name
from opdump.layouts.mindspore_sync.reader import RankTree, read_tree
from opdump.layouts.mindspore_sync.writer import StepRecords, SyncWriter

__all__ = [
    "FileName",
    "FilePayload",
    "RankTree",
    "StepRecords",
    "SyncWriter",
    "parse_file_name",
    "read_tree",
]
