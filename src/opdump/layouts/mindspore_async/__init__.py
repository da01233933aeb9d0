"""MindSpore's asynchronous dump (`dump_mode` 0 with `e2e_dump_settings` off): files of protobuf, as a device writes them."""
