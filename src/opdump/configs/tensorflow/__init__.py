"""`DumpConfig`, `NPURunConfig` and the options of a session: the dialect of the TensorFlow adapter."""
