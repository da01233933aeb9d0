"""Dumps that TensorFlow programs request themselves: sessions whose config has an entry NpuOptimizer.

    import opdump
    opdump.tensorflow.install()            # before the first session; `opdump run train.py` does this itself

    with tf.compat.v1.Session(config=config) as session:   # config: as for an Ascend device
        session.run(train_op)

Programs that request no dump are recorded by `opdump.capture(config)`. Sources: the documents on data dump in training, and those of
the TensorFlow adapter.
"""

from __future__ import annotations

from opdump.tensorflow.installation import finish, install, install_on_import, prepare_main, start, stop, uninstall

__all__ = ["finish", "install", "install_on_import", "prepare_main", "start", "stop", "uninstall"]
