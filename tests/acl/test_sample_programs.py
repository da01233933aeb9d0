"""Programs in the style of public Ascend samples: each runs in its own process under an acl.json, and dumps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.acl.program import FLOAT, assert_converts_to_the_values_of_the_run, config, numbers, places

_PROGRAMS = Path(__file__).parent / "sample_programs"
_NODES = 6


def _network(path: Path, dims: list[Any], *, seed: int = 0, **metadata: str) -> Path:
    """A network from pictures of three channels to four scores."""
    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.standard_normal((5, 3, 3, 3)),
        "matrix": random.standard_normal((5, 4)),
        "bias": random.standard_normal(4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "matrix", "bias"], ["g"], "scores"),
        helper.make_node("Softmax", ["g"], ["y"], "softmax", axis=1),
    ]
    assert len(nodes) == _NODES
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", FLOAT, dims)],
        [helper.make_tensor_value_info("y", FLOAT, [dims[0], 4])],
        [numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def _run(folder: Path, program: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(_PROGRAMS / program)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def _plain(model: Path, picture: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )  # operators as they are dumped
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": picture})[0]


def _check_dump(dump: Path, output: Path, model: Path, place: str, runs: list[Any]) -> None:
    """Check that every tensor of every operator of every run of a model equals what ONNX Runtime computes."""
    folders = [path for path in dump.glob(f"*/0/{place}/*") if path.is_dir()]
    assert sorted(int(path.name) for path in folders) == list(range(len(runs)))
    (output / place).mkdir(parents=True)
    for folder in folders:
        number = int(folder.name)
        compared = assert_converts_to_the_values_of_the_run(
            folder, output / place / str(number), model, {"x": runs[number]}
        )
        assert compared >= 2 * _NODES


@pytest.fixture
def pictures(tmp_path: Path, dump: Path) -> Any:
    """Seven pictures, and an acl.json beside them that dumps everything."""
    config(tmp_path, dump)
    found = numbers(7, 3, 8, 8)
    np.save(tmp_path / "pictures.npy", found)
    return found


def test_classification_with_memory_of_the_device(tmp_path: Path, dump: Path, pictures: Any) -> None:
    model = _network(tmp_path / "network.onnx", [1, 3, 8, 8])
    printed = _run(tmp_path, "classify.py")
    results = np.load(tmp_path / "results.npy")
    runs = [picture[None] for picture in pictures]
    assert np.array_equal(results, np.concatenate([_plain(model, picture) for picture in runs]))
    assert printed.splitlines()[0] == f"picture 0: class {np.argmax(results[0])}, {results[0].max():.3f}"
    _check_dump(dump, tmp_path / "npy", model, "network/1", runs)


def test_dynamic_batches(tmp_path: Path, dump: Path, pictures: Any) -> None:
    model = _network(tmp_path / "network.onnx", ["N", 3, 8, 8], dynamic_batch_size="1,2,4")
    printed = _run(tmp_path, "dynamic_batch.py")
    assert printed.splitlines() == ["pictures 0 to 3", "pictures 4 to 5", "pictures 6 to 6"]
    runs = [pictures[:4], pictures[4:6], pictures[6:]]
    assert np.array_equal(np.load(tmp_path / "results.npy"), np.concatenate([_plain(model, run) for run in runs]))
    _check_dump(dump, tmp_path / "npy", model, "network/1", runs)


def test_dynamic_sizes_of_images(tmp_path: Path, dump: Path) -> None:
    config(tmp_path, dump)
    model = _network(tmp_path / "network.onnx", [1, 3, "H", "W"], dynamic_image_size="4,4;8,6;8,8")
    np.savez(tmp_path / "pictures.npz", a=numbers(3, 7, 5), b=numbers(3, 3, 4), c=numbers(3, 8, 8))
    printed = _run(tmp_path, "dynamic_images.py")
    assert printed.splitlines() == [
        f"{name}: {size} -> [1, 4]" for name, size in zip("abc", ("8 x 6", "4 x 4", "8 x 8"), strict=True)
    ]
    with np.load(tmp_path / "results.npz") as results:
        found: Mapping[str, Any] = {name: results[name] for name in results}
    runs = [found[f"{name}-fed"] for name in "abc"]
    assert all(np.array_equal(found[name], _plain(model, run)) for name, run in zip("abc", runs, strict=True))
    _check_dump(dump, tmp_path / "npy", model, "network/1", runs)


def test_configuration_handles(tmp_path: Path, dump: Path, pictures: Any) -> None:
    model = _network(tmp_path / "network.onnx", [1, 3, 8, 8])
    _run(tmp_path, "load_with_config.py")
    plain = _plain(model, pictures[:1])
    assert np.array_equal(np.load(tmp_path / "results.npy"), np.concatenate([plain, plain]))
    assert places(dump) == ["network/1/0", "network/2/0"]
    for number in (1, 2):
        _check_dump(dump, tmp_path / "npy", model, f"network/{number}", [pictures[:1]])


def test_runs_in_a_stream_with_callbacks(tmp_path: Path, dump: Path, pictures: Any) -> None:
    model = _network(tmp_path / "network.onnx", [1, 3, 8, 8])
    assert _run(tmp_path, "async_callback.py") == "7 results\n"
    runs = [picture[None] for picture in pictures]
    assert np.array_equal(np.load(tmp_path / "results.npy"), np.concatenate([_plain(model, run) for run in runs]))
    _check_dump(dump, tmp_path / "npy", model, "network/1", runs)


def test_threads_that_change_their_context(tmp_path: Path, dump: Path, pictures: Any) -> None:
    models = [
        _network(tmp_path / f"{name}.onnx", [1, 3, 8, 8], seed=seed) for seed, name in enumerate(("network", "other"))
    ]
    _run(tmp_path, "contexts_of_threads.py")
    runs = [picture[None] for picture in pictures]
    with np.load(tmp_path / "results.npz") as results:
        for number, model in enumerate(models, 1):
            assert np.array_equal(results[f"model{number}"], np.concatenate([_plain(model, run) for run in runs]))
    for number, model in enumerate(models, 1):
        _check_dump(dump, tmp_path / "npy", model, f"{model.stem}/{number}", runs)


def test_modules_that_import_acl_get_it_from_the_main_program(tmp_path: Path, dump: Path, pictures: Any) -> None:
    model = _network(tmp_path / "network.onnx", [1, 3, 8, 8])
    program = (_PROGRAMS / "classify.py").read_text()
    (tmp_path / "library.py").write_text(program.replace("from opdump import acl", "import acl"))
    (tmp_path / "main.py").write_text("import sys\nfrom opdump import acl\nsys.modules['acl'] = acl\nimport library\n")
    _run(tmp_path, str(tmp_path / "main.py"))
    runs = [picture[None] for picture in pictures]
    assert np.array_equal(np.load(tmp_path / "results.npy"), np.concatenate([_plain(model, run) for run in runs]))
    assert len(places(dump)) == len(runs)
