"""Run pictures of several sizes, each padded to the smallest size that fits and that the model accepts."""

import numpy as np

from opdump import acl

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


def address_of(array):
    return array.__array_interface__["data"][0]


def main():
    check("acl.init", acl.init("acl.json"))
    check("acl.rt.set_device", acl.rt.set_device(0))
    model_id, ret = acl.mdl.load_from_file("network.om")
    check("acl.mdl.load_from_file", ret)
    desc = acl.mdl.create_desc()
    check("acl.mdl.get_desc", acl.mdl.get_desc(desc, model_id))
    selector, ret = acl.mdl.get_input_index_by_name(desc, "ascend_mbatch_shape_data")
    check("acl.mdl.get_input_index_by_name", ret)
    gears, ret = acl.mdl.get_dynamic_hw(desc, -1)
    check("acl.mdl.get_dynamic_hw", ret)

    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    addresses = []
    for dataset, count, size_of in (
        (inputs, acl.mdl.get_num_inputs(desc), acl.mdl.get_input_size_by_index),
        (outputs, acl.mdl.get_num_outputs(desc), acl.mdl.get_output_size_by_index),
    ):
        for index in range(count):
            size = size_of(desc, index)
            address, ret = acl.rt.malloc(size, 0)
            check("acl.rt.malloc", ret)
            addresses.append((address, size))
            _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, size))
            check("acl.mdl.add_dataset_buffer", ret)

    with np.load("pictures.npz") as pictures:
        named = {name: pictures[name] for name in sorted(pictures)}
    results = {}
    for name, picture in named.items():
        height, width = min(size for size in gears["hw"] if size[0] >= picture.shape[1] and size[1] >= picture.shape[2])
        padded = np.zeros((1, 3, height, width), np.float32)
        padded[0, :, : picture.shape[1], : picture.shape[2]] = picture
        check("acl.mdl.set_dynamic_hw_size", acl.mdl.set_dynamic_hw_size(model_id, inputs, selector, height, width))
        ret = acl.rt.memcpy(*addresses[0], address_of(padded), padded.nbytes, HOST_TO_DEVICE)
        check("acl.rt.memcpy", ret)
        check("acl.mdl.execute", acl.mdl.execute(model_id, inputs, outputs))
        dims, ret = acl.mdl.get_cur_output_dims(desc, 0)
        check("acl.mdl.get_cur_output_dims", ret)
        found = np.empty(dims["dims"], np.float32)
        buffer = acl.mdl.get_dataset_buffer(outputs, 0)
        ret = acl.rt.memcpy(
            address_of(found), found.nbytes, acl.get_data_buffer_addr(buffer), found.nbytes, DEVICE_TO_HOST
        )
        check("acl.rt.memcpy", ret)
        print(f"{name}: {height} x {width} -> {dims['dims']}")
        results[name], results[f"{name}-fed"] = found, padded
    np.savez("results.npz", **results)
    check("acl.mdl.unload", acl.mdl.unload(model_id))
    check("acl.rt.reset_device", acl.rt.reset_device(0))
    check("acl.finalize", acl.finalize())


main()
