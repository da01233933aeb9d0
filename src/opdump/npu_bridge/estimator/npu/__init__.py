"""`npu_bridge.estimator.npu`: configurations and the estimator."""
