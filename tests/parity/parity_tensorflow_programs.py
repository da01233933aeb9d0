"""The example programs of the data dump documentation, a session and an Estimator, unchanged, under stock TensorFlow.

Their dumps are compared with runs of the same programs without a dump, and with tensors fetched explicitly from TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import opdump
from tests.parity import peers

SESSION = peers.ROOT / "examples" / "tensorflow" / "train_session.py"
ESTIMATOR = peers.ROOT / "examples" / "tensorflow" / "train_estimator.py"
PYTHONS = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
STEPS = ["0", "5", "10"]
ESTIMATORS_DUMP = "dump_config = DumpConfig(enable_dump=True"
STOCK = """
def NPURunConfig(dump_config, **settings):
    return tf.estimator.RunConfig(save_checkpoints_steps=100, save_summary_steps=0, **settings)
NPUEstimator = tf.estimator.Estimator
DumpConfig = dict
"""
"""Stands in for npu_bridge: estimators of TensorFlow 2.15, without a dump."""
OF_TENSORFLOW_1 = "import tensorflow.compat.v1 as tf\ntf.disable_eager_execution()\n"


@dataclass(frozen=True)
class Run:
    """A finished program: its output, and the directory of its dump."""

    code: int
    out: str
    err: str
    dump: Path

    @property
    def losses(self) -> list[str]:
        """The printed losses, with all digits of a float32."""
        return re.findall(r"^loss (\S+)$|^INFO:tensorflow:loss = (\S+), step", self.out + self.err, re.MULTILINE)

    @property
    def models(self) -> dict[str, list[str]]:
        """The directories of models, and the steps in them."""
        found = self.dump.glob("[0-9]*/[0-9]*/ge_default_*/[0-9]*")
        return {path.parent.name: sorted((step.name for step in path.iterdir()), key=int) for path in found}

    @property
    def training(self) -> Path:
        """The directory of the model that updates variables."""
        (path,) = {file.parents[1] for file in self.dump.glob("[0-9]*/[0-9]*/*/*/*/ResourceApplyAdam.*")}
        return path


def _ran(python: Path, arguments: Sequence[str | Path], folder: Path, **environment: str) -> Run:
    """Run a program in a separate directory, which also receives the dump."""
    assert python.exists(), f"{python} is missing: run tests/parity/run, which sets it up"
    dump = folder / "dump"
    dump.mkdir(parents=True, exist_ok=True)
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
    fixed = {"PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [str(python), *map(str, arguments)],
        env={**inherited, **fixed, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    return Run(result.returncode, result.stdout, result.stderr, dump)


def _opdump_run(python: Path, options: list[str], script: Path, folder: Path, **environment: str) -> Run:
    return _ran(python, ["-m", "opdump", "run", *options, script, "dump"], folder, **environment)


def _changed(script: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a program with replaced lines. Fails if a line to replace is missing."""
    source = script.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / script.name
    copy.write_text(source, encoding="utf-8")
    return copy


def _session_and_fetched(root: Path) -> tuple[Run, Run, dict[str, npt.NDArray[Any]]]:
    """The session under `opdump run`, the same session under stock TensorFlow, and the tensors fetched in the latter."""
    dumped = _opdump_run(peers.TENSORFLOW, [], SESSION, root / "session", DEVICE_ID="0")
    assert dumped.code == 0, dumped.err
    names = sorted({op.op_name for op in _operators(dumped) if op.step == 5 and not op.skip})
    (root / "operators.json").write_text(json.dumps(names), encoding="utf-8")
    arguments = [peers.SCRIPTS / "tf_program_fetched.py", SESSION, root / "operators.json", root / "values.npz"]
    plain = _ran(peers.TENSORFLOW, arguments, root / "fetched", PYTHONPATH="")
    assert plain.code == 0, plain.err
    with np.load(root / "values.npz") as file:
        return dumped, plain, {key.replace("|", "/"): file[key] for key in file.files}


def _operators(run: Run) -> list[Any]:
    (directory,) = run.dump.glob("[0-9]*")
    return list(opdump.open(directory).ops())


