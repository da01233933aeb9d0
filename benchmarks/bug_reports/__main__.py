"""What opdump answers for public bug reports of JAX, TensorFlow, ONNX Runtime and MindSpore that run on a CPU.

    python -m benchmarks.bug_reports [FRAMEWORK ...] [--only NUMBER]

Each program of programs/ is written from the description of a report, and runs in two variants: plain and compiled, or as the report has
them. The answer of `opdump compare` for the two dumps, or of `opdump check` for one if the report is about NaN, is right if it
is one that an engineer who has read the whole report would give. Prints the table of benchmarks/results/bug-reports.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
REPOSITORIES: Final = {
    "jax": "jax-ml/jax",
    "tensorflow": "tensorflow/tensorflow",
    "onnx": "microsoft/onnxruntime",
    "mindspore": "mindspore-ai/mindspore",
}


@dataclass(frozen=True)
class Report:
    framework: str
    number: int
    title: str
    expected: str
    """`rounding`, `origin: TYPE|TYPE` for the first operator with NaN or infinities, or `cause: TYPE|TYPE` for a difference."""


def _reports(framework: str, text: str) -> list[Report]:
    rows = [line.split(" ; ") for line in text.strip().splitlines()]
    return [Report(framework, int(number), title.strip(), expected.strip()) for number, title, expected in rows]


REPORTS: Final = [
    *_reports(
        "jax",
        """
        347 ; gradient through where, sqrt of zero not selected ; origin: sqrt
        654 ; pairwise distances, gradient of a masked norm ; origin: norm|true_divide|div
        939 ; jit(grad) of logsumexp against grad ; rounding
        2630 ; gradient of where with an infinity not selected ; origin: mul
        3058 ; gradient of norm at a zero row ; origin: norm
        4177 ; gradient of a squared norm at zero ; origin: norm
        4780 ; NaN times zero, jit against plain ; origin: where|select_n|convert_element_type
        6566 ; scores plus a mask of -0, jit against plain ; rounding
        10129 ; roll and at.set, jit against plain ; rounding
        12949 ; add and sinh, jit against plain ; rounding
        17070 ; gradient of an entropy of a masked softmax ; origin: log2|log
        20856 ; softmax of (3, 1, 1), jit against plain ; rounding
        22881 ; cos and cos + 0 sin, compiled ; rounding
        26147 ; a difference of squares, jit against plain ; rounding
        27231 ; loss of a linear layer, jit against plain ; rounding
        37234 ; softmax of very large products, jit against plain ; rounding
        40409 ; gradient of log_softmax overflows in float16 ; origin: reduce_sum|log_softmax|sum|transpose(log_softmax)
        """,
    ),
    *_reports(
        "tensorflow",
        """
        12071 ; gradient of norm at zero and at 1e-19 ; origin: SqrtGrad|RealDiv|Reciprocal|Inv
        20091 ; gradient through where, division by zero not selected ; origin: RealDiv
        20355 ; gradient through where, reciprocal not selected ; origin: RealDiv
        22048 ; gradient of clip_by_norm at zero, mended in 2.21 ; rounding
        38349 ; gradient through where with sqrt(0) not selected ; origin: RealDiv|SqrtGrad
        55814 ; log of softmax with zeros, a function against eager ; cause: Log|LogSoftmax|Softmax
        56181 ; image.resize in a function ; rounding
        57959 ; matrix_rank of huge numbers ; origin: Mul|Svd|Max|AddV2
        58752 ; tan(cosh(cosh(x))) compiled ; cause: XlaLaunch|Tan|Cosh
        62206 ; sigmoid in bfloat16 compiled ; rounding
        62233 ; shift by more than the width compiled, equal in 2.21 ; rounding
        62239 ; exp(cos(x)) in bfloat16 compiled ; rounding
        62253 ; square(exp(x)) compiled ; rounding
        62277 ; asin in float16 compiled ; rounding
        62287 ; erfc(cos(x)) compiled ; rounding
        118179 ; moments of large equal numbers compiled ; cause: XlaLaunch
        125391 ; a layer built in a compiled call ; rounding
        """,
    ),
    *_reports(
        "onnx",
        """
        4293 ; layer norm fused, large mean ; rounding
        7375 ; Einsum of three operands, optimised against not ; rounding
        10491 ; Softplus against log(1 + exp) ; cause: Softplus|Add|Log
        15977 ; MatMul in float16, optimised against not ; rounding
        18946 ; Conv with padding against Pad and Conv ; rounding
        24711 ; Conv between QuantizeLinear and DequantizeLinear, optimised ; rounding
        25259 ; two pairs of QuantizeLinear, optimised ; rounding
        30513 ; layer norm fused although keepdims is 0 ; cause: LayerNormalization|Div|Sub|ReduceMean
        """,
    ),
    *_reports(
        "mindspore",
        """
        274 ; softmax of an infinity ; origin: Softmax|SoftmaxV2|Sub
        275 ; amax of an infinity, graph against PyNative ; rounding
        276 ; median of NaN, graph against PyNative ; rounding
        293 ; reciprocal of zero ; origin: Reciprocal
        315 ; softmax of a mask of twice the lowest number ; origin: Add
        328 ; matmul with another batch size ; rounding
        345 ; conv2d, graph against PyNative ; rounding
        348 ; tanh, graph against PyNative ; rounding
        353 ; matmul, graph against PyNative ; rounding
        """,
    ),
]


class Runs:
    """Runs programs and commands in the environment of a framework."""

    def __init__(self, framework: str) -> None:
        python = ROOT / (".venv" if framework == "onnx" else f".venv-{framework}") / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"found no {python}; run: make parity")
        self._python = str(python)
        self._program = str(Path(__file__).parent / "programs" / f"{framework}_reports.py")
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3"}

    def dump(self, report: Report, variant: str, path: str) -> str:
        """Record one variant. Returns what the program printed."""
        done = self._run(
            "run", "--full", "--path", path, self._program, str(report.number), variant, cwd=str(Path(path).parent)
        )
        if done.returncode:
            raise SystemExit(f"{report.framework} {report.number} {variant} failed:\n{done.stderr}")
        return done.stdout.strip()

    def answer(self, command: str, *paths: str) -> Any:
        return json.loads(self._run(command, *paths, "--json").stdout)

    def _run(self, *arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
        """Programs run in the folder of their dump, because a compiler may leave files in the working directory."""
        command = [self._python, "-m", "opdump", *arguments]
        return subprocess.run(command, env=self._environment, cwd=cwd, capture_output=True, text=True, check=False)


def answered(report: Report, runs: Runs) -> tuple[str, bool]:
    """What opdump answers, and whether it is right."""
    kind, _, types = report.expected.partition(": ")
    with tempfile.TemporaryDirectory() as folder:
        runs.dump(report, "b", f"{folder}/b")
        if kind == "origin":
            findings = runs.answer("check", f"{folder}/b")["findings"]
            # Without an origin, the program itself gave an infinity; then the first NaN is the answer.
            born = [finding["op_type"] for finding in findings if finding["origin"]]
            born = born or [finding["op_type"] for finding in findings if finding["check"] == "nan"][:1]
            return ", ".join(born) or "nothing", bool(born) and born[0] in types.split("|")
        runs.dump(report, "a", f"{folder}/a")
        result = runs.answer("compare", f"{folder}/a", f"{folder}/b")
    verdict = result["verdict"]
    named = [side["op_type"] for one in result["introduced"][:1] for side in (one["a"], one["b"]) if side]
    right = verdict in ("identical", "benign") if kind == "rounding" else bool(set(named) & set(types.split("|")))
    return f"{verdict}: {', '.join(named)}" if named else verdict, right


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bug_reports",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("framework", nargs="*", choices=[[], *REPOSITORIES], help="all unless given")
    parser.add_argument("--only", type=int, action="append", default=[], metavar="NUMBER")
    asked = parser.parse_args()
    chosen = [
        report
        for report in REPORTS
        if report.framework in (asked.framework or REPOSITORIES) and (not asked.only or report.number in asked.only)
    ]
    print("| Report | Program | Expected | Answer | Right |\n|---|---|---|---|---|")
    right = 0
    for report in chosen:
        answer, good = answered(report, Runs(report.framework))
        right += good
        link = f"[{report.framework} {report.number}](https://github.com/{REPOSITORIES[report.framework]}/issues/{report.number})"
        expected, answer = (text.replace("|", " or ") for text in (report.expected, answer))
        print(f"| {link} | {report.title} | {expected} | {answer} | {'yes' if good else '**no**'} |", flush=True)
    print(f"\n{right} of {len(chosen)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
