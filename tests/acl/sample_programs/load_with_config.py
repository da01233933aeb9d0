"""Load models through a configuration handle, from a file into memory of the program and from memory."""

import numpy as np

from opdump import acl

HUGE_FIRST = 0
LOAD_TYPE, PATH, MEMORY, MEMORY_SIZE, WEIGHTS, WEIGHTS_SIZE, WORK, WORK_SIZE, OPTIMIZE = 1, 2, 3, 4, 5, 6, 7, 8, 13
FROM_FILE_WITH_MEMORY, FROM_MEMORY = 2, 3


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


def loaded(options):
    handle = acl.mdl.create_config_handle()
    for attribute, value in options.items():
        check("acl.mdl.set_config_opt", acl.mdl.set_config_opt(handle, attribute, value))
    model_id, ret = acl.mdl.load_with_config(handle)
    check("acl.mdl.load_with_config", ret)
    check("acl.mdl.destroy_config_handle", acl.mdl.destroy_config_handle(handle))
    return model_id


def run(model_id, array):
    desc = acl.mdl.create_desc()
    check("acl.mdl.get_desc", acl.mdl.get_desc(desc, model_id))
    dims, ret = acl.mdl.get_output_dims(desc, 0)
    check("acl.mdl.get_output_dims", ret)
    result = np.zeros(dims["dims"], np.float32)
    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    acl.mdl.add_dataset_buffer(inputs, acl.create_data_buffer(acl.util.numpy_to_ptr(array), array.nbytes))
    acl.mdl.add_dataset_buffer(outputs, acl.create_data_buffer(acl.util.numpy_to_ptr(result), result.nbytes))
    check("acl.mdl.execute", acl.mdl.execute(model_id, inputs, outputs))
    check("acl.mdl.destroy_desc", acl.mdl.destroy_desc(desc))
    return result


def main():
    check("acl.init", acl.init("acl.json"))
    check("acl.rt.set_device", acl.rt.set_device(0))
    work_size, weights_size, ret = acl.mdl.query_size("network.om")
    check("acl.mdl.query_size", ret)
    work, ret = acl.rt.malloc(work_size, HUGE_FIRST)
    check("acl.rt.malloc", ret)
    weights, ret = acl.rt.malloc(weights_size, HUGE_FIRST)
    check("acl.rt.malloc", ret)
    of_file = loaded(
        {
            LOAD_TYPE: FROM_FILE_WITH_MEMORY,
            PATH: "network.om",
            WEIGHTS: weights,
            WEIGHTS_SIZE: weights_size,
            WORK: work,
            WORK_SIZE: work_size,
            OPTIMIZE: 1,
        }
    )
    with open("network.onnx", "rb") as stream:
        content = stream.read()
    of_memory = loaded({LOAD_TYPE: FROM_MEMORY, MEMORY: acl.util.bytes_to_ptr(content), MEMORY_SIZE: len(content)})
    picture = np.load("pictures.npy")[:1]
    np.save("results.npy", np.concatenate([run(model_id, picture) for model_id in (of_file, of_memory)]))
    for model_id in (of_file, of_memory):
        check("acl.mdl.unload", acl.mdl.unload(model_id))
    check("acl.rt.free", acl.rt.free(work))
    check("acl.rt.free", acl.rt.free(weights))
    check("acl.rt.reset_device", acl.rt.reset_device(0))
    check("acl.finalize", acl.finalize())


main()