def _stock_estimator(root: Path) -> Run:
    """The Estimator of TensorFlow 2.15, without opdump."""
    script = _changed(
        ESTIMATOR,
        root / "stock",
        ("import tensorflow as tf\n", OF_TENSORFLOW_1 + STOCK),
        ("from npu_bridge.estimator.npu.npu_config import DumpConfig, NPURunConfig\n", ""),
        ("from npu_bridge.estimator.npu.npu_estimator import NPUEstimator\n", ""),
    )
    return _ran(peers.TENSORFLOW215, [script, "dump"], root / "stock", PYTHONPATH="")


def _without_dump(root: Path) -> Run:
    """The Estimator of opdump, without a dump."""
    off = (ESTIMATORS_DUMP, ESTIMATORS_DUMP.replace("True", "False"))
    script = _changed(ESTIMATOR, root / "off", off)
    return _opdump_run(peers.TENSORFLOW, [], script, root / "off")


def _stats(root: Path) -> Run:
    """The session with a request for statistics, under plain Python."""
    asked = 'custom_op.parameter_map["dump_mode"].s = tf.compat.as_bytes("all")\n'
    script = _changed(
        SESSION,
        root / "stats",
        ("import sys\n", "import opdump.npu_bridge\nimport sys\n"),
        (asked, f'{asked}custom_op.parameter_map["dump_data"].s = b"stats"\n'),
    )
    return _ran(peers.TENSORFLOW, [script, "dump"], root / "stats")


PROGRAMS: dict[str, Callable[[Path], Any]] = {
    "session": _session_and_fetched,
    "estimator 2.21": lambda root: _opdump_run(peers.TENSORFLOW, [], ESTIMATOR, root / "estimator 2.21"),
    "estimator 2.15": lambda root: _opdump_run(peers.TENSORFLOW215, [], ESTIMATOR, root / "estimator 2.15"),
    "without 2.21": _without_dump,
    "without 2.15": _stock_estimator,
    # next to the session's dump, in the same directory
    "device 1": lambda root: _opdump_run(
        peers.TENSORFLOW, ["--stream-in-names"], SESSION, root / "device 1", DEVICE_ID="1"
    ),
    "stats": _stats,
    "behaviour 2.21": lambda root: _behaviour(root, "2.21"),
    "behaviour 2.15": lambda root: _behaviour(root, "2.15"),
    "version 1": lambda root: _ran(
        peers.TENSORFLOW,
        ["-m", "opdump", "run", peers.SCRIPTS / "tf_program_version1.py", "--dump", "dump"],
        root / "version 1",
    ),
    "refused": lambda root: _ran(peers.TENSORFLOW, [peers.SCRIPTS / "tf_program_refused.py", root], root / "refused"),
    "no directory": lambda root: _ran(
        peers.TENSORFLOW, ["-m", "opdump", "run", ESTIMATOR, root / "missing"], root / "no directory"
    ),
}


def _behaviour(root: Path, version: str) -> Run:
    models = root / f"models {version}"
    models.mkdir()
    return _ran(PYTHONS[version], [peers.SCRIPTS / "tf_program_estimator.py", models], root / f"behaviour {version}")


Programs = Callable[[str], Any]
FUNCTION = """
import tensorflow as tf

@tf.function
def step(x):
    return tf.nn.relu(x) * 2.0

for number in range(3):
    step(tf.constant([1.0, -2.0]) + float(number))
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Returns the results of a program. TensorFlow takes seconds to start, so each program runs once, two at a time."""
    root = tmp_path_factory.mktemp("programs")
    with ThreadPoolExecutor(2) as pool:
        futures: dict[str, Future[Any]] = {name: pool.submit(run, root) for name, run in PROGRAMS.items()}
        yield lambda name: futures[name].result()


@pytest.fixture
def session(programs: Programs) -> Run:
    run: Run = programs("session")[0]
    return run


@pytest.fixture(params=["session", "estimator 2.21", "estimator 2.15"])
def dumped(request: pytest.FixtureRequest, programs: Programs) -> Run:
    found = programs(request.param)
    run: Run = found[0] if isinstance(found, tuple) else found
    assert run.code == 0, run.err
    return run


