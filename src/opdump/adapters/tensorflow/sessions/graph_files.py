"""Writes the graphs of signatures to the directory that the environment names, by default that of the program.

See docs/tensorflow-graph.md#the-files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.sessions.ge_graph import ge_graphs_of
from opdump.configs.shared.directories import graph_directory, graph_warnings
from opdump.errors import DumpPathError
from opdump.layouts.graph_files.ge import NOTES_NAME, note_graph, update_of, write_new_ge_graph
from opdump.layouts.graph_files.ge import is_computational as rule_of
from opdump.recorder import Recorder, SupportsMetadata


class GraphFiles:
    """Writes a text and a JSON file for each model of a capture, and records their places in the dump."""

    def __init__(self, capture: Capture, environ: Mapping[str, str]) -> None:
        here = Path.cwd()
        configured = graph_directory(environ, pid=os.getpid(), device_id=capture.device_id, cwd=here)
        self._directories = [here] if configured in (None, here) else [configured, here]
        self._recorder: Recorder = capture.recorder
        self._capture = capture
        self._lock = threading.Lock()
        self._unwritten: list[tuple[Path, Model, str | None, str]] = []
        for text in graph_warnings(environ):
            capture.note(text)

    def __call__(self, model: Model, computed: Any, *, is_computational: bool) -> None:
        """Write the graph of a model, a `Subgraph` or the graph of a function.

        If a directory cannot be written, a note reports it and another directory is used. If none can be, the dump continues without the graph, or
        the error is raised, depending on the plan's `on_error`.
        """
        graphs = ge_graphs_of(model.name, computed, is_computational=is_computational)
        try:
            written = write_new_ge_graph(self._directories, model.number, graphs)
        except DumpPathError as error:
            if self._recorder.plan.on_error == "stop":
                raise
            self._capture.note(str(error))  # the dump continues without the graph
            return
        if written.warning:
            self._capture.note(written.warning)
        rule = rule_of(graphs) if is_computational else None
        with self._lock:
            self._unwritten.append((written.path, model, rule, update_of(graphs)))

    def note_files(self) -> None:
        """Record in the dump which graph files belong to it, once there is a dump."""
        writer = self._recorder.writer
        if not isinstance(writer, SupportsMetadata):
            return
        metadata = writer.metadata
        if metadata is None:
            return
        with self._lock:
            for path, model, rule, update in self._unwritten:
                note_graph(metadata, path, model.name, model.number, rule, update)
                # Graph files are usually elsewhere; those within the dump count towards its size.
                for file in (metadata / NOTES_NAME, path, path.with_name(f"{path.name}.json")):
                    writer.adopt(file)
            self._unwritten.clear()
