"""`%%opdump` and the HTML of records in a real Jupyter kernel: one notebook, run once."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import opdump

CELLS = {
    "load": "%load_ext opdump\nimport sys, torch, opdump\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 2)",
    "capture": "%%opdump --path dump --full\nx = torch.ones(3, 4)\n\nloss = torch.log(model(x) - model(x)).sum()\nloss.item()",
    "catalog": "_opdump",
    "operator": "_opdump.op('log-op6')",
    "tensor": "next(_opdump.tensors('log', io='output'))",
    "torch": "_opdump.op('log-op6').outputs[0].torch()",
    "stack": "[(frame.function, frame.line, frame.code) for frame in _opdump.op('log-op6').stack]",
    "named": "%%opdump relus --kernels relu --steps 0\ntorch.relu(x).sum().neg().item()",
    "of the name": "sorted({op.op_type for op in relus.ops()}), relus.path.name[:12], relus.op('relu-op0').outputs[0].statistics['max']",
    "statistics alone": "relus.op('relu-op0').outputs[0].numpy()",
    "fails": "%%opdump --path failed\ny = torch.ones(2)\ny.abs()\ny @ torch.ones(3)",
    "syntax": "%%opdump --path syntax\n1 +",
    "option": "%%opdump --pth dump\n1",
    "variable": "%%opdump a-b\n1",
    "config": "%%opdump --path dump --steps x\n1",
    "help": "%%opdump --help\n1",
    "other magic": "%%opdump --path timed\n%%time\ntorch.ones(2).abs()",
    "nothing": "%%opdump --path nothing\n1 + 1",
    "none": "'_opdump' in globals()",
    "report": "with opdump.capture(path='report') as dump:\n    torch.ones(2).abs()\ndump.report",
    "dump": "dump",
    "not imported": "import re\n[name for name in sys.modules if re.match('(pandas|polars|rich)$', name)]",
}  # fmt: skip


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.values()])
        client = NotebookClient(
            made, timeout=None, startup_timeout=600, allow_errors=True, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    nbformat.write(made, folder / "run.ipynb")
    return {"folder": folder, **dict(zip(CELLS, (cell.outputs for cell in made.cells), strict=True))}


def _printed(outputs: Any, stream: str = "stdout") -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == stream)


def _shown(outputs: Any, kind: str = "text/plain") -> str:
    (result,) = [output for output in outputs if output.output_type == "execute_result"]
    return str(result.data[kind])


def _error(outputs: Any) -> str:
    (error,) = [output for output in outputs if output.output_type == "error"]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))


pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]  # a kernel starts, and imports PyTorch


def test_a_cell_is_captured_and_ends_with_the_closing_line(notebook: dict[str, Any]) -> None:
    outputs = notebook["capture"]
    assert _shown(outputs) == "-inf"
    assert re.search(
        r"opdump: first infinity: step 0, aten::log at line 4 of a cell, .*Default/log-op6", _printed(outputs)
    )
    assert re.search(r"opdump: \d+ operators ran: \d+ captured.*; step 0, ", _printed(outputs))
    assert re.search(r"opdump: next: opdump show \S+/dump --op log-op6 --step 0\n", _printed(outputs))
    assert _printed(outputs, "stderr") == ""
    assert len(_shown(notebook["catalog"])) < 200
    assert "<td>a notebook</td>" in _shown(notebook["catalog"], "text/html")


def test_lines_of_the_cell_are_recorded_with_their_text(notebook: dict[str, Any]) -> None:
    assert _shown(notebook["stack"]) == "[('<module>', 4, 'loss = torch.log(model(x) - model(x)).sum()')]"
    printed = subprocess.run(
        [sys.executable, "-m", "opdump", "show", "dump", "--op", "log-op6"],
        cwd=notebook["folder"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r":4  loss = torch\.log\(model\(x\) - model\(x\)\)\.sum\(\)", printed)
    assert "site-packages" not in printed


def test_an_operator_and_a_tensor_are_tables(notebook: dict[str, Any]) -> None:
    operator = _shown(notebook["operator"], "text/html")
    assert "loss = torch.log(model(x) - model(x)).sum()" in operator
    assert "<td>output.0</td>" in operator
    assert "-inf" in _shown(notebook["tensor"], "text/html")
    assert _shown(notebook["tensor"]).startswith(
        "TensorRecord(Default/log-op6:output:0, float32 (3,2), step 0, max -inf"
    )
    assert _shown(notebook["torch"]).startswith("tensor([[-inf, -inf]")


def test_options_are_those_of_the_command_line_and_the_catalog_has_a_name(notebook: dict[str, Any]) -> None:
    assert _shown(notebook["of the name"]) == "(['relu'], 'opdump-cell-', 1.0)"
    assert "NoElementsError" in _error(notebook["statistics alone"])


def test_an_error_of_a_cell_has_only_the_lines_of_the_cell_and_comes_after_the_report(
    notebook: dict[str, Any],
) -> None:
    outputs = notebook["fails"]
    error = _error(outputs)
    assert "RuntimeError" in error
    assert re.search(r"Cell In\[\d+\], line 4", error)
    assert "y @ torch.ones(3)" in error
    assert "opdump" not in error.replace("# %%opdump", "")
    assert "interactiveshell" not in error
    assert "captured" in _printed(outputs)
    *before, last = (output.output_type for output in outputs)
    assert (set(before), last) == ({"stream"}, "error")
    assert {op.op_type for op in opdump.open(notebook["folder"] / "failed").ops()} >= {"abs"}


def test_a_wrong_line_is_one_line(notebook: dict[str, Any]) -> None:
    for name, message in (
        ("option", "UsageError: %%opdump: No such option"),
        ("variable", "UsageError: %%opdump: 'a-b' is not a variable name"),
        ("config", "UsageError: steps only supports digits"),
    ):
        assert re.search(message, _printed(notebook[name], "stderr")), name
    assert "SyntaxError" in _error(notebook["syntax"])
    assert "UsageError: %%opdump: nothing ran" in _printed(notebook["syntax"], "stderr")
    assert _printed(notebook["syntax"]) == ""
    assert "--kernels NAME" in _printed(notebook["help"])


def test_another_magic_may_follow_and_a_cell_without_operators_leaves_no_catalog(notebook: dict[str, Any]) -> None:
    assert "Wall time" in _printed(notebook["other magic"])
    assert {op.op_type for op in opdump.open(notebook["folder"] / "timed").ops()} >= {"abs"}
    assert "nothing was captured" in _printed(notebook["nothing"])
    assert _shown(notebook["none"]) == "False"


def test_a_report_is_a_table_and_no_table_needs_a_package(notebook: dict[str, Any]) -> None:
    assert "<table>" in _shown(notebook["report"], "text/html")
    assert _shown(notebook["report"]).startswith("CaptureReport(")
    assert "<table>" in _shown(notebook["dump"], "text/html")
    assert _shown(notebook["not imported"]) == "[]"
