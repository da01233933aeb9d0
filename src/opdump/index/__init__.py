"""The index of a rank: operators, tensors and statistics of every run, in SQLite."""
