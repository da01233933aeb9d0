"""`npu_bridge.estimator`."""
