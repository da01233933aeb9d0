"""Converts models of scikit-learn and LightGBM to ONNX, runs each plain and recorded, and prints the results as JSON.

Most of them compute distances in a Scan whose body has initialisers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from lightgbm import LGBMRegressor
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from sklearn.ensemble import GradientBoostingRegressor, IsolationForest, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

from tests.onnx.recording import Recording, plain_run

warnings.simplefilter("ignore")
NUMBERS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
TARGETS, CLASSES = NUMBERS[:, 0] * 2, (NUMBERS[:, 0] > 0).astype(int)
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gaussian process": (GaussianProcessRegressor(RBF()), TARGETS, {}),
    "gaussian process with deviations": (GaussianProcessRegressor(RBF()), TARGETS, {"return_std": True}),
    "gaussian process of products": (GaussianProcessRegressor(DotProduct(), alpha=0.1), TARGETS, {}),
    "nearest neighbours": (KNeighborsRegressor(3), TARGETS, {}),
    "nearest neighbours by distance": (KNeighborsRegressor(3, weights="distance"), TARGETS, {}),
    "nearest neighbours of classes": (KNeighborsClassifier(3), CLASSES, {"zipmap": False}),
    "forest": (RandomForestClassifier(3, random_state=0), CLASSES, {"zipmap": False}),
    "boosted trees": (GradientBoostingRegressor(n_estimators=3), TARGETS, {}),
    "isolation forest": (IsolationForest(n_estimators=3, random_state=0), None, {}),
    "support vectors": (SVC(probability=True), CLASSES, {"zipmap": False}),
    "mixture": (GaussianMixture(2, random_state=0), None, {}),
    "clusters": (KMeans(2, n_init=1, random_state=0), None, {}),
    "perceptron": (MLPClassifier((4,), max_iter=5), CLASSES, {"zipmap": False}),
    "pipeline": (make_pipeline(StandardScaler(), PolynomialFeatures(), KNeighborsRegressor(2)), TARGETS, {}),
}


def converted() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, (model, targets, options) in MODELS.items():
        model.fit(NUMBERS, targets)
        # Isolation forests need a version of the second domain that both tools support.
        opset = {"": 18, "ai.onnx.ml": 3}
        yield (
            name,
            to_onnx(model, NUMBERS[:1], options={id(model): options} if options else None, target_opset=opset),
            {},
        )
    trees = LGBMRegressor(n_estimators=3, min_child_samples=2, verbose=-1).fit(NUMBERS, TARGETS)
    made = convert_lightgbm(trees, initial_types=[("X", FloatTensorType([None, 3]))], target_opset=15)
    yield "lightgbm", onnx_bytes(made), {}


def onnx_bytes(model: Any) -> bytes:
    content: bytes = model.SerializeToString()
    return content


def bits(answer: list[Any]) -> list[str]:
    return [
        repr((each.dtype, each.shape, each.tobytes())) if isinstance(each, np.ndarray) else repr(each)
        for each in answer
    ]


told = {}
for name, model, _ in converted():
    content = model if isinstance(model, bytes) else onnx_bytes(model)
    for level in ("disable", "all"):
        plain = plain_run(content, {"X": NUMBERS[:5]}, level="DISABLE_ALL" if level == "disable" else "ENABLE_ALL")
        recording = Recording(content, level=level)
        told[f"{name}, {level}"] = {
            "same": bits(recording.run({"X": NUMBERS[:5]})) == bits(plain),
            "captured": len(recording.captured),
            "opaque": sorted({record.dtype for record in recording.writer.tensors if record.skip == "opaque"}),
            "notes": recording.session.notes,
        }
print(json.dumps(told))
