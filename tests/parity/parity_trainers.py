"""Trainings by Lightning, Fabric, accelerate and transformers: one network each, and validation before training has separate iterations."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.parity import peers

NETWORKS = {
    "lightning_automatic": "Classifier",
    "lightning_by_hand": "Adversaries",
    "lightning_bfloat16": "Recurrent",
    "fabric": "_FabricModule",
    "accelerate_loop": "Sequential",
    "transformers_trainer": "DistilBertForSequenceClassification",
}


@cache
def _told() -> dict[str, Any]:
    with TemporaryDirectory() as place:
        script: list[str | Path] = [peers.SCRIPTS / "trainer_scopes.py", place, *NETWORKS]
        out = peers.run(peers.PROGRAMS, script, {"PYTHONPATH": str(peers.ROOT), "HF_HUB_OFFLINE": "1"})
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


@pytest.mark.parametrize("name", NETWORKS)
def test_a_trainer_and_its_model_are_one_network(name: str) -> None:
    assert _told()[name]["networks"] == [f"Default/network-{NETWORKS[name]}"]


@pytest.mark.parametrize("name", ["lightning_automatic", "transformers_trainer"])
def test_validation_before_training_has_iterations_of_its_own(name: str) -> None:
    validation, training = (_told()[name]["steps"][graph] for graph in "01")
    before = [step for step in validation if step < training[0]]
    assert before == list(range(training[0]))
    assert before
    assert _told()[name]["optimizer"][0] == training[0]
