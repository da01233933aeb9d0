"""Many torchmetrics metrics over batches: states are summed, concatenated and computed."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics


def program() -> Any:
    classes = {"task": "multiclass", "num_classes": 4}
    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(**classes),
            "f1": torchmetrics.F1Score(average="macro", **classes),
            "area": torchmetrics.AUROC(**classes),
            "confusion": torchmetrics.ConfusionMatrix(**classes),
            "calibration": torchmetrics.CalibrationError(**classes),
        }
    )
    spread = torchmetrics.MeanMetric()
    others = [torchmetrics.MeanSquaredError(), torchmetrics.PearsonCorrCoef(), torchmetrics.R2Score()]
    for _ in range(3):
        scores, labels = torch.randn(10, 4).softmax(-1), torch.randint(4, (10,))
        metrics.update(scores, labels)
        spread.update(scores)
        for metric in others:
            metric(scores[:, 0], scores[:, 1] + 0.1 * torch.randn(10))
    return metrics.compute(), spread.compute(), [metric.compute() for metric in others]
