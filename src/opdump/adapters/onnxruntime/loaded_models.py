"""The models of one recording: loads them, writes their graphs, and collects what the report says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opdump.adapters.onnxruntime.graph_files import enter_nodes, ge_graphs_of
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.layouts.graph_files.ge import write_ge_graph
from opdump.plan.dialects import words_of
from opdump.plan.unmatched_names import ChoseNothing, with_nearest
from opdump.recorder import Recorder


class _Loaded(NamedTuple):
    session: OnnxSession
    has_graph_file: bool


class LoadedModels:
    """The models that are loaded under a recorder. `may_write` decides, before the graph of a model is written, whether anything may go to disk."""

    def __init__(self, recorder: Recorder, *, may_write: Callable[[], bool] = lambda: True) -> None:
        self._recorder = recorder
        self._plan = recorder.plan
        self._may_write = may_write
        self._loaded: dict[int, _Loaded] = {}
        self._notes: Counter[str] = Counter()
        self._names: set[str] = set()
        self._runs: dict[tuple[str, ...], int] = {}
        """The number of runs of models that were unloaded, by name."""
        self._reasons: set[ChoseNothing] = set()
        """For models that ran: why the configuration selected none of their nodes."""

    def load(self, model: Any, model_id: int, **options: Any) -> OnnxSession:
        """A session of the model whose runs are recorded. `options` are those of `OnnxSession`.

        Raises ModelFileError for an invalid model, and the runtime's own errors unchanged.
        """
        session = OnnxSession(model, recorder=self._recorder, plan=self._plan, model_id=model_id, **options)
        is_operator = options.get("is_single_operator", False)
        by_model = self._plan.layout_facts.by_model
        self._loaded[model_id] = _Loaded(session, has_graph_file=is_operator or not by_model)
        if is_operator:
            return session
        if not by_model:
            enter_nodes(session, self._recorder.graph(model_id, session.model.name))
        self._names.update(session.model.names)
        return session

    @contextmanager
    def running(self, model_id: int) -> Iterator[OnnxSession]:
        """The session of a model while it runs. The graph of a model is written after the first run with recorded data."""
        before = self._recorder.tally.captured
        try:
            yield self._loaded[model_id].session
        finally:
            if self._recorder.tally.captured > before:
                self._write_graph(model_id)

    def _write_graph(self, model_id: int) -> None:
        loaded = self._loaded[model_id]
        if loaded.has_graph_file:
            return
        writer = getattr(
            self._recorder.writer, "opened", self._recorder.writer
        )  # the place of a rank that was decided later
        run_time = getattr(writer, "time", None)
        if run_time is None or self._plan.mode.failures_only or not self._may_write():
            return
        graphs = ge_graphs_of(loaded.session)
        with self._recorder.writing():
            written = write_ge_graph(self._plan.path / run_time, model_id, graphs)
            for name in (written.name, f"{written.name}.json"):
                writer.sink.adopt(f"{run_time}/{name}")
        self._loaded[model_id] = loaded._replace(has_graph_file=True)

    def unload(self, model_id: int) -> None:
        """Unload a model; its part of the report is kept."""
        loaded = self._loaded.pop(model_id, None)
        if loaded is not None:
            self._note(loaded.session)
            loaded.session.close()

    def _note(self, session: OnnxSession) -> None:
        """Add a model's results to the report."""
        self._notes.update(session.notes)
        names = tuple(session.model.names)
        self._runs[names] = max(self._runs.get(names, 0), session.runs)
        if session.runs:
            self._reasons.add(session.chose_nothing)

    def notes(self) -> tuple[str, ...]:
        """The warnings for the report, at the end. Models stay loaded."""
        for loaded in self._loaded.values():
            self._note(loaded.session)
        return (*self._unmatched_models(), *self._notes)

    def _unmatched_models(self) -> Iterator[str]:
        """Model names in the config that no loaded model has."""
        for entry in self._plan.models or ():
            name = entry.model_name
            if self._names and name is not None and name not in self._names:
                called = ", ".join(repr(each) for each in sorted(self._names))
                key = words_of(self._plan.dialect).list_key.format("model_name")
                text = f"{key}: no loaded model is called {name!r}; the loaded models are {called}"
                yield with_nearest(text, name, self._names)

    def tell_circumstances(self, framework: str) -> None:
        """Fill in why nothing may have been recorded. Call it after `notes`."""
        around, models = self._recorder.circumstances, self._plan.models
        around.framework = framework
        around.first_step = self._plan.initial_iteration
        around.models_seen = tuple(sorted(self._names))
        around.chose_nothing = "" if "" in self._reasons else max(self._reasons, default="")
        wanted = {entry.model_name for entry in models or ()}
        every = models is None or None in wanted
        around.executions = {
            name: runs for names, runs in self._runs.items() for name in names if runs and (every or name in wanted)
        }
