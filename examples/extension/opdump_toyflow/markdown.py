"""A report format: Markdown tables, for example for an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opdump.conversion.overflow import OverflowSearch
from opdump.records import TensorRecord, format_statistic, shown_shape
from opdump.reports.formats import DumpReport, FindingsReport
from opdump.reports.shown_part import selected


class Markdown:
    """The operators of a dump, the findings and the overflows, each as a table."""

    rows = 20
    tells_failures = False

    def dump(self, report: DumpReport, *, wide: bool) -> None:
        executions = selected(report.catalog, report.part)[: report.part.limit or None]
        headings = ("step", "operator", "tensor", "shape", "max", "min")
        table(
            headings,
            ((each.op.step, each.op.op_name, *_tensor(tensor)) for each in executions for tensor in each.tensors),
        )

    def findings(self, report: FindingsReport, *, wide: bool) -> None:
        found = report.checked.findings[: report.limit or None]
        table(
            ("step", "operator", "check", "what was found"),
            ((each.step, each.op_name, each.check, each.text) for each in found),
        )

    def overflows(self, search: OverflowSearch, *, wide: bool) -> None:
        table(("operator", "file"), ((each.operator, each.path) for each in search.overflows))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; bars within cells are escaped."""
    for cells in (headings, ["---"] * len(headings), *rows):
        print("|", " | ".join(str(cell).replace("|", "\\|") for cell in cells), "|")


def _tensor(record: TensorRecord) -> tuple[str, ...]:
    statistics = (
        format_statistic(record.statistics[name]) if name in record.statistics else "" for name in ("max", "min")
    )
    return f"{record.io}.{record.slot}", shown_shape(record.shape), *statistics


MARKDOWN = Markdown()
