"""Malicious indexes: each kind is a change of a valid one."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.layouts.filing import run_sql

Change = Callable[[Path], None]

_NO_VIEW = "DROP VIEW tensor_records"
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
_MUCH = "hex(zeroblob(400000000))"
_SPACES: Final = {"a tab": "\t", "a line": "\n", "a form feed": "\f", "a return": "\r\n", "a comment": "/**/"}


def all_kinds() -> Mapping[str, Change]:
    """Every kind by name."""
    return {**_generated(), **_schemas(), **_values(), **_multiplying(), **_files(), **_random_pages()}


def _generated() -> dict[str, Change]:
    """Computed columns: with every kind of white space, virtual and stored."""
    kinds: dict[str, Change] = {}
    for name, space in _SPACES.items():
        for storage, value in (("VIRTUAL", _MUCH), ("STORED", "hex(zeroblob(1000000))")):
            column = f"plan TEXT{space}GENERATED{space}ALWAYS{space}AS{space}({value}){space}{storage}"
            # A stored value is computed once when it is written; a virtual one burdens only its readers.
            built = column.replace(value, "1") if storage == "VIRTUAL" else column
            kinds[f"a {storage} column after {name}"] = _remade(
                "runs", "plan TEXT NOT NULL", column, rows=1, built=built
            )
        short = f"plan TEXT{space}AS{space}({_MUCH})"
        kinds[f"a computed column after {name}"] = _remade(
            "runs", "plan TEXT NOT NULL", short, rows=1, built=short.replace(_MUCH, "1")
        )
    many = (
        f"timestamps TEXT\nAS ('[' || substr(replace({_MUCH.replace('400000000', '20000000')}, '0', '1,'), 3) || ']')"
    )
    kinds["computed time stamps"] = _remade(
        "batches", "timestamps TEXT NOT NULL", many, rows=50, built="timestamps TEXT AS ('[]')"
    )
    kinds["a hidden column"] = _in_schema("runs", "plan TEXT NOT NULL", "plan TEXT NOT NULL, more AS (1)")
    kinds["an added computed column"] = run_sql(f"ALTER TABLE runs ADD COLUMN more TEXT AS ({_MUCH})")
    return kinds


def _schemas() -> dict[str, Change]:
    endless_check = f"started INTEGER NOT NULL CHECK (({_ENDLESS}) > 0)"
    return {
        "a view in the place of a table": run_sql(_NO_VIEW, "DROP TABLE runs", f"CREATE VIEW runs AS {_ENDLESS}"),
        "a view with a table's columns": run_sql(
            _NO_VIEW,
            "ALTER TABLE totals RENAME TO held",
            "CREATE VIEW totals AS SELECT a.* FROM held a, held b, held c",
        ),
        "another view": run_sql(f"CREATE VIEW more AS {_ENDLESS}"),
        "a trigger": run_sql(f"CREATE TRIGGER t AFTER INSERT ON runs BEGIN {_ENDLESS}; END"),
        "a trigger on a view": run_sql(f"CREATE TRIGGER t INSTEAD OF INSERT ON tensor_records BEGIN {_ENDLESS}; END"),
        "an index on an expression": run_sql("CREATE INDEX i ON runs(length(plan) * 2)"),
        "an index of part of a table": run_sql("CREATE INDEX i ON runs(plan) WHERE id > 0"),
        "an index on JSON": run_sql("CREATE INDEX i ON batches(json_array_length(timestamps))"),
        "a check with an endless query": _in_schema("runs", "started INTEGER NOT NULL", endless_check),
        "a check of a huge value": _in_schema(
            "runs", "started INTEGER NOT NULL", f"started INTEGER NOT NULL CHECK (length({_MUCH}) > 0)"
        ),
        "another collation": _in_schema("operators", "op_name TEXT NOT NULL", "op_name TEXT COLLATE NOCASE NOT NULL"),
        "an unknown collation": _in_schema("operators", "op_name TEXT NOT NULL", "op_name TEXT COLLATE own NOT NULL"),
        "a default that computes": _in_schema("runs", "ended INTEGER", f"ended INTEGER DEFAULT ({_MUCH})"),
        "another type": _in_schema("runs", "started INTEGER NOT NULL", "started BLOB NOT NULL"),
        "a column without NOT NULL": _in_schema("runs", "started INTEGER NOT NULL", "started INTEGER"),
        "a table without row ids": _remade(
            "totals", "PRIMARY KEY(run, name))", "PRIMARY KEY(run, name)) WITHOUT ROWID", rows=1
        ),
        "a foreign key": _in_schema("runs", "ended INTEGER", "ended INTEGER REFERENCES runs(id) ON DELETE CASCADE"),
        "another table": run_sql("CREATE TABLE more(a)"),
        "another table without a name": run_sql('CREATE TABLE ""(a)'),
        "a table of SQLite's statistics": run_sql("ANALYZE"),
        "a virtual table": run_sql("CREATE VIRTUAL TABLE more USING fts5(a)"),
        "a virtual table in the place of a table": run_sql(
            _NO_VIEW, "DROP TABLE totals", "CREATE VIRTUAL TABLE totals USING fts5(run, name, value)"
        ),
        "an R-tree": run_sql("CREATE VIRTUAL TABLE more USING rtree(id, a, b)"),
        "the largest pages": run_sql("PRAGMA page_size = 65536", "VACUUM"),
        "ten thousand tables": run_sql("BEGIN", *(f"CREATE TABLE t{n}(a)" for n in range(10_000)), "COMMIT"),
        "a table whose columns are in another order": _in_schema("totals", "run INTEGER NOT NULL, name", "name, run"),
        "a space that is part of a name": _in_schema("totals", "run INTEGER", "run\u00a0INTEGER"),
        "no table but ours in capitals": _in_schema("totals", "CREATE TABLE totals", "CREATE TABLE TOTALS"),
        "a definition of a megabyte": _in_schema("totals", "value INTEGER", f"value /*{'x' * 1_000_000}*/ INTEGER"),
        "a deep expression": run_sql(f"CREATE VIEW deep AS SELECT {'(' * 40}1{')' * 40}"),
        "a definition that is none": _in_schema("totals", "CREATE TABLE", "CREATE NOTHING"),
        "a table on the pages of another": run_sql(
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'operators')"
            " WHERE name = 'signatures'",
        ),
        "a table on the pages of the schema": run_sql(
            "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET rootpage = 1 WHERE name = 'arguments'"
        ),
    }


def _values() -> dict[str, Change]:
    huge, deep = 2**63 - 1, "[" * 100_000
    kinds: dict[str, Change] = {
        "a cyclic operator": run_sql("UPDATE operators SET stack = id, arguments = id, forward_op = op_name"),
        "a batch of itself": run_sql("UPDATE batches SET pattern = id + 1000000, run = id, step = id"),
        "NULL for an operator": run_sql("UPDATE patterns SET operators = '[null]'"),
        "a number that is infinite": run_sql("UPDATE operators SET position = 9e999"),
        "infinity in JSON": run_sql("UPDATE batches SET timestamps = '[Infinity]'"),
        "no number in JSON": run_sql("UPDATE batches SET timestamps = '[NaN]'"),
        "a shape of a million": run_sql(f"UPDATE signatures SET shape = '1{',1' * 1_000_000}'"),
        "a shape beyond numbers": run_sql(f"UPDATE signatures SET shape = '{'9' * 19}'"),
        "a shape of a thousand digits": run_sql(f"UPDATE signatures SET shape = '{'9' * 5_000}'"),
        "a negative shape": run_sql("UPDATE signatures SET shape = '-1'"),
        "a shape whose product overflows": run_sql(
            "UPDATE signatures SET shape = '9223372036854775807,9223372036854775807'"
        ),
        "a step beyond numbers": run_sql("UPDATE batches SET step = '99999999999999999999'"),
        "a count that is words": run_sql("INSERT OR REPLACE INTO totals SELECT id, 'executed', 'NaN' FROM runs"),
        "a statistic that is words": _places("statistics", '"0": {"max": "NaN", "nan count": "x"}'),
        "a statistic of thousands of digits": _places("statistics", f'"0": {{"max": {"9" * 4_000}}}'),
        "a count beyond 64 bits": _places("statistics", '"0": {"nan count": 9223372036854775808}'),
        "a surrogate in a digest": _places("statistics", r'"0": {"md5": "\ud800"}'),
        "a negative slot": run_sql("UPDATE signatures SET slot = -1"),
        "a negative size": run_sql("UPDATE signatures SET data_size = -9223372036854775808"),
        "NUL in names": run_sql("UPDATE operators SET op_name = 'a' || char(0) || 'b'"),
        "NUL in a file": _places("files", r'"0": "a\u0000b"'),
        "a surrogate": run_sql("UPDATE operators SET op_name = CAST(x'eda080' AS TEXT)"),
        "escapes in names": run_sql("UPDATE operators SET op_name = char(27) || '[2J' || op_name, skip = char(27)"),
        "a giant name": run_sql("UPDATE operators SET op_name = hex(zeroblob(2000000))"),
        "giant names": run_sql("UPDATE operators SET op_type = hex(zeroblob(30000)), op_name = hex(zeroblob(30000))"),
        "a giant reason": run_sql("UPDATE operators SET skip = hex(zeroblob(2000000))"),
        "a giant blob": run_sql("UPDATE batches SET summaries = zeroblob(5000000)"),
        "giant time stamps": run_sql("UPDATE batches SET timestamps = hex(zeroblob(2000000))"),
        "giant arguments": run_sql(f"UPDATE arguments SET json = '{{\"a\": [{'[],' * 30_000}[]]}}'"),
        "deep time stamps": run_sql(f"UPDATE batches SET timestamps = '{deep}'"),
        "arguments of no operator": run_sql("UPDATE batches SET arguments = '[[1000000, 1]]'"),
        "arguments that are none": run_sql("UPDATE batches SET arguments = '[[0, 1000000]]'"),
        "arguments that are no pairs": run_sql("UPDATE batches SET arguments = '[[0], 1, null, [0, true]]'"),
        "words for arguments": run_sql("UPDATE batches SET arguments = 'none'"),
        "giant arguments of a batch": run_sql(f"UPDATE batches SET arguments = '[{'[0, 0],' * 300_000}[0, 0]]'"),
        "deep arguments": run_sql(f"UPDATE batches SET arguments = '{deep}'"),
        "deep statistics": run_sql(f"UPDATE batches SET statistics = '{deep}'"),
        "deep totals": run_sql(f"UPDATE runs SET plan = '{deep}', command = '{deep}'"),
        "words for statistics": _places("statistics", '"0": {"max": [1, {}]}'),
        "a file outside": _places("files", '"0": "../../../../etc/passwd"'),
        "an absolute file": _places("files", '"0": "/etc/passwd"'),
        "a number for a file": _places("files", '"0": 1'),
        "words for files": run_sql("UPDATE batches SET files = 'none'"),
        "an array of files": run_sql("""UPDATE batches SET files = '["a", "b"]'"""),
        "a blob for files": run_sql("UPDATE batches SET files = x'7b7d'"),
        "deep files": run_sql(f"UPDATE batches SET files = '{deep}'"),
        "files of no tensors": _places("files", '"1000000": "a"'),
        "a file of a place that is no number": _places("files", '"²": "a", "": "b"'),
        "a file of a place beyond numbers": _places("files", '"' + "9" * 5_000 + '": "a"'),
        "giant files": _places("files", '"0": "a",' * 300_000 + '"0": "b"'),
        "numbers for statistics": _places("statistics", '"0": 1'),
        "runs by the thousand": run_sql(
            "INSERT INTO runs SELECT NULL, started, ended, rank_id, device_target, framework, framework_version,"
            " opdump_version, process, command, plan FROM runs, (" + _numbers(5_000) + ")",
            "INSERT OR REPLACE INTO totals SELECT id, 'n', 1 FROM runs",
        ),
        "steps by the thousand": run_sql(
            "INSERT INTO patterns VALUES (1000000, '[]', '[]')",
            "INSERT INTO batches SELECT NULL, 1, i + 100, 1000000, '[]', NULL, '{}', '[]', NULL, NULL FROM ("
            + _numbers(5_000)
            + ")",
        ),
        "a stack of a hundred thousand lines": run_sql(*_deep_stack(100_000)),
    }
    for table, column in (
        ("batches", "run"),
        ("batches", "step"),
        ("batches", "pattern"),
        ("runs", "started"),
        ("runs", "ended"),
        ("runs", "rank_id"),
        ("runs", "process"),
        ("totals", "value"),
        ("operators", "graph_id"),
        ("operators", "stack"),
        ("operators", "position"),
        ("operators", "occurrence"),
        ("operators", "device_id"),
        ("operators", "arguments"),
        ("signatures", "data_size"),
        ("signatures", "slot"),
        ("stacks", "callers"),
        ("stacks", "line"),
        ("lines", "line"),
    ):
        for word, value in (("the largest", huge), ("the smallest", -huge - 1)):
            kinds[f"{word} in {table}.{column}"] = run_sql(f"UPDATE {table} SET {column} = {value}")
    for stamp in (huge, -huge - 1, -1):
        kinds[f"{stamp} for a time stamp"] = run_sql(
            f"UPDATE batches SET timestamps = json_set(timestamps, '$[0]', {stamp})"
        )
    for word, number in (("infinite", math.inf), ("negative", -1.0), ("huge", 1e308)):
        kinds[f"{word} numbers in summaries"] = _summaries_of(number)
    return kinds


def _places(column: str, entries: str) -> Change:
    """Put an object of these entries into every batch."""
    return run_sql(f"UPDATE batches SET {column} = '{{{entries}}}'")


def _summaries_of(value: float) -> Change:
    """Set every number of every summary to this value."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            rows = database.execute("SELECT id, length(summaries) FROM batches WHERE summaries NOTNULL").fetchall()
            for number, length in rows:
                filled = struct.pack("<d", value) * (length // 8)
                database.execute("UPDATE batches SET summaries = ? WHERE id = ?", (filled, number))

    return change


def _multiplying() -> dict[str, Change]:
    """Small files that expand to very much."""
    operator = "(SELECT MIN(id) FROM operators)"
    signature = "(SELECT MIN(id) FROM signatures)"
    pairs = f"(SELECT '[' || group_concat('[0,' || {signature} || ']') || ']' FROM ({_numbers(25_000)}))"
    return {
        "a pattern that many batches share": run_sql(
            f"INSERT INTO patterns VALUES (1000000, '[' || {operator} || ']', {pairs})",
            "INSERT INTO batches SELECT NULL, 1, i + 100, 1000000, '[1]', NULL, '{}', '[]', NULL, NULL FROM ("
            + _numbers(1_000)
            + ")",
        ),
        "a pattern that many batches of one step share": run_sql(
            f"INSERT INTO patterns VALUES (1000000, '[' || {operator} || ']', {pairs})",
            "INSERT INTO batches SELECT NULL, 1, 0, 1000000, '[1]', NULL, '{}', '[]', NULL, NULL FROM ("
            + _numbers(1_000)
            + ")",
        ),
        "many small patterns in turn": run_sql(
            f"INSERT INTO patterns SELECT 1000000 + i, '[' || {operator} || ']', '[[0,' || {signature} || ']'"
            f" || substr(hex(zeroblob(4000)), 1, 0) || replace(hex(zeroblob(4000)), '00', '  ') || ']'"
            f" FROM ({_numbers(17)})",
            "INSERT INTO batches SELECT NULL, 1, i + 100, 1000000 + i % 17, '[1783959000000000]', NULL, '{}', '[]', NULL, NULL"
            " FROM (" + _numbers(1_000) + ")",
        ),
        "many operators with long names": run_sql(
            "UPDATE operators SET op_name = hex(zeroblob(32000)), op_type = hex(zeroblob(32000))",
            f"INSERT INTO patterns SELECT 1000000, '[' || group_concat({operator}) || ']', '[]' FROM ({_numbers(5_000)})",
            "INSERT INTO batches SELECT NULL, 1, 100, 1000000, '[' || group_concat(1000 + i) || ']', NULL, '{}', '[]', NULL, NULL"
            " FROM (" + _numbers(5_000) + ")",
        ),
        "many operators with large arguments": run_sql(
            f"UPDATE arguments SET json = (SELECT json_group_object('k' || i, i) FROM ({_numbers(5_000)}))",
            "UPDATE operators SET arguments = (SELECT MIN(id) FROM arguments)",
            f"INSERT INTO patterns SELECT 1000000, '[' || group_concat({operator}) || ']', '[]' FROM ({_numbers(5_000)})",
            "INSERT INTO batches SELECT NULL, 1, 100, 1000000, '[' || group_concat(1000 + i) || ']', NULL, '{}', '[]', NULL, NULL"
            " FROM (" + _numbers(5_000) + ")",
        ),
        "many operators with deep stacks": run_sql(
            *_deep_stack(50_000),
            f"INSERT INTO patterns SELECT 1000000, '[' || group_concat({operator}) || ']', '[]' FROM ({_numbers(5_000)})",
            "INSERT INTO batches SELECT NULL, 1, 100, 1000000, '[' || group_concat(1000 + i) || ']', NULL, '{}', '[]', NULL, NULL"
            " FROM (" + _numbers(5_000) + ")",
        ),
    }


def _deep_stack(lines: int) -> tuple[str, ...]:
    """Give every operator a stack of this many lines."""
    return (
        "INSERT INTO lines VALUES (1000000, 'f.py', 1, 'f', 'c')",
        "INSERT INTO stacks VALUES (1000000, 0, 1000000)",
        f"INSERT INTO stacks SELECT 1000001 + i, 1000000 + i, 1000000 FROM ({_numbers(lines - 1)})",
        "UPDATE operators SET stack = (SELECT MAX(id) FROM stacks)",
    )


def _numbers(count: int) -> str:
    return f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count}) SELECT i FROM n"


