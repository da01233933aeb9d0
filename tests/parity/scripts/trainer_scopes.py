"""Dumps trainings by the trainers of other packages and prints, as JSON, their networks and the iterations of each graph."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

import opdump
from tests.parity import torchvision_schemas  # noqa: F401  # programs import torchvision
from tests.parity.programs import trainers

warnings.simplefilter("ignore")


def told_of(name: str, place: str) -> dict[str, Any]:
    torch.manual_seed(0)
    with opdump.capture(path=place, saved_data="statistic", iteration="all"):
        getattr(trainers, name)()
    catalog = opdump.open(place)
    ops = [execution.op for execution in catalog.executions()]
    inside = [op for op in ops if op.op_name.startswith("Default/network")]
    graphs = sorted({op.graph_id for op in ops})
    scopes = {"/".join(op.op_name.removeprefix("Gradients/").split("/")[:2]) for op in ops if op.op_name.count("/") > 1}
    return {
        "networks": sorted(scope for scope in scopes if "/network" in scope),
        "steps": {graph: sorted({op.step for op in inside if op.graph_id == graph}) for graph in graphs},
        "optimizer": sorted({op.step for op in ops if "/optimizer-" in op.op_name}),
    }


print(json.dumps({name: told_of(name, f"{sys.argv[1]}/{name}") for name in sys.argv[2:]}))
