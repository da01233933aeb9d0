"""Runs a program twice: with a dump of its second step, and plain, with TensorFlow's own report of the nodes that this step executed.

Prints a line of JSON: `executed` has an entry for each node: its name and type, its name in the function that it comes from, that function, and
how often it ran. `eager` has the number of eager executions of each operator type.
usage: run_tf_witness.py session|function program folder [--dump-alone]
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, misc"

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

import opdump

WANTED = 1
v1 = tf.compat.v1
NO_STEP = ("save/", "global_step")
"""Nodes that hooks run within a step but that are not part of it: checkpoints, the number of the step."""
MODULES = {"session": "of_sessions", "function": "of_functions"}
LABEL = re.compile(r" = (\w+)\(")
TRACED = re.compile(r"^(.+):(\w+)$")


def dump(program, kind, folder):
    """The program under capture, a dump of one step."""
    with (
        tempfile.TemporaryDirectory() as own,
        opdump.capture(
            path=folder / "dump",
            saved_data="full",
            iteration=str(WANTED),
            framework="tensorflow",
            steps="manual" if kind == "function" else "auto",
        ) as dumped,
    ):

        @contextmanager
        def step(_):
            yield
            if kind == "function":
                dumped.step()

        program(step, own)


class Witness:
    """Collects TensorFlow's own report of the nodes that ran in one step."""

    def __init__(self):
        self.executed: Counter[tuple[str, str]] = Counter()
        self.eager: Counter[str] = Counter()
        self.graphs: list[Any] = []
        self.watching = False

    def stats(self, metadata):
        """From a session run with FULL_TRACE."""
        self.graphs += metadata.partition_graphs
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                label = LABEL.search(node.timeline_label)
                self.executed[node.node_name, label[1] if label else node.node_name] += 1

    def profile(self, place):
        """From all other runs: the events of the executors."""
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        for file in Path(place).rglob("*.xplane.pb"):
            for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
                names = {key: value.name for key, value in plane.event_metadata.items()}
                stats = {key: value.name for key, value in plane.stat_metadata.items()}
                for event in (event for line in plane.lines for event in line.events):
                    self._event(names[event.metadata_id], event.stats, stats)

    def _event(self, name, values, stats):
        if name == "EagerExecute":
            told = {stats[each.metadata_id]: each for each in values}
            op_type = told["eager_op"].str_value or stats[told["eager_op"].ref_value]
            if not told["is_func"].uint64_value and not told["is_func"].int64_value:
                self.eager[op_type] += 1
            return
        node = TRACED.match(name)
        if node is not None and op_def_registry.get(node[2]) is not None:
            self.executed[node[1], node[2]] += 1

    def told(self):
        """Each node, with its name in the function that it comes from, and that function."""
        origins = {}
        for node in (node for graph in self.graphs for node in graph.node):
            debug = node.experimental_debug_info
            if debug.original_node_names:
                functions = [*debug.original_func_names, ""]
                origins[node.name] = (debug.original_node_names[0], functions[0])
        return [
            [name, op_type, *origins.get(name, ("", "")), count]
            for (name, op_type), count in sorted(self.executed.items())
        ]


@contextmanager
def traced_runs(witness):
    """While the witness is watching, session runs report what they executed."""
    original = session_module.BaseSession.run

    def run(session, fetches, feed_dict=None, options=None, run_metadata=None):
        fetched = session_module._FetchMapper.for_fetch(fetches).unique_fetches()
        if not witness.watching or all(getattr(each, "name", each).startswith(NO_STEP) for each in fetched):
            return original(session, fetches, feed_dict, options, run_metadata)
        metadata = config_pb2.RunMetadata()
        traced = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE, output_partition_graphs=True)
        if options is not None:
            traced.MergeFrom(options)
        try:
            return original(session, fetches, feed_dict, traced, metadata)
        finally:
            witness.stats(metadata)

    session_module.BaseSession.run = run
    try:
        yield
    finally:
        session_module.BaseSession.run = original


def watch(program, kind):
    """Run the program without opdump."""
    witness = Witness()
    profiles = kind == "function"
    place = tempfile.mkdtemp()

    @contextmanager
    def step(number):
        if number != WANTED:
            yield
            return
        witness.watching = True
        if profiles:
            tf.profiler.experimental.start(place, tf.profiler.experimental.ProfilerOptions(host_tracer_level=3))
        yield
        if profiles:
            tf.profiler.experimental.stop()
        witness.watching = False

    if kind == "function":
        context.context().enable_run_metadata()  # its metadata contain the graphs of functions that run for the first time
    with tempfile.TemporaryDirectory() as own, traced_runs(witness):
        program(step, own)
    if kind == "function":
        found = context.context().export_run_metadata()
        witness.graphs += [graph for each in found.function_graphs for graph in each.partition_graphs]
    if profiles:
        witness.profile(place)
    return witness


def main(kind, name, folder, *options):
    program = getattr(importlib.import_module(f"tests.parity.tf_witness_programs.{MODULES[kind]}"), name)
    if kind == "session":
        v1.disable_eager_execution()
    keras.utils.set_random_seed(5)
    dump(program, kind, Path(folder))
    if "--dump-alone" in options:
        print("{}")
        return
    v1.reset_default_graph()
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    witness = watch(program, kind)
    print(json.dumps({"executed": witness.told(), "eager": witness.eager}))


if __name__ == "__main__":
    main(*sys.argv[1:])
