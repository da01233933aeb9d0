"""A step of toyflow that goes wrong: `opdump run --framework toyflow --path dump train.py`."""

import numpy as np
import toyflow

weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
for step in range(3):
    hidden = toyflow.relu(toyflow.matmul(np.ones((2, 4), np.float32), weights))
    toyflow.multiply(hidden, np.full_like(hidden, 1e38 * 10.0**step))
    toyflow.add_(weights, np.full_like(weights, 0.5))
    toyflow.end_step()
print("done", float(weights.sum()))
