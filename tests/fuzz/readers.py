"""The fuzzed functions: every function that reads a file from an untrusted source."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdump.catalog.catalog import open_dump
from opdump.comparison.pairs import read_matches
from opdump.configs.dialects import load_plan
from opdump.configs.watchpoints import watchpoints_of
from opdump.conversion.formatted import ConversionPlan
from opdump.conversion.overflow import find_overflows, read_overflow_json
from opdump.conversion.run import convert
from opdump.dump_file import names as dump_names
from opdump.dump_file import read_dump_file
from opdump.dump_file.dump_file import samples_of
from opdump.dump_file.opdebug import decode_opdebug, opdebug_json, status_words
from opdump.errors import CorruptDumpError, NoElementsError, OpdumpError, UndecodableTensorError
from opdump.index.runs import read_json_object
from opdump.layouts.ascend.operator_files import decode_operator_csv
from opdump.layouts.graph_files.ge.reading import read_ge_graph, read_notes, root_name
from opdump.layouts.graph_files.mindspore.ir import decode_ir
from opdump.layouts.graph_files.mindspore.pb import decode_pb
from opdump.layouts.graph_files.mindspore.spelling import decode_execution_history, decode_execution_order
from opdump.layouts.mindspore_sync import files as sync_files
from opdump.layouts.mindspore_sync import files as sync_names
from opdump.layouts.mindspore_sync.statistic_csv import decode_statistic_csv
from opdump.msaccucmp.comparison.fusion_rules import read_rules
from opdump.msaccucmp.comparison.golden_tensors import read_array
from opdump.msaccucmp.conversion import Settings, write_plainly
from opdump.msaccucmp.conversion import read_converted as read_for_msaccucmp
from opdump.msaccucmp.output_folder import OutputFolder
from opdump.plan import DumpPlan
from opdump.sink.npy import read_npy, read_npy_header, read_raw_npy
from opdump.testing import sample_step
from tests.fuzz.mutations import Kind
from tests.layouts.filing import file_steps

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
FOUND: Final = HERE / "found"
_DATA: Final = HERE.parent / "data"
_INDEX: Final = "rank_0/.dump_metadata/index.sqlite"
INPUT: Final = "input"
OUTPUT: Final = "output"
"""The directories that an input is read from, and that its reader may write to."""


@dataclass(frozen=True, slots=True)
class Reader:
    """`read` gets the path of an input, and raises OpdumpError if it refuses it.

    `share` is the reader's weight among all inputs. Seeds are the files of its folder in the corpus, and `files`.
    `around` creates the surroundings of an input, which then takes the place of its seed among them.
    """

    name: str
    read: Callable[[Path], object]
    kind: Kind
    share: int = 10
    files: tuple[Path, ...] = ()
    around: Callable[[Path], None] | None = None

    def seeds(self) -> Mapping[str, bytes]:
        """The seeds by path, relative to the directory that an input is read from."""
        found = {f"{path.parent.name}-{path.name}": path.read_bytes() for path in self.files}
        return found | dict(_files_below(CORPUS / self.name))

    def found(self) -> Iterator[tuple[str, bytes]]:
        """Inputs that once found a defect, with their paths."""
        for folder in sorted((FOUND / self.name).glob("*")):
            yield from _files_below(folder)


def _files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Relative paths and contents; files that end in `.gz` are decompressed."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        yield name.removesuffix(".gz"), gzip.decompress(data) if name.endswith(".gz") else data


def _output(path: Path) -> Path:
    return path.parent.parent / OUTPUT


def _dump_file(path: Path) -> None:
    file = read_dump_file(path)
    samples_of(file)
    for tensor in file.tensors:
        with suppress(UndecodableTensorError):
            tensor.to_host()
    for blob in (*file.buffers, *file.spaces):
        blob.data.read()


_PLANS: Final = (
    *(ConversionPlan(file_type="bin"), ConversionPlan(file_type="txt"), ConversionPlan(file_type="bin", format="NHWC")),
    *(ConversionPlan(format=name) for name in ("", "ND", "NCHW", "HWCN", "NC1HWC0", "FRACTAL_NZ", "FRACTAL_Z")),
)


def _convert(path: Path) -> None:
    """Convert with one of several plans; the content determines which."""
    plan = _PLANS[zlib.crc32(path.read_bytes()) % len(_PLANS)]
    done = convert([str(path)], _output(path), plan, jobs=1)
    for failure in done.failures:
        if failure.error == "MemoryError" or done.stopped:
            raise MemoryError(failure.reason)
    if done.failures:
        raise CorruptDumpError(done.failures[0].reason)


def _overflow_record(path: Path) -> None:
    record = decode_opdebug(path.read_bytes(), str(path))
    opdebug_json(record)
    for report in record.reports:
        for status in report.statuses:
            status_words(report.accelerator, status)


def _overflows(path: Path) -> None:
    search = find_overflows([str(path.parent)])
    if search.failures:
        raise CorruptDumpError(search.failures[0].reason)


def _npy(path: Path) -> None:
    for read in (read_npy_header, read_npy):
        with suppress(OpdumpError):
            read(path)
    read_raw_npy(path)


def _statistic_csv(path: Path) -> None:
    decode_statistic_csv(sync_files.read_table(path), where=str(path))


def _operator_csv(path: Path) -> None:
    decode_operator_csv(path.read_bytes(), where=str(path))


def _order(path: Path) -> None:
    decode = decode_execution_history if "global" in path.name else decode_execution_order
    decode(path.read_bytes(), where=str(path))


def _ge_graph(path: Path) -> None:
    root_name(path)
    for names_only in (True, False):
        read_ge_graph(path, names_only=names_only)


def _dump(path: Path) -> None:
    """Read the complete dump around the path: its catalog, and the values of its tensors."""
    problems = _problems(path)
    if problems:
        raise CorruptDumpError(problems[0])


def _index(path: Path) -> None:
    """Do the same for an index, which may list files that do not exist."""
    refused = [problem for problem in _problems(path) if path.name in problem]
    if refused:
        raise CorruptDumpError(refused[0])


def _problems(path: Path) -> list[str]:
    root = next(parent for parent in path.parents if parent.name == INPUT)
    catalog = open_dump(root, run="all")
    for record in catalog.tensors(include_skipped=True):
        for _ in record.statistics.items():
            pass
        with suppress(NoElementsError, UndecodableTensorError, CorruptDumpError):
            record.numpy()
    catalog.constants()
    list(catalog.at_source("elsewhere.py:1"))
    return [*map(str, catalog.problems)]


def _config(path: Path) -> None:
    """Use the dialect in the seed's name, or detect it from the content if the name has none."""
    named = path.name.partition("-")[0]
    dialect = named if named in ("acl", "mindspore", "tensorflow") else None
    output = _output(path)
    load_plan(path, environ={}, dialect=dialect, program_directory=output, path=output)


