"""`data_dump.json`: the dialect of MindSpore."""