def test_files_are_where_the_document_says(dumped: Run) -> None:
    (time,) = (path for path in dumped.dump.iterdir())
    assert re.fullmatch(r"\d{14}", time.name)
    assert [path.name for path in time.iterdir()] == ["0"], "the device"
    for name in dumped.models:
        assert re.fullmatch(r"ge_default_\d{14}_\d+", name)
        model_id = name.rpartition("_")[2]
        assert [path.name for path in (time / "0" / name).iterdir()] == [model_id]
    assert sorted((path.name for path in dumped.training.iterdir()), key=int) == STEPS


def test_names_of_files_have_four_parts_without_what_paths_cannot_hold(dumped: Run) -> None:
    names = [path.name for path in dumped.training.rglob("*") if path.is_file()]
    assert len(names) > 3 * 40
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9]+\.[\w:-]+\.\d+\.\d{16}", name), name
    assert any(name.startswith("Conv2D.conv1_Conv2D.") for name in names)


def test_gradients_and_the_optimizer_are_there(dumped: Run) -> None:
    for step in STEPS:
        types = {path.name.partition(".")[0] for path in (dumped.training / step).iterdir()}
        assert {"Conv2DBackpropFilter", "ReluGrad", "MatMul", "MaxPoolGrad", "ResourceApplyAdam"} <= types
        assert "IteratorGetNext" in types


@pytest.mark.parametrize("version", PYTHONS)
def test_an_estimator_answers_the_same_with_a_dump(version: str, programs: Programs) -> None:
    with_dump, without = programs(f"estimator {version}"), programs(f"without {version}")
    assert without.code == 0, without.err
    assert not list(without.dump.iterdir())
    assert with_dump.losses == without.losses
    assert len(with_dump.losses) == 11
    assert with_dump.out.splitlines() == without.out.splitlines(), "evaluation and prediction"
    assert len(with_dump.out.splitlines()) == 2


def test_a_session_answers_the_same_with_a_dump(programs: Programs) -> None:
    with_dump, without, _ = programs("session")
    assert len(with_dump.losses) == 11
    assert with_dump.out == without.out


def test_a_fetch_without_an_update_is_a_model_of_its_own(session: Run) -> None:
    others = {name: steps for name, steps in session.models.items() if name != session.training.parent.name}
    assert list(others.values()) == [["0"]], "print(sess.run(cost)), which ran once"


def test_every_file_converts_to_what_tensorflow_gave_by_hand(programs: Programs, tmp_path: Path) -> None:
    dumped, _, fetched = programs("session")
    command = [
        sys.executable,
        "-m",
        "opdump.msaccucmp",
        "convert",
        "-d",
        str(dumped.training / "5"),
        "-out",
        str(tmp_path),
    ]
    assert subprocess.run(command, check=False, cwd=tmp_path, capture_output=True).returncode == 0
    by_file_name = {re.sub(r"[./\\ ]", "_", key.partition(":")[0]): key.partition(":")[0] for key in fetched}
    compared = 0
    for file in sorted(tmp_path.glob("*.npy")):
        _, name, _, _, io, slot, _ = file.name.split(".")
        expected = fetched[f"{by_file_name[name]}:{io}:{slot}"]
        found = np.load(file)
        assert found.tobytes() == np.asarray(expected).tobytes(), file.name
        assert found.shape == (expected.shape or (1,)), file.name  # a scalar is written with one axis
        assert found.dtype == expected.dtype or not found.size, file.name  # empty tensors are float64
        compared += 1
    sources = list((dumped.training / "5").iterdir())
    print(f"{compared} tensors of {len(sources)} files")
    assert {file.name.split(".")[1] for file in tmp_path.glob("*.npy")} == {file.name.split(".")[1] for file in sources}
    assert compared == len(fetched) > 100