def _files() -> dict[str, Change]:
    """Files beside the index, and its header."""
    return {
        "a write-ahead log": run_sql("PRAGMA journal_mode = WAL"),
        "a head that tells of a write-ahead log": _patch(18, b"\x02\x02"),
        "a write-ahead log beside it": lambda path: _beside(path, "-wal", b"\x37\x7f\x06\x82" + bytes(100_000)),
        "shared memory beside it": lambda path: _beside(path, "-shm", bytes(100_000)),
        "a journal of noise": lambda path: _beside(path, "-journal", random.Random(1).randbytes(50_000)),
        "a hot journal of noise": lambda path: _beside(path, "-journal", _hot_journal(path)),
        "a hot journal that names another": lambda path: _beside(
            path, "-journal", _hot_journal(path) + _naming(path.with_name("kept.txt"))
        ),
        "a journal that is a pipe": lambda path: os.mkfifo(path.with_name(path.name + "-journal")),
        "a journal that is a link": lambda path: path.with_name(path.name + "-journal").symlink_to("/dev/zero"),
        "a page size of one": _patch(16, b"\x00\x01"),
        "a page size of 65536": _patch(16, b"\x00\x01\x01\x01"),
        "all of the page reserved": _patch(20, b"\xff"),
        "a text encoding that is none": _patch(56, b"\x00\x00\x00\x09"),
        "text in UTF-16": _patch(56, b"\x00\x00\x00\x02"),
        "a schema of a later format": _patch(44, b"\x00\x00\x00\x09"),
        "a free list that leads nowhere": _patch(32, b"\x7f\xff\xff\xff\x7f\xff\xff\xff"),
        "more pages than the file": _patch(28, b"\x7f\xff\xff\xff"),
        "a version of a longer number": _patch(60, b"\xff\xff\xff\xff"),
        "a file that is mostly holes": lambda path: os.truncate(path, 1 << 32),
        "an overflow chain in a circle": _circular,
    }


