"""Two threads, each with a model, share a context; the main thread switches between it and another."""

import threading

import numpy as np

from opdump import acl


def check(name, ret):
    if ret != 0:
        raise RuntimeError(f"{name}: {ret}: {acl.get_recent_err_msg()}")


class Worker(threading.Thread):
    def __init__(self, context, path, pictures):
        super().__init__()
        self.context, self.pictures, self.results, self.error = context, pictures, [], None
        self.model_id, ret = acl.mdl.load_from_file(path)
        check("acl.mdl.load_from_file", ret)

    def run(self):
        try:
            assert acl.rt.get_context()[1] == 107002, "a new thread has no context"
            check("acl.rt.set_context", acl.rt.set_context(self.context))
            assert acl.rt.get_context() == (self.context, 0)
            for picture in self.pictures:
                self.results.append(self.infer(np.ascontiguousarray(picture[None])))
        except Exception as error:  # noqa: BLE001  the main thread raises it
            self.error = error

    def infer(self, picture):
        desc = acl.mdl.create_desc()
        check("acl.mdl.get_desc", acl.mdl.get_desc(desc, self.model_id))
        dims, ret = acl.mdl.get_output_dims(desc, 0)
        check("acl.mdl.get_output_dims", ret)
        result = np.empty(dims["dims"], np.float32)
        inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        for dataset, array in ((inputs, picture), (outputs, result)):
            _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(array.ctypes.data, array.nbytes))
            check("acl.mdl.add_dataset_buffer", ret)
        check("acl.mdl.execute", acl.mdl.execute(self.model_id, inputs, outputs))
        return result


def main():
    check("acl.init", acl.init("acl.json"))
    check("acl.rt.set_device", acl.rt.set_device(0))
    default, ret = acl.rt.get_context()
    check("acl.rt.get_context", ret)
    shared, ret = acl.rt.create_context(0)
    check("acl.rt.create_context", ret)
    pictures = np.load("pictures.npy")
    workers = [Worker(shared, path, pictures) for path in ("network.om", "other.om")]
    check("acl.rt.set_context", acl.rt.set_context(default))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.error is not None:
            raise worker.error
    assert acl.rt.get_context() == (default, 0), "threads do not change the context of another thread"
    np.savez("results.npz", **{f"model{worker.model_id}": np.concatenate(worker.results) for worker in workers})
    for worker in workers:
        check("acl.mdl.unload", acl.mdl.unload(worker.model_id))
    check("acl.rt.destroy_context", acl.rt.destroy_context(shared))
    check("acl.rt.reset_device", acl.rt.reset_device(0))
    check("acl.finalize", acl.finalize())


main()
