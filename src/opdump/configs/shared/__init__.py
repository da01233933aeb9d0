"""The common parts of the dialects: files, keys, values and their errors."""
