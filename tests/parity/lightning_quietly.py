"""A Lightning Trainer that writes nothing and runs on the CPU."""

from __future__ import annotations

import logging
from typing import Any

import lightning


def quiet_trainer(**settings: Any) -> Any:
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    off = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
    return lightning.Trainer(accelerator="cpu", devices=1, **{**off, **settings})