def _random_pages() -> dict[str, Change]:
    """Randomly changed bytes, with a fixed seed."""
    return {f"damage by chance {seed}": _damage(seed) for seed in range(20)}


def _damage(seed: int) -> Change:
    def change(path: Path) -> None:
        chance = random.Random(seed)
        data = bytearray(path.read_bytes())
        for _ in range(1 << chance.randrange(8)):
            at = chance.randrange(100, len(data))
            if chance.random() < 0.5:
                at -= at % 4096 - chance.randrange(16)  # the page header: its type, its cells
            at = min(max(at, 100), len(data) - 1)
            data[at] = chance.choice((0, 1, 5, 13, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        path.write_bytes(data)

    return change


def _circular(path: Path) -> None:
    """A value of many pages that are linked in a circle."""
    run_sql("UPDATE batches SET timestamps = '[' || replace(hex(zeroblob(50000)), '0', ' ') || ']'")(path)
    data = bytearray(path.read_bytes())
    size = 4096
    for start in range(size, len(data), size):
        following = struct.unpack_from(">I", data, start)[0]
        if following * size == start + size and data[start + 4 : start + 100] == b" " * 96:
            struct.pack_into(
                ">I", data, start, start // size + 1
            )  # SQLite counts pages from 1, so this is the page itself
    path.write_bytes(data)


def _remade(table: str, old: str, new: str, *, rows: int, built: str = "") -> Change:
    """Change the definition of a column; the rows are kept, and copied while the column has the definition `built`."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            text = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
            assert old in text
            database.execute(_NO_VIEW)
            database.execute(f"ALTER TABLE {table} RENAME TO held")
            database.execute(text.replace(old, built or new))
            kept = [row[1] for row in database.execute(f"PRAGMA table_xinfo({table})") if row[6] == 0]
            names = ", ".join(kept)
            for number in range(rows):
                values = ", ".join(f"id + {number}" if name == "id" else name for name in kept)
                database.execute(f"INSERT INTO {table}({names}) SELECT {values} FROM held LIMIT 100")
            database.execute("DROP TABLE held")
            if built:
                database.execute("PRAGMA writable_schema = ON")
                changed = (text.replace(old, new), table)
                database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", changed)

    return change


def _in_schema(table: str, old: str, new: str) -> Change:
    """Change the definition of the table only in the schema."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            (text,) = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            assert old in text
            database.execute("PRAGMA writable_schema = ON")
            database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text.replace(old, new), table))

    return change


def _patch(at: int, content: bytes) -> Change:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at : at + len(content)] = content
        path.write_bytes(data)

    return change


def _beside(path: Path, ending: str, content: bytes) -> None:
    path.with_name(path.name + ending).write_bytes(content)


def _hot_journal(path: Path) -> bytes:
    """A journal that SQLite rolls back, which overwrites the second page with noise."""
    size = path.stat().st_size // 4096
    head = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, 0, size, 512, 4096)
    page = random.Random(2).randbytes(4096)
    checksum = sum(page[at] for at in range(4096 - 200, 0, -200)) & 0xFFFFFFFF
    return head.ljust(512, b"\0") + struct.pack(">I", 2) + page + struct.pack(">I", checksum)


def _naming(above: Path) -> bytes:
    """The end of a journal that names a super-journal."""
    name = os.fsencode(above)
    return (
        struct.pack(">I", 1_048_577)
        + name
        + struct.pack(">II", len(name), sum(name))
        + bytes.fromhex("d9d505f920a163d7")
    )
