"""The Python interface of the TensorFlow 1 adapter for Ascend devices, as far as a dump needs it, over stock TensorFlow.

    import opdump.npu_bridge                     # one line above; the script stays as it is

    from npu_bridge.npu_init import *
    config = NPURunConfig(dump_config=DumpConfig(enable_dump=True, dump_path="/tmp/dump", dump_step="0|5|10"))

Importing it makes `import npu_bridge` give this package, unless there is another one of that name, and has sessions looked at
for an entry NpuOptimizer. The program also gets names of TensorFlow 1, as under `opdump run`. It imports no TensorFlow.
"""

from __future__ import annotations

from opdump.interpreter.module_alias import add_alias, has_alias, remove_alias

ALIAS = "npu_bridge"


def install() -> bool:
    """Makes `import npu_bridge` give this package, and sessions dump; a second call changes nothing.

    False, with a warning, where there is another package npu_bridge: it is left as it is, and so are sessions.
    """
    if not add_alias(ALIAS, __name__):
        return False
    from opdump.tensorflow import install_on_import, prepare_main

    prepare_main()
    install_on_import()
    return True


def uninstall() -> None:
    """`import npu_bridge` gives no longer this package. Sessions are `opdump.tensorflow`'s to give back."""
    remove_alias(ALIAS, __name__)


if not has_alias(ALIAS, __name__):  # who added it alone wants no sessions looked at
    install()
