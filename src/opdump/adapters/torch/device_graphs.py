"""Tracks device graphs (CUDA graphs) that the program records and replays.

While a graph is recorded, nothing runs. Any read, allocation or wait breaks the graph or becomes part of it. So the recorded region is
one operator without data, `device_graph`. A replay runs without the framework; replays are counted and reported at the end.

By default (`capture_error_mode="global"`), device calls of other threads break the graph as well, and so do calls of the recording
thread on a stream that is not recorded. So checking the current stream is not enough to find out whether a graph is being recorded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from opdump.adapters.replacements import ReplacingPart
from opdump.adapters.torch.device import Accelerators
from opdump.adapters.torch.mode_stack import recording_here
from opdump.adapters.torch.naming import Naming
from opdump.adapters.torch.schemas import OperatorSchema
from opdump.recorder import Recorder
from opdump.records import SkipReason

_REASON: Final[SkipReason] = "device graph"
_REGION: Final = OperatorSchema("device_graph", "device_graph", "", (), (), ())


class _Recorded(NamedTuple):
    """A graph that is being recorded."""

    thread: int
    is_global: bool
    """Whether device calls of other threads break it."""


class DeviceGraphs(ReplacingPart):
    """Tracks the graphs of the current accelerator from `attach` to `detach`."""

    def __init__(self, recorder: Recorder, naming: Naming, accelerators: Accelerators) -> None:
        super().__init__()
        self._recorder = recorder
        self._naming = naming
        self._accelerator = accelerators.capturing()
        self._recorded: dict[int, _Recorded] = {}
        self._open: set[Hashable] = set()
        """The open regions that already have an operator in the dump."""
        self._lock = threading.Lock()
        self._regions = 0
        self._operators = 0
        self._beside = 0
        """Number of operators left out because they ran in other threads while a graph was recorded with the mode "global"."""
        self._replays = 0

    def attach(self) -> None:
        for graph in () if self._accelerator is None else self._accelerator.graphs:
            self.replace(graph, "replay", self._counted(graph.replay))
            if hasattr(graph, "capture_begin"):
                self.replace(graph, "capture_begin", self._begun(graph.capture_begin))
                self.replace(graph, "capture_end", self._ended(graph.capture_end))

    @property
    def watch(self) -> Callable[[], bool] | None:
        """A function that returns whether the next operator is recorded into a graph; None if no device has graphs."""
        return None if self._accelerator is None else self.is_recording

    def is_recording(self) -> bool:
        """Whether this thread must not call the device now."""
        return self._region() is not None

    def _region(self) -> Hashable:
        """The region that this thread is in: a key of `_recorded`, or ("stream", thread) for a graph not seen to begin; None outside."""
        me = threading.get_ident()
        for graph, recorded in list(self._recorded.items()) if self._recorded else ():
            if recorded.is_global or recorded.thread == me:
                return graph
        stream = ("stream", me)
        if self._accelerator is not None and self._accelerator.is_capturing():
            return stream
        self._open.discard(stream)
        return None

    def passes(self) -> None:
        """Count an operator in a graph. The first one of a region names the region. One that runs in another thread meanwhile is left out."""
        region = self._region()
        accelerator = self._accelerator
        with self._lock:
            recorded = self._recorded.get(region) if isinstance(region, int) else None
            is_beside = recorded is not None and recorded.thread != threading.get_ident()
            if is_beside and accelerator is not None and not accelerator.is_capturing():
                self._beside += 1
                self._recorder.count_op(_REASON)
                return
            self._operators += 1
            if region in self._open:
                return
            self._open.add(region)
            self._regions += 1
            op, _, _ = self._naming.identify(_REGION, (), {})
            assert op is not None, "only operators without a kernel have no record"
            self._recorder.skip_op(replace(op, skip=_REASON))

    def warnings(self) -> list[str]:
        if not self._regions and not self._replays and not self._beside:
            return []
        beside = (
            f". {self._beside:,} operators of other threads that ran while a graph was recorded are missing, because reading their "
            'tensors would have broken the graph (capture_error_mode="thread_local" allows it)'
            if self._beside
            else ""
        )
        text = (
            f"{self._operators:,} operators were recorded into device graphs ({self._regions:,} regions), and graphs were replayed "
            f"{self._replays:,} times; operators of replays are not in the dump. To dump them, run the program without graphs "
            f"(no torch.cuda.graph, no make_graphed_callables){beside}"
        )
        return [text]

    def _begun(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def begun(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = begin(graph, *args, **kwargs)
            given = kwargs.get("capture_error_mode", args[1] if len(args) > 1 else "global")
            self._recorded[id(graph)] = _Recorded(threading.get_ident(), given == "global")
            return result

        return begun

    def _ended(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def ended(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(graph, *args, **kwargs)
            finally:
                self._recorded.pop(id(graph), None)
                self._open.discard(id(graph))

        return ended

    def _counted(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(replay)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = replay(*args, **kwargs)
            if recording_here():
                self._replays += 1
                self._recorder.count_op(_REASON)
            return result

        return counted
