"""Programs in the style of public Ascend samples, and the documented overflow example."""

from __future__ import annotations

import json
import shutil
import struct
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

from opdump.dump_file import read_dump_file, write_dump_file
from opdump.dump_file.opdebug import decode_opdebug, overflow_dump_file
from opdump.msaccucmp.command_line import run as msaccucmp
from tests.acl.program import FLOAT, assert_converts_to_the_values_of_the_run, config, dump_files, numbers, places

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


ACL_JSON = '{ "dump":{ "dump_path":"output", "dump_debug":"on" } }'

# One node per bit of the documented list: its name, op type, inputs, output type and status.
BITS: dict[str, tuple[str, list[Any], type[np.generic], int]] = {
    "negate": ("Neg", [np.array([-(2**31), 1], np.int32)], np.int32, 0x8),
    "add": ("Add", [np.array([2**31 - 1, 1], np.int32)] * 2, np.int32, 0x10),
    "multiply": ("Mul", [np.array([1e30, 1], np.float32)] * 2, np.float32, 0x20),
    "to_unsigned": ("Cast", [np.array([-3, 1], np.float32)], np.uint8, 0x80),
    "to_half": ("Cast", [np.array([1e6, 1], np.float32)], np.float16, 0x100),
    "cube": ("MatMul", [np.full((2, 2), 1e30, np.float32)] * 2, np.float32, 0x400),
    "fine": ("Add", [np.array([1, 2], np.float32)] * 2, np.float32, 0),
}

