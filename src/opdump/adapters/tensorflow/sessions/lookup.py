"""Looks up the graph that the runtime executes for a set of fetches, before anything runs.

The runtime's debugger writes it when a callable is made of the fetches. Source: TensorFlow's direct_session.cc, debug_graph_utils.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.util import event_pb2

from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph
from opdump.adapters.tensorflow.sessions.rehearsal import Rehearsal

_NO_NODE: Final = "opdump/no node has this name"
"""The debugger writes graphs only if it watches a tensor."""


def executed_graph(
    session: Any, feeds: Collection[str], fetches: Sequence[str], targets: Sequence[str], place: Path
) -> ExecutedGraph:
    """The graph that the runtime executes for these feeds and fetches (tensors) and targets (operations), none of which runs.

    `place` is a directory that does not exist yet. Raises tf.errors.OpError if the runtime rejects them.
    """
    options = config_pb2.CallableOptions()
    options.feed.extend(sorted(feeds))
    options.fetch.extend(fetches)
    options.target.extend(targets)
    watch = options.run_options.debug_options.debug_tensor_watch_opts.add()
    watch.node_name, watch.output_slot = _NO_NODE, 0
    watch.debug_ops.append("DebugIdentity")
    watch.debug_urls.append(f"file://{place}")
    with Rehearsal(session.graph).trial():  # constants are folded, which may call the program's Python
        made = session._make_callable_from_options(options)
    del made
    return ExecutedGraph(_published(place))


def _published(place: Path) -> Iterator[Any]:
    for path in sorted(place.rglob("_tfdbg_graph_*")):
        yield graph_pb2.GraphDef.FromString(event_pb2.Event.FromString(path.read_bytes()).graph_def)
