"""What `Following` needs from the recorder of the operators that it does not follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from opdump.adapters.torch.collectives import Collectives
from opdump.adapters.torch.naming import Naming
from opdump.adapters.torch.provenance import Provenance
from opdump.adapters.torch.running import Running
from opdump.adapters.torch.schemas import Found, OperatorSchema
from opdump.adapters.torch.storages import Storages
from opdump.adapters.torch.training import TrainingObserver
from opdump.recorder import Recorder


class RecordsOperators(Protocol):
    """What a `CaptureMode` is to `Following`."""

    follow: Callable[..., Any] | None

    @property
    def recorder(self) -> Recorder: ...
    @property
    def observer(self) -> TrainingObserver: ...
    @property
    def naming(self) -> Naming: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def storages(self) -> Storages: ...
    @property
    def collectives(self) -> Collectives: ...
    def schema(self, func: Any) -> OperatorSchema: ...
    def fails(self, running: Running, schema: OperatorSchema, error: BaseException) -> object: ...
    def end(
        self,
        running: Running,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        returned: Callable[[], list[Found]],
        result: Any,
    ) -> object: ...