def test_the_convolution_and_the_product_are_what_their_inputs_make(dumped: Run) -> None:
    step = dumped.training / "5"
    image, kernel, given = _read(step, "Conv2D.conv1_Conv2D.*")
    padded = np.pad(image.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(
        padded[:, row : row + 8, column : column + 8] @ kernel[row, column].astype(np.float64)
        for row in range(3)
        for column in range(3)
    )
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    (product,) = (path for path in step.glob("MatMul.*") if "grad" not in path.name)
    left, right, given = _read(step, product.name)
    np.testing.assert_allclose(given, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-5)


def _read(step: Path, pattern: str) -> list[npt.NDArray[Any]]:
    (path,) = step.glob(pattern)
    file = opdump.read_dump_file(path)
    return [tensor.to_host() for tensor in (*file.inputs, *file.outputs)]


def test_each_process_has_the_directory_of_its_device_and_newer_names_have_five_parts(
    session: Run, programs: Programs
) -> None:
    other: Run = programs("device 1")
    assert other.code == 0, other.err
    assert [path.parts[-2] for path in other.dump.glob("[0-9]*/*/ge_default_*")][:1] != []
    assert {path.name for path in other.dump.glob("[0-9]*/*")} == {"1"}
    assert {path.name for path in session.dump.glob("[0-9]*/*")} == {"0"}
    names = [path.name for path in other.training.rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"[A-Za-z0-9]+\.[\w:-]+\.\d+\.0\.\d{16}", name) for name in names)
    assert other.out == session.out


def test_statistics_are_tables_and_plain_python_serves_as_well(session: Run, programs: Programs) -> None:
    stats: Run = programs("stats")
    assert stats.code == 0, stats.err
    assert stats.out == session.out
    (training,) = (path for path in stats.dump.glob("[0-9]*/0/*/*") if (path / "10").exists())
    names = [path.name for path in (training / "5").iterdir()]
    assert all(re.fullmatch(r"[A-Za-z0-9]+\.[\w:-]+\.\d+\.\d{16}\.csv", name) for name in names), names
    (table,) = (training / "5").glob("Conv2D.conv1_Conv2D.*")
    rows = table.read_text(encoding="utf-8").splitlines()
    assert len(rows) == 4, "a heading, two inputs, an output"
    (data,) = (session.training / "5").glob("Conv2D.conv1_Conv2D.*")
    given = opdump.read_dump_file(data).outputs[0].to_host()
    assert f"{given.max():.6g}" in {
        f"{float(cell):.6g}" for cell in rows[3].split(",") if re.fullmatch(r"[-+.e\d]+", cell)
    }
    assert len(names) == len(list((session.training / "5").iterdir()))


def test_show_lists_the_dump(session: Run) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "opdump", "show", "--limit", "0", str(session.dump)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Conv2DBackpropFilter" in shown.stdout


def test_an_estimator_answers_and_refuses_the_same_from_its_package(programs: Programs) -> None:
    package, real = programs("behaviour 2.21"), programs("behaviour 2.15")
    assert package.code == real.code == 0, package.err + real.err
    assert package.out == real.out
    assert len(real.out.splitlines()) == 89


def test_a_program_finds_tensorflow_1_as_it_was(programs: Programs) -> None:
    run: Run = programs("version 1")
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert lines[0] == "comparison False 1", "of two tensors: whether they are one"
    assert [line.split()[2:] for line in lines[1:4]] == [["kept", "True"]] * 3, "the second argument of dropout"
    assert lines[4:6] == ["saved True", "eval [3.0, 3.0]"]
    assert lines[6].startswith("layers GoneNameError tf.layers.dense does not exist: it was removed with Keras 2")
    assert lines[7].startswith("contrib GoneNameError tf.contrib.slim does not exist: it was removed with TensorFlow 1")
    (training,) = {path.parent for path in run.dump.glob("[0-9]*/0/*/*/1/Cos.*")}
    types = [path.name.partition(".")[0] for path in training.iterdir()]
    assert types.count("Sin") == types.count("Cos") == 3, "each turn of the loop, and of its gradient"
    assert (types.count("Relu"), types.count("Tanh")) == (1, 0), "the branch that was taken"


WORDS = {
    "no path": "E10058: NpuOptimizer: dump_path: if use dump function, dump_path must be set.",
    "no directory": "is not directory.",
    "mode": "dump mode should be one of the list:[input, output, all]",
    "steps": "dump_step string style is error, correct example:'0|5|10|50-100'",
    "both": "E10001: NpuOptimizer: enable_dump and enable_dump_debug: ge.exec.enableDump and ge.exec.enableDumpDebug "
    "cannot be set to 1 at the same time.",
    "data": "dump_data should be 'tensor' or 'stats'.",
    "debug mode": "dump debug mode should be one of the list:[aicore_overflow, atomic_overflow, all]",
}


