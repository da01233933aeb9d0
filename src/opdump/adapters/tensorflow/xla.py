"""Finds the parts that XLA compiles, each of which is one operator with its inputs and outputs.

XLA compiles functions that request it (`jit_compile=True`); and clusters of operators, anywhere in a graph, if the program lets XLA search
for them (`tf.config.optimizer.set_jit`, `global_jit_level` of a session, `TF_XLA_FLAGS`) or marks operators for it (`jit_scope`).
Observing values inside a cluster would change the clusters, and thereby the last bits of the answer. Source: TensorFlow's
mark_for_compilation_pass.cc, xla_kernel_creator.cc, flags.cc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

LAUNCH: Final = "XlaLaunch"
"""TensorFlow's name for the operator that runs compiled code."""
_MUST_COMPILE: Final = "_XlaMustCompile"
_SCOPES: Final = ("_XlaCompile", "_xla_compile_id")
_LEVEL: Final = re.compile(r"--tf_xla_auto_jit=(?:single-gpu\()?(fusible|-?\d+)")
_ON_CPU: Final = re.compile(r"--tf_xla_cpu_global_jit(?:=(\w+))?")

OF_FUNCTION: Final = (
    "{} is compiled by XLA, so it is one operator in the dump, XlaLaunch, with its inputs and outputs; to record its operators, leave "
    "jit_compile=True out (Keras: model.compile(..., jit_compile=False))"
)
OF_CLUSTERS: Final = (
    "XLA compiles clusters of operators in {}, so it is one operator in the dump, XlaLaunch, with its inputs and outputs; to record its "
    "operators, leave out tf.config.optimizer.set_jit, jit_scope, and --tf_xla_auto_jit in TF_XLA_FLAGS"
)
OF_SESSION: Final = (
    "XLA compiles clusters of operators in {}: only the program's own fetches are dumped, and all other operators are listed as not observed; to record "
    "them, leave out global_jit_level in the session's config, jit_scope, and --tf_xla_auto_jit in TF_XLA_FLAGS"
)


def note_of_call(op_name: str, node: Any) -> str:
    """The note for a node that runs a compiled function."""
    function = node.attr["f"].func.name if "f" in node.attr else ""
    return OF_FUNCTION.format(f"{shown_name(function)} ({op_name})" if function else op_name)


def is_compiled(definition_or_node: Any) -> bool:
    """Whether XLA compiles a function, or the function of a node, as a whole."""
    attributes = definition_or_node.attr
    return _MUST_COMPILE in attributes and bool(attributes[_MUST_COMPILE].b)


def type_of(node: Any) -> str:
    """The type of a node's operator, which differs if XLA compiles it."""
    return LAUNCH if is_compiled(node) else str(node.op)


def has_marked_clusters(nodes: Iterable[Any]) -> bool:
    """Whether the program marked some of these nodes for XLA individually."""
    return any(name in node.attr and (node.attr[name].b or node.attr[name].s) for node in nodes for name in _SCOPES)


def clusters_functions() -> bool:
    """Whether XLA compiles clusters in any function that runs."""
    return _clusters(int(bool(tf.config.optimizer.get_jit())))


def clusters_sessions(config: Any) -> bool:
    """Whether XLA compiles clusters in the graph of a session with this ConfigProto; None for a session without one."""
    return _clusters(0 if config is None else config.graph_options.optimizer_options.global_jit_level)


def _clusters(requested: int) -> bool:
    flags = _flags(os.environ)
    levels = _LEVEL.findall(flags)
    level = 1 if levels and levels[-1] == "fusible" else int(levels[-1]) if levels else 0
    if (level or requested) <= 0:  # a flag has priority over the program's setting
        return False
    on_cpu = _ON_CPU.findall(flags)
    # Without that flag, XLA does not compile operators on CPUs.
    return bool((on_cpu and on_cpu[-1].lower() not in ("false", "0")) or tf.config.list_physical_devices("GPU"))


def _flags(environ: Mapping[str, str]) -> str:
    """The value of TF_XLA_FLAGS, or the contents of the file that it names."""
    text = environ.get("TF_XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        try:
            return Path(text).read_text(encoding="utf-8", errors="replace")
        except OSError:  # TensorFlow then has no flags either
            return ""
    return text


# The program's names of functions, for which the runtime has longer names.

_GRADIENT: Final = re.compile(r"^__inference___backward_(.*?)(?:_\d+)*$")
_TRACED: Final = re.compile(r"^__(?:inference|forward)_|(?:_\d+)+$")
_OF_GRAPH: Final = re.compile(r"^__(?:inference|forward|backward)_|_\d+$")


def plain_name(name: str) -> str:
    """`loss` for `__inference_loss_12`, `__forward_loss_34` and `__inference___backward_loss_12_34`."""
    gradient = _GRADIENT.match(name)
    plain = gradient[1] if gradient is not None else _TRACED.sub("", name)
    return re.sub(r"[^\w.-]+", "", plain) or "function"


def shown_name(name: str) -> str:
    """The same; for a gradient `gradients/loss`."""
    return f"gradients/{plain_name(name)}" if _GRADIENT.match(name) else plain_name(name)


def graph_name(name: str) -> str:
    """The name of the graph of a traced function: `step_2` for `__inference_step_2_12`."""
    return _OF_GRAPH.sub("", name)
