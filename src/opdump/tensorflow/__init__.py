"""Dumps that TensorFlow programs ask for themselves: sessions whose config has an entry NpuOptimizer.

    import opdump
    opdump.tensorflow.install()            # before the first session; `opdump run train.py` does it by itself

    with tf.compat.v1.Session(config=config) as session:   # config: as for an Ascend device
        session.run(train_op)

Programs that say nothing of a dump are captured by `opdump.capture(config)`. Sources: the documents of data dump in training, and of the
TensorFlow adapter.
"""

from __future__ import annotations

from opdump.tensorflow.installation import finish, install, install_on_import, start, stop, uninstall
from opdump.tensorflow.scripts import prepare_main

__all__ = ["finish", "install", "install_on_import", "prepare_main", "start", "stop", "uninstall"]
