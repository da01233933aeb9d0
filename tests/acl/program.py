"""An inference program: it loads models, runs them and reads their outputs through `opdump.acl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import ModelProto, helper

from opdump import acl
from opdump.acl.handles import DTYPES
from opdump.dump_file import read_dump_file
from opdump.msaccucmp.command_line import run as msaccucmp

Array = npt.NDArray[Any]
FLOAT = onnx.TensorProto.FLOAT


def write_model(folder: Path, kind: str, name: str) -> Path:
    """A network exported from PyTorch, as a file."""
    from tests.onnx.torch_models import exported  # Imported here because the other tests run without PyTorch.

    path = folder / name
    path.write_bytes(exported(kind)[0])
    return path


def feeds_of(kind: str) -> dict[str, Array]:
    from tests.onnx.torch_models import exported

    return exported(kind)[1]


def small_model(*, name: str = "graph", shape: tuple[Any, ...] = (2, 3)) -> ModelProto:
    """`y = relu(x) + relu(x)` of float32."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "first"),
        helper.make_node("Add", ["r", "r"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def write_small(folder: Path, name: str = "small.onnx", **facts: Any) -> Path:
    path = folder / name
    onnx.save(small_model(**facts), path)
    return path


def config(folder: Path, dump: Path, name: str = "acl.json", **keys: Any) -> Path:
    """An acl.json that dumps everything, with `keys` replacing or adding settings."""
    section = {"dump_path": str(dump), "dump_list": [{}], "dump_mode": "all", **keys}
    path = folder / name
    path.write_text(json.dumps({"dump": {key: value for key, value in section.items() if value is not None}}))
    return path


def ok(result: Any) -> Any:
    """The result that a call returned with its code, which must be 0."""
    if isinstance(result, int):
        assert result == 0, acl.get_recent_err_msg()
        return None
    *values, code = result
    assert code == 0, acl.get_recent_err_msg()
    return values[0] if len(values) == 1 else tuple(values)


def load(path: Path) -> int:
    model_id: int = ok(acl.mdl.load_from_file(str(path)))
    return model_id


def execute(model_id: int, feeds: dict[str, Array], stream: int | None = None) -> list[Array]:
    """Run one inference with buffers created the way a program creates them."""
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, model_id))
    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    addresses, buffers = [], []
    for index in range(acl.mdl.get_num_inputs(desc)):
        array = np.ascontiguousarray(feeds[acl.mdl.get_input_name_by_index(desc, index)])
        address = ok(acl.rt.malloc(array.nbytes, 0))
        ok(acl.rt.memcpy(address, array.nbytes, acl.util.bytes_to_ptr(array.tobytes()), array.nbytes, 1))
        addresses.append(address)
        buffers.append(acl.create_data_buffer(address, array.nbytes))
        ok(acl.mdl.add_dataset_buffer(inputs, buffers[-1]))
    for index in range(acl.mdl.get_num_outputs(desc)):
        size = acl.mdl.get_output_size_by_index(desc, index)
        addresses.append(ok(acl.rt.malloc(size, 0)))
        buffers.append(acl.create_data_buffer(addresses[-1], size))
        ok(acl.mdl.add_dataset_buffer(outputs, buffers[-1]))
    if stream is None:
        ok(acl.mdl.execute(model_id, inputs, outputs))
    else:
        ok(acl.mdl.execute_async(model_id, inputs, outputs, stream))
        ok(acl.rt.synchronize_stream(stream))
    results = []
    for index in range(acl.mdl.get_num_outputs(desc)):
        buffer = acl.mdl.get_dataset_buffer(outputs, index)
        raw = acl.util.ptr_to_bytes(acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size(buffer))
        kind = np.dtype(DTYPES[acl.mdl.get_output_data_type(desc, index)])
        dims = ok(acl.mdl.get_cur_output_dims(desc, index))["dims"]
        results.append(np.frombuffer(raw, kind)[: int(np.prod(dims))].reshape(dims))
    for buffer in buffers:
        ok(acl.destroy_data_buffer(buffer))
    for address in addresses:
        ok(acl.rt.free(address))
    ok(acl.mdl.destroy_dataset(inputs))
    ok(acl.mdl.destroy_dataset(outputs))
    ok(acl.mdl.destroy_desc(desc))
    return results


def plain_values(model: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    """Every value of a model by name, as ONNX Runtime computes it in a separate session, with initialisers and inputs."""
    proto = onnx.load(model)
    own = [output.name for output in proto.graph.output]
    made = [value for node in proto.graph.node for value in node.output if value]
    proto.graph.output.extend([onnx.ValueInfoProto(name=name) for name in made if name not in own])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, feeds), strict=True))
    found.update((tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in proto.graph.initializer)
    found.update(feeds)
    return found


def dump_files(folder: Path) -> list[Path]:
    """The operators' dump files below a directory, sorted by name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and ".dump_metadata" not in path.parts
        and not path.name.startswith("ge_proto_")
        and path.name.count(".") == 4
    )


def places(dump: Path) -> list[str]:
    """Model, number and data index of each directory that holds dump files."""
    found = {str(path.parent.relative_to(dump)).partition("/")[2].partition("/")[2] for path in dump_files(dump)}
    return sorted(found)


def nodes_dumped(folder: Path) -> set[str]:
    """True names of the operators with files below a directory."""
    return {read_dump_file(path).op_name for path in dump_files(folder)}


def converted(folder: Path, output: Path) -> dict[str, Array]:
    """The arrays that `msaccucmp convert` writes for the dump files of one directory, by file name."""
    output.mkdir()
    assert msaccucmp(["convert", "-d", str(folder), "-out", str(output)]) == 0
    return {path.name: np.load(path) for path in sorted(output.glob("*.npy"))}


def assert_converts_to_the_values_of_the_run(
    folder: Path, output: Path, model: Path, feeds: dict[str, Array], values: dict[str, Array] | None = None
) -> int:
    """Compare every tensor of every operator in a directory with what ONNX Runtime computed; return the number
    compared.
    """
    values = plain_values(model, feeds) if values is None else values
    arrays = converted(folder, output)
    nodes = list(onnx.load(model).graph.node)
    compared = 0
    for path in dump_files(folder):
        (node,) = [node for node in nodes if node.name == read_dump_file(path).op_name]
        for side, names in (("input", node.input), ("output", node.output)):
            filed = [name for name in names if name]
            for number, name in enumerate(filed):
                array = arrays.get(f"{path.name}.{side}.{number}.npy")
                if array is None:
                    continue
                # The file does not distinguish a scalar from a tensor of shape (1,).
                assert array.dtype == values[name].dtype
                assert array.reshape(values[name].shape).tobytes() == values[name].tobytes(), (node.name, side, name)
                compared += 1
    assert compared == len(arrays)
    return compared


def numbers(*shape: int, seed: int = 0) -> Array:
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