def _mapping(path: Path) -> None:
    dump_names.read_mapping(path)
    sync_files.read_mapping(path)


def _names(path: Path) -> None:
    """Parse names of files, one per line: none is refused, but some are not names of dump files."""
    for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        for parse in (
            dump_names.parse_name,
            dump_names.parse_dump_name,
            dump_names.parse_exception_name,
            dump_names.parse_converted_name,
            sync_names.parse_file_name,
        ):
            parse(line)


def _text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _fusion_rules(path: Path) -> None:
    read_rules(str(path))


def _golden_array(path: Path) -> None:
    read_array(str(path))


def _msaccucmp(path: Path) -> None:
    folder = OutputFolder(str(_output(path)))
    write_plainly(str(path), path.name, read_for_msaccucmp(str(path)), Settings(folder))


def _onnx_input(path: Path) -> None:
    from opdump.onnx.recording import load_input

    load_input(_FLOATS, path)


@dataclass(frozen=True, slots=True)
class _ModelInput:
    name: str
    type: str
    shape: tuple[int, ...]


_FLOATS: Final = _ModelInput("x", "tensor(float)", (2, 3))


def _own_dump(root: Path) -> None:
    file_steps(DumpPlan(path=root, saved_data="full"), [sample_step(0)])


def _corpus_tree(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        shutil.copytree(CORPUS / name, root, dirs_exist_ok=True)

    return make


_DEVICE: Final = tuple(sorted((_DATA / "dump_file" / "device").iterdir()))


def _graphs(pattern: str) -> tuple[Path, ...]:
    return tuple(
        sorted(
            path for name in ("ms270_control_flow", "ms210_print") for path in (_DATA / "graphs" / name).glob(pattern)
        )
    )


READERS: Final[tuple[Reader, ...]] = (
    Reader("dump_file", _dump_file, "dump file", 200, _DEVICE),
    Reader("convert", _convert, "dump file", 40, _DEVICE),
    Reader("msaccucmp", _msaccucmp, "dump file", 40, _DEVICE),
    Reader("overflow_record", _overflow_record, "bytes", 40),
    Reader("overflow_json", lambda path: read_overflow_json(str(path)), "json", 40),
    Reader("npy", _npy, "npy", 80),
    Reader("statistic_csv", _statistic_csv, "table", 80),
    Reader("operator_csv", _operator_csv, "table", 60),
    Reader("execution_order", _order, "table", 30),
    Reader("mapping", _mapping, "table", 30),
    Reader("names", _names, "text", 20),
    Reader("mindspore_pb", lambda path: decode_pb(path.read_bytes()), "message", 60, _graphs("*.pb")),
    Reader("mindspore_ir", lambda path: decode_ir(path.read_bytes()), "text", 60, _graphs("*.ir")),
    Reader("ge_graph", _ge_graph, "text", 60),
    Reader("ge_graph_json", _ge_graph, "json", 20),
    Reader("config", _config, "json", 80),
    Reader("plan_json", lambda path: DumpPlan.from_json(_text_of(path)), "json", 20),
    Reader("metadata_json", read_json_object, "json", 10),
    Reader("graph_notes", lambda path: read_notes(path.parent), "json", 10),
    Reader("watchpoints", lambda path: watchpoints_of(_text_of(path).splitlines()), "text", 20),
    Reader("match_file", read_matches, "text", 10),
    Reader("fusion_rules", _fusion_rules, "json", 20),
    Reader("golden_array", _golden_array, "npy", 20),
    Reader("onnx_input", _onnx_input, "npy", 20),
    Reader("index", _index, "database", 10, around=_own_dump),
    Reader("mindspore_dump", _dump, "table", 10, around=_corpus_tree("mindspore_dump")),
    Reader("device_dump", _dump, "dump file", 10, around=_corpus_tree("device_dump")),
)
