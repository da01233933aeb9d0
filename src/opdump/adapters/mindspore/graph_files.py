"""Files what MindSpore says of its graphs: as it is where the layout has a place for it, else as graphs of that layout."""

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
        """How many executions of each graph were noted."""

    def file_new(self) -> list[tuple[int, int]]:
        """Files what has come since the last call: graphs that were compiled, iterations that graphs have executed; the latter, by the number
        of the graph.
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
