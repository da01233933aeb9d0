"""Run pictures in the largest batches that the model accepts, with the addresses of numpy arrays."""

import numpy as np

from opdump import acl

NORMAL_ONLY, HOST_TO_DEVICE, DEVICE_TO_HOST = 2, 1, 2
SELECTOR = "ascend_mbatch_shape_data"


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


def allocated(count, size_of, desc):
    dataset = acl.mdl.create_dataset()
    buffers = []
    for index in range(count):
        size = size_of(desc, index)
        address, ret = acl.rt.malloc(size, NORMAL_ONLY)
        check("acl.rt.malloc", ret)
        buffers.append((address, size))
        _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, size))
        check("acl.mdl.add_dataset_buffer", ret)
    return dataset, buffers


def main():
    check("acl.init", acl.init("acl.json"))
    check("acl.rt.set_device", acl.rt.set_device(0))
    model_id, ret = acl.mdl.load_from_file("network.om")
    check("acl.mdl.load_from_file", ret)
    desc = acl.mdl.create_desc()
    check("acl.mdl.get_desc", acl.mdl.get_desc(desc, model_id))
    selector, ret = acl.mdl.get_input_index_by_name(desc, SELECTOR)
    check("acl.mdl.get_input_index_by_name", ret)
    gears, ret = acl.mdl.get_dynamic_batch(desc)
    check("acl.mdl.get_dynamic_batch", ret)
    sizes = sorted(gears["batch"], reverse=True)
    assert len(sizes) == gears["batchCount"]

    inputs, into = allocated(acl.mdl.get_num_inputs(desc), acl.mdl.get_input_size_by_index, desc)
    outputs, out = allocated(acl.mdl.get_num_outputs(desc), acl.mdl.get_output_size_by_index, desc)
    pictures, results, first = np.load("pictures.npy"), [], 0
    while first < len(pictures):
        batch = next(size for size in sizes if size <= len(pictures) - first)
        check("acl.mdl.set_dynamic_batch_size", acl.mdl.set_dynamic_batch_size(model_id, inputs, selector, batch))
        part = np.ascontiguousarray(pictures[first : first + batch])
        check("acl.rt.memcpy", acl.rt.memcpy(*into[0], part.ctypes.data, part.nbytes, HOST_TO_DEVICE))
        check("acl.mdl.execute", acl.mdl.execute(model_id, inputs, outputs))
        dims, ret = acl.mdl.get_cur_output_dims(desc, 0)
        check("acl.mdl.get_cur_output_dims", ret)
        host = np.empty(dims["dims"], np.float32)
        check("acl.rt.memcpy", acl.rt.memcpy(host.ctypes.data, host.nbytes, out[0][0], host.nbytes, DEVICE_TO_HOST))
        print(f"pictures {first} to {first + batch - 1}")
        results.append(host)
        first += batch
    np.save("results.npy", np.concatenate(results))
    for address, _ in (*into, *out):
        check("acl.rt.free", acl.rt.free(address))
    check("acl.mdl.unload", acl.mdl.unload(model_id))
    check("acl.rt.reset_device", acl.rt.reset_device(0))
    check("acl.finalize", acl.finalize())


main()