# In the usual form of such programs: `acl.init` with the file, load a model, run it.
PROGRAM = """
import numpy as np
from opdump import acl

assert acl.init("acl.json") == 0
assert acl.rt.set_device(0) == 0
model_id, ret = acl.mdl.load_from_file("net.onnx")
assert ret == 0
desc = acl.mdl.create_desc()
acl.mdl.get_desc(desc, model_id)
inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
for index in range(acl.mdl.get_num_inputs(desc)):
    data = np.load(acl.mdl.get_input_name_by_index(desc, index) + ".npy").tobytes()
    size = acl.mdl.get_input_size_by_index(desc, index)
    address, ret = acl.rt.malloc(size, 0)
    acl.rt.memcpy(address, size, acl.util.bytes_to_ptr(data), size, 1)
    acl.mdl.add_dataset_buffer(inputs, acl.create_data_buffer(address, size))
for index in range(acl.mdl.get_num_outputs(desc)):
    size = acl.mdl.get_output_size_by_index(desc, index)
    address, ret = acl.rt.malloc(size, 0)
    acl.mdl.add_dataset_buffer(outputs, acl.create_data_buffer(address, size))
assert acl.mdl.execute(model_id, inputs, outputs) == 0
acl.mdl.unload(model_id)
acl.rt.reset_device(0)
acl.finalize()
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's directory after the run; the program is started elsewhere, and `output` is relative to the program."""
    folder = tmp_path_factory.mktemp("application")
    nodes, inputs, outputs = [], [], []
    for name, (op_type, arrays, result, _) in BITS.items():
        fed = [f"{name}_{place}" for place in range(len(arrays))]
        for value, array in zip(fed, arrays, strict=True):
            np.save(folder / f"{value}.npy", array)
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(value, kind, array.shape))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(result))
        attributes: dict[str, Any] = {"to": kind} if op_type == "Cast" else {}
        nodes.append(helper.make_node(op_type, fed, [f"{name}_out"], name, **attributes))
        outputs.append(helper.make_tensor_value_info(f"{name}_out", kind, arrays[0].shape))
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "net.onnx")
    (folder / "acl.json").write_text(ACL_JSON)
    (folder / "output").mkdir()
    (folder / "infer.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "infer.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return folder


def _home(application: Path) -> Path:
    (home,) = application.glob("output/*/0/net/1/0")
    return home


def test_each_overflowing_operator_has_two_files_and_no_other_has_any(application: Path) -> None:
    files = dump_files(application / "output")
    assert {file.parent for file in files} == {_home(application)}
    operators = sorted(".".join(file.name.split(".")[:2]) for file in files)
    wanted = [f"{op_type}.{name}" for name, (op_type, _, _, status) in BITS.items() if status]
    assert operators == sorted([*wanted, *["Opdebug.Node_OpDebug"] * len(wanted)])
    # {op_type}.{op_name}.{taskid}.{stream_id}.{timestamp}
    assert all(part.isdigit() for file in files for part in file.name.split(".")[2:])


def test_the_status_of_each_operator_is_the_one_of_the_list(application: Path) -> None:
    found = {}
    for record in _home(application).glob("Opdebug.*"):
        (overflow,) = decode_opdebug(read_dump_file(record).outputs[0].data.read()).overflows
        # The simulated device numbers no tasks, so the time stamp connects the files.
        time = record.name.split(".")[4]
        (operator,) = [path for path in _home(application).glob(f"*.{time}") if path != record]
        assert [str(overflow.task_id), str(overflow.stream_id)] == operator.name.split(".")[2:4]
        found[operator.name.split(".")[1]] = overflow.statuses
    assert found == {name: (status,) for name, (*_, status) in BITS.items() if status}


def test_a_directory_of_dump_files_becomes_numpy_files_and_text(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python3 msaccucmp.py convert -d /home/HwHiAiUser/dump -out /home/HwHiAiUser/dumptonumpy -v 2`, then
    `np.savetxt`.
    """
    shutil.copytree(_home(application), tmp_path / "dump")
    monkeypatch.chdir(tmp_path)
    assert msaccucmp(["convert", "-d", "dump", "-out", "dumptonumpy", "-v", "2"]) == 0
    (operator,) = (tmp_path / "dump").glob("MatMul.*")
    # {dump file}.output.0.npy, as Pooling.pool1.1147.1589195081588018.output.0.npy in the document
    names = {path.name for path in (tmp_path / "dumptonumpy").glob("MatMul.*")}
    assert names == {f"{operator.name}.{io}.npy" for io in ("input.0", "input.1", "output.0")}
    a = np.load(tmp_path / "dumptonumpy" / f"{operator.name}.output.0.npy")
    b = a.flatten()
    np.savetxt(tmp_path / "dumptonumpy" / f"{operator.name}.output.0.txt", b)
    assert (tmp_path / "dumptonumpy" / f"{operator.name}.output.0.txt").read_text().split() == ["inf"] * 4


def test_an_overflow_file_becomes_json_in_the_current_directory_if_no_other_is_named(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for record in _home(application).glob("Opdebug.*"):
        assert msaccucmp(["convert", "-d", str(record)]) == 0
    told = [json.loads(path.read_text())["AI Core"] for path in tmp_path.glob("Opdebug.*.output.0.json")]
    assert sorted(core["status"] for core in told) == [8, 16, 32, 128, 256, 1024], "in decimal, as documented"


def test_the_record_of_the_document_gives_its_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`convert -d /home/HwHiAiUser/opdebug/Opdebug.Node_OpDebug.59.1597922031178434 -out /home/HwHiAiUser/result`."""
    source = tmp_path / "opdebug" / "Opdebug.Node_OpDebug.59.1597922031178434"
    source.parent.mkdir()
    empty = overflow_dump_file(status=0, model_id=514, stream_id=563, task_id=57, dump_time=1597922031178434)
    content = bytearray(empty.outputs[0].data.read())
    # The words of the AI Core begin at byte 256, those after its first block at 1024; the numbers are from the
    # document.
    struct.pack_into("<4Q", content, 256, 514, 563, 57, 0)
    for place, value in ((288, 0x1008005B0000), (296, 0x100800297000), (1024, 0x1008005AE000), (1032, 1), (1040, 32)):
        struct.pack_into("<Q", content, place, value)
    write_dump_file(source, empty)
    raw = source.read_bytes()
    plain = bytes(empty.outputs[0].data.read())
    assert raw.count(plain) == 1
    source.chmod(0o600)
    source.write_bytes(raw.replace(plain, bytes(content)))
    monkeypatch.chdir(tmp_path)
    assert msaccucmp(["convert", "-d", str(source), "-out", "result"]) == 0
    (result,) = (tmp_path / "result").iterdir()
    sample = """{ "DHA Atomic Add": { "model_id": 0, "stream_id": 0, "task_id": 0, "task_type": 0, "pc_start": "0x0",
        "para_base": "0x0", "status": 0 }, "L2 Atomic Add": { "model_id": 0, "stream_id": 0, "task_id": 0, "task_type": 0,
        "pc_start": "0x0", "para_base": "0x0", "status": 0 }, "AI Core": { "model_id": 514, "stream_id": 563,
        "task_id": 57, "task_type": 0, "pc_start": "0x1008005b0000", "para_base": "0x100800297000",
        "kernel_code": "0x1008005ae000", "block_idx": 1, "status": 32 } }"""
    found = json.loads(result.read_text(), object_pairs_hook=list)
    assert found == json.loads(sample, object_pairs_hook=list), "the same words in the same order"
