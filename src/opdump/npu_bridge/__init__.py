"""The Python interface of the TensorFlow 1 adapter for Ascend devices on stock TensorFlow, as far as dumps need it.

    import opdump.npu_bridge                     # one line above; the script stays unchanged

    from npu_bridge.npu_init import *
    config = NPURunConfig(dump_config=DumpConfig(enable_dump=True, dump_path="/tmp/dump", dump_step="0|5|10"))

After the import, `import npu_bridge` imports this package, unless another one with this name exists, and sessions are examined for
an entry NpuOptimizer. The program also gets names of TensorFlow 1, as under `opdump run`. TensorFlow is not imported.
"""

from __future__ import annotations

from opdump.interpreter.imports import add_alias, has_alias, remove_alias

ALIAS = "npu_bridge"


def install() -> bool:
    """Make `import npu_bridge` import this package, and record sessions. A second call has no effect.

    If another package npu_bridge exists, the function warns, changes nothing and returns False.
    """
    if not add_alias(ALIAS, __name__):
        return False
    from opdump.tensorflow import install_on_import, prepare_main

    prepare_main()
    install_on_import()
    return True


def uninstall() -> None:
    """Undo the alias `npu_bridge`. `opdump.tensorflow` stops recording sessions."""
    remove_alias(ALIAS, __name__)


if not has_alias(ALIAS, __name__):  # if the alias already exists, its owner wants no sessions recorded
    install()
