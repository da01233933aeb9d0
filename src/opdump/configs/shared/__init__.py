"""What the dialects have in common: files, keys, values and their errors."""