@pytest.mark.parametrize("who", ["session", "Estimator"])
@pytest.mark.parametrize("case", WORDS)
def test_an_impossible_configuration_is_an_error_before_anything_runs(case: str, who: str, programs: Programs) -> None:
    run: Run = programs("refused")
    assert run.code == 0, run.err
    assert "IT RAN" not in run.out
    (line,) = (line for line in run.out.splitlines() if line.startswith(f"{case} | {who} | "))
    assert line.split(" | ")[2] == "TensorflowConfigError"
    assert WORDS[case] in line


def test_an_npu_estimator_wants_an_npu_run_config(programs: Programs) -> None:
    assert "`config` must be provided with type `NPURunConfig`" in programs("refused").out


def test_an_entry_of_the_session_config_stays_unless_there_is_a_dump_config(programs: Programs) -> None:
    out = programs("refused").out
    assert "entry stays True b''\nentry replaced False b'3'\nas it was True\n" in out


def test_a_run_without_its_directory_ends_before_training(programs: Programs) -> None:
    run: Run = programs("no directory")
    assert run.code == 1
    assert "missing is not directory." in run.err
    assert run.losses == []
    assert "Traceback" not in run.err


def test_a_real_npu_bridge_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "npu_bridge").mkdir()
    (tmp_path / "npu_bridge" / "__init__.py").write_text("print('the real one')\n")
    script = tmp_path / "train.py"
    script.write_text("import npu_bridge\nprint(npu_bridge.__file__)\n")
    run = _ran(
        peers.TENSORFLOW, ["-m", "opdump", "run", script], tmp_path / "real", PYTHONPATH=f"{peers.ROOT}/src:{tmp_path}"
    )
    assert run.code == 0, run.err
    assert run.out == f"the real one\n{tmp_path}/npu_bridge/__init__.py\n"
    assert "there is a package npu_bridge" in run.err


@pytest.mark.parametrize("place", ["elsewhere", "in the dump"])
def test_the_closing_line_counts_what_lies_in_the_dump_graph_files_and_their_notes_too(
    place: str, tmp_path: Path
) -> None:
    script, config, dump = tmp_path / "function.py", tmp_path / "acl.json", tmp_path / "dump"
    dump.mkdir()
    script.write_text(FUNCTION, encoding="utf-8")
    content = {"dump": {"dump_path": str(dump), "dump_mode": "all", "dump_list": []}}
    config.write_text(json.dumps(content), encoding="utf-8")
    # Graph files go into the working directory of the program.
    folder = dump if place == "in the dump" else tmp_path
    arguments: list[str | Path] = ["-m", "opdump", "run", "--json", "--config", config, script]
    ended = subprocess.run(
        [str(peers.TENSORFLOW), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stderr.splitlines()[-1])
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert len(list(folder.glob("ge_proto_*_Build.txt*"))) == 2
    assert [path.name for path in files].count("ge_graphs.json") == 1
    assert (said["files"], said["bytes"]) == (len(files), sum(path.stat().st_size for path in files)), files


@pytest.mark.parametrize(
    ("dump", "reason"),
    [
        (
            {"dump_list": [], "dump_step": "7"},
            "no selected step was reached: the program ended steps 0 to 2, but `dump_step` selects 7",
        ),
        (
            {"dump_list": [{"model_name": "stop"}]},
            "no model in dump_list ran; the models that ran are 'step'",
        ),
    ],
)
def test_when_nothing_was_captured_steps_and_models_are_the_reason(
    dump: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    script, config = tmp_path / "function.py", tmp_path / "acl.json"
    (tmp_path / "dump").mkdir()
    script.write_text(FUNCTION, encoding="utf-8")
    config.write_text(json.dumps({"dump": {"dump_path": "dump", "dump_mode": "all", **dump}}), encoding="utf-8")
    ended = _opdump_run(peers.TENSORFLOW, ["--config", str(config)], script, tmp_path)
    assert reason in ended.err
