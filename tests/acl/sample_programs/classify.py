"""Classify one picture per run: pictures are copied to the device from bytes, and results are copied back into bytes."""

import numpy as np

from opdump import acl

HUGE_FIRST, HOST_TO_DEVICE, DEVICE_TO_HOST, HOST = 0, 1, 2, 1


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


class Resource:
    def __init__(self, device=0):
        self.device = device
        check("acl.init", acl.init("acl.json"))
        check("acl.rt.set_device", acl.rt.set_device(device))
        self.context, ret = acl.rt.create_context(device)
        check("acl.rt.create_context", ret)
        self.stream, ret = acl.rt.create_stream()
        check("acl.rt.create_stream", ret)
        self.run_mode, ret = acl.rt.get_run_mode()
        check("acl.rt.get_run_mode", ret)

    def release(self):
        check("acl.rt.destroy_stream", acl.rt.destroy_stream(self.stream))
        check("acl.rt.destroy_context", acl.rt.destroy_context(self.context))
        check("acl.rt.reset_device", acl.rt.reset_device(self.device))
        check("acl.finalize", acl.finalize())


class Model:
    def __init__(self, path):
        self.model_id, ret = acl.mdl.load_from_file(path)
        check("acl.mdl.load_from_file", ret)
        self.desc = acl.mdl.create_desc()
        check("acl.mdl.get_desc", acl.mdl.get_desc(self.desc, self.model_id))
        self.inputs = self._dataset(acl.mdl.get_num_inputs(self.desc), acl.mdl.get_input_size_by_index)
        self.outputs = self._dataset(acl.mdl.get_num_outputs(self.desc), acl.mdl.get_output_size_by_index)

    def _dataset(self, count, size_of):
        dataset = acl.mdl.create_dataset()
        for index in range(count):
            size = size_of(self.desc, index)
            address, ret = acl.rt.malloc(size, HUGE_FIRST)
            check("acl.rt.malloc", ret)
            _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, size))
            check("acl.mdl.add_dataset_buffer", ret)
        return dataset

    def run(self, pictures):
        for index, picture in enumerate(pictures):
            content = picture.tobytes()
            buffer = acl.mdl.get_dataset_buffer(self.inputs, index)
            address, size = acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size(buffer)
            ret = acl.rt.memcpy(address, size, acl.util.bytes_to_ptr(content), len(content), HOST_TO_DEVICE)
            check("acl.rt.memcpy", ret)
        check("acl.mdl.execute", acl.mdl.execute(self.model_id, self.inputs, self.outputs))
        results = []
        for index in range(acl.mdl.get_dataset_num_buffers(self.outputs)):
            buffer = acl.mdl.get_dataset_buffer(self.outputs, index)
            dims, ret = acl.mdl.get_output_dims(self.desc, index)
            check("acl.mdl.get_output_dims", ret)
            assert acl.mdl.get_output_data_type(self.desc, index) == 0, "float32"
            host = np.zeros(dims["dims"], np.float32).tobytes()
            source, size = acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size(buffer)
            check("acl.rt.memcpy", acl.rt.memcpy(acl.util.bytes_to_ptr(host), len(host), source, size, DEVICE_TO_HOST))
            results.append(np.frombuffer(host, np.float32).reshape(dims["dims"]).copy())
        return results

    def release(self):
        for dataset in (self.inputs, self.outputs):
            for index in range(acl.mdl.get_dataset_num_buffers(dataset)):
                buffer = acl.mdl.get_dataset_buffer(dataset, index)
                check("acl.rt.free", acl.rt.free(acl.get_data_buffer_addr(buffer)))
                check("acl.destroy_data_buffer", acl.destroy_data_buffer(buffer))
            check("acl.mdl.destroy_dataset", acl.mdl.destroy_dataset(dataset))
        check("acl.mdl.destroy_desc", acl.mdl.destroy_desc(self.desc))
        check("acl.mdl.unload", acl.mdl.unload(self.model_id))


def main():
    resource = Resource()
    assert resource.run_mode == HOST
    model = Model("network.om")
    pictures = np.load("pictures.npy")
    results = np.concatenate([model.run([picture[None]])[0] for picture in pictures])
    for number, scores in enumerate(results):
        best = int(np.argmax(scores))
        print(f"picture {number}: class {best}, {scores[best]:.3f}")
    np.save("results.npy", results)
    model.release()
    resource.release()


main()
