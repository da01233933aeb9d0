"""Files the graphs of MindSpore: its own graph files if the layout has them, otherwise graphs in the layout's form."""

from __future__ import annotations

from opdump.adapters.mindspore.executions import Executions
from opdump.recorder import Recorder


class GraphFiles:
    """The graphs of one rank of MindSpore's dump."""

    def __init__(self, recorder: Recorder, executions: Executions) -> None:
        self._recorder = recorder
        self._executions = executions
        self._filed: set[int] = set()
        self._ran: dict[int, int] = {}
        """The number of noted executions of each graph."""

    def file_new(self) -> list[tuple[int, int]]:
        """File the graphs that were compiled and the iterations that were executed since the last call.

        Returns the latter as (graph number, iteration).
        """
        ran: list[tuple[int, int]] = []
        executions, recorder = self._executions, self._recorder
        for graph_id in executions.graph_ids():
            if graph_id not in self._filed:
                self._filed.add(graph_id)
                graph = executions.tree.graph(graph_id)
                if graph is not None:
                    recorder.file_graph(graph, executions.graph_files(graph_id))
            history = executions.history(graph_id)
            for step in history[self._ran.get(graph_id, 0) :]:
                recorder.graphs_ran(step, [graph_id])
                ran.append((graph_id, step))
            self._ran[graph_id] = len(history)
        return ran
