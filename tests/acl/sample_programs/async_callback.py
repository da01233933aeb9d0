"""Run in a stream; a thread takes the results when callbacks report them."""

import numpy as np

from opdump import acl

HUGE_FIRST, HOST_TO_DEVICE, DEVICE_TO_HOST, BLOCKS = 0, 1, 2, 1


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


class Program:
    def __init__(self):
        check("acl.init", acl.init("acl.json"))
        check("acl.rt.set_device", acl.rt.set_device(0))
        self.context, ret = acl.rt.create_context(0)
        check("acl.rt.create_context", ret)
        self.stream, ret = acl.rt.create_stream()
        check("acl.rt.create_stream", ret)
        self.model_id, ret = acl.mdl.load_from_file("network.om")
        check("acl.mdl.load_from_file", ret)
        self.desc = acl.mdl.create_desc()
        check("acl.mdl.get_desc", acl.mdl.get_desc(self.desc, self.model_id))
        self.is_over = False
        self.results = {}

    def loop(self, arguments):
        context, timeout = arguments
        check("acl.rt.set_context", acl.rt.set_context(context))
        while not self.is_over:
            acl.rt.process_report(timeout)

    def dataset(self, size):
        address, ret = acl.rt.malloc(size, HUGE_FIRST)
        check("acl.rt.malloc", ret)
        dataset = acl.mdl.create_dataset()
        _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, size))
        check("acl.mdl.add_dataset_buffer", ret)
        return dataset, address

    def take(self, arguments):
        """Callback: copy a result to the host and free the data sets of its run."""
        for number, (inputs, outputs) in arguments:
            buffer = acl.mdl.get_dataset_buffer(outputs, 0)
            size = acl.get_data_buffer_size(buffer)
            host, ret = acl.rt.malloc_host(size)
            check("acl.rt.malloc_host", ret)
            ret = acl.rt.memcpy(host, size, acl.get_data_buffer_addr(buffer), size, DEVICE_TO_HOST)
            check("acl.rt.memcpy", ret)
            dims = acl.mdl.get_output_dims(self.desc, 0)[0]["dims"]
            self.results[number] = acl.util.ptr_to_numpy(host, tuple(dims), np.dtype(np.float32).num).copy()
            check("acl.rt.free_host", acl.rt.free_host(host))
            for dataset in (inputs, outputs):
                buffer = acl.mdl.get_dataset_buffer(dataset, 0)
                check("acl.rt.free", acl.rt.free(acl.get_data_buffer_addr(buffer)))
                check("acl.destroy_data_buffer", acl.destroy_data_buffer(buffer))
                check("acl.mdl.destroy_dataset", acl.mdl.destroy_dataset(dataset))

    def run(self):
        thread, ret = acl.util.start_thread(self.loop, [self.context, 20])
        check("acl.util.start_thread", ret)
        check("acl.rt.subscribe_report", acl.rt.subscribe_report(thread, self.stream))
        begun, ret = acl.rt.create_event()
        check("acl.rt.create_event", ret)
        ended, ret = acl.rt.create_event()
        check("acl.rt.create_event", ret)
        check("acl.rt.record_event", acl.rt.record_event(begun, self.stream))
        pictures, pending = np.load("pictures.npy"), []
        for number, picture in enumerate(pictures):
            inputs, address = self.dataset(picture.nbytes)
            outputs, _ = self.dataset(acl.mdl.get_output_size_by_index(self.desc, 0))
            ret = acl.rt.memcpy_async(
                address, picture.nbytes, picture.ctypes.data, picture.nbytes, HOST_TO_DEVICE, self.stream
            )
            check("acl.rt.memcpy_async", ret)
            ret = acl.mdl.execute_async(self.model_id, inputs, outputs, self.stream)
            check("acl.mdl.execute_async", ret)
            pending.append((number, (inputs, outputs)))
            if len(pending) == 2 or number == len(pictures) - 1:
                ret = acl.rt.launch_callback(self.take, pending, BLOCKS, self.stream)
                check("acl.rt.launch_callback", ret)
                pending = []
        check("acl.rt.record_event", acl.rt.record_event(ended, self.stream))
        check("acl.rt.synchronize_stream", acl.rt.synchronize_stream(self.stream))
        milliseconds, ret = acl.rt.event_elapsed_time(begun, ended)
        check("acl.rt.event_elapsed_time", ret)
        assert milliseconds >= 0
        check("acl.rt.unsubscribe_report", acl.rt.unsubscribe_report(thread, self.stream))
        self.is_over = True
        check("acl.util.stop_thread", acl.util.stop_thread(thread))
        print(f"{len(self.results)} results")
        np.save("results.npy", np.concatenate([self.results[number] for number in range(len(pictures))]))

    def release(self):
        check("acl.mdl.destroy_desc", acl.mdl.destroy_desc(self.desc))
        check("acl.mdl.unload", acl.mdl.unload(self.model_id))
        check("acl.rt.destroy_stream", acl.rt.destroy_stream(self.stream))
        check("acl.rt.destroy_context", acl.rt.destroy_context(self.context))
        check("acl.rt.reset_device", acl.rt.reset_device(0))
        check("acl.finalize", acl.finalize())


program = Program()
program.run()
program.release()
