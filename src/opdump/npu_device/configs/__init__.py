"""`npu_device.configs`: options of the device."""
